"""What an evaluation on MBPP found: metrics, a summary, a file."""

import json
import platform
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rlnb
from rlnb.errors import ParamsError
from rlnb.evaluation.compare import bootstrap_difference, bootstrap_mean, pass_at_k, wilson_interval
from rlnb.evaluation.mbpp import Sample
from rlnb.evaluation.plus import PlusReport
from rlnb.machine import installed_version, rank
from rlnb.runs import write_text

LONGEST_ERROR = 300  # characters kept of what a program said
PACKAGES = ("torch", "transformers", "peft", "unsloth", "bitsandbytes", "vllm")


def passes_by_problem(samples: Sequence[Sample]) -> dict[int, list[bool]]:
    """{task_id: whether each sample passed}, without those that the sandbox failed to run."""
    passes: dict[int, list[bool]] = {}
    for sample in samples:
        if sample.passed is not None:
            passes.setdefault(sample.problem.task_id, []).append(sample.passed)
    return passes


def mbpp_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """`mbpp_eval/pass_rate`, pass@1, and `mbpp_eval/problems_passed`, which one sample at least solves."""
    passes = passes_by_problem(samples)
    if not passes:
        return {}
    rates = [sum(each) / len(each) for each in passes.values()]
    return {
        "mbpp_eval/pass_rate": sum(rates) / len(rates),
        "mbpp_eval/problems_passed": float(sum(map(any, passes.values()))),
    }


def compare_samples(before: Sequence[Sample], after: Sequence[Sample]) -> list[dict[str, Any]]:
    """A row for `rlnb.display`: pass@1 before and after on the problems of both, none where there is none."""
    old, new = passes_by_problem(before), passes_by_problem(after)
    both = sorted(old.keys() & new.keys())
    if not both:
        return []
    rates = [[sum(passes[number]) / len(passes[number]) for number in both] for passes in (old, new)]
    difference = bootstrap_difference(*rates)
    return [
        {
            "measure": "pass_rate_sampled",
            "split": "mbpp",
            "num_tasks": len(both),
            "before": sum(rates[0]) / len(both),
            "after": sum(rates[1]) / len(both),
            "difference": difference.value,
            "low": difference.low,
            "high": difference.high,
        }
    ]


def summarize(samples: Sequence[Sample], ks: Collection[int] = (1,)) -> dict[str, Any]:
    """What an evaluation found: pass@k with 95% intervals, passes on shown and held-out asserts, outcomes.

    pass@1 has Wilson's interval over problems, cautious where there are several samples of each; other k have
    the bootstrap's over problems. Problems with fewer than k samples that ran are left out of pass@k; raises
    ParamsError where none is left.
    """
    passes = passes_by_problem(samples)
    counted = [sample for sample in samples if sample.passed is not None]
    pass_at = {}
    for k in sorted(ks):
        estimates = [pass_at_k(len(each), sum(each), k) for each in passes.values() if len(each) >= k]
        if not estimates:
            raise ParamsError(f"evaluation.k = {k}: no problem has as many samples; ask for a smaller k")
        mean = sum(estimates) / len(estimates)
        estimate = wilson_interval(mean, len(estimates)) if k == 1 else bootstrap_mean(estimates)
        pass_at[str(k)] = {**asdict(estimate), "num_problems": len(estimates)}
    held_out = [s.passed_held_out for s in counted if s.passed_held_out is not None]
    return {
        "num_problems": len(passes),
        "num_samples": len(counted),
        "problems_passed": sum(map(any, passes.values())),
        "pass_at": pass_at,
        "passed_shown": sum(sample.passed_shown for sample in counted) / len(counted),
        "passed_held_out": sum(held_out) / len(held_out) if held_out else None,
        "outcomes": dict(Counter(sample.outcome for sample in samples)),
    }


def save_evaluation(
    path: str | Path,
    samples: Sequence[Sample],
    *,
    settings: Mapping[str, Any],
    ks: Collection[int] = (1,),
    plus: PlusReport | None = None,
) -> None:
    """Write one evaluation as JSON, whole or not at all: settings, versions, summary, a verdict a sample."""
    records = [sample_record(sample) for sample in samples]
    if plus is not None:
        for record, verdict in zip(records, plus.verdicts, strict=True):
            record["plus"] = None if verdict is None else asdict(verdict)
    results = {
        "settings": settings,
        "versions": versions(),
        "summary": summarize(samples, ks) | ({"plus": plus.summary} if plus is not None else {}),
        "samples": records,
    }
    if rank() == 0:
        write_text(Path(path), json.dumps(results, indent=1) + "\n")


def versions() -> dict[str, str]:
    """Of Python, of rlnb, and of the packages that completions depend on, as far as they are installed."""
    installed = {name: installed_version(name) for name in PACKAGES}
    found = {name: version for name, version in installed.items() if version is not None}
    return {"python": platform.python_version(), "rlnb": rlnb.__version__, **found}


def sample_record(sample: Sample) -> dict[str, Any]:
    """A sample as plain data."""
    return {
        "task_id": sample.problem.task_id,
        "sample": sample.number,
        "outcome": sample.outcome,
        "passed": sample.passed,
        "results": sample.verdict.results,
        "failing_assertion": sample.failing_assertion,
        "error": "" if sample.passed else sample.verdict.error[:LONGEST_ERROR],
        "completion": sample.completion,
        "program": sample.program,
    }
