"""The table of all metrics, metrics.csv: every name that a run may report, its unit, what it measures."""

import csv
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple

# How a program, a strategy for 2048 or a program of the code game ended: status/{}_share and so on.
STATUSES: Final = (
    "ok_with_output", "ok_without_output", "no_code", "syntax_error", "runtime_error", "timeout",
    "memory_exceeded", "output_exceeded", "killed", "sandbox_error",
)  # fmt: skip
ENDINGS: Final = (
    "success", "failed", "stuck", "illegal", "exception", "timeout", "forbidden", "no_code", "sandbox_error",
)  # fmt: skip
INVALID_KINDS: Final = (
    "no_code", "syntax_error", "long_code", "runtime_error", "timeout", "memory_exceeded", "output_exceeded",
    "killed", "silent", "long_output", "unreadable", "not_deterministic",
)  # fmt: skip
# What judges a run, the most telling first; names may begin with a game.
MAIN_MEASURES: Final = (
    r"(^|/)exact/(average/)?(nash_conv|loss_first|loss_second)$", r"^heldout/", r"^mbpp_eval/pass_rate$",
    r"^pass_at/\d+/value$", r"(^|/)arena/.*_score$", r"^curriculum/(stage|score)$", r"^reward$",
)  # fmt: skip
NUM_SHOWN: Final = 6  # measures that a table shows where none is named


class Metric(NamedTuple):
    """The meaning of a metric, and its unit."""

    what: str
    unit: str


with Path(__file__).with_name("metrics.csv").open(encoding="utf-8", newline="") as _file:
    METRICS: Final[Mapping[str, Metric]] = {
        row["name"]: Metric(row["what"], row["unit"]) for row in csv.DictReader(_file)
    }


def describe(name: str) -> Metric | None:
    """Return the metric of METRICS, ignoring TRL's `eval_` and the names of games and reward functions."""
    name = re.sub(r"^[a-z]\w*(\([^)]*\))?/(?=(exact|arena)/)", "", name.removeprefix("eval_"))
    name = re.sub(r"^arena/[^/]+/", "arena/{opponent}/", name)
    return METRICS.get(re.sub(r"^rewards/[^/]+/(mean|std)$", r"rewards/{function}/\1", name))


def main_measures(names: Collection[str]) -> list[str]:
    """Return the first NUM_SHOWN of these that are in MAIN_MEASURES."""
    return [name for pattern in MAIN_MEASURES for name in names if re.search(pattern, name)][:NUM_SHOWN]
