"""Two evaluations on MBPP beside each other: from their files alone, without loading a model's libraries."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlnb.errors import ParamsError
from rlnb.evaluation.compare import bootstrap_difference, mcnemar_p


def compare_results(first: str | Path, second: str | Path) -> dict[str, Any]:
    """Two evaluations of the same problems: gained and lost ones, McNemar's exact test, the difference.

    A problem counts as solved when at least half of its samples pass. difference: of pass@1 over problems,
    paired, with its bootstrap interval. settings: those that differ, {name: (first, second)}. Raises
    ParamsError for a file that is no result, and where no problem is in both or the data differ.
    """
    old, new = read_results(first), read_results(second)
    if old["settings"].get("sha256") != new["settings"].get("sha256"):
        raise ParamsError(
            f"{first} and {second}: are of different data (sha256); compare runs on the same file"
        )
    rates, other_rates = problem_rates(old), problem_rates(new)
    both = sorted(rates.keys() & other_rates.keys())
    if not both:
        raise ParamsError(f"{first} and {second}: have no problem in common; compare runs on the same split")
    gained = [number for number in both if rates[number] < 0.5 <= other_rates[number]]
    lost = [number for number in both if other_rates[number] < 0.5 <= rates[number]]
    names = sorted(old["settings"].keys() | new["settings"].keys())
    pairs = {name: (old["settings"].get(name), new["settings"].get(name)) for name in names}
    return {
        "num_problems": len(both),
        "gained": gained,
        "lost": lost,
        "p_value": mcnemar_p(len(gained), len(lost)),
        "difference": asdict(bootstrap_difference([rates[n] for n in both], [other_rates[n] for n in both])),
        "settings": {name: pair for name, pair in pairs.items() if pair[0] != pair[1]},
    }


def comparison_text(comparison: Mapping[str, Any]) -> str:
    """What `compare_results` found, for a terminal."""
    gained, lost, difference = comparison["gained"], comparison["lost"], comparison["difference"]
    lines = [
        f"{comparison['num_problems']} problems in both",
        f"pass@1 {difference['value']:+.3f} [{difference['low']:+.3f}, {difference['high']:+.3f}]",
        f"gained {len(gained)}: {', '.join(map(str, gained)) or 'none'}",
        f"lost {len(lost)}: {', '.join(map(str, lost)) or 'none'}",
        f"McNemar's exact test: p = {comparison['p_value']:.3g}",
    ]
    lines += [f"{name}: {old} / {new}" for name, (old, new) in comparison["settings"].items()]
    return "\n".join(lines)


def read_results(path: str | Path) -> dict[str, Any]:
    """What `rlnb.evaluation.mbpp_results.save_evaluation` wrote. Raises ParamsError."""
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
        problem_rates(results)
        results["settings"].get("sha256")
    except OSError as error:
        raise ParamsError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ParamsError(f"{path}: is no result of an evaluation on MBPP; name its results.json") from error
    return dict(results)


def problem_rates(results: Mapping[str, Any]) -> dict[int, float]:
    """{task_id: share of its samples that passed}."""
    passes: dict[int, list[bool]] = {}
    for sample in results["samples"]:
        if sample["passed"] not in (True, False, None) or type(sample["task_id"]) is not int:
            raise ValueError("no verdict")
        if sample["passed"] is not None:
            passes.setdefault(sample["task_id"], []).append(sample["passed"])
    return {number: sum(each) / len(each) for number, each in passes.items()}
