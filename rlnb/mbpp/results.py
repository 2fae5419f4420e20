"""Results on MBPP: metrics, pass@k with intervals, and a file of samples."""

import platform
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TypedDict

from pydantic import BaseModel

import rlnb
from rlnb.errors import ParamsError
from rlnb.machine import installed_version
from rlnb.mbpp.comparison import group_passes
from rlnb.mbpp.evalplus import PlusReport
from rlnb.mbpp.evaluation import Sample
from rlnb.results import Comparison, compare, save_results
from rlnb.statistics import bootstrap_mean, pass_at_k, wilson_interval

MAX_ERROR_LENGTH = 300  # characters kept of what a program printed as its error
PACKAGES = ("torch", "transformers", "peft", "unsloth", "bitsandbytes", "vllm")


class Summary(TypedDict):
    """Counts and rates of one evaluation. pass_at: {k: value, low, high and num_problems}."""

    num_problems: int
    num_samples: int
    problems_passed: int
    pass_at: dict[str, dict[str, float]]
    passed_shown: float
    passed_held_out: float | None
    outcomes: dict[str, int]


def get_passes(samples: Sequence[Sample]) -> dict[int, list[bool]]:
    """Return {task_id: whether each sample passed}, leaving out samples that the sandbox failed to run."""
    return group_passes((sample.problem.task_id, sample.passed) for sample in samples)


def mbpp_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Return `mbpp_eval/pass_rate`, pass@1, and `mbpp_eval/problems_passed`, solved by any sample."""
    passes = get_passes(samples)
    if not passes:
        return {}
    return {
        "mbpp_eval/pass_rate": fmean(map(fmean, passes.values())),
        "mbpp_eval/problems_passed": float(sum(map(any, passes.values()))),
    }


def compare_samples(before: Sequence[Sample], after: Sequence[Sample]) -> list[Comparison]:
    """Return pass@1 before and after on the problems of both; empty if there are none."""
    old, new = (
        {str(task_id): fmean(passed) for task_id, passed in get_passes(samples).items()}
        for samples in (before, after)
    )
    return compare({"pass_rate_sampled": {"mbpp": old}}, {"pass_rate_sampled": {"mbpp": new}})


def summarize(samples: Sequence[Sample], ks: Collection[int] = (1,)) -> Summary:
    """Return pass@k with 95% intervals, pass rates on shown and held-out asserts, and counts of outcomes.

    pass@1 has Wilson's interval over problems, which is cautious if a problem has several samples; other k
    have a bootstrap over problems. pass@k leaves out problems with fewer than k samples that ran; raises
    ParamsError if none is left.
    """
    passes = get_passes(samples)
    checked = [sample for sample in samples if sample.passed is not None]
    held_out = [sample.passed_held_out for sample in checked if sample.passed_held_out is not None]
    return {
        "num_problems": len(passes),
        "num_samples": len(checked),
        "problems_passed": sum(map(any, passes.values())),
        "pass_at": {str(k): estimate_pass_at(passes, k) for k in sorted(ks)},
        "passed_shown": fmean(sample.passed_shown for sample in checked),
        "passed_held_out": fmean(held_out) if held_out else None,
        "outcomes": dict(Counter(sample.outcome for sample in samples)),
    }


def estimate_pass_at(passes: Mapping[int, Sequence[bool]], k: int) -> dict[str, float]:
    by_problem = [pass_at_k(len(passed), sum(passed), k) for passed in passes.values() if len(passed) >= k]
    if not by_problem:
        raise ParamsError(f"evaluation.k = {k}: no problem has as many samples; write a smaller k")
    estimate = wilson_interval(fmean(by_problem), len(by_problem)) if k == 1 else bootstrap_mean(by_problem)
    return {**asdict(estimate), "num_problems": len(by_problem)}


def save_evaluation(
    path: str | Path,
    samples: Sequence[Sample],
    *,
    params: BaseModel | Mapping[str, object],
    settings: Mapping[str, object],
    ks: Collection[int] = (1,),
    plus: PlusReport | None = None,
) -> None:
    """Write settings, package versions, the summary and a record per sample as JSON; see `save_results`."""
    verdicts = [None] * len(samples) if plus is None else plus.verdicts
    records = [
        {
            "task_id": sample.problem.task_id,
            "sample": sample.index,
            "outcome": sample.outcome,
            "passed": sample.passed,
            "results": sample.verdict.results,
            "failing_assertion": sample.failing_assertion,
            "error": "" if sample.passed else sample.verdict.error[:MAX_ERROR_LENGTH],
            "completion": sample.completion,
            "program": sample.program,
            **({} if plus is None else {"plus": verdict}),
        }
        for sample, verdict in zip(samples, verdicts, strict=True)
    ]
    versions = {name: version for name in PACKAGES if (version := installed_version(name)) is not None}
    save_results(
        path,
        params=params,
        settings=settings,
        versions={"python": platform.python_version(), "rlnb": rlnb.__version__, **versions},
        summary={**summarize(samples, ks), **({} if plus is None else {"plus": plus.summary})},
        samples=records,
    )
