"""Tables of evaluations on MBPP."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlnb.display.tables import Table

LONGEST_TEXT = 700  # characters of a program or an error


def show_verdicts(samples: Sequence[Any]) -> Table:
    """Programs with what became of them: the outcome, the asserts that hold, and the first that does not."""
    return Table(
        ["program", "outcome", "asserts that hold", "first that does not", "what was said"],
        [
            (
                (sample.program or sample.completion).rstrip()[:LONGEST_TEXT] + "\n",
                sample.outcome.replace("_", " "),
                f"{sum(map(bool, sample.verdict.results))} of {len(sample.verdict.results)}",
                sample.failing_assertion,
                "" if sample.passed else said(sample),
            )
            for sample in samples
        ],
    )


def said(sample: Any) -> str:
    """What a program answered to the failing assertion, without repeating that."""
    return str(sample.verdict.error).removeprefix(sample.failing_assertion).removeprefix(": ")[:200]


def show_summary(summary: Mapping[str, Any], settings: Mapping[str, Any]) -> Table:
    """Pass rates with their 95% intervals, and under them what they are rates of."""
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
    shown = ("data", "split", "template", "shots", "asserts_shown", "stop_rule", "temperature", "num_samples")
    caption = "; ".join(f"{name.replace('_', ' ')} {settings[name]}" for name in shown if name in settings)
    problems = f"{summary['num_problems']} problems, {summary['num_samples']} samples: {caption}"
    return Table(["", "value", "95% interval"], rows, caption=problems)


def show_failures(samples: Sequence[Any], *, limit: int = 8) -> Table:
    """Problems with programs that failed, spread over all of them."""
    failed = [sample for sample in samples if not sample.passed]
    picked = (
        failed
        if len(failed) <= limit
        else [failed[i * (len(failed) - 1) // (limit - 1)] for i in range(limit)]
    )
    return Table(
        ["problem", "outcome", "completion", "first assert that does not hold", "what was said"],
        [
            (
                sample.problem.text,
                sample.outcome.replace("_", " "),
                sample.completion.rstrip()[:LONGEST_TEXT] + "\n",
                sample.failing_assertion,
                said(sample),
            )
            for sample in picked
        ],
        caption=f"{len(picked)} of {len(failed)} that failed",
    )
