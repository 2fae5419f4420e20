"""Tables of evaluations on MBPP."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlnb.display.plots import spread
from rlnb.display.tables import Table, as_code
from rlnb.mbpp.results import make_headline
from rlnb.mbpp.samples import Sample

MOST_SHOWN = 8
SHOWN_SETTINGS = (
    "data", "split", "template", "shots", "asserts_shown", "stop_rule", "temperature", "num_samples",
)  # fmt: skip


def show_verdicts(samples: Sequence[Sample]) -> Table:
    """Return programs, spread over all, with their outcomes; the error begins with the assert."""
    rows = []
    for sample in spread(samples, MOST_SHOWN):
        counts = f"{sum(map(bool, sample.results))} of {len(sample.results)}"
        program, outcome = as_code(sample.program or sample.completion), words(sample.outcome)
        rows.append((sample.text, program, outcome, counts, sample.error))
    headers = ["problem", "program", "outcome", "asserts that hold", "error"]
    return Table(headers, rows, f"{len(rows)} of {len(samples)} samples")


def show_summary(summary: Mapping[str, Any], settings: Mapping[str, object]) -> Table:
    """Return the lines of the result; the caption says what they depend on."""
    lines = make_headline(summary)
    lines += [f"{words(name)}: {settings[name]}" for name in ("left_out", "untried") if name in settings]
    counts = f"{summary['num_problems']} problems, {summary['num_samples']} samples"
    details = [f"{words(name)} {settings[name]}" for name in SHOWN_SETTINGS if name in settings]
    return Table(["result"], [(line,) for line in lines], f"{counts}: {'; '.join(details)}")


def words(name: str) -> str:
    return name.replace("_", " ")
