"""Programs in fresh interpreters, each with limits of its own.

Every bit of a verdict comes from the kernel (how the process ended, what it used) or from a letter written
before any untrusted code ran. What a program prints, its traceback included, is untrusted text.
"""

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from rlnb.errors import SandboxUnavailable

Status = Literal[
    "ok",
    "syntax_error",
    "runtime_error",
    "timeout",
    "memory_exceeded",
    "output_exceeded",
    "killed",
    "sandbox_error",
]
CHILD = str(Path(__file__).with_name("_child.py"))
INTERPRETER = os.path.realpath(sys.executable)  # a shim of a version manager costs milliseconds a start
MEMORY_EXIT_CODE = 77  # as in _child.py, which cannot be imported from here nor import from here
LAYERS = ("process", "limits", "files", "system calls")
LOOK_SECONDS = 0.05  # how often a running program's clock and memory are read
DRAIN_SECONDS = 1.0  # for what an ended program's pipes still hold
START_SECONDS = 60.0  # until the letter: on a starved machine an interpreter starts slowly


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    CPU seconds end a busy program, its compilation included; twice that plus a second of wall time, counted
    from its first line, a sleeping one. output_kib: of standard output and of standard error each. file_mib:
    of each file.
    """

    cpu_seconds: float = 5.0
    memory_mib: int = 512
    output_kib: int = 64
    file_mib: int = 8

    @property
    def wall_seconds(self) -> float:
        """The looser limit: a loaded machine must not turn a correct program into a timeout."""
        return 2 * self.cpu_seconds + 1


@dataclass(frozen=True)
class Execution:
    """How one program ended.

    stdout, stderr: text, cut at the output limit. error: one line saying why it did not end well, untrusted.
    seconds: CPU seconds used. peak_memory_mib: resident, the largest seen at intervals. isolation: the layers
    that were on, as JSON.
    """

    status: Status
    stdout: str
    stderr: str
    error: str
    seconds: float
    peak_memory_mib: float
    isolation: str


def not_run(status: Status, error: str) -> Execution:
    """The execution of a program that never started."""
    return Execution(status, "", "", error, 0.0, 0.0, "")


class Sandbox:
    """Runs programs in fresh interpreters, `num_workers` at a time (0: one a usable core).

    Layers: an own process group with a clean environment and no privileges, resource limits, files written
    only in a folder of its own (Landlock), no processes, network or signals (seccomp). A layer the machine
    lacks is reported by `report()`, never counted against a program. What the user may read, a program may
    read. Use as a context manager, or call `close()`.
    """

    def __init__(self, limits: Limits | None = None, *, num_workers: int = 0) -> None:
        if not sys.platform.startswith("linux"):
            raise SandboxUnavailable(
                f"sandbox: {sys.platform} cannot isolate a program; run rlnb on Linux (Windows: inside WSL2)"
            )
        self.limits = limits or Limits()
        self.num_workers = num_workers or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="sandbox")
        self._closed = threading.Event()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what still runs, and wait for it. A closed sandbox runs nothing more."""
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)

    def run(self, program: str, *, limits: Limits | None = None) -> Execution:
        """Run one program; see `run_many`."""
        return self.run_many([program], limits=limits)[0]

    def run_many(self, programs: Iterable[str], *, limits: Limits | None = None) -> list[Execution]:
        """Run programs side by side. Returns their executions in the order given.

        An interrupt (Ctrl-C, an interrupted cell) ends every program of this call before it is passed on.
        Raises SandboxUnavailable when the sandbox is closed.
        """
        if self._closed.is_set():
            raise SandboxUnavailable("sandbox: it is closed and runs nothing more; make another `Sandbox`")
        limits = limits or self.limits
        interrupted = threading.Event()

        def stopped() -> bool:
            return interrupted.is_set() or self._closed.is_set()

        futures = [self._pool.submit(run_program, program, limits, stopped=stopped) for program in programs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            interrupted.set()
            for future in futures:
                future.cancel()
            wait(futures)
            raise

    def report(self) -> dict[str, str]:
        """{layer: "on" or why it is off} on this machine, seen from inside a program."""
        execution = self.run("pass")
        if not execution.isolation:
            raise SandboxUnavailable(f"sandbox: no program can be run ({execution.error})")
        layers = json.loads(execution.isolation)
        return {layer: layers.get(layer, "unknown") for layer in LAYERS}


def run_program(program: str, limits: Limits, *, stopped: Callable[[], bool]) -> Execution:
    """Run a program in a folder of its own; once more if the sandbox, not the program, failed."""
    try:
        source = program.encode("utf-8")
    except UnicodeEncodeError as error:  # a lone surrogate: no file could hold this program either
        return not_run("syntax_error", f"SyntaxError: {error}")
    execution = not_run("sandbox_error", "stopped before it ran")
    for _ in range(2):
        if stopped() or execution.status != "sandbox_error":
            break
        try:
            folder = tempfile.mkdtemp(prefix="rlnb-")
            try:
                execution = run_in(folder, source, limits, stopped=stopped)
            finally:
                remove(folder)
        except OSError as error:  # no process, descriptor or disk space left
            execution = not_run("sandbox_error", str(error))
    return execution


def remove(folder: str) -> None:
    """Remove a program's folder, whatever the program made of it."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):  # nested too deeply for rmtree, or folders that may not be read
        clear = 'chmod -R u+rwx -- "$0"; rm -rf -- "$0"'
        subprocess.run(["/bin/sh", "-c", clear, folder], stderr=subprocess.DEVNULL, check=False)


def run_in(folder: str, source: bytes, limits: Limits, *, stopped: Callable[[], bool]) -> Execution:
    """Start the program, feed it, collect what it writes, end it at its limits, and say how it ended."""
    status_read, status_write = os.pipe()
    try:
        process = start(folder, status_write)
    except OSError:
        os.close(status_read)
        raise
    finally:
        os.close(status_write)
    header = json.dumps({**asdict(limits), "status_fd": status_write}).encode()
    seen = Seen()
    try:
        watch(process, header + b"\n" + source, status_read, limits=limits, stopped=stopped, seen=seen)
    finally:
        kill_group(process)
        _, wait_status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(wait_status)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()
        os.close(status_read)
    return verdict(process.returncode, seen, usage.ru_utime + usage.ru_stime, limits=limits)


def start(folder: str, status_write: int) -> "subprocess.Popen[bytes]":
    """Start the child interpreter in `folder`. `Popen` uses vfork: a large trainer is not copied.

    Not `-I`, which would ignore the hash seed: `-P -s` and a clean environment isolate as well.
    """
    environment = {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "HOME": folder,
        "TMPDIR": folder,
        "PYTHONHASHSEED": "0",
        "PYTHONIOENCODING": "utf-8:backslashreplace",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MALLOC_ARENA_MAX": "1",  # each further arena takes 64 MiB of the address space that is limited
    }
    return subprocess.Popen(
        [INTERPRETER, "-P", "-s", "-S", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment,
        pass_fds=[status_write],
        start_new_session=True,
    )


@dataclass
class Seen:
    """What came out of a running program so far, and the limit that it passed."""

    streams: dict[str, bytearray] = field(
        default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray(), "status": bytearray()}
    )
    peak_memory_mib: float = 0.0
    ended_for: Literal["", "timeout", "not_started", "output_exceeded", "stopped"] = ""


def watch(
    process: "subprocess.Popen[bytes]",
    given: bytes,
    status_read: int,
    *,
    limits: Limits,
    stopped: Callable[[], bool],
    seen: Seen,
) -> None:
    """Move bytes until the process has ended, by itself or killed at a limit, and its pipes are empty."""
    deadline = time.monotonic() + START_SECONDS
    cap = limits.output_kib * 1024
    with selectors.DefaultSelector() as selector:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise OSError("the child was started without pipes")
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE, "stdin")
        selector.register(process.stdout, selectors.EVENT_READ, "stdout")
        selector.register(process.stderr, selectors.EVENT_READ, "stderr")
        selector.register(status_read, selectors.EVENT_READ, "status")
        over = False
        while selector.get_map() or not over:
            # Without a pipe to wake us, the end of the process is the only thing to wait for: look often.
            for key, _ in selector.select(timeout=LOOK_SECONDS if selector.get_map() else 0.002):
                if key.data == "stdin":
                    given = given[feed(key.fd, given) :]
                    if not given:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif len(seen.streams[key.data]) <= cap:
                    if key.data == "status" and not seen.streams["status"] and not over:
                        deadline = time.monotonic() + limits.wall_seconds
                    seen.streams[key.data] += chunk
            if over:
                if time.monotonic() > deadline:
                    return  # somebody else holds a stream open
                continue
            seen.peak_memory_mib = max(seen.peak_memory_mib, peak_memory_mib(process.pid))
            if stopped():
                seen.ended_for = "stopped"
            elif max(len(seen.streams["stdout"]), len(seen.streams["stderr"])) > cap:
                seen.ended_for = "output_exceeded"
            elif has_ended(process.pid):
                over = True
            elif cpu_seconds(process.pid) > limits.cpu_seconds:
                seen.ended_for = "timeout"
            elif time.monotonic() > deadline:
                seen.ended_for = "timeout" if seen.streams["status"] else "not_started"
            if over or seen.ended_for:
                over = True
                kill_group(process)  # after the program's own end: what it may have left behind
                deadline = time.monotonic() + DRAIN_SECONDS


def feed(descriptor: int, given: bytes) -> int:
    """Write what the pipe takes. Returns how many bytes are done with: all when the reader has gone."""
    try:
        return os.write(descriptor, given[:65536])
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return len(given)


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill the program and its group. Only before it is waited for: until then its number is its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def has_ended(pid: int) -> bool:
    """Whether a child has ended; it stays to be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def cpu_seconds(pid: int) -> float:
    """CPU seconds a process has used so far, by its CPU clock (Linux); 0 when it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def peak_memory_mib(pid: int) -> float:
    """Peak resident memory of a running process so far; 0 when it has ended.

    The kernel's final figure (`ru_maxrss`) is no use: a child started by vfork begins at its parent's peak.
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            peak = next((line for line in status if line.startswith(b"VmHWM:")), b"VmHWM: 0 kB")
    except OSError:
        return 0.0
    return int(peak.split()[1]) / 1024


def verdict(exit_code: int, seen: Seen, seconds: float, *, limits: Limits) -> Execution:
    """What happened, from the kernel's word and the letter written before the program ran."""
    cap = limits.output_kib * 1024
    letter = seen.streams["status"][:1].decode("latin-1")
    isolation, _, message = seen.streams["status"][1:].decode("utf-8", "replace").partition("\n")
    stdout = seen.streams["stdout"][:cap].decode("utf-8", "replace")
    stderr = seen.streams["stderr"][:cap].decode("utf-8", "replace")
    status: Status
    if seen.ended_for == "stopped":
        status, error = "sandbox_error", "stopped while it ran"
    elif letter == "S":
        status, error = "syntax_error", message
    elif seen.ended_for == "not_started":
        status, error = "sandbox_error", f"the interpreter did not start in {START_SECONDS:g} s"
    elif seen.ended_for == "timeout":
        status, error = "timeout", "time limit" if letter else "time limit while compiling"
    elif len(seen.streams["stdout"]) > cap or len(seen.streams["stderr"]) > cap:
        status, error = "output_exceeded", "output limit"
    elif exit_code in (-signal.SIGXCPU, -signal.SIGKILL) and seconds > limits.cpu_seconds:
        status, error = "timeout", "CPU time limit"
    elif letter != "C":
        status, error = "sandbox_error", isolation or f"the interpreter did not start (exit code {exit_code})"
        if exit_code == -signal.SIGSEGV:  # the compiler's stack: the program's doing
            status, error = "killed", f"signal {-exit_code} while compiling"
    elif exit_code < 0:
        status, error = "killed", f"signal {-exit_code}"
    elif exit_code == MEMORY_EXIT_CODE:
        status, error = "memory_exceeded", "MemoryError"
    elif exit_code:
        last_line = stderr.strip().rpartition("\n")[2][:500]
        status, error = "runtime_error", last_line or f"exit code {exit_code}"
    else:
        status, error = "ok", ""
    shown = isolation if letter in ("C", "S") else ""
    return Execution(status, stdout, stderr, error, seconds, seen.peak_memory_mib, shown)
