"""Names of metrics. metrics.csv has all that a run may report, with their units and meanings."""

import re
from collections.abc import Collection
from typing import Final

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


def main_measures(names: Collection[str]) -> list[str]:
    """Return the first NUM_SHOWN of these that are in MAIN_MEASURES."""
    return [name for pattern in MAIN_MEASURES for name in names if re.search(pattern, name)][:NUM_SHOWN]
