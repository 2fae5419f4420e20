"""The tensors of a batch, and the terms of the loss by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx
from torch.distributions import Categorical, kl_divergence

from rlnb.selfplay.acting import split_by_length
from rlnb.selfplay.batch import Batch, Logprobs, estimate_kl, kl_terms, make_batch
from rlnb.selfplay.rollouts import Choice, Turn
from rlnb.spiral.params import SpiralSelfPlayParams
from rlnb.spiral.training import spiral_loss


def turn(prompt, completion, *, among=()) -> Turn:
    """Return a turn; among: the allowed tokens of each token, () for a forced one."""
    choices = tuple(
        Choice(len(prompt) + k, completion[k], allowed) for k, allowed in enumerate(among) if allowed
    )
    return Turn(tuple(prompt), tuple(completion), choices, (), 0, (0,), 0)


def numbered_batch(some) -> Batch:
    numbers = np.arange(len(some), dtype=float)
    return make_batch(some, numbers, -numbers)


def test_a_sequence_ends_before_its_last_choice_and_is_read_one_place_before_each():
    batch = numbered_batch([turn([7, 8, 9], [1, 2, 3], among=[(1, 4), (), (3, 5, 6)])])
    assert batch.ids_us.tolist() == [[7, 8, 9, 1, 2]]
    assert batch.positions_ut.tolist() == [[2, 4]]
    assert batch.allowed_utw.tolist() == [[[1, 4, -1], [3, 5, 6]]]
    assert batch.tokens_bt.tolist() == [[0, 0]]
    assert (batch.sequences_b.tolist(), batch.prompt_ends_u.tolist()) == ([0], [2])


def test_equal_sequences_are_passed_once_and_forced_turns_have_a_value_only():
    here, there = turn([7, 8], [1], among=[(1, 4)]), turn([7, 9], [4], among=[(1, 4)])
    some = [here, there, turn([7, 8], [4], among=[(1, 4)]), here]
    batch = numbered_batch(some)
    assert batch.ids_us.tolist() == [[7, 8], [7, 9]]
    assert batch.tokens_bt.tolist() == [[0], [1], [1], [0]]
    assert batch.sequences_b.tolist() == [0, 1, 0, 0]
    assert batch.weights_b.tolist() == [1.0] * 4
    other_answers = numbered_batch([here, turn([7, 8], [4], among=[(2, 3, 4)])])
    assert other_answers.allowed_utw.tolist() == [[[1, 4, -1]], [[2, 3, 4]]]
    forced = numbered_batch([turn([7, 8], [1], among=[()]), there])
    assert (forced.mask_bt.tolist(), forced.prompt_ends_u.tolist()) == ([[False], [True]], [1, 1])


def test_a_part_holds_its_sequences_with_all_their_turns():
    here, there = turn([7, 8, 9], [1], among=[(1, 4)]), turn([7, 9], [4], among=[(1, 4)])
    part = numbered_batch([here, there, here, there]).select([1])
    assert part.ids_us.tolist() == [[7, 9]]
    assert (part.sequences_b.tolist(), part.tokens_bt.tolist()) == ([0, 0], [[1], [1]])
    assert (part.advantages_b.tolist(), part.indices_b.tolist()) == ([1.0, 3.0], [1, 3])
    assert not list(part.select([]).micro_batches(max_tokens=9))


def test_constrained_and_free_turns_are_refused_together():
    free = Turn((7,), (3,), (Choice(1, 3),), (), 0, (0,), 0)
    with pytest.raises(ValueError, match="some turns are constrained and some are free"):
        numbered_batch([free, turn([7], [1], among=[(1, 2)])])


def test_mini_batches_share_out_every_sequence_at_random_by_their_seed():
    batch = numbered_batch([turn([state], [1], among=[(1, 4)]) for state in range(20)])
    first, again, other = (batch.mini_batches(3, generator=np.random.default_rng(seed)) for seed in (1, 1, 2))
    first, again, other = ([part.indices_u.tolist() for part in parts] for parts in (first, again, other))
    assert first == again != other
    assert sorted(row for rows in first for row in rows) == list(range(20))
    assert sorted(map(len, first)) == [6, 7, 7]


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 60))
def test_splits_by_length_hold_every_row_once_and_no_more_tokens_than_allowed(lengths, max_tokens):
    batches = list(split_by_length(lengths, max_tokens=max_tokens))
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) * max(lengths[row] for row in rows) <= max_tokens or len(rows) == 1


def logits(seed: int) -> torch.Tensor:
    return torch.randn(3, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_surrogate_by_hand():
    log_ratios = torch.tensor([1.0, 1.5, 0.5, 1.5, 0.5]).log()[:, None].requires_grad_()
    some = [turn([7, state], [1], among=[(1, 4)]) for state in range(5)]
    batch = make_batch(some, np.array([2.0, 1.0, 1.0, -1.0, -1.0]), None)
    zeros = torch.zeros(5, 1)
    now, old = (Logprobs(logprobs, zeros, zeros[:, 0], None) for logprobs in (log_ratios, zeros))
    params = SpiralSelfPlayParams(game={"acting": "constrained"}, training={"clip": 0.2})
    loss, figures = spiral_loss(now, old, None, batch, params=params, step=0)
    assert loss.item() == approx(-2.0 - 1.2 - 0.5 + 1.5 + 0.8)
    loss.backward()
    # -A r; 0 where it is clipped: where it has gone far in the direction of its advantage.
    assert log_ratios.grad[:, 0].tolist() == approx([-2.0, 0.0, -0.5, 1.5, 0.0])
    assert figures["clipped"] == 2


def test_the_estimate_of_kl_is_unbiased():
    policy, other = logits(0)[0].log_softmax(-1), logits(1)[0].log_softmax(-1)
    expected = float(kl_divergence(Categorical(logits=policy), Categorical(logits=other)))
    assert float((policy.exp() * estimate_kl(policy, other)).sum()) == approx(expected)
    assert expected > 0.1


def test_the_loss_of_free_tokens_descends_the_divergence_of_the_policy_from_the_other():
    """Over all tokens, each as often as the policy takes it, the gradient is that of KL(policy || other)."""
    scores = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([1.0, 0.2, -0.5, 0.0], dtype=torch.float64).log_softmax(-1)
    policy = scores.log_softmax(-1)
    zeros = torch.zeros(4, 1)
    now, then = (Logprobs(tokens[:, None], zeros, zeros[:, 0], None) for tokens in (policy, other))
    some = [Turn((7,), (token,), (Choice(1, token),), (), 0, (0,), 0) for token in range(4)]
    loss_bt, _ = kl_terms(now, then, numbered_batch(some))
    loss = (loss_bt[:, 0] * policy.detach().exp()).sum()
    (gradient,) = torch.autograd.grad(loss, scores, retain_graph=True)
    (expected,) = torch.autograd.grad((policy.exp() * (policy - other)).sum(), scores)
    assert gradient.tolist() == approx(expected.tolist())
