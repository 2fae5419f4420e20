"""Results of evaluations: before and after compared with intervals, and the file that keeps them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import fmean

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from rlnb.errors import ParamsError
from rlnb.machine import rank
from rlnb.run.directory import write_text
from rlnb.statistics import (
    Estimate,
    bootstrap_difference,
    bootstrap_mean,
    bootstrap_two_way,
    student_mean,
)

Measures = Mapping[str, Mapping[str, Mapping[str, float]]]  # {measure: {split: {item id: mean}}}


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
        over_items=bootstrap_mean(differences.mean(axis=0))
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
    **records: object,
) -> None:
    """Write an evaluation as JSON, whole or not at all; only rank 0 writes.

    The file holds {"params", "comparison"} and `records` under their names. Dataclasses become objects, numpy
    arrays lists, NaN and infinities null. Raises TypeError for other types.
    """
    values = params.model_dump() if isinstance(params, BaseModel) else params
    write_record(path, {"params": values, "comparison": comparison, **records})


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


def load_results(path: str | Path) -> dict[str, object]:
    """Return what `save_results` wrote. Raises ParamsError for a file that is not a JSON object."""
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ParamsError(f"{path}: cannot be read: {error.strerror}; name a results.json") from error
    except (ValueError, RecursionError) as error:
        raise ParamsError(f"{path}: not JSON; name the results.json of an evaluation") from error
    if not isinstance(results, dict):
        raise ParamsError(f"{path}: holds no results; name the results.json of an evaluation")
    return results


def read_comparisons(path: str | Path) -> list[Comparison]:
    """Return the comparisons of a results file, [] where it has none. Raises ParamsError for another file."""
    rows = load_results(path).get("comparison", [])
    try:
        return TypeAdapter(list[Comparison]).validate_python(rows)
    except ValidationError as error:
        raise ParamsError(f"{path}: its comparison cannot be read; name the results.json of a run") from error
