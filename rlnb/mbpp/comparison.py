"""The comparison of two saved evaluations on MBPP, without importing a model's libraries."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pydantic import BaseModel, StrictBool, StrictInt, ValidationError

from rlnb.errors import ParamsError
from rlnb.results import load_results
from rlnb.statistics import Estimate, bootstrap_difference, mcnemar_p


class SavedSample(BaseModel):
    task_id: StrictInt
    passed: StrictBool | None


class SavedEvaluation(BaseModel):
    """The parts of a saved evaluation that a comparison needs."""

    settings: dict[str, object]
    samples: list[SavedSample]

    def rates(self) -> dict[int, float]:
        passes = group_passes((sample.task_id, sample.passed) for sample in self.samples)
        return {task_id: fmean(passed) for task_id, passed in passes.items()}


def group_passes(samples: Iterable[tuple[int, bool | None]]) -> dict[int, list[bool]]:
    """Return {task_id: whether each sample passed} of (task_id, passed), without those that are None."""
    passes: dict[int, list[bool]] = {}
    for task_id, passed in samples:
        if passed is not None:
            passes.setdefault(task_id, []).append(passed)
    return passes


@dataclass(frozen=True)
class EvaluationDifference:
    """Two saved evaluations of the same problems.

    gained, lost: task_ids solved only second, or only first, by at least half of the samples. p_value: of
    McNemar's exact test. difference: of pass@1 over problems, paired. settings: {name: (first, second)} of
    those that differ.
    """

    num_problems: int
    gained: list[int]
    lost: list[int]
    p_value: float
    difference: Estimate
    settings: dict[str, tuple[object, object]]

    def __str__(self) -> str:
        lines = [
            f"{self.num_problems} problems in both",
            f"pass@1 {self.difference}",
            f"gained {len(self.gained)}: {', '.join(map(str, self.gained)) or 'none'}",
            f"lost {len(self.lost)}: {', '.join(map(str, self.lost)) or 'none'}",
            f"McNemar's exact test: p = {self.p_value:.3g}",
        ]
        lines += [f"{name}: {old} / {new}" for name, (old, new) in self.settings.items()]
        return "\n".join(lines)


def compare_results(first: str | Path, second: str | Path) -> EvaluationDifference:
    """Return the difference of two files that `save_evaluation` wrote.

    Raises ParamsError for other files, for different data, and if no problem is in both.
    """
    old, new = load_evaluation(first), load_evaluation(second)
    if old.settings.get("sha256") != new.settings.get("sha256"):
        raise ParamsError(f"{first} and {second}: use different data (sha256); compare runs on the same file")
    rates, new_rates = old.rates(), new.rates()
    common = sorted(rates.keys() & new_rates.keys())
    if not common:
        raise ParamsError(f"{first} and {second}: have no problem in common; compare runs on the same split")
    gained = [task_id for task_id in common if rates[task_id] < 0.5 <= new_rates[task_id]]
    lost = [task_id for task_id in common if new_rates[task_id] < 0.5 <= rates[task_id]]
    return EvaluationDifference(
        num_problems=len(common),
        gained=gained,
        lost=lost,
        p_value=mcnemar_p(len(gained), len(lost)),
        difference=bootstrap_difference([rates[i] for i in common], [new_rates[i] for i in common]),
        settings={
            name: (old.settings.get(name), new.settings.get(name))
            for name in sorted(old.settings.keys() | new.settings.keys())
            if old.settings.get(name) != new.settings.get(name)
        },
    )


def load_evaluation(path: str | Path) -> SavedEvaluation:
    try:
        return SavedEvaluation.model_validate(load_results(path))
    except ValidationError as error:
        message = (
            f"{path}: is not a result of an evaluation on MBPP; name the results.json of two runs of "
            "mbpp_eval or of gpt_oss_2048, or a training's mbpp_before.json and mbpp_after.json"
        )
        raise ParamsError(message) from error
