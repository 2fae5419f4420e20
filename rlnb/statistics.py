"""Intervals for rates, means and paired differences, and the unbiased pass@k."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def bootstrap_difference(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """Return the mean of after - before over paired tasks, with its percentile bootstrap interval.

    before, after: float (num_tasks,), one mean per task, in the same order. Tasks are resampled, not samples,
    because samples of one task are alike. Raises ValueError if the two do not pair. Efron and Tibshirani, An
    Introduction to the Bootstrap (1993), chapter 13.
    """
    old, new = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    if old.ndim != 1 or old.shape != new.shape or not len(old):
        raise ValueError(
            f"before and after have the shapes {old.shape} and {new.shape}; "
            "give one number per task, the same tasks in both, and at least one"
        )
    return bootstrap_ratio(new - old, np.ones(len(old)))


def percentile_estimate(value: float, resampled: np.ndarray) -> Estimate:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def student_mean(values: ArrayLike) -> Estimate:
    """Return the mean of a few values, for example one per seed, with Student's 95% interval.

    The bootstrap is far too narrow below some ten values. Raises ValueError for fewer than two. Student 1908,
    "The Probable Error of a Mean".
    """
    from scipy.special import stdtrit  # its import takes half a second

    sample = np.asarray(values, dtype=float)
    if len(sample) < 2:
        raise ValueError(f"an interval needs at least two values, not {len(sample)}")
    width = float(stdtrit(len(sample) - 1, 0.975) * sample.std(ddof=1) / math.sqrt(len(sample)))
    mean = float(sample.mean())
    return Estimate(mean, mean - width, mean + width)


def bootstrap_ratio(
    numerators: ArrayLike,
    denominators: ArrayLike,
    *,
    minus: tuple[ArrayLike, ArrayLike] | None = None,
) -> Estimate:
    """Return sum(numerators) / sum(denominators), or its difference from the ratio `minus`, with an interval.

    Each is float (num_tasks,), a count per task; with denominators of 1 it is the mean over tasks. minus:
    numerators and denominators of the same tasks. Both ratios use the same resampled tasks. Draws whose
    denominators sum to 0 are left out. Raises ValueError if the denominators sum to 0 or the tasks do not
    match.
    """
    ratios = [(np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float))]
    if minus is not None:
        ratios.append((np.asarray(minus[0], dtype=float), np.asarray(minus[1], dtype=float)))
    num_tasks = len(ratios[0][0])
    if any(len(top) != num_tasks or len(bottom) != num_tasks or not bottom.sum() for top, bottom in ratios):
        raise ValueError("numerators and denominators must be of the same tasks, and count something")
    draws = np.random.default_rng(0).integers(num_tasks, size=(10_000, num_tasks))
    value, resampled = 0.0, np.zeros(len(draws))
    with np.errstate(invalid="ignore", divide="ignore"):
        for sign, (top, bottom) in zip((1.0, -1.0), ratios, strict=False):
            value += sign * float(top.sum() / bottom.sum())
            resampled += sign * top[draws].sum(axis=1) / bottom[draws].sum(axis=1)
    return percentile_estimate(value, resampled[np.isfinite(resampled)])


def bootstrap_two_way(scores: Sequence[ArrayLike], minus: Sequence[ArrayLike] = ()) -> Estimate:
    """Return the mean over completions and boards, or its difference from `minus`, with a two-way bootstrap.

    scores: one matrix per kind of board, float (num_completions, num_boards); their means are averaged.
    minus: the same boards before, with other completions. Completions and boards are both resampled, and the
    same boards for both times: copies of one program are one sample, and all programs share the boards.
    Owen, The pigeonhole bootstrap (2007). Raises ValueError for empty matrices or different boards.
    """
    kinds = [np.asarray(matrix, dtype=float) for matrix in scores]
    kinds_before = [np.asarray(matrix, dtype=float) for matrix in minus]
    if not kinds or any(matrix.ndim != 2 or not matrix.size for matrix in [*kinds, *kinds_before]):
        raise ValueError("scores must be matrices of completions and boards, with at least one of each")
    if kinds_before and [kind.shape[1] for kind in kinds_before] != [kind.shape[1] for kind in kinds]:
        raise ValueError("scores and minus must be of the same boards")
    generator, num_resamples = np.random.default_rng(0), 4_000
    value, resampled = 0.0, np.zeros(num_resamples)
    for index, kind in enumerate(kinds):
        num_boards = kind.shape[1]
        boards = generator.integers(num_boards, size=(num_resamples, num_boards))
        board_weights = np.stack([np.bincount(draw, minlength=num_boards) for draw in boards]) / num_boards
        signed = [(1.0, kind), *([(-1.0, kinds_before[index])] if kinds_before else [])]
        for sign, matrix in signed:
            value += sign * float(matrix.mean()) / len(kinds)
            rows = generator.integers(len(matrix), size=(num_resamples, len(matrix)))
            # How often each row and board was drawn, as weights: the mean of the drawn matrix.
            row_weights = np.stack([np.bincount(draw, minlength=len(matrix)) for draw in rows]) / len(matrix)
            means = np.einsum("sr,rb,sb->s", row_weights, matrix, board_weights, optimize=True)
            resampled += sign * means / len(kinds)
    return percentile_estimate(value, resampled)


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Return the chance that at least one of k samples passes, estimated without bias from num_samples >= k.

    1 - C(n - c, k) / C(n, k): Chen et al. 2021, arXiv:2107.03374. Raises ValueError if k is not in
    1..num_samples.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k}: k must be 1 to {num_samples}, the number of samples")
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def wilson_interval(rate: float, count: float) -> Estimate:
    """Return a rate among `count` independent trials with its 95% score interval (Wilson 1927).

    scipy's binomtest needs a whole number of successes; here a rate may be a mean of means or count draws.
    """
    z = 1.959963984540054
    middle = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    return Estimate(rate, max(0.0, middle - half), min(1.0, middle + half))


def mcnemar_p(num_gained: int, num_lost: int) -> float:
    """Return the exact two-sided p-value of McNemar's test (1947): are gains and losses equally likely?"""
    from scipy.stats import binomtest  # its import takes a second

    num_changed = num_gained + num_lost
    return float(binomtest(num_gained, num_changed, 0.5).pvalue) if num_changed else 1.0
