"""Programs run again in interpreters that differ: what depends on an accident is told by what it prints."""

import itertools
import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass

from rlnb.machine.facts import usable_cores
from rlnb.params.sections import SandboxParams
from rlnb.sandbox.executions import Execution, Level, Limits, Variation
from rlnb.sandbox.runner import Sandbox, Waiting, run_all

# From any of the first six interpreters to another, every part of the time differs, year to second, at any
# hour until 2040: in UTC, and with the hour per interpreter that their time zones add. Years stay in 1980 to
# 2107, which zip and gzip can write.
STEP_SECONDS = 169_440_182.9
STEPS = (0, 1, 2, 3, 4, 5, -1, -2, -3, -4, -5, -6)  # the first interpreter's clock is right
ROUND_SECONDS = 1_000_003.7  # between the clocks of one interpreter and the twelfth after it
STRIDE = 5  # interpreters from the one where a program begins to that of the next program


@dataclass(frozen=True)
class Rerun:
    """What became of a program that ran in several interpreters.

    execution: the last one, after which it went no further. difference: "" or one sentence with what was
    printed here and there, untrusted.
    """

    execution: Execution
    difference: str


class Reruns(ExitStack):
    """Interpreters that differ in hash seed, clocks, addresses, environment and what they say of the machine.

    Each is a `Sandbox` of one worker, for good; num_workers of them run at once (0: one a usable core). See
    `Sandbox` for the rest. Twelve miss a printed set of two texts once in 2,000 times: two seeds agree on its
    order in about half the cases. An interpreter costs 9 MiB (16 resident, the rest shared), twelve 110 MiB.
    Use as a context manager, or call `close()`, which ends what still runs.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        num_interpreters: int = 12,
        num_workers: int = 0,
        require: Level = "standard",
    ) -> None:
        super().__init__()
        self.num_workers = min(num_workers or usable_cores(os.environ), num_interpreters)
        with ExitStack() as opened:
            variations = map(make_variation, range(num_interpreters))
            self.sandboxes = [
                opened.enter_context(Sandbox(limits, num_workers=1, require=require, variation=variation))
                for variation in variations
            ]
            self.push(opened.pop_all())
        self._locks = [threading.Lock() for _ in self.sandboxes]
        self.limits, self.level = self.sandboxes[0].limits, self.sandboxes[0].level
        self.report = self.sandboxes[0].report

    @classmethod
    def from_params(cls, params: SandboxParams) -> "Reruns":
        """Make the interpreters for a notebook's parameters: their section `sandbox`."""
        return cls(Limits.from_params(params), require=params.require)

    def run_many(self, programs: Iterable[str]) -> list[Rerun]:
        """Run each program in one interpreter after the other. Returns what became of them, in that order.

        A program that does not end "ok", or prints something else than at first, goes no further. Equal
        programs run once. Which interpreter a program begins in depends on its place in `programs`, never on
        which thread was faster. An interrupt (Ctrl-C, an interrupted cell) ends every program of this call
        before it is passed on. Raises SandboxUnavailable when closed.
        """
        self.sandboxes[0].check_open()
        programs = list(programs)
        waiting = Waiting(zip(dict.fromkeys(programs), itertools.count(0, STRIDE), strict=False))
        with (
            ThreadPoolExecutor(self.num_workers, thread_name_prefix="reruns") as pool,
            closing(
                run_all(pool, waiting, self._rerun, threading.Event(), lambda: self.num_workers)
            ) as results,
        ):
            reruns = {program: rerun for (program, _), rerun in results}
        return [reruns[program] for program in programs]

    def _rerun(self, job: tuple[str, int], interrupted: threading.Event) -> Rerun:
        """Run a program in all interpreters. job: the program, and the number of the first one."""
        (program, start), first = job, None
        for place in range(start, start + len(self.sandboxes)):
            with self._locks[place % len(self.sandboxes)]:
                sandbox = self.sandboxes[place % len(self.sandboxes)]
                execution = sandbox.run_here(program, self.limits, interrupted)
            first = first or execution
            if execution.status != "ok":
                return Rerun(execution, "")
            if execution.stdout != first.stdout:
                return Rerun(execution, describe_difference(first.stdout, execution.stdout))
        return Rerun(execution, "")


def make_variation(index: int) -> Variation:
    """Return how interpreter `index` differs from the others, the same in every process and every year."""
    shift = STEP_SECONDS * STEPS[index % len(STEPS)] + ROUND_SECONDS * (index // len(STEPS))
    return Variation(hash_seed=index + 1, clock_shift_seconds=shift)


def describe_difference(first: str, other: str) -> str:
    """Return one sentence that shows the lines, at most 60 characters of them, in which two texts differ."""
    place = len(os.path.commonprefix([first, other]))
    start, end = max(first.rfind("\n", 0, place) + 1, place - 20), place + 40
    return f"printed {first[start:end]!r} in one interpreter and {other[start:end]!r} in another"
