"""Is the difference real? Intervals for means and for paired differences."""

from collections.abc import Sequence
from dataclasses import dataclass

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

    before, after: float (num_tasks,), one mean a task, in the same order. Tasks are resampled, not samples, since
    samples of one task are alike. Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    differences = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    if differences.ndim != 1 or not len(differences):
        raise ValueError("before and after must hold one number a task, and at least one task")
    draws = np.random.default_rng(seed).integers(len(differences), size=(num_resamples, len(differences)))
    low, high = np.quantile(differences[draws].mean(axis=1), [0.025, 0.975])
    return Estimate(float(differences.mean()), float(low), float(high))
