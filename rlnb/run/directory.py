"""The directory of a run: choose it, lock it, and record how each attempt ended and what it ran with.

params.yaml      all parameters of the run
versions.json    packages, git revision and machine of the latest attempt
status.json      the state of the latest attempt; written by rename, so a reader never sees half of it
status.rank1.json, attempt-01.rank1.ipynb, attempt-01.rank1.log: the same of rank 1, and what it printed
attempt-01.ipynb the executed notebook, one per attempt; the notebook itself writes the other files
train.log        lines about training: each step, warnings
"""

import dataclasses
import datetime
import fcntl
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import psutil
from filelock import FileLock, Timeout

import rlnb
from rlnb.errors import RlnbError
from rlnb.machine import rank

# Signals that end a run early: SLURM's, Ctrl-C, and that of a closed terminal.
STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
PROGRESS = "rlnb/progress"  # in a display's metadata: {"label", "done", "total"}, for the terminal
EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_PREEMPTED, EXIT_KILLED = 0, 1, 2, 85, 138
# How an attempt ended: a cell raised, a signal stopped it (run again to go on), the kernel or the run died.
EXIT_CODES = {"done": EXIT_DONE, "failed": EXIT_FAILED, "preempted": EXIT_PREEMPTED, "killed": EXIT_KILLED}
UNIX_SOCKET_PATH_LIMIT = 107  # bytes, of sun_path on Linux without its ending zero
SOCKET_NAME_LENGTH = len("/kernel-ipc-99")
SOCKET_DIRECTORY_PREFIX = "rlnb-ipc-"  # no other part of rlnb may use it: what is not locked is removed


class RunInUse(RlnbError):
    """The directory is in use by another process."""


class StoppedEarly(SystemExit):
    """A signal that came before there was a kernel to pass it on to; `signal` is its name.

    Not an Exception, like KeyboardInterrupt: it may be raised anywhere, such as during an import.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(EXIT_PREEMPTED)
        self.signal = signal.Signals(signal_number).name

    def __str__(self) -> str:
        return f"stopped by {self.signal} while no cell was running"


@dataclasses.dataclass(frozen=True)
class Status:
    """The state of an attempt: the contents of status.json.

    state: running, unreadable (status.json is damaged), or one of EXIT_CODES. exit: the exit code of
    `rlnb run`, None while running. signal: the name of the signal that stopped it, else "". started, ended:
    ISO times in UTC.
    """

    state: str
    attempt: int
    notebook: str
    pid: int
    host: str
    started: str
    ended: str = ""
    exit: int | None = None
    signal: str = ""
    reason: str = ""


def status_path(directory: Path, rank: int) -> Path:
    """Return the file of a rank's status: status.json of rank 0, status.rank1.json of rank 1."""
    return directory / ("status.json" if rank == 0 else f"status.rank{rank}.json")


def read_status(directory: Path, rank: int = 0) -> Status | None:
    """Return the status of the latest attempt, None where there was none.

    The status says killed where the file says running and its process is gone from this host.
    """
    path = status_path(directory, rank)
    if not path.exists():
        return None
    try:
        status = Status(**json.loads(path.read_text()))
        if not (isinstance(status.attempt, int) and isinstance(status.pid, int)):
            raise TypeError
    except (ValueError, TypeError):
        return Status("unreadable", _last_attempt(directory), "", 0, "", "", reason=f"{path} is unreadable")
    is_here = status.host == socket.gethostname()
    if status.state == "running" and is_here and not psutil.pid_exists(status.pid):
        reason = f"process {status.pid} is gone without having said how it ended"
        return dataclasses.replace(status, state="killed", reason=reason)
    return status


def start_attempt(directory: Path, *, notebook: str) -> Status:
    """Write and return the status of the next attempt, which is running from now on."""
    last = read_status(directory, rank())
    attempt = 1 if last is None else last.attempt + 1
    status = Status("running", attempt, notebook, os.getpid(), socket.gethostname(), started=now())
    _write_status(directory, status)
    return status


def end_attempt(directory: Path, status: Status, *, state: str, signal: str = "", reason: str = "") -> None:
    """Write how the attempt ended; the arguments are fields of `Status`."""
    code = EXIT_CODES[state]
    ended = dataclasses.replace(status, ended=now(), state=state, exit=code, signal=signal, reason=reason)
    _write_status(directory, ended)


def attempt_notebook(directory: Path, *, rank: int = 0) -> Path:
    """Return the file of the next attempt: attempt-01.ipynb and so on, attempt-01.rank1.ipynb for rank 1.

    Every rank counts its own files, since rank 0 may already be running when another rank asks.
    """
    suffix = ".ipynb" if rank == 0 else f".rank{rank}.ipynb"
    return directory / f"attempt-{_last_attempt(directory, suffix) + 1:02d}{suffix}"


