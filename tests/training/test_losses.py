"""The terms of the loss by hand, and against torch's own distributions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx
from torch.distributions import Categorical, kl_divergence

from rlnb.policy.actor_critic import allowed_logprobs, entropies_of, padded, passes
from rlnb.training.losses import Readings, divergence, k3, surrogate

ALLOWED = ((0, 3), (1, 2, 4), (2,))
NUMBERS = torch.Generator()


def logits(seed: int) -> torch.Tensor:
    return torch.randn(3, 6, generator=NUMBERS.manual_seed(seed), dtype=torch.float64)


def test_the_surrogate_by_hand():
    ratios = torch.tensor([1.0, 1.5, 0.5, 1.5, 0.5])
    advantages = torch.tensor([2.0, 1.0, 1.0, -1.0, -1.0])
    each, is_clipped = surrogate(ratios.log(), advantages, clip=0.2)
    # Clipped where it has gone far in the direction of its advantage, never on its way back.
    assert each.tolist() == approx([-2.0, -1.2, -0.5, 1.5, 0.8])
    assert is_clipped.tolist() == [False, True, False, False, True]


def test_a_clipped_ratio_moves_nothing():
    log_ratios = torch.tensor([1.5, 0.5, 1.5]).log().requires_grad_()
    surrogate(log_ratios, torch.tensor([1.0, 1.0, -1.0]), clip=0.2)[0].sum().backward()
    assert log_ratios.grad.tolist() == approx([0.0, -0.5, 1.5])  # -A r where it is not clipped


@given(st.lists(st.tuples(st.floats(-20, 0), st.floats(-20, 0)), min_size=1))
def test_k3_is_never_negative_and_0_for_equal_policies(pairs):
    own, other = torch.tensor(pairs, dtype=torch.float64).T
    assert (k3(own, other) >= -1e-12).all()  # rounding aside
    assert k3(own, own).tolist() == [0.0] * len(pairs)


def test_k3_is_without_bias():
    own, other = logits(0)[0].log_softmax(-1), logits(1)[0].log_softmax(-1)
    expected = float(kl_divergence(Categorical(logits=own), Categorical(logits=other)))
    assert float((own.exp() * k3(own, other)).sum()) == approx(expected)
    assert expected > 0.1


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probabilities_are_those_of_a_softmax_over_the_allowed_tokens(temperature):
    found, mass = allowed_logprobs(logits(0), torch.tensor(padded(ALLOWED)), temperature=temperature)
    for row, allowed in enumerate(ALLOWED):
        own = logits(0)[row]
        expected = Categorical(logits=own[list(allowed)] / temperature).logits
        assert found[row, : len(allowed)].tolist() == approx(expected.tolist())
        assert found[row, len(allowed) :].tolist() == [-np.inf] * (3 - len(allowed))
        assert float(mass[row]) == approx(float(own.softmax(-1)[list(allowed)].sum()))


def test_entropies_are_exact_and_0_without_a_choice():
    found = entropies_of(allowed_logprobs(logits(0), torch.tensor(padded(ALLOWED)), temperature=1.0)[0])
    expected = [Categorical(logits=logits(0)[row, list(one)]).entropy() for row, one in enumerate(ALLOWED)]
    assert found.tolist() == approx([float(one) for one in expected], abs=1e-12)
    assert found[2] == 0


def readings(seed: int, scores: torch.Tensor | None = None) -> Readings:
    scores = logits(seed) if scores is None else scores
    logprobs, _ = allowed_logprobs(scores, torch.tensor(padded(ALLOWED)), temperature=1.0)
    return Readings(logprobs[[0, 1, 1], [0, 0, 2]], entropies_of(logprobs), logprobs, torch.zeros(0))


def test_gradients_of_entropy_and_divergence_are_those_of_finite_differences():
    weights = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)

    def entropy(scores):
        return readings(0, scores).entropies @ weights

    def held(scores):
        return divergence(readings(0, scores), readings(1), torch.ones(3), weights)

    for function in (entropy, held):
        assert torch.autograd.gradcheck(function, (logits(0).requires_grad_(),))


def test_the_divergence_is_exact_over_the_allowed_tokens():
    now, other = readings(0), readings(1)
    found = divergence(now, other, torch.ones(3), torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64))
    first, second = (
        kl_divergence(
            Categorical(logits=logits(0)[row, list(ALLOWED[row])]),
            Categorical(logits=logits(1)[row, list(ALLOWED[row])]),
        )
        for row in (0, 1)
    )
    assert [float(one) for one in found] == approx([float(first + 2 * second)] * 2)  # the third: no choice, 0
    none = divergence(now, now, torch.ones(3), torch.ones(3, dtype=torch.float64))
    assert [float(one) for one in none] == [0, 0]


def test_the_divergence_of_free_tokens_is_estimated_from_them():
    now, other = (one._replace(logprobs=None) for one in (readings(0), readings(1)))
    weights = torch.tensor([1.0, 0.0, 3.0])
    loss, figure = divergence(now, other, weights, torch.zeros(3))
    assert float(figure) == approx(float((k3(now.token_logprobs, other.token_logprobs) * weights).sum()))
    gaps = now.token_logprobs - other.token_logprobs
    assert float(loss) == approx(float((0.5 * gaps**2 * weights).sum()))


def test_the_loss_of_free_tokens_descends_the_divergence_of_the_policy_from_the_other():
    """Over all tokens, each as often as the policy takes it, the gradient is that of KL(policy || other)."""
    own = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([1.0, 0.2, -0.5, 0.0], dtype=torch.float64).log_softmax(-1)
    logprobs = own.log_softmax(-1)
    now = Readings(logprobs, torch.zeros(4), None, torch.zeros(1))
    then = Readings(other, torch.zeros(4), None, torch.zeros(1))
    loss, _ = divergence(now, then, logprobs.detach().exp(), torch.zeros(4))
    (found,) = torch.autograd.grad(loss, own, retain_graph=True)
    (expected,) = torch.autograd.grad((logprobs.exp() * (logprobs - other)).sum(), own)
    assert found.tolist() == approx(expected.tolist())


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 60))
def test_passes_hold_every_row_once_and_no_more_tokens_than_allowed(lengths, max_tokens):
    found = list(passes(lengths, max_tokens=max_tokens))
    assert sorted(row for rows in found for row in rows) == list(range(len(lengths)))
    for rows in found:
        assert len(rows) * max(lengths[row] for row in rows) <= max_tokens or len(rows) == 1
