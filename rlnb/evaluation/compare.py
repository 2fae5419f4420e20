"""Is it real? Intervals for rates, means and paired differences, and the unbiased pass@k."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def bootstrap_difference(
    before: Sequence[float], after: Sequence[float], *, num_resamples: int = 10_000, seed: int = 0
) -> Estimate:
    """Mean of after - before over paired tasks, with its percentile bootstrap interval.

    before, after: float (num_tasks,), one mean a task, in the same order. Tasks are resampled, not samples,
    since samples of one task are alike. Raises ValueError where the two do not pair. Efron and Tibshirani, An
    Introduction to the Bootstrap (1993), chapter 13.
    """
    old, new = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    if old.ndim != 1 or old.shape != new.shape or not len(old):
        raise ValueError(
            f"before and after have the shapes {old.shape} and {new.shape}; "
            "give one number a task, the same tasks in both, and at least one"
        )
    return bootstrap_mean(new - old, num_resamples=num_resamples, seed=seed)


def bootstrap_mean(values: Any, *, num_resamples: int = 10_000, seed: int = 0) -> Estimate:
    """Mean over tasks with its percentile bootstrap interval; values: float (num_tasks,), one a task."""
    each = np.asarray(values, dtype=float)
    draws = np.random.default_rng(seed).integers(len(each), size=(num_resamples, len(each)))
    low, high = np.quantile(each[draws].mean(axis=1), [0.025, 0.975])
    return Estimate(float(each.mean()), float(low), float(high))


def student_mean(values: Any) -> Estimate:
    """Mean of few values, such as one a seed, with Student's 95% interval; at least two.

    The bootstrap's is far too narrow below some ten values. Student 1908, "The Probable Error of a Mean".
    """
    from scipy.special import stdtrit  # half a second that `rlnb compare` does not need

    each = np.asarray(values, dtype=float)
    if len(each) < 2:
        raise ValueError(f"an interval needs at least two values, not {len(each)}")
    width = float(stdtrit(len(each) - 1, 0.975) * each.std(ddof=1) / math.sqrt(len(each)))
    mean = float(each.mean())
    return Estimate(mean, mean - width, mean + width)


def bootstrap_ratio(
    numerators: Any, denominators: Any, *, minus: tuple[Any, Any] | None = None, seed: int = 0
) -> Estimate:
    """Sum of numerators over sum of denominators, or its difference to that of `minus`, with its interval.

    Each float (num_tasks,), a count a task; minus: numerators and denominators of the same tasks. Tasks are
    drawn anew, alike for both. Draws in which nothing is counted are left out. Raises ValueError where
    nothing is counted at all, or the tasks do not match.
    """
    sides = [(np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float))]
    if minus is not None:
        sides.append((np.asarray(minus[0], dtype=float), np.asarray(minus[1], dtype=float)))
    count = len(sides[0][0])
    if any(len(part) != count or not bottom.sum() for top, bottom in sides for part in (top, bottom)):
        raise ValueError("numerators and denominators must be of the same tasks, and count something")
    draws = np.random.default_rng(seed).integers(count, size=(10_000, count))
    value, each = 0.0, np.zeros(len(draws))
    with np.errstate(invalid="ignore", divide="ignore"):
        for sign, (top, bottom) in zip((1.0, -1.0), sides, strict=False):
            value += sign * float(top.sum() / bottom.sum())
            each += sign * top[draws].sum(axis=1) / bottom[draws].sum(axis=1)
    low, high = np.quantile(each[np.isfinite(each)], [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def bootstrap_two_way(
    scores: Sequence[Any], minus: Sequence[Any] = (), *, num_resamples: int = 4_000, seed: int = 0
) -> Estimate:
    """Mean over completions and boards, or its difference to `minus`, with a two-way bootstrap interval.

    scores: a matrix for each kind of board, float (num_completions, num_boards); their means are averaged.
    minus: the same boards before, with completions of its own. Completions and boards are both drawn anew,
    boards alike for both: copies of one program are one sample, and boards are shared by all. Owen, The
    pigeonhole bootstrap (2007). Raises ValueError where there is nothing to draw, or boards do not match.
    """
    kinds = [np.asarray(matrix, dtype=float) for matrix in scores]
    former = [np.asarray(matrix, dtype=float) for matrix in minus]
    if not kinds or any(matrix.ndim != 2 or not matrix.size for matrix in [*kinds, *former]):
        raise ValueError("scores must be matrices of completions and boards, with at least one of each")
    if former and [one.shape[1] for one in former] != [one.shape[1] for one in kinds]:
        raise ValueError("scores and minus must be of the same boards")
    generator = np.random.default_rng(seed)
    means = np.zeros(num_resamples)
    value = 0.0
    for index, matrix in enumerate(kinds):
        boards = generator.integers(matrix.shape[1], size=(num_resamples, matrix.shape[1]))
        for sign, one in [(1.0, matrix), *([(-1.0, former[index])] if former else [])]:
            value += sign * float(one.mean()) / len(kinds)
            rows = generator.integers(len(one), size=(num_resamples, len(one)))
            # How often each row and board was drawn, as weights: the mean of the drawn matrix.
            row_weights = np.stack([np.bincount(draw, minlength=len(one)) for draw in rows]) / len(one)
            columns = one.shape[1]
            board_weights = np.stack([np.bincount(draw, minlength=columns) for draw in boards]) / columns
            means += (
                sign * np.einsum("sr,rb,sb->s", row_weights, one, board_weights, optimize=True) / len(kinds)
            )
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Chance that one of k samples passes, estimated without bias from num_samples >= k of one task.

    1 - C(n - c, k) / C(n, k): Chen et al. 2021, arXiv:2107.03374. Raises ValueError where k is not in
    1..num_samples.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} needs 1 to {num_samples} samples at a time, as many as there are")
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def wilson_interval(rate: float, count: int) -> Estimate:
    """A rate among `count` independent trials with its 95% score interval (Wilson 1927)."""
    z = 1.959963984540054
    middle = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    return Estimate(rate, max(0.0, middle - half), min(1.0, middle + half))


def mcnemar_p(num_gained: int, num_lost: int) -> float:
    """Exact two-sided p-value of McNemar's test (1947): are gains and losses equally likely?"""
    changed = num_gained + num_lost
    tail = sum(math.comb(changed, i) for i in range(min(num_gained, num_lost) + 1))
    return min(1.0, 2 * tail / 2**changed)