def choose_directory(base: Path, profile: str, *, params_text: Callable[[Path], str]) -> Path:
    """Return the newest unfinished run of this profile with the same parameters, or else a new directory.

    params_text: returns what params.yaml would hold in a directory (it differs in output_dir).
    """
    numbered = re.compile(rf"{re.escape(profile)}-(\d+)")
    runs = [(int(match[1]), path) for path in base.glob("*") if (match := numbered.fullmatch(path.name))]
    for _, directory in sorted(runs, reverse=True):
        params = directory / "params.yaml"
        status = read_status(directory)
        unfinished = status is None or status.state != "done"
        if unfinished and params.exists() and params.read_text() == params_text(directory):
            return directory
    return base / f"{profile}-{max(runs)[0] + 1 if runs else 1:03d}"


@contextmanager
def stopping_early() -> Iterator[None]:
    """Raise StoppedEarly on the first of STOPPING_SIGNALS; later ones are ignored while it unwinds."""

    def stop(signal_number: int, frame: FrameType | None) -> None:
        for each in signals_to_handle():
            signal.signal(each, signal.SIG_IGN)
        raise StoppedEarly(signal_number)

    with handling_signals(stop):
        yield


@contextmanager
def handling_signals(
    handler: Callable[[int, FrameType | None], None],
    signals: Sequence[signal.Signals] = STOPPING_SIGNALS,
) -> Iterator[None]:
    """Handle these signals by `handler`; the former handlers return at the end."""
    former = {each: signal.signal(each, handler) for each in signals_to_handle() if each in signals}
    try:
        yield
    finally:
        for each, former_handler in former.items():
            signal.signal(each, former_handler)


def signals_to_handle() -> list[signal.Signals]:
    """Return STOPPING_SIGNALS that may be handled: in the main thread only, and no SIGHUP under nohup."""
    if threading.current_thread() is not threading.main_thread():
        return []
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [each for each in STOPPING_SIGNALS if not (is_nohup and each == signal.SIGHUP)]


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory against a second run; raises RunInUse, which names the process that holds it."""
    lock = FileLock(directory / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        status = read_status(directory)
        is_known = status and status.state == "running"
        holder = f"process {status.pid} on {status.host}" if status and is_known else "another process"
        message = f"{directory}: {holder} is running here. Wait for it, or give another --out."
        raise RunInUse(message) from None
    except (OSError, NotImplementedError):
        # A network file system without locks: running unguarded is better than not running at all.
        yield
        return
    try:
        yield
    finally:
        lock.release()


@contextmanager
def socket_directory() -> Iterator[Path]:
    """Create a private directory for the kernel's sockets, and remove it at the end."""
    root = Path(tempfile.gettempdir())
    longest = len(os.fsencode(root)) + len(f"/{SOCKET_DIRECTORY_PREFIX}12345678") + SOCKET_NAME_LENGTH
    if longest > UNIX_SOCKET_PATH_LIMIT:
        root = Path("/tmp")
    directory, descriptor = private_directory(SOCKET_DIRECTORY_PREFIX, root)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(descriptor)


def private_directory(prefix: str, root: Path) -> tuple[Path, int]:
    """Create a directory for this process, and return it with the descriptor that holds its lock.

    Directories of dead processes, whatever begins with `prefix` and is not locked, are removed first. Locks
    end with their process, where a process id could be reused, or belong to another container.
    """
    for directory in root.glob(prefix + "????????"):
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # gone meanwhile, or another user's
            continue
        if _try_lock(descriptor):
            shutil.rmtree(directory, ignore_errors=True)
        os.close(descriptor)
    while True:
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        try:
            descriptor = os.open(directory, os.O_RDONLY)
        except FileNotFoundError:  # another run has just removed it as dead
            continue
        if _try_lock(descriptor) and directory.exists():  # it may have been removed before the lock
            return directory, descriptor
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write by rename, so a reader sees the whole old or the whole new text, even if the writer is killed."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def log_line(output_dir: str | Path, line: str) -> None:
    """Append a timestamped line to train.log in the run's directory; rank 0 only."""
    if rank() == 0:
        with (Path(output_dir) / "train.log").open("a", encoding="utf-8") as file:
            file.write(f"{now()} {line}\n")


def write_versions(directory: Path, *, machine: Mapping[str, object]) -> None:
    """Write versions.json: Python, all installed packages, the git revision of the project, the machine."""
    packages = {item.metadata["Name"]: item.version for item in importlib.metadata.distributions()}
    versions = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git": _git_revision(Path(rlnb.__file__).parents[1]),
        "machine": machine,
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }
    write_text(directory / "versions.json", json.dumps(versions, indent=1) + "\n")


def _write_status(directory: Path, status: Status) -> None:
    write_text(status_path(directory, rank()), json.dumps(dataclasses.asdict(status), indent=1) + "\n")


def _last_attempt(directory: Path, suffix: str = ".ipynb") -> int:
    attempt = re.compile(rf"attempt-(\d+){re.escape(suffix)}")
    return max((int(m[1]) for path in directory.iterdir() if (m := attempt.fullmatch(path.name))), default=0)


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _git_revision(project: Path) -> dict[str, object] | None:
    """{"revision": ..., "dirty": whether tracked files differ from it}; None without git or a repository."""
    command = ["git", "-C", str(project), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    revision, _, dirty = done.stdout.strip().partition("-")
    return {"revision": revision, "dirty": bool(dirty)}
