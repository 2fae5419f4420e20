"""Tables of evaluations on MBPP."""

from collections.abc import Mapping, Sequence

from rlnb.display.plots import spread
from rlnb.display.tables import Table
from rlnb.mbpp.evaluation import Sample
from rlnb.mbpp.results import Summary

MAX_TEXT_LENGTH = 700  # characters shown of a program
MAX_ERROR_LENGTH = 200
SHOWN_SETTINGS = (
    "data", "split", "template", "shots", "asserts_shown", "stop_rule", "temperature", "num_samples",
)  # fmt: skip


def show_verdicts(samples: Sequence[Sample]) -> Table:
    """Return programs with their outcomes, how many asserts hold, and the first that does not."""
    return Table(
        ["program", "outcome", "asserts that hold", "first that does not", "error"],
        [
            (
                (sample.program or sample.completion).rstrip()[:MAX_TEXT_LENGTH] + "\n",
                sample.outcome.replace("_", " "),
                f"{sum(map(bool, sample.verdict.results))} of {len(sample.verdict.results)}",
                sample.failing_assertion,
                "" if sample.passed else shorten_error(sample),
            )
            for sample in samples
        ],
    )


def shorten_error(sample: Sample) -> str:
    """Return the error of the failing assertion without the assertion itself."""
    error = sample.verdict.error.removeprefix(sample.failing_assertion)
    return error.removeprefix(": ")[:MAX_ERROR_LENGTH]


def show_summary(summary: Summary, settings: Mapping[str, object]) -> Table:
    """Return pass rates with their 95% intervals; the caption says what they depend on."""
    rows = [
        (f"pass@{k}", f"{estimate['value']:.3f}", f"{estimate['low']:.3f} to {estimate['high']:.3f}")
        for k, estimate in summary["pass_at"].items()
    ]
    rows.append(("asserts shown in the question hold", f"{summary['passed_shown']:.3f}", ""))
    if summary["passed_held_out"] is not None:
        rows.append(("asserts not shown hold", f"{summary['passed_held_out']:.3f}", ""))
    rows += [
        (f"ended as {outcome.replace('_', ' ')}", str(count), "")
        for outcome, count in sorted(summary["outcomes"].items(), key=lambda item: -item[1])
    ]
    counts = f"{summary['num_problems']} problems, {summary['num_samples']} samples"
    details = [f"{name.replace('_', ' ')} {settings[name]}" for name in SHOWN_SETTINGS if name in settings]
    return Table(["", "value", "95% interval"], rows, caption=f"{counts}: {'; '.join(details)}")


def show_failed_samples(samples: Sequence[Sample], *, limit: int = 8) -> Table:
    """Return failed samples, spread over all problems."""
    failed = [sample for sample in samples if not sample.passed]
    shown = spread(failed, limit)
    return Table(
        ["problem", "outcome", "completion", "first assert that does not hold", "error"],
        [
            (
                sample.problem.text,
                sample.outcome.replace("_", " "),
                sample.completion.rstrip()[:MAX_TEXT_LENGTH] + "\n",
                sample.failing_assertion,
                shorten_error(sample),
            )
            for sample in shown
        ],
        caption=f"{len(shown)} of {len(failed)} failed samples",
    )
