"""Programs side by side in zygotes: what trainers and evaluations use."""

import errno
import json
import os
import queue
import random
import resource
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Generic, TypeVar
from weakref import WeakSet

from rlnb.errors import SandboxUnavailable
from rlnb.machine.facts import usable_cores
from rlnb.params.sections import SandboxParams
from rlnb.sandbox.calls import NO_DESCRIPTORS, LoadedProgram
from rlnb.sandbox.executions import Execution, Level, Limits, Variation, make_execution, not_run
from rlnb.sandbox.zygotes import Zygote, ZygoteLost

T = TypeVar("T")
Job = TypeVar("Job", bound=Hashable)
LAYERS_OF: dict[Level, tuple[str, ...]] = {
    "basic": ("process", "limits"),
    "standard": ("process", "limits", "system calls", "files"),
    "strict": ("process", "limits", "system calls", "files", "namespaces"),
}
REMEDIES = {
    "process": "run where a process may change its own capabilities",
    "limits": "raise the hard limits (ulimit -H) of this shell or job",
    "system calls": "allow seccomp filters: Docker's default profile does",
    "files": "Linux 5.13 with Landlock in its lsm= list, and a Docker profile of 2022 or later",
    "namespaces": "allow unprivileged user namespaces, or write standard",
}
NO_MORE = (
    "sandbox: the system starts no further {} for this user ({}); end other processes, raise `ulimit -u`, or "
    "use fewer cores: `taskset -c 0,1` before the command"
)
CLOSED = "sandbox: it was closed while programs ran"
START_SECONDS, LOOK_SECONDS = 10.0, 0.1  # for a user's processes to become fewer
SLEEPERS_SHARE, WORKERS_FOR_SLEEPERS = 0.1, 4  # times num_workers, once that share has slept to its limit
FILES_OF_A_WORKER, FILES_OF_OTHERS = 8, 512  # descriptors; a zygote takes eight while it starts
# Does what each layer forbids, and says what came of it: "" where it was refused.
PROBE = """
import json, mmap, os, resource, socket
def refused(*acts):
    for act in acts:
        try: act()
        except OSError: continue
        return "what it forbids was done"
    return ""
def grow():  # no file is made: a zygote whose programs leave a trace is replaced
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY: raise OSError
forbidden = {
    "process": [lambda: os.chroot("/")],
    "limits": [lambda: mmap.mmap(-1, 2**40), grow],
    "files": [lambda: open("/etc/passwd"), lambda: os.listdir("/"), lambda: os.mkdir("/rlnb-probe")],
    "system calls": [lambda: os.fork() or os._exit(0), lambda: os.kill(os.getppid(), 0), socket.socket],
}
print(json.dumps({layer: refused(*acts) for layer, acts in forbidden.items()}))
"""


