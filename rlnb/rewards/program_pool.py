"""Programs that the policy wrote and is asked to predict later: the other side of the code game."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rlnb.runs import write_text

POOL_SIZE = 512  # the newest are kept: a policy learns most from what it writes now


@dataclass(frozen=True)
class PooledProgram:
    """A valid program. code: without comments. output: normalised. step: of training, when it was written."""

    code: str
    output: str
    step: int


@dataclass
class ProgramPool:
    """The newest valid programs, each once."""

    programs: list[PooledProgram] = field(default_factory=list)

    def add(self, programs: Sequence[PooledProgram]) -> None:
        known = {one.code for one in self.programs}
        fresh = {one.code: one for one in programs if one.code not in known}
        self.programs = [*self.programs, *fresh.values()]
        # Those of the last step come on top: the prompts of the next one were drawn before, or, by a run that
        # resumes, are drawn after them; and what was drawn is still to be judged.
        last = max((one.step for one in self.programs), default=0)
        num_before = sum(one.step < last for one in self.programs)
        self.programs = self.programs[max(0, num_before - POOL_SIZE) :]

    def until(self, step: int) -> list[PooledProgram]:
        """The newest POOL_SIZE of those that were written at `step` or before."""
        return [one for one in self.programs if one.step <= step][-POOL_SIZE:]

    def output_of(self, code: str) -> str | None:
        """What a program prints; None for one that is not kept any more."""
        return next((one.output for one in self.programs if one.code == code), None)

    def save(self, path: str | Path) -> None:
        write_text(Path(path), json.dumps([asdict(one) for one in self.programs]) + "\n")

    def load(self, path: str | Path) -> None:
        self.programs = [PooledProgram(**one) for one in json.loads(Path(path).read_text(encoding="utf-8"))]
