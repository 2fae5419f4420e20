"""Intervals of paired differences."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from rlnb.evaluation.compare import Estimate, bootstrap_difference

pairs = st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=40)


@given(pairs)
def test_the_interval_contains_the_mean(rows):
    before, after = zip(*rows, strict=True)
    estimate = bootstrap_difference(before, after, num_resamples=500)
    assert estimate.value == approx(np.mean(after) - np.mean(before), abs=1e-12)
    assert estimate.low - 1e-12 <= estimate.value <= estimate.high + 1e-12


@given(pairs)
def test_exchanging_before_and_after_mirrors_the_interval(rows):
    before, after = zip(*rows, strict=True)
    there = bootstrap_difference(before, after, num_resamples=100)
    back = bootstrap_difference(after, before, num_resamples=100)
    assert (there.value, there.low, there.high) == approx((-back.value, -back.high, -back.low), abs=1e-12)


def test_equal_differences_leave_no_width():
    assert bootstrap_difference([0, 1, 2], [0.5, 1.5, 2.5]) == Estimate(0.5, 0.5, 0.5)


def test_the_width_is_that_of_the_normal_approximation():
    after = np.random.default_rng(0).normal(size=400)
    estimate = bootstrap_difference(np.zeros(400), after)
    assert estimate.high - estimate.low == approx(2 * 1.96 * after.std() / 20, rel=0.05)


def test_the_same_numbers_give_the_same_interval():
    assert bootstrap_difference([0, 0, 1], [1, 0, 1]) == bootstrap_difference([0, 0, 1], [1, 0, 1])


def test_an_estimate_reads_with_its_sign():
    assert str(Estimate(0.25, -0.1, 0.6)) == "+0.250 [-0.100, +0.600]"


@pytest.mark.parametrize(
    ("before", "after", "shapes"),
    [
        ([], [], "(0,) and (0,)"),
        ([1.0], [1.0, 2.0], "(1,) and (2,)"),
        ([[1.0]], [[1.0]], "(1, 1) and (1, 1)"),
    ],
)
def test_what_does_not_pair_is_refused(before, after, shapes):
    with pytest.raises(ValueError) as raised:
        bootstrap_difference(before, after)
    assert str(raised.value) == (
        f"before and after have the shapes {shapes}; "
        "give one number a task, the same tasks in both, and at least one"
    )
