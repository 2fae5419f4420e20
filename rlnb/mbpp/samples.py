"""Samples of MBPP: a checked completion, and files of samples in EvalPlus's form."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, StrictStr

from rlnb.errors import ParamsError
from rlnb.json_records import Record, check_record, read_records, read_text
from rlnb.mbpp.problems import Problem, TaskId
from rlnb.run.directory import write_text
from rlnb.run.health import AnswerEnd
from rlnb.sandbox import Verdict

Progress = Callable[[int, int], None]  # called with (done, total)


@dataclass(frozen=True)
class Sample:
    """One checked completion. index: among the problem's samples. num_shown: asserts in the question.

    is_cut: the limit of tokens ended the completion.
    """

    problem: Problem
    index: int
    completion: str
    is_cut: bool
    program: str | None
    verdict: Verdict
    num_shown: int

    @property
    def outcome(self) -> str:
        """ "passed", "wrong" (an assertion failed), "no_code", or how the program ended."""
        if self.verdict.passed:
            return "passed"
        if self.program is None:
            return "no_code"
        return "wrong" if self.verdict.status == "ok" else self.verdict.status

    @property
    def passed(self) -> bool | None:
        """Return whether all asserts hold, or None if the sandbox failed."""
        return None if self.outcome == "sandbox_error" else self.verdict.passed

    @property
    def end(self) -> AnswerEnd:
        return AnswerEnd(self.outcome, self.verdict.error, self.is_cut and not self.passed)

    @property
    def passed_shown(self) -> bool:
        """Return whether the asserts that the question shows hold."""
        return all(self.verdict.results[: self.num_shown])

    @property
    def passed_held_out(self) -> bool | None:
        """Return whether the asserts that the question does not show hold, or None if it shows all."""
        results = self.verdict.results[self.num_shown :]
        return all(results) if results else None


class WrittenSample(BaseModel):
    """A program from a file: a line of EvalPlus's form."""

    task_id: TaskId
    solution: StrictStr


def read_samples(path: str, task_ids: Sequence[int]) -> list[WrittenSample]:
    """Return the programs of a file or folder. Raises ParamsError.

    A line of a file is EvalPlus's {"task_id": "Mbpp/11", "solution": program}, or it is bigcode's one object,
    {"11": [program, ...]}. EvalPlus's folder holds Mbpp_11/0.py. A problem without a sample is an error: a
    rate over some would be taken for a rate over all.
    """
    samples = [
        check_record(WrittenSample.model_validate, place, record, what="sample")
        for place, record in _iterate_samples(Path(path))
    ]
    if not samples:
        raise ParamsError(
            f"{path}: holds no samples; name a file, or a folder with Mbpp_11/0.py and the like"
        )
    if others := {sample.task_id for sample in samples} ^ set(task_ids):
        raise ParamsError(
            f"{path}: holds samples of other problems than the {len(task_ids)} evaluated ones: {len(others)} "
            f"differ, task_id {min(others)} for one; write samples of all (an empty solution is a wrong one) "
            "and of no others, or evaluate others: mbpp.split, mbpp.path, evaluation.num_questions"
        )
    return samples


def _iterate_samples(path: Path) -> Iterator[Record]:
    """Yield the records of a file, or the programs of a folder by problem and number."""
    if path.is_dir():
        files = path.glob("*/*.py")
        for file in sorted(files, key=lambda file: (file.parent.name, len(file.name), file.name)):
            yield str(file), {"task_id": file.parent.name, "solution": read_text(file, what="sample")}
        return
    for place, record in read_records(path, what="sample"):
        if isinstance(record, dict) and all(isinstance(programs, list) for programs in record.values()):
            for task_id, programs in record.items():
                yield from ((place, {"task_id": task_id, "solution": program}) for program in programs)
        else:
            yield place, record


def hash_samples(path: str) -> str:
    """Return the SHA-256 of a file, or of the names and programs of a folder."""
    if os.path.isdir(path):
        content = json.dumps([record for _, record in _iterate_samples(Path(path))]).encode()
    else:
        content = Path(path).read_bytes()
    return hashlib.sha256(content).hexdigest()


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """Write programs in EvalPlus's form, for `evalplus.evaluate` or `read_samples`."""
    rows = [{"task_id": f"Mbpp/{s.problem.task_id}", "solution": s.program or ""} for s in samples]
    write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))