class Sandbox:
    """Runs programs in children of small clean interpreters, `num_workers` at a time (0: one a usable core).

    `layers` is {layer: "on" or why it is off}, `level` what they amount to: "basic" a process of its own with
    limits, "standard" also with few system calls (seccomp) and files (Landlock), "strict" also in namespaces.
    Each was tried: a layer counts where the forbidden act failed. What a layer below `require` lacks is never
    counted against a program. without: layers to leave off. Raises SandboxUnavailable where less than
    `require` can be had. variation: how its interpreters differ from plain ones. Use as a context manager, or
    call `close()`.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        num_workers: int = 0,
        require: Level = "standard",
        without: Collection[str] = (),
        variation: Variation | None = None,
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise SandboxUnavailable(
                f"sandbox: {sys.platform} cannot isolate a program; run rlnb on Linux (Windows: inside WSL2)"
            )
        self.limits = limits or Limits()
        self.num_workers = num_workers or usable_cores(os.environ)
        self.without = tuple(without)
        self.variation = variation
        self.level: Level = "none"
        self._idle: deque[Zygote] = deque()
        self._ending: deque[Zygote] = deque()
        self._loaded: WeakSet[LoadedProgram] = WeakSet()
        self._closed = threading.Event()
        num_threads = WORKERS_FOR_SLEEPERS * self.num_workers
        allow_open_files(FILES_OF_A_WORKER * num_threads + FILES_OF_OTHERS)
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="sandbox")
        try:
            self.layers = self._probe()
            self.level = highest_level(self.layers)
            check_level(self.level, require, self.layers)
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_params(cls, params: SandboxParams) -> "Sandbox":
        """Make the sandbox of a notebook's parameters: their section `sandbox`."""
        return cls(Limits.from_params(params), require=params.require)

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what still runs, and wait for it. A closed sandbox runs nothing more."""
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)
        loaded = list(self._loaded)
        for program in loaded:  # they end side by side
            program.stop()
        for program in loaded:
            program.close()
        self._ending.extend(self._idle)
        self._idle.clear()
        for zygote in self._ending:  # they end side by side
            zygote.let_go()
        while self._ending:
            self._ending.pop().close()

    def run(self, program: str, *, limits: Limits | None = None) -> Execution:
        """Run one program; see `run_many`."""
        return self.run_many([program], limits=limits)[0]

    def run_many(
        self,
        programs: Iterable[str],
        *,
        groups: Iterable[Hashable] | None = None,
        limits: Limits | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> list[Execution]:
        """Run programs side by side, in the order of `map`. Returns their executions in the order given.

        Programs that sleep to their limit cost no processor: more run at once where many do. An interrupt
        (Ctrl-C, an interrupted cell) ends every program of this call before it is passed on.
        """
        limits = limits or self.limits
        num_done = num_sleepers = 0

        def num_wanted() -> int:
            has_sleepers = num_sleepers >= max(self.num_workers, SLEEPERS_SHARE * num_done)
            return self.num_workers * (WORKERS_FOR_SLEEPERS if has_sleepers else 1)

        def run(program: str, interrupted: threading.Event) -> Execution:
            nonlocal num_done, num_sleepers
            execution = self.run_here(program, limits, interrupted)
            num_done += 1
            num_sleepers += execution.status == "timeout" and execution.seconds < limits.cpu_seconds / 2
            return execution

        return self._run_all(run, programs, groups, progress, num_wanted)

    def map(
        self,
        run: Callable[[Job], T],
        jobs: Iterable[Job],
        *,
        groups: Iterable[Hashable] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> list[T]:
        """Call `run(job)`, which loads programs here, for many jobs side by side; return what it returned.

        groups: what each job answers. Jobs run in a random order, equal ones once, and no worker takes two of
        a group in a row while there are others: whatever a program leaves behind is of no use to the next.
        progress is called in this thread with (jobs done, all jobs). Raises SandboxUnavailable when the
        sandbox is closed, or this process may open no further file.
        """
        return self._run_all(lambda job, _: run(job), jobs, groups, progress, lambda: self.num_workers)

    def _run_all(
        self,
        run: Callable[[Job, threading.Event], T],
        jobs: Iterable[Job],
        groups: Iterable[Hashable] | None,
        progress: Callable[[int, int], object] | None,
        num_wanted: Callable[[], int],
    ) -> list[T]:
        self.check_open()
        jobs = list(jobs)
        counts, results, num_done = Counter(jobs), {}, 0
        with closing(run_all(self._pool, Waiting(jobs, groups), run, self._closed, num_wanted)) as done:
            for job, result in done:
                results[job] = result
                num_done += counts[job]
                if progress is not None:
                    progress(num_done, len(jobs))
        return [results[job] for job in jobs]

    def load(self, program: str, *, limits: Limits | None = None) -> LoadedProgram:
        """Run a program and keep it alive, so that its functions can be called; limits hold for each call.

        Its `__name__` is "program", as where it is imported: code that it guards by "__main__" does not run.
        Raises SandboxUnavailable when the sandbox is closed or can start none.
        """
        self.check_open()
        zygote = self._take_first()
        source = program.encode("utf-8", "backslashreplace")
        loaded = LoadedProgram(zygote, source, limits or self.limits, self.level, self._put_back)
        self._loaded.add(loaded)
        return loaded

    def report(self) -> dict[str, str]:
        """`layers`, for people."""
        return dict(self.layers)

    def check_open(self) -> None:
        """Raise SandboxUnavailable when the sandbox is closed."""
        if self._closed.is_set():
            raise SandboxUnavailable("sandbox: it is closed and runs nothing more; make another `Sandbox`")

    def run_here(self, program: str, limits: Limits, interrupted: threading.Event) -> Execution:
        """Run a program in the calling thread; once more if the sandbox, not the program, failed.

        Once interrupted, or when the sandbox is closed, it ends the program: "sandbox_error".
        """
        try:
            source = program.encode("utf-8")
        except UnicodeEncodeError as error:  # a lone surrogate: no file could hold this program either
            return not_run("syntax_error", f"SyntaxError: {error}")

        def stopped() -> bool:
            return interrupted.is_set() or self._closed.is_set()

        execution, num_lost = not_run("sandbox_error", "stopped before it ran"), 0
        for _ in range(2):
            if stopped() or execution.status != "sandbox_error":
                break
            try:
                zygote = self._take()
            except (OSError, ZygoteLost) as error:  # no descriptor or disk space left, no interpreter
                execution = not_run("sandbox_error", str(error))
                continue
            try:
                answer, body = zygote.run(source, limits, stopped=stopped)
                execution = make_execution(answer, body, limits=limits, isolation=self.level)
            except ZygoteLost as error:
                num_lost += 1
                execution = not_run(
                    "sandbox_error" if num_lost == 1 else "killed", f"its zygote was lost: {error}"
                )
            self._put_back(zygote)
        return execution

    def _take_first(self) -> Zygote:
        try:
            return self._take()
        except (OSError, ZygoteLost) as error:
            raise SandboxUnavailable(f"sandbox: no program can be run ({error})") from None

    def _take(self) -> Zygote:
        """Take an idle zygote, or start one; wait where a program uses up the user's processes."""
        with suppress(IndexError):  # raised where none is idle
            while not (zygote := self._idle.pop()).is_alive():
                self._let_go(zygote)
            return zygote
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return Zygote(self.without, self.variation)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise SandboxUnavailable(NO_MORE.format("processes", error)) from None
                self._closed.wait(LOOK_SECONDS)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise SandboxUnavailable(NO_DESCRIPTORS.format(error)) from None
                raise

    def _put_back(self, zygote: Zygote) -> None:
        if zygote.is_usable and not self._closed.is_set() and len(self._idle) < self.num_workers:
            self._idle.append(zygote)
        else:
            self._let_go(zygote)

    def _let_go(self, zygote: Zygote) -> None:
        """Let a zygote end, without waiting: removing what its programs made may take a minute."""
        zygote.let_go()
        if self._closed.is_set():
            zygote.close()
        self._ending.append(zygote)
        with suppress(IndexError):  # another thread does the same
            for _ in range(len(self._ending)):
                ending = self._ending.popleft()
                if not ending.has_ended():
                    self._ending.append(ending)

    def _probe(self) -> dict[str, str]:
        """{layer: "on" or why it is off}, where zygote and probe agree."""
        zygote = self._take_first()
        self._put_back(zygote)
        execution = self.run(PROBE, limits=Limits())
        try:
            seen = json.loads(execution.stdout)
        except ValueError:
            raise SandboxUnavailable(f"sandbox: no program can be run ({execution.error})") from None
        return {
            layer: seen.get(layer) or said if said == "on" else said for layer, said in zygote.layers.items()
        }


