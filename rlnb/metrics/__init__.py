"""What a run reports: the names of its metrics, and the tracker that writes them."""

from rlnb.metrics.names import (
    ENDINGS,
    GAME,
    GREEDY_STRATEGY,
    INVALID_KINDS,
    METRICS,
    STATUSES,
    STRATEGY,
    Metric,
    describe,
    describe_metrics,
)
from rlnb.metrics.tracking import STEP_AXIS, Tracker, UnknownMetric, open_tracker, read_metrics

__all__ = [
    "ENDINGS", "GAME", "GREEDY_STRATEGY", "INVALID_KINDS", "METRICS", "STATUSES", "STEP_AXIS", "STRATEGY",
    "Metric", "Tracker", "UnknownMetric", "describe", "describe_metrics", "open_tracker", "read_metrics",
]  # fmt: skip
