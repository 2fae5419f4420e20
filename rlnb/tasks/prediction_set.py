"""Programs with known outputs, written for rlnb: how well does a reader predict, whatever a policy plays?"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlnb.tasks.records import checked, json_records, typed

PREDICTION_FILE = Path(__file__).with_name("prediction_set.jsonl")
# What the programs of a level do. Above the first, no output stands in the code.
PREDICTION_LEVELS = {
    "L1": "prints a literal",
    "L2": "one arithmetic expression",
    "L3": "a short loop",
    "L4": "texts and lists",
}


@dataclass(frozen=True)
class PredictionProgram:
    """A short program. level: of PREDICTION_LEVELS. output: what it prints, normalised."""

    level: str
    code: str
    output: str


def prediction_set() -> list[PredictionProgram]:
    """The programs of rlnb, 15 a level, in the order of levels."""
    return list(read_programs())


@lru_cache(maxsize=1)
def read_programs() -> tuple[PredictionProgram, ...]:
    """The programs of PREDICTION_FILE. Raises ParamsError where a record is none."""
    records = json_records(PREDICTION_FILE, what="program")
    return tuple(checked(program_of, place, record, what="program") for place, record in records)


def program_of(record: Mapping[str, Any]) -> PredictionProgram:
    """The program of a record with the texts `level`, `code` and `output`."""
    fields = {name: typed(record[name], str, name=name) for name in ("level", "code", "output")}
    if fields["level"] not in PREDICTION_LEVELS:
        raise ValueError(f"level = {fields['level']!r} is not one of {', '.join(PREDICTION_LEVELS)}")
    return PredictionProgram(**fields)
