"""Samples of MBPP: a checked completion, and files of samples in EvalPlus's form."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, StrictInt, StrictStr

from rlnb.errors import ParamsError
from rlnb.json_records import check_record, read_records
from rlnb.mbpp.problems import Problem
from rlnb.run.directory import write_text
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
    def passed_shown(self) -> bool:
        """Return whether the asserts that the question shows hold."""
        return all(self.verdict.results[: self.num_shown])

    @property
    def passed_held_out(self) -> bool | None:
        """Return whether the asserts that the question does not show hold, or None if it shows all."""
        results = self.verdict.results[self.num_shown :]
        return all(results) if results else None


def parse_task_id(value: object) -> object:
    """Return the number in "Mbpp/11" or "11", other types unchanged. Raises ValueError."""
    return int(value.removeprefix("Mbpp/")) if isinstance(value, str) else value


TaskId = Annotated[StrictInt, BeforeValidator(parse_task_id)]


class WrittenSample(BaseModel):
    """A program from a file: a line of EvalPlus's form."""

    task_id: TaskId
    solution: StrictStr


def read_samples(path: str, task_ids: Sequence[int]) -> list[WrittenSample]:
    """Return the programs of a file in EvalPlus's form: {"task_id": "Mbpp/11" or 11, "solution": program}.

    Raises ParamsError, also if a problem has no sample: a rate over some would be taken for a rate over all.
    """
    samples = [
        check_record(WrittenSample.model_validate, place, record, what="sample")
        for place, record in read_records(Path(path), what="sample")
    ]
    if others := {sample.task_id for sample in samples} ^ set(task_ids):
        raise ParamsError(
            f"{path}: holds samples of other problems than the {len(task_ids)} evaluated ones: {len(others)} "
            f"differ, task_id {min(others)} for one; write samples of all (an empty solution is a wrong one) "
            "and of no others, or evaluate others: mbpp.split, mbpp.path, evaluation.num_questions"
        )
    return samples


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """Write programs in EvalPlus's form, for `evalplus.evaluate` or `read_samples`."""
    rows = [{"task_id": f"Mbpp/{s.problem.task_id}", "solution": s.program or ""} for s in samples]
    write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))