class Waiting(Generic[Job]):
    """Distinct jobs in random order, for workers that take one after the other; threads may share it."""

    def __init__(self, jobs: Iterable[Job], groups: Iterable[Hashable] | None = None) -> None:
        pairs = ((job, None) for job in jobs) if groups is None else zip(jobs, groups, strict=True)
        group_of: dict[Job, Hashable] = dict(pairs)
        self.num_jobs = len(group_of)
        self._by_group: dict[Hashable, list[Job]] = {}
        for job in random.Random().sample(list(group_of), len(group_of)):
            self._by_group.setdefault(group_of[job], []).append(job)
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._by_group)

    def take(self, last: Hashable) -> tuple[Hashable, Job]:
        """Return a job and its group: not `last`, if others are left. Raise IndexError at the end."""
        with self._lock:
            others = [group for group in self._by_group if group != last] or [*self._by_group]
            if not others:
                raise IndexError
            group = max(others, key=lambda group: len(self._by_group[group]))
            job = self._by_group[group].pop()
            if not self._by_group[group]:
                del self._by_group[group]
            return group, job


def run_all(
    pool: ThreadPoolExecutor,
    waiting: Waiting[Job],
    run: Callable[[Job, threading.Event], T],
    closed: threading.Event,
    num_wanted: Callable[[], int],
) -> Generator[tuple[Job, T], None, None]:
    """Yield (job, what `run` made of it) as jobs get done by at most `num_wanted()` workers.

    Whoever stops early closes the generator: this sets the event that `run` is given, and waits until nothing
    runs. Raise what a worker raised, SandboxUnavailable where there is no thread or `closed` was set.
    """
    done: queue.SimpleQueue[tuple[Job, T] | None] = queue.SimpleQueue()
    interrupted, idle = threading.Event(), threading.Condition()
    workers: list[Future[None]] = []
    num_running = 0  # beside `workers`: an interrupt may come when one is submitted, and not yet listed

    def work() -> None:
        nonlocal num_running
        group: Hashable = None
        with idle:
            num_running += 1
        try:
            while not interrupted.is_set() and not closed.is_set():
                try:
                    group, job = waiting.take(group)
                except IndexError:
                    return
                done.put((job, run(job, interrupted)))
        finally:
            with idle:
                num_running -= 1
                idle.notify()

    try:
        for _ in range(waiting.num_jobs):
            try:
                while waiting and len(workers) < min(num_wanted(), waiting.num_jobs):
                    workers.append(pool.submit(work))
                    workers[-1].add_done_callback(lambda _: done.put(None))
            except RuntimeError as error:  # no further threads
                if not workers:
                    raise SandboxUnavailable(NO_MORE.format("threads", error)) from None
            yield wait_for_next(done, workers)
    finally:
        interrupted.set()  # a worker that starts only now takes no job
        with idle:
            idle.wait_for(lambda: not num_running)


