"""Results on MBPP: metrics, pass@k with intervals, and a file of samples."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel

from rlnb.errors import ParamsError
from rlnb.mbpp.evalplus import PlusResults
from rlnb.mbpp.samples import Sample
from rlnb.results import Comparison, compare, group_passes, save_results
from rlnb.run.health import describe_ends
from rlnb.statistics import pass_at_k, wilson_interval


def get_passes(samples: Sequence[Sample]) -> dict[int, list[bool]]:
    """Return {task_id: whether each sample passed}, leaving out samples that the sandbox failed to run."""
    return group_passes((sample.task_id, sample.passed) for sample in samples)


def mbpp_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Return `mbpp_eval/pass_rate`, pass@1, `problems_passed`, solved by any sample, and others."""
    passes = get_passes(samples)
    if not passes:
        return {}
    return {
        "mbpp_eval/pass_rate": fmean(map(fmean, passes.values())),
        "mbpp_eval/problems_passed": float(sum(map(any, passes.values()))),
        "mbpp_eval/num_problems": float(len(passes)),
        "mbpp_eval/cut_share": fmean(sample.cut for sample in samples),
    }


def compare_samples(before: Sequence[Sample], after: Sequence[Sample]) -> list[Comparison]:
    """Return pass@1 before and after on the problems of both; empty if there are none."""
    old, new = (
        {str(task_id): fmean(passed) for task_id, passed in get_passes(samples).items()}
        for samples in (before, after)
    )
    return compare({"pass_rate_sampled": {"mbpp": old}}, {"pass_rate_sampled": {"mbpp": new}})


def describe_samples(samples: Sequence[Sample]) -> list[str]:
    """Return warnings about an outcome that most samples share, and about many that were cut."""
    return describe_ends([sample.end for sample in samples], length_field="mbpp.max_completion_length")


def summarize(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return pass@k with 95% intervals, and counts of outcomes.

    k is 1, 10, 100 and the number of samples of a problem, as far as there are so many. The intervals are
    Wilson's with the problems as trials: of chances between 0 and 1 they are cautious, and none has no width.
    pass@k leaves out problems with fewer than k samples that ran; raises ParamsError if none ran.
    """
    passes = get_passes(samples)
    most = max(map(len, passes.values()), default=0)
    if not most:
        raise ParamsError("MBPP: no program could be judged; `rlnb doctor` says what isolates them here")
    ks = sorted({k for k in (1, 10, 100, most) if k <= most})
    return {
        "num_problems": len(passes),
        "num_samples": sum(map(len, passes.values())),
        "problems_passed": sum(map(any, passes.values())),
        "pass_at": {str(k): estimate_pass_at(passes, k) for k in ks},
        "cut_share": fmean(sample.cut for sample in samples),
        "outcomes": dict(Counter(sample.outcome for sample in samples).most_common()),
        "warnings": describe_samples(samples),
    }


def make_headline(summary: Mapping[str, Any]) -> list[str]:
    """Return a summary in lines: pass@k with 95% intervals, cut answers, outcomes, warnings."""
    lines = [
        "pass@{} {value:.3f} [{low:.3f}, {high:.3f}], {num_problems} problems".format(k, **known)
        for k, known in summary["pass_at"].items()
    ]
    lines.append(f"{summary['cut_share']:.1%} of the answers were cut")
    outcomes = [f"{count} {outcome.replace('_', ' ')}" for outcome, count in summary["outcomes"].items()]
    return [*lines, f"outcomes: {', '.join(outcomes)}", *summary["warnings"]]


def estimate_pass_at(passes: Mapping[int, Sequence[bool]], k: int) -> dict[str, float]:
    by_problem = [pass_at_k(len(passed), sum(passed), k) for passed in passes.values() if len(passed) >= k]
    estimate = wilson_interval(fmean(by_problem), len(by_problem))
    return {**asdict(estimate), "num_problems": len(by_problem)}


def save_evaluation(
    path: str | Path,
    samples: Sequence[Sample],
    *,
    params: BaseModel | Mapping[str, object],
    settings: Mapping[str, object],
    plus: PlusResults | None = None,
) -> None:
    """Write settings, the summary and a record per sample as JSON; see `save_results`."""
    verdicts, rates = plus or ([None] * len(samples), None)
    records = [asdict(sample) | {"plus": verdict} for sample, verdict in zip(samples, verdicts, strict=True)]
    summary = summarize(samples)
    save_results(
        path, params=params, headline=make_headline(summary), settings=settings,
        summary=summary | {"plus": rates}, samples=records,
    )  # fmt: skip
