"""Intervals of rates and of paired differences, pass@k, McNemar's test."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from rlnb.statistics import (
    Estimate,
    bootstrap_difference,
    bootstrap_ratio,
    mcnemar_p,
    pass_at_k,
    student_mean,
    wilson_interval,
)

pairs = st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=40)
counts = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=20).filter(
    lambda rows: any(lost + won for won, lost in rows)
)


@given(pairs)
def test_the_interval_holds_the_mean_and_is_mirrored_when_before_and_after_change_places(rows):
    before, after = zip(*rows, strict=True)
    estimate = bootstrap_difference(before, after)
    assert estimate.value == approx(np.mean(after) - np.mean(before), abs=1e-12)
    assert estimate.low - 1e-12 <= estimate.value <= estimate.high + 1e-12
    back = bootstrap_difference(after, before)
    assert (back.value, back.low, back.high) == approx(
        (-estimate.value, -estimate.high, -estimate.low), abs=1e-12
    )


def test_the_width_is_that_of_the_normal_approximation_and_nothing_for_equal_differences():
    after = np.random.default_rng(0).normal(size=400)
    estimate = bootstrap_difference(np.zeros(400), after)
    assert estimate.high - estimate.low == approx(2 * 1.96 * after.std() / 20, rel=0.05)
    assert bootstrap_difference([0, 1, 2], [0.5, 1.5, 2.5]) == Estimate(0.5, 0.5, 0.5)
    assert str(Estimate(0.25, -0.1, 0.6)) == "+0.250 [-0.100, +0.600]"


def test_values_that_do_not_pair_and_too_many_draws_are_refused():
    for before, after in (([], []), ([1.0], [1.0, 2.0]), ([[1.0]], [[1.0]])):
        with pytest.raises(ValueError, match="before and after have the shapes"):
            bootstrap_difference(before, after)
    with pytest.raises(ValueError, match="k must be 1 to 2"):
        pass_at_k(2, 1, 3)


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_draws_that_hold_a_right_answer(counts):
    num_samples, num_passed, k = counts
    answers = [True] * num_passed + [False] * (num_samples - num_passed)
    draws = list(itertools.combinations(answers, k))
    assert pass_at_k(num_samples, num_passed, k) == approx(sum(map(any, draws)) / len(draws))


def test_wilsons_interval_has_its_textbook_values():
    half = wilson_interval(0.5, 100)
    assert (half.low, half.high) == (approx(0.4038, abs=1e-4), approx(0.5962, abs=1e-4))
    none = wilson_interval(0.0, 10)
    assert (none.low, none.high) == (approx(0.0), approx(0.2775, abs=1e-4))


def test_mcnemars_test_counts_changes_only():
    assert mcnemar_p(0, 0) == mcnemar_p(5, 5) == 1.0
    assert mcnemar_p(10, 2) == mcnemar_p(2, 10) == approx(2 * (1 + 12 + 66) / 2**12)


@given(counts)
def test_a_ratio_lies_in_its_interval_and_does_not_differ_from_itself(rows):
    won, played = [won for won, _ in rows], [won + lost for won, lost in rows]
    estimate = bootstrap_ratio(won, played)
    assert estimate.value == approx(sum(won) / sum(played))
    assert 0 <= estimate.low <= estimate.high <= 1
    assert bootstrap_ratio(won, played, minus=(won, played)) == Estimate(0.0, 0.0, 0.0)


def test_a_ratio_weighs_counts_and_a_difference_draws_the_same_tasks_for_both():
    assert bootstrap_ratio([1, 0], [1, 3]).value == 0.25  # 1 of 4, not the mean of 1 and 0
    assert bootstrap_ratio([1, 2, 0], [2, 4, 0]) == Estimate(0.5, 0.5, 0.5)  # a task without a count
    # Every task is one win in two better, whatever tasks are drawn.
    estimate = bootstrap_ratio([2, 1, 2], [2, 2, 2], minus=([1, 0, 1], [2, 2, 2]))
    assert (estimate.value, estimate.low, estimate.high) == approx((0.5, 0.5, 0.5))


def test_counts_of_different_tasks_or_of_nothing_have_no_ratio():
    for top, bottom, minus in (([1, 2], [1], None), ([0], [0], None), ([1], [1], ([1, 1], [1, 1]))):
        with pytest.raises(ValueError, match="numerators and denominators"):
            bootstrap_ratio(top, bottom, minus=minus)


def test_students_interval_of_few_values():
    mean = student_mean([1.0, 2.0, 3.0])  # deviation 1, t(2) = 4.303: 4.303 / sqrt(3) = 2.484
    assert (mean.value, mean.low, mean.high) == approx((2.0, -0.484, 4.484), abs=1e-3)
    with pytest.raises(ValueError, match="at least two values"):
        student_mean([1.0])
