"""Advantages, worked by hand in the head, then by what they must be for any numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

from rlnb.advantages import (
    gae,
    gae_plies,
    group_advantages,
    leave_one_out,
    normalized,
    role_advantages,
)

returns_and_roles = st.lists(
    st.tuples(st.floats(-2, 2).map(lambda value: round(value, 3)), st.integers(0, 1)), min_size=1, max_size=12
)


def test_each_role_is_measured_against_its_own_mean():
    advantages, baselines = role_advantages(
        np.array([1.0, -1.0, -1.0, 1.0]), np.array([0, 1, 0, 1]), np.array([0.5, -0.5]), decay=0.9
    )
    assert advantages.tolist() == [0.5, -0.5, -1.5, 1.5]  # 1-.5, -1+.5, -1-.5, 1+.5
    assert baselines.tolist() == approx([0.405, -0.405])  # .81*.5 + .19*mean(1, -1)


def test_a_role_that_played_no_game_keeps_its_mean():
    advantages, baselines = role_advantages([1.0], [1], [0.25, 0.0, -3.0], decay=0.5)
    assert advantages.tolist() == [1.0]
    assert baselines.tolist() == [0.25, 0.5, -3.0]


def test_no_games_move_no_mean():
    advantages, baselines = role_advantages([], [], [0.25, -1.0], decay=0.5)
    assert advantages.tolist() == []
    assert baselines.tolist() == [0.25, -1.0]


@given(returns_and_roles, st.randoms(use_true_random=False))
def test_means_do_not_depend_on_the_order_of_the_games(pairs, random):
    before, shuffled = [0.3, -0.7], random.sample(pairs, len(pairs))
    (_, first), (_, second) = (
        role_advantages(*zip(*one, strict=True), before, decay=0.9) for one in (pairs, shuffled)
    )
    assert first.tolist() == approx(second.tolist())


@given(returns_and_roles, st.integers(1, 11))
def test_ranks_that_know_all_games_move_the_means_alike_and_credit_their_own_as_one_rank_does(pairs, cut):
    returns, roles = map(list, zip(*pairs, strict=True))
    whole, moved = role_advantages(returns, roles, [0.3, -0.7], decay=0.9)
    parts = [
        role_advantages(returns[own], roles[own], [0.3, -0.7], decay=0.9)[0]
        for own in (slice(None, cut), slice(cut, None))
    ]
    assert np.concatenate(parts).tolist() == whole.tolist()
    # The same time scale as one trajectory after the other: what is left of the old mean is decay ** n.
    for role, start in enumerate([0.3, -0.7]):
        own = [value for value, number in pairs if number == role]
        expected = start * 0.9 ** len(own) + (1 - 0.9 ** len(own)) * (np.mean(own) if own else 0.0)
        assert moved[role] == approx(expected)


def test_equal_returns_draw_the_mean_to_them_like_one_after_the_other():
    _, at_once = role_advantages([1.0] * 5, [0] * 5, [0.0], decay=0.9)
    mean = 0.0
    for _ in range(5):
        mean = 0.9 * mean + 0.1 * 1.0
    assert at_once.tolist() == approx([mean])


def test_leave_one_out_compares_with_the_mean_of_the_others_of_the_role():
    found = leave_one_out([1.0, 0.0, -1.0, 1.0, -1.0], [0, 0, 0, 1, 1])
    assert found.tolist() == [1.5, 0.0, -1.5, 2.0, -2.0]  # 1-(-.5), 0-0, -1-.5, 1-(-1), -1-1


def test_who_is_alone_in_its_group_has_advantage_0():
    assert leave_one_out([3.0, 1.0, 2.0], [0, 1, 1]).tolist() == [0.0, -1.0, 1.0]
    assert group_advantages([3.0], [0], scale=True).tolist() == [0.0]


@given(returns_and_roles)
def test_leave_one_out_sums_to_0_in_every_role(pairs):
    returns, roles = map(np.array, zip(*pairs, strict=True))
    found = leave_one_out(returns, roles)
    assert [found[roles == role].sum() for role in (0, 1)] == approx([0.0, 0.0], abs=1e-9)


@given(returns_and_roles.filter(lambda pairs: len({role for _, role in pairs[:2]}) == 1 < len(pairs)))
def test_the_baseline_of_a_return_does_not_move_with_that_return(pairs):
    returns, roles = map(np.array, zip(*pairs, strict=True))
    other = returns.copy()
    other[0] += 10.0
    # So it is without bias: A_0 rises by what R_0 rises, whatever the others are.
    assert leave_one_out(other, roles)[0] - leave_one_out(returns, roles)[0] == approx(10.0)


def test_a_group_is_measured_against_its_mean_and_its_deviation_if_asked():
    returns, groups = [2.0, 0.0, 5.0, 5.0], [0, 0, 1, 1]
    assert group_advantages(returns, groups).tolist() == [1.0, -1.0, 0.0, 0.0]
    assert group_advantages([4.0, 0.0, 5.0, 5.0], groups, scale=True).tolist() == [1.0, -1.0, 0.0, 0.0]


def test_one_global_baseline_is_0_in_every_batch_of_zero_sum_self_play():
    wins = np.random.default_rng(0).choice([1.0, 0.0, -1.0], size=100, p=[0.7, 0.1, 0.2])
    returns = np.stack([wins, -wins], 1).ravel()  # both seats of each game
    one_for_all = np.zeros(200, dtype=int)
    assert group_advantages(returns, one_for_all).tolist() == returns.tolist()
    _, moved = role_advantages(returns, one_for_all, [0.0], decay=0.5)
    assert moved.tolist() == [0.0]
    advantages, moved = role_advantages(returns, np.tile([0, 1], 100), [0.0, 0.0], decay=0.5)
    assert moved.tolist() == approx([wins.mean(), -wins.mean()])
    assert wins.mean() > 0.3


def test_advantages_over_turns_by_hand():
    # gamma .5, lambda .5: delta = 0+.5*2-1, 0+.5*4-2, 1-4 = 0, 0, -3; then -3, -3*.25, -3*.0625
    found = gae([0, 0, 1], [1, 2, 4], [False, False, True], gamma=0.5, lam=0.5)
    assert found.tolist() == [-0.1875, -0.75, -3.0]


def test_nothing_flows_from_one_trajectory_into_the_one_before():
    found = gae([1, 0, 1], [0.5, 1, 3], [True, False, True], gamma=1, lam=1)
    assert found.tolist() == [0.5, 0.0, -2.0]  # 1-.5, then 1-1 and 1-3


def test_a_game_cut_off_goes_on_with_its_bootstrap_and_a_finished_one_with_0():
    plain = gae([0, 1, 0], [0, 0, 2], [False, True, True], gamma=0.5, lam=1)
    cut = gae([0, 1, 0], [0, 0, 2], [False, True, True], gamma=0.5, lam=1, bootstraps=[99, 4, 6])
    assert plain.tolist() == [0.5, 1.0, -2.0]
    assert cut.tolist() == [1.5, 3.0, 1.0]  # .5*3, 1+.5*4, 0+.5*6-2; the 99 is in no game's end


turns = st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1), st.booleans()), min_size=1, max_size=12).map(
    lambda rows: [*rows[:-1], (*rows[-1][:2], True)]
)


@given(turns, st.floats(0, 1))
def test_at_lambda_0_it_is_the_td_error(rows, gamma):
    rewards, values, ends = map(np.array, zip(*rows, strict=True))
    following = np.where(ends, 0.0, np.append(values[1:], 0.0))
    assert gae(rewards, values, ends, gamma=gamma, lam=0.0) == approx(rewards + gamma * following - values)


@given(turns)
def test_at_lambda_and_gamma_1_it_is_the_return_minus_the_value(rows):
    rewards, values, ends = map(np.array, zip(*rows, strict=True))
    left = []
    for reward, is_end in zip(rewards[::-1], ends[::-1], strict=True):
        left.insert(0, reward + (0.0 if is_end else left[0]))
    assert gae(rewards, values, ends, gamma=1.0, lam=1.0) == approx(np.array(left) - values)


def test_from_ply_to_ply_the_next_value_counts_against_the_other_seat():
    # Seats 0 1 0, seat 0 wins. delta: 0-.2-.5, 0-.4-.2, 1-.4 = -.7, -.6, .6; A: .6, -.6-.6, -.7+1.2
    found = gae_plies([0, 0, 1], [0.5, 0.2, 0.4], [0, 0, 1], [0, 1, 0], gamma=1, lam=1)
    assert found.tolist() == approx([0.5, -1.2, 0.6])
    # lambda 1 again: the result as the mover sees it, minus his value.
    assert found.tolist() == approx([1 - 0.5, -1 - 0.2, 1 - 0.4])


def test_two_plies_of_one_seat_in_a_row_keep_the_sign():
    # lambda 0. Seats 0 0 1: 0+.2-.5, 0-.4-.2, 1-.4
    found = gae_plies([0, 0, 1], [0.5, 0.2, 0.4], [0, 0, 1], [0, 0, 1], gamma=1, lam=0)
    assert found.tolist() == approx([-0.3, -0.6, 0.6])
    found = gae_plies([0, 0, 1], [0.5, 0.2, 0.4], [0, 0, 1], [0, 0, 1], gamma=1, lam=0.5)
    assert found.tolist() == approx([-0.3 + 0.5 * -0.9, -0.6 - 0.3, 0.6])


def test_the_next_game_begins_anew_whoever_moves_first_in_it():
    found = gae_plies([1, 0, -1], [0, 0.5, 0], [1, 0, 1], [0, 0, 1], gamma=1, lam=1)
    assert found.tolist() == [1.0, 0.5, -1.0]  # 1-0; seat 0 of the second game wins: 1-.5


@settings(max_examples=50)
@given(turns, st.floats(0, 1), st.floats(0, 1))
def test_with_one_seat_alone_plies_are_turns(rows, gamma, lam):
    rewards, values, ends = map(np.array, zip(*rows, strict=True))
    alone = gae_plies(rewards, values, ends, np.ones(len(rows)), gamma=gamma, lam=lam)
    assert alone.tolist() == gae(rewards, values, ends, gamma=gamma, lam=lam).tolist()


def tree_advantages(plies, *, gamma, lam):
    """By the definition, A_t = sum of (gamma lam)^k delta_{t+k}, all seen with the eyes of who moves at t."""
    found = []
    for start, (_, _, mine) in enumerate(plies):
        total = 0.0
        for k, (reward, value, seat) in enumerate(plies[start:]):
            sign = 1 if seat == mine else -1
            after = plies[start + k + 1] if start + k + 1 < len(plies) else None
            following = 0.0 if after is None else after[1] * (1 if after[2] == mine else -1)
            total += (gamma * lam) ** k * (sign * reward + gamma * following - sign * value)
        found.append(total)
    return found


@given(
    st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1), st.integers(0, 1)), min_size=1, max_size=9),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_plies_are_the_sum_of_td_errors_seen_by_the_mover(plies, gamma, lam):
    rewards, values, seats = zip(*plies, strict=True)
    ends = [False] * (len(plies) - 1) + [True]
    found = gae_plies(rewards, values, ends, seats, gamma=gamma, lam=lam)
    assert found.tolist() == approx(tree_advantages(plies, gamma=gamma, lam=lam), abs=1e-9)


def test_no_turns_have_no_advantages():
    assert gae([], [], [], gamma=1, lam=1).tolist() == []
    assert gae_plies([], [], [], [], gamma=1, lam=1).tolist() == []


def test_normalized_advantages_by_hand():
    assert normalized([1, 3], [1, 1]).tolist() == [-1.0, 1.0]
    # Weights 3 and 1: mean 1, variance (3 * 1 + 9) / 4 = 3.
    assert normalized([0, 4], [3, 1]).tolist() == approx([-(3**-0.5), 3**0.5])
    assert normalized([0, 4, 99], [3, 1, 0]).tolist()[:2] == approx([-(3**-0.5), 3**0.5])


weighted = st.lists(st.tuples(st.floats(-2, 2), st.floats(0.1, 2)), min_size=2, max_size=12)


@given(weighted.filter(lambda pairs: np.std([one for one, _ in pairs]) > 1e-3))
def test_normalized_advantages_have_weighted_mean_0_and_deviation_1(pairs):
    advantages, weights = zip(*pairs, strict=True)
    found = normalized(advantages, weights)
    assert np.average(found, weights=weights) == approx(0, abs=1e-9)
    assert np.average(found**2, weights=weights) == approx(1)


@given(weighted, st.integers(1, 11))
def test_ranks_that_know_all_turns_normalize_as_one_rank_does(pairs, cut):
    advantages, weights = map(np.array, zip(*pairs, strict=True))
    whole = normalized(advantages, weights)
    parts = [
        normalized(advantages[own], weights[own], among=(advantages, weights))
        for own in (slice(None, cut), slice(cut, None))
    ]
    assert np.concatenate(parts).tolist() == whole.tolist()


def test_equal_advantages_become_0_and_turns_without_weight_stay():
    assert normalized([0.3, 0.3], [1, 2]).tolist() == approx([0.0, 0.0], abs=1e-12)
    assert normalized([2.0], [1]).tolist() == [0.0]
    assert normalized([0.3, 0.5], [0, 0]).tolist() == [0.3, 0.5]
    assert normalized([], []).tolist() == []


def message_of(function, *arguments, **options):
    with pytest.raises(ValueError) as error:
        function(*arguments, **options)
    return str(error.value)


def test_arrays_that_do_not_belong_together_are_refused():
    said = "returns and roles have the shapes (2,) and (1,); give one each"
    assert message_of(leave_one_out, [1, 2], [0]) == said
    assert message_of(group_advantages, [1, 2], [0]) == said
    assert message_of(role_advantages, [1, 2], [0], [0.0], decay=0.9) == said
    options = {"gamma": 1.0, "lam": 1.0}
    assert message_of(gae, [1, 2], [0], [True], **options) == (
        "rewards, values, is_last: shapes (2,), (1,), (1,); equal ones"
    )
    assert message_of(gae, [1, 2], [0, 0], [True, False], **options) == (
        "is_last: the last turn ends no trajectory"
    )
    said = "advantages and weights: shapes (2,), (1,); of all turns (2,), (1,); equal ones"
    assert message_of(normalized, [1, 2], [0]) == said
