"""Programs run again in interpreters that differ: what depends on an accident is told by what it prints."""

import os
import threading
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass

from rlnb.errors import SandboxUnavailable
from rlnb.machine.facts import usable_cores
from rlnb.params.sections import SandboxParams
from rlnb.sandbox.executions import Execution, Level, Limits, Variation
from rlnb.sandbox.runner import CLOSED, Sandbox, run_all

# From any of the first six interpreters to another, every part of the time differs, year to second, at any
# hour until 2040: in UTC, and with the hour per interpreter that their time zones add. Years stay in 1980 to
# 2107, which zip and gzip can write.
STEP_SECONDS = 169_440_182.9
STEPS = (0, 1, 2, 3, 4, 5, -1, -2, -3, -4, -5, -6)  # the first interpreter's clock is right
ROUND_SECONDS = 1_000_003.7  # between the clocks of one interpreter and the twelfth after it
SHOWN_CHARACTERS = 60
STRIDE = 5  # interpreters from the one where a program begins to that of the next program


@dataclass(frozen=True)
class Rerun:
    """What became of a program that ran in several interpreters.

    execution: its first, or the first that did not end "ok"; a "sandbox_error" is nobody's fault. difference:
    "" or one sentence with what was printed here and there, untrusted.
    """

    execution: Execution
    difference: str

    @property
    def is_deterministic(self) -> bool:
        """Return whether it ended well in every interpreter, and printed the same."""
        return self.execution.status == "ok" and not self.difference


class Reruns(ExitStack):
    """Interpreters that differ in hash seed, clocks, addresses, environment and what they say of the machine.

    Each is a `Sandbox` of one worker, for good; num_workers of them run at once (0: one a usable core). See
    `Sandbox` for the rest. Twelve miss a printed set of two texts once in 2,000 times: two seeds agree on its
    order in about half the cases. An interpreter costs 9 MiB (16 resident, the rest shared), twelve 110 MiB.
    Raises ValueError for fewer than two. Use as a context manager, or call `close()`, which ends what still
    runs and waits for it; closed, it runs nothing more.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        num_interpreters: int = 12,
        num_workers: int = 0,
        require: Level = "standard",
        without: Collection[str] = (),
    ) -> None:
        if num_interpreters < 2:
            raise ValueError(f"reruns: num_interpreters = {num_interpreters} cannot differ; write 2 or more")
        super().__init__()
        self.limits = limits or Limits()
        self.num_workers = min(num_workers or usable_cores(os.environ), num_interpreters)
        self._locks = [threading.Lock() for _ in range(num_interpreters)]
        self._closed = threading.Event()
        self._pool = self.enter_context(ThreadPoolExecutor(self.num_workers, thread_name_prefix="reruns"))
        self.sandboxes: list[Sandbox] = []
        try:
            for variation in map(make_variation, range(num_interpreters)):
                sandbox = Sandbox(
                    limits, num_workers=1, require=require, without=without, variation=variation
                )
                self.sandboxes.append(self.enter_context(sandbox))
        except BaseException:
            self.close()
            raise
        self.callback(self._closed.set)  # called first
        weakest = max(self.sandboxes, key=lambda sandbox: sum(v != "on" for v in sandbox.layers.values()))
        self.level, self.layers = weakest.level, weakest.layers

    @classmethod
    def from_params(cls, params: SandboxParams, *, num_interpreters: int = 12) -> "Reruns":
        """Make the interpreters for a notebook's parameters: their section `sandbox`."""
        limits, num_workers = Limits.from_params(params), params.num_workers
        return cls(limits, num_interpreters=num_interpreters, num_workers=num_workers, require=params.require)

    def report(self) -> dict[str, str]:
        """`layers`, for people: {layer: "on" or why it is off somewhere}."""
        return dict(self.layers)

    def run_many(self, programs: Iterable[str], *, limits: Limits | None = None) -> list[Rerun]:
        """Run each program in one interpreter after the other. Returns what became of them, in that order.

        A program that does not end "ok", or prints something else than at first, goes no further. Equal
        programs run once. Which interpreter a program begins in depends on its place in `programs`, never on
        which thread was faster. An interrupt (Ctrl-C, an interrupted cell) ends every program of this call
        before it is passed on. Raises SandboxUnavailable when closed.
        """
        if self._closed.is_set():
            raise SandboxUnavailable("reruns: they are closed and run nothing more; make other `Reruns`")
        programs = list(programs)
        distinct = list(dict.fromkeys(programs))

        def run(index: int, interrupted: threading.Event) -> Rerun:
            return self._rerun(distinct[index], STRIDE * index, limits or self.limits, interrupted)

        jobs = run_all(self._pool, len(distinct), run, self._closed, lambda: self.num_workers)
        with closing(jobs) as results:
            reruns = {distinct[index]: rerun for index, rerun in results}
        return [reruns[program] for program in programs]

    def _rerun(self, program: str, start: int, limits: Limits, interrupted: threading.Event) -> Rerun:
        """Run a program in all interpreters, from interpreter `start` on."""
        executions: list[Execution] = []
        for place in range(start, start + len(self.sandboxes)):
            with self._locks[place % len(self.sandboxes)]:
                sandbox = self.sandboxes[place % len(self.sandboxes)]
                executions.append(sandbox.run_here(program, limits, interrupted))
            if self._closed.is_set():
                raise SandboxUnavailable(CLOSED)
            first, last = executions[0], executions[-1]
            if last.status != "ok":
                return Rerun(last, "")
            if last.stdout != first.stdout:
                return Rerun(first, describe_difference(first.stdout, last.stdout))
        return Rerun(executions[0], "")


def make_variation(index: int) -> Variation:
    """Return how interpreter `index` differs from the others, the same in every process and every year."""
    shift = STEP_SECONDS * STEPS[index % len(STEPS)] + ROUND_SECONDS * (index // len(STEPS))
    return Variation(hash_seed=index + 1, clock_shift_seconds=shift)


def describe_difference(first: str, other: str) -> str:
    """Return one sentence that shows two texts from the first line or character in which they differ."""
    place = len(os.path.commonprefix([first, other]))
    line = first.rfind("\n", 0, place) + 1
    pieces = [[shorten(text[start:]) for text in (first, other)] for start in (line, place)]
    here, there = next(pair for pair in pieces if pair[0] != pair[1])
    return f"printed {here} in one interpreter and {there} in another"


def shorten(text: str) -> str:
    quoted = repr(text[:SHOWN_CHARACTERS])
    return quoted if len(quoted) <= SHOWN_CHARACTERS else quoted[: SHOWN_CHARACTERS - 3] + "..."
