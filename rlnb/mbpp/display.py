"""Tables of evaluations on MBPP."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlnb.display.plots import spread
from rlnb.display.tables import Table, as_code, as_percent
from rlnb.mbpp.results import MAX_ERROR_LENGTH
from rlnb.mbpp.samples import Sample
from rlnb.statistics import Estimate

SHOWN_SETTINGS = (
    "data", "split", "template", "shots", "asserts_shown", "stop_rule", "temperature", "num_samples",
)  # fmt: skip


def show_verdicts(samples: Sequence[Sample], *, limit: int = 8) -> Table:
    """Return programs, spread over all, with their outcomes; the error begins with the assert."""
    rows = []
    for sample in spread(samples, limit):
        results = sample.verdict.results
        counts = f"{sum(map(bool, results))} of {len(results)}"
        error = "" if sample.passed else sample.verdict.error[:MAX_ERROR_LENGTH]
        program, outcome = as_code(sample.program or sample.completion), words(sample.outcome)
        rows.append((sample.problem.text, program, outcome, counts, error))
    headers = ["problem", "program", "outcome", "asserts that hold", "error"]
    return Table(headers, rows, f"{len(rows)} of {len(samples)} samples")


def show_summary(summary: Mapping[str, Any], settings: Mapping[str, object]) -> Table:
    """Return pass rates with their 95% intervals; the caption says what they depend on."""
    shares: dict[str, object] = {
        f"pass@{k}": Estimate(known["value"], known["low"], known["high"])
        for k, known in summary["pass_at"].items()
    }
    shares["asserts shown in the question hold"] = summary["passed_shown"]
    if summary["passed_held_out"] is not None:
        shares["asserts not shown hold"] = summary["passed_held_out"]
    shares["cut by the limit of tokens"] = as_percent(summary["cut_share"])
    shares |= {f"ended as {words(outcome)}": count for outcome, count in summary["outcomes"].items()}
    shares |= dict.fromkeys(summary["warnings"], "")
    shares |= {words(name): settings[name] for name in ("left_out", "untried") if name in settings}
    counts = f"{summary['num_problems']} problems, {summary['num_samples']} samples"
    details = [f"{words(name)} {settings[name]}" for name in SHOWN_SETTINGS if name in settings]
    return Table(["", "value (95% interval)"], shares.items(), f"{counts}: {'; '.join(details)}")


def words(name: str) -> str:
    return name.replace("_", " ")
