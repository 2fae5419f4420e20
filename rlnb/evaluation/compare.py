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
    differences = new - old
    draws = np.random.default_rng(seed).integers(len(differences), size=(num_resamples, len(differences)))
    low, high = np.quantile(differences[draws].mean(axis=1), [0.025, 0.975])
    return Estimate(float(differences.mean()), float(low), float(high))
