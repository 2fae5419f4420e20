"""Advantages, worked by hand in the head and by their identities, then on games that were really played."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx
from scripted_play import X_WINS, line, one_game

from rlnb.advantages.gae import gae
from rlnb.advantages.leave_one_out import leave_one_out
from rlnb.advantages.role import role_advantages
from rlnb.ppo.training import normalize_advantages
from rlnb.selfplay.rollouts import FinishedGame, collect_trajectories
from rlnb.spiral.training import ESTIMATORS, GAE_LAMBDA

returns_and_roles = st.lists(
    st.tuples(st.floats(-2, 2).map(lambda value: round(value, 3)), st.integers(0, 1)), min_size=1, max_size=12
)


def test_each_role_is_measured_against_its_own_mean():
    advantages, baselines = role_advantages(
        np.array([1.0, -1.0, -1.0, 1.0]), np.array([0, 1, 0, 1]), np.array([0.5, -0.5]), decay=0.9
    )
    assert advantages.tolist() == [0.5, -0.5, -1.5, 1.5]  # 1-.5, -1+.5, -1-.5, 1+.5
    assert baselines.tolist() == approx([0.405, -0.405])  # .81*.5 + .19*mean(1, -1)


@given(returns_and_roles, st.integers(1, 11))
def test_ranks_that_know_all_games_move_the_means_alike_and_credit_their_own_as_one_rank_does(pairs, cut):
    returns, roles = map(list, zip(*pairs, strict=True))
    whole, moved = role_advantages(returns, roles, [0.3, -0.7], decay=0.9)
    parts = [
        role_advantages(returns[share], roles[share], [0.3, -0.7], decay=0.9)[0]
        for share in (slice(None, cut), slice(cut, None))
    ]
    assert np.concatenate(parts).tolist() == whole.tolist()
    # The same time scale as one trajectory after the other: what is left of the old mean is decay ** n.
    for role, start in enumerate([0.3, -0.7]):
        earned = [value for value, player in pairs if player == role]
        expected = start * 0.9 ** len(earned) + (1 - 0.9 ** len(earned)) * (
            np.mean(earned) if earned else 0.0
        )
        assert moved[role] == approx(expected)


def test_leave_one_out_compares_with_the_mean_of_the_others_of_the_role():
    computed = leave_one_out([1.0, 0.0, -1.0, 1.0, -1.0], [0, 0, 0, 1, 1])
    assert computed.tolist() == [1.5, 0.0, -1.5, 2.0, -2.0]  # 1-(-.5), 0-0, -1-.5, 1-(-1), -1-1


def test_who_is_alone_in_its_group_has_advantage_0():
    assert leave_one_out([3.0, 1.0, 2.0], [0, 1, 1]).tolist() == [0.0, -1.0, 1.0]


@pytest.mark.parametrize(
    "rewards, values, is_last, lam, expected",
    [
        # gamma .5: delta = 0+.5*2-1, 0+.5*4-2, 1-4 = 0, 0, -3; then -3, -3*.25, -3*.0625
        ([0, 0, 1], [1, 2, 4], [False, False, True], 0.5, [-0.1875, -0.75, -3.0]),
        # nothing flows from one trajectory into the one before: 1-.5, then .5*1-1 and 1-3
        ([1, 0, 1], [0.5, 1, 3], [True, False, True], 1, [0.5, -0.5, -2.0]),
        ([], [], [], 1, []),
    ],
)
def test_advantages_over_turns_by_hand(rewards, values, is_last, lam, expected):
    assert gae(rewards, values, is_last, gamma=0.5, lam=lam).tolist() == expected


turns = st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1), st.booleans()), min_size=1, max_size=12).map(
    lambda rows: [*rows[:-1], (*rows[-1][:2], True)]
)


@given(turns)
def test_at_lambda_and_gamma_1_it_is_the_return_minus_the_value(rows):
    rewards, values, ends = map(np.array, zip(*rows, strict=True))
    left = []
    for reward, is_end in zip(rewards[::-1], ends[::-1], strict=True):
        left.insert(0, reward + (0.0 if is_end else left[0]))
    assert gae(rewards, values, ends, gamma=1.0, lam=1.0) == approx(np.array(left) - values)


def test_normalized_advantages_by_hand():
    assert normalize_advantages([1, 3], [1, 1]).tolist() == [-1.0, 1.0]
    # Weights 3 and 1: mean 1, variance (3 * 1 + 9) / 4 = 3.
    assert normalize_advantages([0, 4], [3, 1]).tolist() == approx([-(3**-0.5), 3**0.5])
    assert normalize_advantages([0, 4, 99], [3, 1, 0]).tolist()[:2] == approx([-(3**-0.5), 3**0.5])


weighted = st.lists(st.tuples(st.floats(-2, 2), st.floats(0.1, 2)), min_size=2, max_size=12)


@given(weighted.filter(lambda pairs: np.std([advantage for advantage, _ in pairs]) > 1e-3))
def test_normalized_advantages_have_weighted_mean_0_and_deviation_1(pairs):
    advantages, weights = zip(*pairs, strict=True)
    computed = normalize_advantages(advantages, weights)
    assert np.average(computed, weights=weights) == approx(0, abs=1e-9)
    assert np.average(computed**2, weights=weights) == approx(1)


def test_equal_advantages_become_0_and_turns_without_weight_stay():
    assert normalize_advantages([0.3, 0.3], [1, 2]).tolist() == approx([0.0, 0.0], abs=1e-12)
    assert normalize_advantages([0.3, 0.5], [0, 0]).tolist() == [0.3, 0.5]
    assert normalize_advantages([], []).tolist() == []


def compute(games, baselines, kind: str) -> tuple[list[float], dict[str, float]]:
    advantages, moved = ESTIMATORS[kind](collect_trajectories(games), baselines)
    return advantages.tolist(), moved


def game() -> FinishedGame:
    """X wins with its fourth move."""
    return one_game(line(X_WINS))


def mirrored() -> FinishedGame:
    """O wins after six moves: X 0, O 3, X 1, O 4, X 8, O 5."""
    return one_game(line((0, 3, 1, 4, 8, 5)))


def valued(played: FinishedGame, values: dict[int, float]) -> FinishedGame:
    """Return the game with the values that a critic gave, by ply."""

    def with_values(turns):
        return tuple(turn._replace(value=values.get(turn.ply, 0.0)) for turn in turns)

    trajectories = (
        replace(trajectory, turns=with_values(trajectory.turns)) for trajectory in played.trajectories
    )
    return replace(played, trajectories=tuple(trajectories))


def test_each_kind_credits_the_turns_of_its_games():
    baselines = {"tic_tac_toe/X": 5.0}
    assert compute([game()], baselines, "none") == ([1, 1, 1, 1, -1, -1, -1], baselines)
    # Leave one out, X: 1, 1, -1. 1 - 0, 1 - 0, -1 - 1; O the other way round.
    others, _ = compute([game(), game(), mirrored()], {}, "leave_one_out")
    assert others == ([1] * 4 + [-1] * 3) * 2 + [-2] * 3 + [2] * 3
    values = {0: 0.1, 1: -0.2, 2: 0.3, 3: 0.1, 4: 0.6, 5: -0.5, 6: 0.9}
    critic, _ = compute([valued(game(), values)], {}, "gae")
    of_x = gae([0, 0, 0, 1], [0.1, 0.3, 0.6, 0.9], [False] * 3 + [True], lam=GAE_LAMBDA)
    of_o = gae([0, 0, -1], [-0.2, 0.1, -0.5], [False] * 2 + [True], lam=GAE_LAMBDA)
    assert critic == [*of_x, *of_o]


def test_role_baselines_over_two_batches():
    first, baselines = compute([game()], {}, "rae")
    assert first == [1, 1, 1, 1, -1, -1, -1]  # read before they move
    assert baselines == approx({"tic_tac_toe/X": 0.05, "tic_tac_toe/O": -0.05})
    second, baselines = compute([game(), game(), mirrored()], baselines, "rae")
    won = [0.95] * 4 + [-0.95] * 3  # 1-.05 and -1+.05
    assert second == approx(won + won + [-1.05] * 3 + [1.05] * 3)
    moved = 0.95**3 * 0.05 + (1 - 0.95**3) / 3  # three trajectories of mean (1 + 1 - 1) / 3
    assert baselines == approx({"tic_tac_toe/X": moved, "tic_tac_toe/O": -moved})


def test_a_group_is_one_role_in_the_games_of_one_opening():
    def numbered(played: FinishedGame, group: int) -> FinishedGame:
        return replace(
            played, trajectories=tuple(replace(trajectory, group=group) for trajectory in played.trajectories)
        )

    games = [numbered(game(), 0), numbered(mirrored(), 0), numbered(game(), 1), numbered(game(), 1)]
    computed, _ = compute(games, {}, "group")
    assert computed == [1] * 4 + [-1] * 3 + [-1] * 3 + [1] * 3 + [0.0] * 14
