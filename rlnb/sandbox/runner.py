"""Programs in fresh interpreters, each with limits of its own.

Every bit of a verdict comes from the kernel (how the process ended, what it used) or from a letter written before
any untrusted code ran. What a program prints, its traceback included, is untrusted text.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
MEMORY_EXIT_CODE = 77
LAYERS = ("process", "limits", "files", "system calls")


@dataclass(frozen=True)
class Limits:
    """What one program may use. CPU seconds end a busy program, twice that plus a second of wall time a sleeping one."""

    cpu_seconds: float = 5.0
    memory_mib: int = 512
    output_kib: int = 64
    file_mib: int = 8
    threads: int = 16

    @property
    def wall_seconds(self) -> float:
        """A loaded machine must not turn a correct program into a timeout, so wall time is the looser limit."""
        return 2 * self.cpu_seconds + 1


@dataclass(frozen=True)
class Execution:
    """How one program ended.

    stdout, stderr: text, cut at the output limit. error: one line saying why it did not end well, untrusted.
    seconds: CPU seconds used. peak_memory_mib: resident. isolation: the layers that were on.
    """

    status: Status
    stdout: str
    stderr: str
    error: str
    seconds: float
    peak_memory_mib: float
    isolation: str


class Sandbox:
    """Runs programs in fresh interpreters, `num_workers` at a time (0: one a usable core).

    Layers: an own process group with a clean environment, resource limits, files written only in a folder of its
    own (Landlock), no processes, network or signals (seccomp). A layer the machine lacks is reported by `report()`,
    never counted against a program. Use as a context manager, or call `close()`.
    """

    def __init__(self, limits: Limits | None = None, *, num_workers: int = 0) -> None:
        if sys.platform == "win32":
            raise SandboxUnavailable("sandbox: Windows cannot limit a process; run rlnb inside WSL2")
        self.limits = limits or Limits()
        self.num_workers = num_workers or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="sandbox")
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what still runs. A closed sandbox runs nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for process in self._running:
                kill_group(process)

    def run(self, program: str, *, limits: Limits | None = None) -> Execution:
        """Run one program; see `run_many`."""
        return self.run_many([program], limits=limits)[0]

    def run_many(self, programs: Iterable[str], *, limits: Limits | None = None) -> list[Execution]:
        """Run programs side by side. Returns their executions in the order given.

        An interrupt (Ctrl-C, an interrupted cell) ends every program that still runs before it is passed on.
        """
        limits = limits or self.limits
        futures = [self._pool.submit(self._run_again_once, program, limits) for program in programs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            with self._lock:
                for process in self._running:
                    kill_group(process)
            raise

    def report(self) -> dict[str, str]:
        """What isolates a program on this machine: {layer: "on" or why it is off}, seen from inside a program."""
        layers = json.loads(self.run("pass").isolation or "{}")
        return {layer: layers.get(layer, "unknown") for layer in LAYERS}

    def _run_again_once(self, program: str, limits: Limits) -> Execution:
        execution = self._run(program, limits)
        return self._run(program, limits) if execution.status == "sandbox_error" else execution

    def _run(self, program: str, limits: Limits) -> Execution:
        try:
            source = program.encode("utf-8")
        except UnicodeEncodeError as error:  # a lone surrogate: no file could hold this program either
            return Execution("syntax_error", "", "", f"SyntaxError: {error}", 0.0, 0.0, "")
        with tempfile.TemporaryDirectory(prefix="rlnb-", ignore_cleanup_errors=True) as folder:
            status_read, status_write = os.pipe()
            try:
                process = start(folder, status_write)
            except OSError as error:
                os.close(status_read)
                return Execution("sandbox_error", "", "", str(error), 0.0, 0.0, "")
            finally:
                os.close(status_write)
            with self._lock:
                self._running.add(process)
            try:
                return watch(process, header(limits, status_write) + source, status_read, limits)
            finally:
                with self._lock:
                    self._running.discard(process)
                os.close(status_read)


def start(folder: str, status_write: int) -> "subprocess.Popen[bytes]":
    """Start the child interpreter in `folder`. No fork of this process: `Popen` uses vfork where nothing forbids it."""
    environment = {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "HOME": folder,
        "TMPDIR": folder,
        "PYTHONHASHSEED": "0",
    }
    return subprocess.Popen(
        [INTERPRETER, "-I", "-S", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment,
        pass_fds=[status_write],
        start_new_session=True,
    )


def header(limits: Limits, status_fd: int) -> bytes:
    fields = {
        "cpu_seconds": limits.cpu_seconds,
        "memory_mib": limits.memory_mib,
        "file_mib": limits.file_mib,
        "threads": limits.threads,
        "status_fd": status_fd,
    }
    return json.dumps(fields).encode() + b"\n"


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill the program and whatever shares its group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def cpu_seconds_of(pid: int) -> float:
    """CPU seconds a process has used so far, by its CPU clock (Linux); 0 when it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def watch(process: "subprocess.Popen[bytes]", given: bytes, status_read: int, limits: Limits) -> Execution:
    """Feed the program, collect its output, end it at its limits, and say how it ended."""
    outputs: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray(), "status": bytearray()}
    ended_for = ""
    try:
        for why in pump(process, given, status_read, outputs, limits):
            ended_for = why
            kill_group(process)
    finally:
        kill_group(process)
        _, wait_status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(wait_status)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()
    return verdict(
        process.returncode, ended_for, outputs, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    )


