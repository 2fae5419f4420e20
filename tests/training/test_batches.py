"""Turns as arrays: what is read once counts as often as it was played, and in the same places."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pytest import approx
from tiny_actor import assert_same_gradients, played, tiny_actor

from rlnb.policy.actor_critic import ActorCritic
from rlnb.training.batches import Batch, make_batch
from rlnb.training.losses import Readings, read, read_all
from rlnb.trajectories import Choice, Turn, turns_of

# Games whose ids have one token, two (one beginning another), and answers of three free tokens.
KINDS = {"kuhn_poker": False, "nim": False, "tic_tac_toe": True}


@pytest.fixture(scope="module")
def actor(tmp_path_factory: pytest.TempPathFactory) -> ActorCritic:
    return tiny_actor(tmp_path_factory.mktemp("models"), has_value=True)


@pytest.fixture(scope="module")
def turns(actor: ActorCritic) -> dict[str, list[Turn]]:
    games = {name: played(actor, name, 12, free=is_free) for name, is_free in KINDS.items()}
    return {
        name: turns_of([one for game in some for one in game.trajectories]) for name, some in games.items()
    }


def turn(prompt, completion, *, among=()) -> Turn:
    """By hand; among: for each token what it was chosen from, () for a token without alternative."""
    choices = tuple(
        Choice(len(prompt) + k, completion[k], allowed) for k, allowed in enumerate(among) if allowed
    )
    return Turn(tuple(prompt), tuple(completion), choices, (), 0, (0,), 0)


def batch_of(some, **options) -> Batch:
    numbers = np.arange(len(some), dtype=float)
    return make_batch(some, numbers, -numbers, **options)


def test_a_row_ends_before_its_last_choice_and_points_are_read_one_place_before_each():
    first = turn([7, 8, 9], [1, 2, 3], among=[(1, 4), (), (3, 5, 6)])
    batch = batch_of([first])
    assert batch.rows == ((7, 8, 9, 1, 2),)
    assert batch.point_position.tolist() == [2, 4]
    assert batch.allowed.tolist() == [[1, 4, -1], [3, 5, 6]]
    assert batch.token_column.tolist() == [0, 0]
    assert (batch.turn_row.tolist(), batch.turn_position.tolist()) == ([0], [2])


def test_equal_places_are_read_once_for_all_turns_that_were_there():
    here, there = turn([7, 8], [1], among=[(1, 4)]), turn([7, 9], [4], among=[(1, 4)])
    some = [here, there, turn([7, 8], [4], among=[(1, 4)]), here]
    batch = batch_of(some)
    assert batch.rows == ((7, 8), (7, 9))
    assert batch.token_point.tolist() == [0, 1, 0, 0]
    assert batch.token_column.tolist() == [0, 1, 1, 0]
    assert batch.turn_row.tolist() == [0, 1, 0, 0]
    assert len(batch_of(some, memo=False).rows) == 4


def test_equal_prompts_with_other_legal_answers_are_two_places():
    batch = batch_of([turn([7, 8], [4], among=[(1, 4)]), turn([7, 8], [4], among=[(2, 3, 4)])])
    chosen = [
        batch.allowed[point][column]
        for point, column in zip(batch.token_point, batch.token_column, strict=True)
    ]
    assert chosen == [4, 4]
    assert batch.allowed.tolist() == [[1, 4, -1], [2, 3, 4]]


def test_a_turn_without_a_choice_has_a_value_and_no_token():
    batch = batch_of([turn([7, 8], [1], among=[()]), turn([7, 9], [4], among=[(1, 4)])])
    assert batch.rows == ((7, 8), (7, 9))
    assert batch.token_turn.tolist() == [1]
    assert batch.turn_position.tolist() == [1, 1]


def test_constrained_and_free_turns_are_refused_together():
    free = Turn((7,), (3,), (Choice(1, 3),), (), 0, (0,), 0)
    with pytest.raises(ValueError) as error:
        batch_of([free, turn([7], [1], among=[(1, 2)])])
    assert str(error.value) == "some turns are constrained and some are free; make a batch of each"


def test_turns_that_were_all_forced_are_read_for_their_values_alone(actor):
    some = [turn([70, 80], [21], among=[()]), turn([70, 90], [21], among=[()])]
    found = read_all(actor, batch_of(some), temperature=1.0, max_tokens=100)
    assert len(found.token_logprobs) == 0
    assert len(set(found.values.tolist())) == 2


@pytest.mark.parametrize("name", KINDS)
def test_readings_are_those_of_each_turn_alone(actor, turns, name):
    """A plain pass of the language model over each turn, without batches, memo or padding."""
    found = read_all(actor, batch_of(turns[name]), temperature=0.8, max_tokens=512)
    expected = []
    for one in turns[name]:
        ids = torch.tensor([one.prompt_ids + one.completion_ids])
        with torch.no_grad():
            logits = actor.policy.model(input_ids=ids).logits[0] / 0.8
        for choice in one.choices:
            row = logits[choice.position - 1]
            among = list(choice.allowed) or range(len(row))
            expected.append(float(row[choice.token] - row[list(among)].logsumexp(-1)))
    assert found.token_logprobs.numpy() == approx(np.array(expected), abs=2e-5)


def summed(actor, batch: Batch, *, max_tokens: int) -> tuple[float, list[np.ndarray]]:
    """A loss that takes in all that is read, by the number of the turn, and its gradients."""
    parameters = list(actor.parameters())
    for parameter in parameters:
        parameter.grad = None
    total = 0.0
    for part in batch.passes(range(len(batch.rows)), max_tokens=max_tokens):
        now = read(actor, batch, part, temperature=1.0)
        weights = torch.as_tensor(batch.advantages[batch.token_turn[part.tokens]])
        of_point = torch.zeros(len(part.points)).index_add(0, torch.as_tensor(part.token_point), weights)
        values = now.values * torch.as_tensor(batch.targets[part.turns])
        loss = (now.token_logprobs * weights).sum() + (now.entropies * of_point).sum() + values.sum()
        (loss / len(batch.turn_row) ** 2).backward()
        total += float(loss.detach()) / len(batch.turn_row) ** 2
    gradients = [np.zeros(1) if one.grad is None else one.grad.numpy().copy() for one in parameters]
    return total, gradients


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("max_tokens", [1, 200])
def test_the_memo_and_the_size_of_a_pass_change_neither_loss_nor_gradient(actor, turns, name, max_tokens):
    loss, gradients = summed(actor, batch_of(turns[name], memo=False), max_tokens=10**6)
    found, others = summed(actor, batch_of(turns[name]), max_tokens=max_tokens)
    assert found == approx(loss, abs=1e-5)
    assert_same_gradients(others, gradients)


def test_the_memo_spares_rows_where_places_are_equal(turns):
    assert len(batch_of(turns["kuhn_poker"]).rows) < len(turns["kuhn_poker"])
    assert max(len(one.choices) for one in turns["nim"]) >= 2
    assert {len(one.choices) for one in turns["tic_tac_toe"]} == {3}


def test_parts_hold_every_row_once_and_number_what_belongs_to_them_within(turns):
    batch = batch_of(turns["nim"])
    parts = list(batch.passes(range(len(batch.rows)), max_tokens=60))
    assert len(parts) > 3
    for name, count in (("points", len(batch.point_row)), ("turns", len(batch.turn_row))):
        assert sorted(np.concatenate([getattr(part, name) for part in parts])) == list(range(count))
    for part in parts:
        longest = max(map(len, part.rows))
        assert longest * len(part.rows) <= 60 or len(part.rows) == 1
        assert [part.rows[row] for row in part.turn_row] == [
            batch.rows[row] for row in batch.turn_row[part.turns]
        ]
        assert part.points[part.token_point].tolist() == batch.token_point[part.tokens].tolist()


def test_readings_of_a_part_are_those_of_the_whole_batch_there(turns):
    batch = batch_of(turns["nim"])
    whole = Readings(
        torch.arange(len(batch.token_point)), torch.arange(len(batch.point_row)),
        torch.arange(len(batch.point_row))[:, None], torch.arange(len(batch.turn_row)),
    )  # fmt: skip
    part = batch.part([2, 5])
    found = whole.of(part)
    assert found.token_logprobs.tolist() == part.tokens.tolist()
    assert found.logprobs[:, 0].tolist() == found.entropies.tolist() == part.points.tolist()
    assert found.values.tolist() == part.turns.tolist()


def test_mini_batches_share_out_every_row_once_at_random_and_by_their_seed(turns):
    batch = batch_of(turns["nim"])
    first, again, other = (batch.mini_batches(3, generator=np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(row for rows in first for row in rows) == list(range(len(batch.rows)))
    assert max(map(len, first)) - min(map(len, first)) <= 1


def test_weights_are_1_unless_they_are_given(turns):
    some = [replace(one) for one in turns["kuhn_poker"]]
    assert set(batch_of(some).weights.tolist()) == {1.0}
    assert batch_of(some, weights=np.zeros(len(some))).weights.tolist() == [0.0] * len(some)
