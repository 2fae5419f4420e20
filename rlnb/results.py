"""Results of evaluations: before and after compared with intervals, and the file that keeps them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from rlnb.errors import ParamsError
from rlnb.machine import rank
from rlnb.run.directory import write_text
from rlnb.statistics import Estimate, bootstrap_difference

Measures = Mapping[str, Mapping[str, Mapping[str, float]]]  # {measure: {split: {item id: mean}}}


@dataclass(frozen=True)
class Comparison:
    """One measure on one split, before and after, over the items that were measured both times.

    before, after: means over `num_items` items. difference: after - before, with its 95% bootstrap interval
    over items.
    """

    measure: str
    split: str
    num_items: int
    before: float
    after: float
    difference: Estimate


def compare(before: Measures, after: Measures) -> list[Comparison]:
    """Return a comparison for each measure and split, "all" splits first where there are several.

    Items are paired; those measured only once are left out, and so is a split without pairs.
    """
    comparisons = []
    for measure, splits in before.items():
        pairs = {
            split: [
                (value, after[measure][split][item])
                for item, value in items.items()
                if item in after.get(measure, {}).get(split, {})
            ]
            for split, items in splits.items()
        }
        if len(pairs) > 1:
            pairs = {"all": [pair for split_pairs in pairs.values() for pair in split_pairs], **pairs}
        for split, split_pairs in pairs.items():
            if split_pairs:
                old, new = zip(*split_pairs, strict=True)
                means, difference = (sum(old) / len(old), sum(new) / len(new)), bootstrap_difference(old, new)
                comparisons.append(Comparison(measure, split, len(old), *means, difference))
    return comparisons


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
    write_record(path, {"params": params, "comparison": comparison, **records})


def write_record(path: str | Path, record: Mapping[str, object]) -> None:
    """Write a record as `save_results` does."""
    if rank() == 0:
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
