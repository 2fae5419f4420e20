"""The names in rlnb/run/metrics.csv, which has a row for every metric that a run reports."""

import csv
import re
from pathlib import Path

from rlnb.run import metrics

with Path(metrics.__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as _file:
    METRICS = {row["name"] for row in csv.DictReader(_file)}


def is_known(name: str) -> bool:
    """Return whether the table has a metric, whatever game or reward function its name begins with."""
    name = re.sub(r"^[a-z]\w*(\([^)]*\))?/(?=(exact|arena)/)", "", name.removeprefix("eval_"))
    name = re.sub(r"^arena/[^/]+/", "arena/{opponent}/", name)
    return re.sub(r"^rewards/[^/]+/(mean|std)$", r"rewards/{function}/\1", name) in METRICS
