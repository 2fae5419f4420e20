"""Results of evaluations: before and after compared with intervals, the file that keeps them, two files."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from pathlib import Path
from statistics import fmean
from typing import TypeVar

import numpy as np
from pydantic import BaseModel, StrictBool, StrictInt
from pydantic_core import to_jsonable_python

from rlnb.errors import ParamsError
from rlnb.machine import rank
from rlnb.run.disk import write_text
from rlnb.statistics import (
    Estimate,
    bootstrap_difference,
    bootstrap_ratio,
    bootstrap_two_way,
    mcnemar_p,
    student_mean,
)

Saved = TypeVar("Saved", bound=BaseModel)
Measures = Mapping[str, Mapping[str, Mapping[str, float]]]  # {measure: {split: {item id: mean}}}
# {measure: {kind of board: scores of each completion on each board}}
BoardScores = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]


@dataclass(frozen=True)
class Comparison:
    """One measure on one split, before and after, over the items that were measured both times.

    before, after: means over `num_items` items. difference: after - before, with its 95% bootstrap interval
    over items. items: {id: (before, after)}, for means over several runs; empty for the split "all", whose
    items are those of the other splits, and for measures that are no mean over items.
    """

    measure: str
    split: str
    num_items: int
    before: float
    after: float
    difference: Estimate
    items: Mapping[str, tuple[float, float]] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        measure = self.measure.replace("_", " ")
        return (
            f"{measure} on {self.split}: {self.before:.3f} / {self.after:.3f}; difference {self.difference}"
        )


@dataclass(frozen=True)
class PooledComparison:
    """One measure on one split, means over several runs, such as one a seed.

    over_items: the differences averaged over runs, bootstrap over items: how far other items might differ.
    over_runs: Student's interval over the runs' differences: how far other seeds might. over_both: two-way
    bootstrap over both. None where there is a single run, or where the runs did not keep their items.
    """

    measure: str
    split: str
    num_runs: int
    num_items: int
    before: float
    after: float
    difference: float
    over_items: Estimate | None
    over_runs: Estimate | None
    over_both: Estimate | None


def compare(before: Measures, after: Measures) -> list[Comparison]:
    """Return a comparison for each measure and split, "all" splits first where there are several.

    Items are paired; those measured only once are left out, and so is a split without pairs.
    """
    comparisons = []
    for measure, splits in before.items():
        items = {
            split: {
                item: (value, after[measure][split][item])
                for item, value in values.items()
                if item in after.get(measure, {}).get(split, {})
            }
            for split, values in splits.items()
        }
        pairs = {split: list(kept.values()) for split, kept in items.items()}
        if len(pairs) > 1:
            pairs = {"all": [pair for split_pairs in pairs.values() for pair in split_pairs], **pairs}
        for split, split_pairs in pairs.items():
            if split_pairs:
                old, new = zip(*split_pairs, strict=True)
                means, difference = (sum(old) / len(old), sum(new) / len(new)), bootstrap_difference(old, new)
                kept = items.get(split, {})
                comparisons.append(Comparison(measure, split, len(old), *means, difference, kept))
    return comparisons


def compare_boards(before: BoardScores, after: BoardScores) -> list[Comparison]:
    """Return a comparison of programs that play boards, on the kinds of boards measured both times.

    Items are boards; intervals resample completions and boards. Raises ValueError if the two played other
    numbers of boards.
    """
    num_kinds = len({kind for scores in before.values() for kind in scores})
    rows = []
    for measure, old in before.items():
        new = after.get(measure, {})
        common = [kind for kind in new if kind in old]
        if common:
            old_scores, new_scores = ([scores[kind] for kind in common] for scores in (old, new))
            rows.append(
                Comparison(
                    measure,
                    split=", ".join(common) if len(common) < num_kinds else "all boards",
                    num_items=sum(len(new[kind][0]) for kind in common),
                    before=bootstrap_two_way(old_scores).value,
                    after=bootstrap_two_way(new_scores).value,
                    difference=bootstrap_two_way(new_scores, old_scores),
                )
            )
    return rows


def pool_comparisons(runs: Sequence[Sequence[Comparison]]) -> list[PooledComparison]:
    """Return the comparisons that all runs have, as means over the runs, in the order of the first run."""
    by_run = [{(row.measure, row.split): row for row in rows} for rows in runs]
    keys = [key for key in (by_run[0] if by_run else {}) if all(key in rows for rows in by_run)]
    return [_pool([rows[key] for rows in by_run], [_items_of(rows, key) for rows in by_run]) for key in keys]


def _items_of(
    rows: Mapping[tuple[str, str], Comparison], key: tuple[str, str]
) -> dict[tuple[str, str], float]:
    """Return {(split, item): difference}. Behind "all" come its splits, then those of other evaluations."""
    measure, split = key
    parts = [rows[key]]
    if split == "all":
        splits = [row for row in rows.values() if row.measure == measure and row.split != "all"]
        counts = accumulate(row.num_items for row in splits)
        parts = splits[: sum(count <= rows[key].num_items for count in counts)]
    return {(row.split, item): after - before for row in parts for item, (before, after) in row.items.items()}


def _pool(rows: Sequence[Comparison], items: Sequence[Mapping[tuple[str, str], float]]) -> PooledComparison:
    common = [item for item in items[0] if all(item in kept for kept in items)]
    differences = np.array([[kept[item] for item in common] for kept in items])
    is_several, has_items = len(rows) > 1, bool(common)
    return PooledComparison(
        rows[0].measure,
        rows[0].split,
        len(rows),
        len(common) or rows[0].num_items,
        fmean(row.before for row in rows),
        fmean(row.after for row in rows),
        fmean(row.difference.value for row in rows),
        over_items=bootstrap_ratio(differences.mean(axis=0), np.ones(len(common)))
        if has_items
        else (None if is_several else rows[0].difference),
        over_runs=student_mean([row.difference.value for row in rows]) if is_several else None,
        over_both=bootstrap_two_way([differences]) if is_several and has_items else None,
    )


def save_results(
    path: str | Path,
    *,
    params: BaseModel | Mapping[str, object],
    comparison: Sequence[Comparison] = (),
    headline: Sequence[str] = (),
    **records: object,
) -> None:
    """Write an evaluation as JSON, whole or not at all; only rank 0 writes.

    The file holds {"params", "headline", "comparison"} and `records` under their names. headline: the lines
    that `rlnb run` ends with, by default those of the comparison, of "all" splits where there are several.
    Dataclasses become objects, numpy arrays lists, NaN and infinities null. Raises TypeError for other types.
    """
    values = params.model_dump() if isinstance(params, BaseModel) else params
    lines: list[str] = []
    for _, group in groupby(comparison, lambda row: row.measure):
        rows = list(group)
        lines += map(str, rows[:1] if rows[0].split == "all" else rows)
    lines = ["before / after; difference [95% interval]", *lines] if lines else []
    write_record(path, {"params": values, "headline": headline or lines, "comparison": comparison, **records})


def write_record(path: str | Path, record: Mapping[str, object]) -> None:
    """Write a record as `save_results` does."""
    if rank() == 0:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        plain = to_jsonable_python(record, inf_nan_mode="null", fallback=to_plain_data)
        write_text(Path(path), json.dumps(plain, indent=1, allow_nan=False) + "\n")


def to_plain_data(value: object) -> object:
    """Return a numpy array or number as plain data. Raises TypeError for other types."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be saved as JSON")