def wait_for_next(
    done: "queue.SimpleQueue[tuple[Job, T] | None]", workers: list["Future[None]"]
) -> tuple[Job, T]:
    while (item := done.get()) is None:  # a worker has ended
        for worker in workers:
            if worker.done() and not worker.cancelled():
                worker.result()
        if all(worker.done() for worker in workers) and done.empty():
            raise SandboxUnavailable(CLOSED)
    return item


def allow_open_files(num_files: int) -> None:
    """Let this process open so many files, up to its hard limit. The soft one is often 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < num_files:
        limit = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def highest_level(layers: dict[str, str]) -> Level:
    """Return the highest level whose layers are all on."""
    level: Level = "none"
    for name, needed in LAYERS_OF.items():
        if any(layers.get(layer) != "on" for layer in needed):
            break
        level = name
    return level


def check_level(level: Level, require: Level, layers: dict[str, str]) -> None:
    """Raise SandboxUnavailable where `level` is below `require`: what is missing, why, and the remedy."""
    levels = ["none", *LAYERS_OF]
    if levels.index(level) >= levels.index(require):
        return
    missing = [layer for layer in LAYERS_OF[require] if layers.get(layer) != "on"]
    reasons = "; ".join(f"{layer}: {layers.get(layer, 'unknown')} ({REMEDIES[layer]})" for layer in missing)
    raise SandboxUnavailable(
        f"sandbox: level {require!r} is required and {level!r} is all this machine has. {reasons}. "
        f"Or accept less: sandbox.require = {level!r}"
    )
