"""Samples of MBPP: a checked completion, and files of samples in EvalPlus's form."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, StrictStr

from rlnb.errors import ParamsError
from rlnb.json_records import Record, check_record, read_records, read_text
from rlnb.mbpp.problems import TaskId
from rlnb.run.disk import write_text
from rlnb.run.health import AnswerEnd

FORMS = (
    """EvalPlus's lines {"task_id": "Mbpp/11", "solution": "..."}, its folder with Mbpp_11/0.py, """
    """and bigcode's {"11": ["...", "..."]}, which names the problems (a list of lists does not)"""
)
Progress = Callable[[int, int], None]  # called with (done, total)


@dataclass(frozen=True)
class Sample:
    """One checked completion, as results files keep it.

    text: of the problem. sample: its index among the problem's. outcome: "passed", "wrong" (an assertion
    failed), "no_code", or how the program ended. passed: None if the sandbox failed. results: of each assert.
    error: untrusted. cut: before its program was complete.
    """

    task_id: int
    text: str
    sample: int
    outcome: str
    passed: bool | None
    results: tuple[bool | None, ...]
    error: str
    completion: str
    cut: bool
    program: str | None

    @property
    def end(self) -> AnswerEnd:
        return AnswerEnd(self.outcome, self.error, self.cut)


class WrittenSample(BaseModel, frozen=True):
    """A program from a file: a line of EvalPlus's form."""

    task_id: TaskId
    solution: StrictStr


def read_samples(path: str, task_ids: Sequence[int]) -> list[WrittenSample]:
    """Return the programs of a file or folder in one of the FORMS. Raises ParamsError.

    A problem without a sample is an error: a rate over some would be taken for a rate over all.
    """
    try:
        samples = [
            check_record(WrittenSample.model_validate, place, record, what="sample")
            for place, record in _iterate_samples(Path(path))
        ]
    except ParamsError as error:
        raise ParamsError(f"{error}; forms that are read: {FORMS}") from None
    if not samples:
        raise ParamsError(f"{path}: holds no samples; forms that are read: {FORMS}")
    if others := {sample.task_id for sample in samples} ^ set(task_ids):
        raise ParamsError(
            f"{path}: holds samples of other problems than the {len(task_ids)} evaluated ones: {len(others)} "
            f"differ, task_id {min(others)} for one; write samples of all (an empty solution is a wrong one) "
            "and of no others, or evaluate others: mbpp.split, mbpp.path, evaluation.num_questions"
        )
    return samples


def _iterate_samples(path: Path) -> Iterator[Record]:
    """Yield the records of a file, or the programs of a folder by problem and number."""
    files = path.glob("*/*.py")
    for file in sorted(files, key=lambda file: (file.parent.name, len(file.name), file.name)):
        yield str(file), {"task_id": file.parent.name, "solution": read_text(file, what="sample")}
    for place, record in () if path.is_dir() else read_records(path, what="sample"):
        if isinstance(record, dict) and all(isinstance(programs, list) for programs in record.values()):
            for task_id, programs in record.items():
                yield from ((place, {"task_id": task_id, "solution": program}) for program in programs)
        else:
            yield place, record


def hash_samples(path: str) -> str:
    """Return the SHA-256 of the records of a file or folder."""
    records = [record for _, record in _iterate_samples(Path(path))]
    return hashlib.sha256(json.dumps(records).encode()).hexdigest()


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """Write programs in EvalPlus's form, for `evalplus.evaluate` or `read_samples`."""
    rows = [{"task_id": f"Mbpp/{s.task_id}", "solution": s.program or ""} for s in samples]
    write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))