def load_saved(path: str | Path, kind: type[Saved], *, what: str) -> Saved:
    """Return a file that `save_results` wrote as a model. Raises ParamsError for one that is not `what`."""
    try:
        return kind.model_validate(json.loads(Path(path).read_bytes()))
    except OSError as error:
        raise ParamsError(f"{path}: cannot be read: {error.strerror}; name a results.json") from error
    except (ValueError, RecursionError) as error:
        raise ParamsError(f"{path}: is not a result {what}; name the results.json of one") from error


class SavedComparison(BaseModel, extra="allow"):
    """The part of a results file that averages over runs read; the other parts are in `model_extra`."""

    comparison: list[Comparison] = []


class SavedSample(BaseModel):
    """A sample in a file of an evaluation on MBPP."""

    task_id: StrictInt
    passed: StrictBool | None


class SavedEvaluation(BaseModel):
    """The parts of an evaluation on MBPP that a comparison reads."""

    settings: dict[str, object]
    samples: list[SavedSample]


def compare_files(first: Path, second: Path) -> str:
    """Return the problems of MBPP that one of two evaluations solves and the other does not, in lines.

    Each is a run's directory or a file: results.json of mbpp_eval, or the mbpp_before.json and
    mbpp_after.json of a training. A problem counts as solved if at least half of its samples pass. The
    difference of pass@1 is paired over problems, and gains and losses are tested by McNemar's exact test.
    Raises ParamsError for other files, and for two that do not compare.
    """
    first, second = (path / "results.json" if path.is_dir() else path for path in (first, second))
    what = "of an evaluation on MBPP"
    old, new = (load_saved(path, SavedEvaluation, what=what) for path in (first, second))
    if old.settings.get("sha256") != new.settings.get("sha256"):
        raise ParamsError(f"{first} and {second}: use different data (sha256); compare runs on the same file")
    rates, new_rates = (
        {task_id: fmean(passed) for task_id, passed in passes.items()}
        for passes in (group_passes((s.task_id, s.passed) for s in file.samples) for file in (old, new))
    )
    common = sorted(rates.keys() & new_rates.keys())
    if not common:
        raise ParamsError(f"{first} and {second}: have no problem in common; compare runs on the same split")
    gained = [task_id for task_id in common if rates[task_id] < 0.5 <= new_rates[task_id]]
    lost = [task_id for task_id in common if new_rates[task_id] < 0.5 <= rates[task_id]]
    difference = bootstrap_difference([rates[i] for i in common], [new_rates[i] for i in common])
    changed = [
        f"{name}: {old.settings.get(name)} / {new.settings.get(name)}"
        for name in sorted(old.settings.keys() | new.settings.keys())
        if old.settings.get(name) != new.settings.get(name)
    ]
    lines = [
        f"{len(common)} problems in both",
        f"pass@1 {difference}",
        f"gained {len(gained)}: {', '.join(map(str, gained)) or 'none'}",
        f"lost {len(lost)}: {', '.join(map(str, lost)) or 'none'}",
        f"McNemar's exact test: p = {mcnemar_p(len(gained), len(lost)):.3g}",
    ]
    return "\n".join(lines + changed)


def group_passes(samples: Iterable[tuple[int, bool | None]]) -> dict[int, list[bool]]:
    """Return {task_id: whether each sample passed} of (task_id, passed), without those that are None."""
    passes: dict[int, list[bool]] = {}
    for task_id, passed in samples:
        if passed is not None:
            passes.setdefault(task_id, []).append(passed)
    return passes
