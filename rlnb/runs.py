"""The directory of a run: which one, who holds it, how its last attempt ended, what it was made with.

params.yaml      all values that the run was asked for
versions.json    packages, git revision and machine of the latest attempt
status.json      how the latest attempt stands; written by rename, so a reader never sees half of it
attempt-01.ipynb the executed notebook, one an attempt; beside them what the notebook itself writes
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rlnb
from rlnb.errors import RlnbError

# What ends a run early: SLURM's, Ctrl-C, and a terminal that was closed.
STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
PROGRESS = "rlnb/progress"  # in a display's metadata: {"label", "done", "total"}, for the terminal
EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_PREEMPTED, EXIT_KILLED = 0, 1, 2, 85, 138
UNIX_SOCKET_PATH_LIMIT = 107  # bytes, of sun_path on Linux without its ending zero
SOCKET_NAME_LENGTH = len("/kernel-ipc-99")
SOCKET_DIRECTORY_PREFIX = "rlnb-ipc-"  # no other part of rlnb may use it: what is not locked is removed


class RunInUse(RlnbError):
    """Another process is running in the same directory."""


class StoppedEarly(SystemExit):
    """A signal came before there was a kernel to pass it on to; `signal` is its name.

    No Exception, like KeyboardInterrupt: it is raised anywhere, in the middle of an import for instance.
    """

    def __init__(self, number: int) -> None:
        super().__init__(EXIT_PREEMPTED)
        self.signal = signal.Signals(number).name

    def __str__(self) -> str:
        return f"stopped by {self.signal} while no cell was running"


@dataclasses.dataclass(frozen=True)
class Status:
    """How an attempt stands: what status.json holds.

    state: running, done, failed (a cell raised), preempted (stopped by a signal; run again to go on),
    killed (the kernel or the run itself died) or unreadable (status.json does not say). exit: the exit code
    of `rlnb run`, None while running. signal: the name of the signal that stopped it, else "". started,
    ended: ISO times in UTC.
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


def read_status(directory: Path) -> Status | None:
    """The status of the latest attempt, None where there was none.

    A run that was killed with SIGKILL cannot say so: its file still says running. When its process is
    gone from this host, the status returned says killed. A file that rlnb cannot have written loses nothing:
    checkpoints stand for themselves.
    """
    path = directory / "status.json"
    if not path.exists():
        return None
    try:
        status = Status(**json.loads(path.read_text()))
        is_sound = isinstance(status.attempt, int) and isinstance(status.pid, int)
    except (ValueError, TypeError):
        is_sound = False
    if not is_sound:
        return Status("unreadable", _last_attempt(directory), "", 0, "", "", reason=f"{path} is unreadable")
    if status.state == "running" and status.host == socket.gethostname() and not _is_alive(status.pid):
        reason = f"process {status.pid} is gone without having said how it ended"
        return dataclasses.replace(status, state="killed", reason=reason)
    return status


def start_attempt(directory: Path, *, notebook: str) -> Status:
    """Write and return the status of the next attempt, which is running from now on."""
    last = read_status(directory)
    status = Status(
        state="running",
        attempt=1 if last is None else last.attempt + 1,
        notebook=notebook,
        pid=os.getpid(),
        host=socket.gethostname(),
        started=_now(),
    )
    _write_status(directory, status)
    return status


def end_attempt(directory: Path, status: Status, **outcome: Any) -> None:
    """Write how the attempt ended. outcome: state, exit, signal and reason of `Status`."""
    _write_status(directory, dataclasses.replace(status, ended=_now(), **outcome))


def attempt_notebook(directory: Path, *, rank: int = 0) -> Path:
    """The file of the next attempt: attempt-01.ipynb and so on, attempt-01.rank1.ipynb for rank 1.

    Every rank counts its own files, since rank 0 may already be running when another one asks.
    """
    suffix = ".ipynb" if rank == 0 else f".rank{rank}.ipynb"
    return directory / f"attempt-{_last_attempt(directory, suffix) + 1:02d}{suffix}"


def choose_directory(base: Path, profile: str, *, params_text: Callable[[Path], str]) -> Path:
    """The newest unfinished run of this profile with the same parameters, or else a new number.

    params_text: what params.yaml would hold in a directory (it differs in output_dir).
    """
    numbered = re.compile(rf"{re.escape(profile)}-(\d+)")
    found = [(int(m[1]), path) for path in base.glob("*") if (m := numbered.fullmatch(path.name))]
    for _, directory in sorted(found, reverse=True):
        params = directory / "params.yaml"
        status = read_status(directory)
        unfinished = status is None or status.state != "done"
        if unfinished and params.exists() and params.read_text() == params_text(directory):
            return directory
    return base / f"{profile}-{max(found)[0] + 1 if found else 1:03d}"


@contextmanager
def stopping_early() -> Iterator[None]:
    """Raise StoppedEarly on the first of STOPPING_SIGNALS; further ones do not disturb what it unwinds."""

    def stop(number: int, frame: Any) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise StoppedEarly(number)

    before = {number: signal.getsignal(number) for number in listened_to()}
    try:
        for number in before:
            signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def listened_to() -> list[signal.Signals]:
    """STOPPING_SIGNALS that may be handled: Python allows it in the main thread only, nohup no SIGHUP."""
    if threading.current_thread() is not threading.main_thread():
        return []
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in STOPPING_SIGNALS if not (is_nohup and number == signal.SIGHUP)]


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory against a second run; raises RunInUse, which names the process that holds it.

    The lock goes with the process, however it ends; the file stays.
    """
    with (directory / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            raise RunInUse(
                f"{directory}: {holder} is running here. Wait for it, or give another --out."
            ) from None
        except OSError:
            # A network file system without locks: running unguarded beats not running at all.
            yield
            return
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


@contextmanager
def socket_directory() -> Iterator[Path]:
    """A private directory for the kernel's sockets, removed at the end."""
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
    """A new directory for this process alone, and the descriptor that holds its lock until it is closed.

    Those of dead processes are removed first. The lock goes with the process: a process id could be taken
    again, or belong to another container that shares the temporary directory. prefix: its own for each use,
    since whatever has it and is not locked is removed.
    """
    _remove_dead_directories(root, prefix)
    while True:
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        try:
            descriptor = os.open(directory, os.O_RDONLY)
        except FileNotFoundError:  # another run took it for a dead one just now
            continue
        if _try_lock(descriptor) and directory.exists():  # the same, a moment later
            return directory, descriptor
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write by rename: a reader sees the old text or the new, whole, also when the writer is killed."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text)
    part.replace(path)


def write_versions(directory: Path, *, machine: Mapping[str, Any]) -> None:
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
    write_text(directory / "status.json", json.dumps(dataclasses.asdict(status), indent=1) + "\n")


def _last_attempt(directory: Path, suffix: str = ".ipynb") -> int:
    own = re.compile(rf"attempt-(\d+){re.escape(suffix)}")
    return max((int(m[1]) for path in directory.iterdir() if (m := own.fullmatch(path.name))), default=0)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_dead_directories(root: Path, prefix: str) -> None:
    for directory in root.glob(prefix + "????????"):
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # gone meanwhile, or another user's
            continue
        if _try_lock(descriptor):
            shutil.rmtree(directory, ignore_errors=True)
        os.close(descriptor)


def _git_revision(project: Path) -> dict[str, Any] | None:
    """{"revision": ..., "dirty": whether tracked files differ from it}; None without git or a repository."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(project), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()

    try:
        return {
            "revision": git("rev-parse", "HEAD"),
            "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return None
