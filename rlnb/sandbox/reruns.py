"""Programs run again in interpreters that differ: what depends on an accident is told by what it prints."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from rlnb.errors import SandboxUnavailable
from rlnb.machine.facts import usable_cores
from rlnb.params.sections import SandboxParams
from rlnb.sandbox.executions import Execution, Level, Limits, Variation
from rlnb.sandbox.runner import CLOSED, Sandbox, highest_level, run_all

# From any of the first six interpreters to another, every part of the time differs, year to second, at any
# hour until 2040: in UTC, and with the hour per interpreter that their time zones add. Years stay in 1980 to
# 2107, which zip and gzip can write.
STEP_SECONDS = 169_440_182.9
STEPS = (0, 1, 2, 3, 4, 5, -1, -2, -3, -4, -5, -6)  # the first interpreter's clock is right
ROUND_SECONDS = 1_000_003.7  # what another twelve interpreters lie beside
SHOWN_CHARACTERS = 60
GROUP_SIZE = 4  # programs that an interpreter runs in a row: its memory is in the processor's caches then
STRIDE = 5  # interpreters from the one where a group begins to that of the next group


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


class Reruns:
    """Interpreters that differ in hash seed, clocks, addresses, environment and what they say of the machine.

    Each is a `Sandbox` of one worker, for good; num_workers of them run at once (0: one a usable core). See
    `Sandbox` for the rest. Twelve miss a printed set of two texts once in 2,000 times: two seeds agree on its
    order in about half the cases. An interpreter costs 9 MiB (16 resident, the rest shared), twelve 110 MiB.
    Raises ValueError for fewer than two. Use as a context manager, or call `close()`.
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
        self.limits = limits or Limits()
        self.num_workers = min(num_workers or usable_cores(os.environ), num_interpreters)
        self._opened: dict[int, Sandbox] = {}
        self._locks = [threading.Lock() for _ in range(num_interpreters)]
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="reruns")

        def open_one(index: int) -> None:
            self._opened[index] = Sandbox(
                limits, num_workers=1, require=require, without=without, variation=make_variation(index)
            )

        try:
            list(self._pool.map(open_one, range(num_interpreters)))
        except BaseException:
            self.close()
            raise
        self.sandboxes = [self._opened[index] for index in range(num_interpreters)]
        reports = [sandbox.report() for sandbox in self.sandboxes]
        self.layers = {
            layer: next((report[layer] for report in reports if report[layer] != "on"), "on")
            for layer in reports[0]
        }
        self.level = highest_level(self.layers)

    @classmethod
    def from_params(cls, params: SandboxParams, *, num_interpreters: int = 12) -> "Reruns":
        """Make the interpreters for a notebook's parameters: their section `sandbox`."""
        return cls(
            Limits.from_params(params),
            num_interpreters=num_interpreters,
            num_workers=params.num_workers,
            require=params.require,
        )

    def __enter__(self) -> "Reruns":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what still runs, and wait for it. Closed, it runs nothing more."""
        self._closed.set()
        for sandbox in list(self._opened.values()):
            sandbox.close()
        self._pool.shutdown(cancel_futures=True)
        for sandbox in self._opened.values():  # what was still being opened
            sandbox.close()

    def report(self) -> dict[str, str]:
        """`layers`, for people: {layer: "on" or why it is off somewhere}."""
        return dict(self.layers)

    def run_many(
        self,
        programs: Iterable[str],
        *,
        limits: Limits | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> list[Rerun]:
        """Run each program in one interpreter after the other. Returns what became of them, in that order.

        A program that does not end "ok", or prints something else than at first, goes no further. Equal
        programs run once. Which interpreter a program begins in depends on its place in `programs` and on
        num_workers, never on which thread was faster.
        progress is called in this thread with the number of programs done since the last call. An interrupt
        (Ctrl-C, an interrupted cell) ends every program of this call before it is passed on. Raises
        SandboxUnavailable when closed.
        """
        if self._closed.is_set():
            raise SandboxUnavailable("reruns: they are closed and run nothing more; make other `Reruns`")
        programs = list(programs)
        counts = Counter(programs)
        different = list(counts)
        size = max(1, min(GROUP_SIZE, len(different) // self.num_workers))
        groups = [different[place : place + size] for place in range(0, len(different), size)]
        reruns: dict[str, Rerun] = {}

        def run(index: int, interrupted: threading.Event) -> dict[str, Rerun]:
            group = self._run_group(groups[index], STRIDE * index, limits or self.limits, interrupted)
            if self._closed.is_set():
                raise SandboxUnavailable(CLOSED)
            return group

        jobs = run_all(self._pool, len(groups), run, self._closed, lambda: self.num_workers)
        with closing(jobs) as results:
            for _, group in results:
                reruns |= group
                for program in group:
                    if progress is not None:
                        progress(counts[program])
        return [reruns[program] for program in programs]

    def _run_group(
        self, programs: Collection[str], start: int, limits: Limits, interrupted: threading.Event
    ) -> dict[str, Rerun]:
        """Run programs in all interpreters, from interpreter `start` on, so no result depends on threads."""
        firsts: dict[str, Execution] = {}
        reruns: dict[str, Rerun] = {}
        for place in range(start, start + len(self.sandboxes)):
            place %= len(self.sandboxes)
            with self._locks[place]:
                for program in [program for program in programs if program not in reruns]:
                    execution = self.sandboxes[place].run_here(program, limits, interrupted)
                    first = firsts.setdefault(program, execution)
                    if execution.status != "ok":
                        reruns[program] = Rerun(execution, "")
                    elif execution.stdout != first.stdout:
                        difference = describe_difference(first.stdout, execution.stdout)
                        reruns[program] = Rerun(first, difference)
        return {program: reruns.get(program) or Rerun(firsts[program], "") for program in programs}


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