def pump(
    process: "subprocess.Popen[bytes]",
    given: bytes,
    status_read: int,
    outputs: dict[str, bytearray],
    limits: Limits,
) -> Iterator[Literal["timeout", "output_exceeded"]]:
    """Move bytes until all streams end; yields the limit that was passed, after which the caller kills."""
    deadline = time.monotonic() + limits.wall_seconds
    cap = limits.output_kib * 1024
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise SandboxUnavailable("sandbox: the child was started without pipes")
    os.set_blocking(process.stdin.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE, "stdin")
        selector.register(process.stdout, selectors.EVENT_READ, "stdout")
        selector.register(process.stderr, selectors.EVENT_READ, "stderr")
        selector.register(status_read, selectors.EVENT_READ, "status")
        ended = False
        while selector.get_map():
            for key, _ in selector.select(timeout=0.05):
                if key.data == "stdin":
                    given = given[feed(key.fd, given) :]
                    if not given:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif len(outputs[key.data]) <= cap:
                    outputs[key.data] += chunk
            late = time.monotonic() > deadline or cpu_seconds_of(process.pid) > limits.cpu_seconds
            flood = max(len(outputs["stdout"]), len(outputs["stderr"])) > cap
            if (late or flood) and ended:
                return  # a stream is still open although the group was killed: somebody else holds it
            if late or flood:
                ended = True
                deadline = time.monotonic() + 1
                yield "output_exceeded" if flood else "timeout"


def feed(descriptor: int, given: bytes) -> int:
    """Write what the pipe takes. Returns how many bytes are done with: all of them when the reader has gone."""
    try:
        return os.write(descriptor, given[:65536])
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return len(given)


def verdict(
    exit_code: int, ended_for: str, outputs: dict[str, bytearray], seconds: float, peak_memory_mib: float
) -> Execution:
    """What happened, from the kernel's word and the letter written before the program ran."""
    letter = outputs["status"][:1].decode("latin-1")
    isolation, _, message = outputs["status"][1:].decode("utf-8", "replace").partition("\n")
    stdout = outputs["stdout"].decode("utf-8", "replace")
    stderr = outputs["stderr"].decode("utf-8", "replace")
    last_line = stderr.strip().rpartition("\n")[2][:500]
    status: Status
    if letter == "S":
        status, error = "syntax_error", message
    elif letter != "C":
        status, error = "sandbox_error", isolation or f"the interpreter did not start (exit code {exit_code})"
        if ended_for == "timeout":  # the compiler itself was made to run for ever
            status, error = "timeout", "time limit while compiling"
    elif ended_for:
        status, error = (
            ("timeout", "time limit") if ended_for == "timeout" else ("output_exceeded", "output limit")
        )
    elif exit_code in (-signal.SIGXCPU, -signal.SIGKILL) and seconds > 1:
        status, error = "timeout", "CPU time limit"
    elif exit_code < 0:
        status, error = "killed", f"signal {-exit_code}"
    elif exit_code == MEMORY_EXIT_CODE:
        status, error = "memory_exceeded", "MemoryError"
    elif exit_code:
        status, error = "runtime_error", last_line or f"exit code {exit_code}"
    else:
        status, error = "ok", ""
    return Execution(
        status, stdout, stderr, error, seconds, peak_memory_mib, isolation if letter in "CS" else ""
    )
