"""Files of completions in EvalPlus's or bigcode's form."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, StrictInt, StrictStr

from rlnb.errors import ParamsError
from rlnb.json_records import check_record, read_records


@dataclass(frozen=True)
class WrittenSample:
    """A completion from a file. is_program: it is the whole program, to be run as it is."""

    task_id: int
    text: str
    is_program: bool


def parse_task_id(value: object) -> object:
    """Return the number in "Mbpp/11" or "11", other types unchanged. Raises ValueError."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(?:Mbpp/)?([0-9]{1,9})", value)
    if match is None:
        raise ValueError(f"task_id = {value[:80]!r} is not 'Mbpp/' and a number")
    return int(match[1])


TaskId = Annotated[StrictInt, BeforeValidator(parse_task_id)]


class SampleRecord(BaseModel):
    """A line of EvalPlus's form."""

    task_id: TaskId
    solution: StrictStr | None = None
    completion: StrictStr | None = None


def parse_sample(record: Mapping[str, object]) -> WrittenSample:
    fields = SampleRecord.model_validate(record)
    if fields.solution is not None:
        return WrittenSample(fields.task_id, fields.solution, is_program=True)
    if fields.completion is None:
        raise ValueError("the fields 'solution' and 'completion' are missing; write one of them")
    return WrittenSample(fields.task_id, fields.completion, is_program=False)


def read_samples(path: str, task_ids: Sequence[int]) -> list[WrittenSample]:
    """Return the completions of a file, in its order.

    EvalPlus's form: one line per sample, {"task_id": "Mbpp/11" or 11, "solution": program}, or "completion"
    instead of "solution", which is cut by the template's stop rule. bigcode's form: one list whose n-th entry
    is the list of programs for the n-th of `task_ids`. Raises ParamsError, also if a problem has no sample: a
    rate over some problems would be taken for a rate over all.
    """
    records = list(read_records(Path(path), what="sample"))
    if not records:
        raise ParamsError(f"{path}: holds no sample; write one a line, with 'task_id' and 'solution'")
    samples, known = [], set(task_ids)
    if all(isinstance(record, list) for _, record in records):
        if len(records) != len(task_ids):
            raise ParamsError(
                f"{path}: holds {len(records)} lists of programs for {len(task_ids)} problems; write one for "
                "each, in the order of task_ids"
            )
        records = [
            (place, {"task_id": task_id, "solution": program})
            for task_id, (place, programs) in zip(task_ids, records, strict=True)
            for program in (programs if isinstance(programs, list) else [])
        ]
    for place, record in records:
        sample = check_record(parse_sample, place, record, what="sample")
        if sample.task_id not in known:
            raise ParamsError(
                f"{place}: task_id {str(sample.task_id)[:20]} is none of the {len(known)} problems that are "
                "evaluated; remove its samples, or ask more: mbpp.split, evaluation.num_questions"
            )
        samples.append(sample)
    missing = sorted(known - {sample.task_id for sample in samples})
    if missing:
        raise ParamsError(
            f"{path}: holds no sample for {len(missing)} of {len(task_ids)} problems, task_id {missing[0]} "
            "for one; add them (an empty solution is a wrong one), or ask fewer: mbpp.split, mbpp.path"
        )
    return samples
