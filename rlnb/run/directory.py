"""The directory of a run: choose it, lock it, and record how each attempt ended and what it ran with.

params.yaml      all parameters of the run
versions.json    packages, git revision and machine of the latest attempt
status.json      the state of the latest attempt; written by rename
.heartbeat       touched every half a minute while the run lives
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
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

import psutil
from filelock import FileLock, Timeout

import rlnb
from rlnb.errors import RlnbError
from rlnb.machine import rank
from rlnb.run.disk import lacks_room, sync
from rlnb.run.slurm import RUNNING, jobs_in_queue, num_restarts, own_job

# Signals that end a run early: SLURM's, Ctrl-C, and that of a closed terminal.
STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
PROGRESS = "rlnb/progress"  # in a display's metadata: {"label", "done", "total"}, for the terminal
POINTS_FILE = "points.json"  # in the folder of a sweep, whose points have directories of their own
EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_PREEMPTED, EXIT_KILLED = 0, 1, 2, 85, 138
# How an attempt ended: a cell raised, a signal stopped it (run again to go on), the kernel or the run died.
EXIT_CODES = {"done": EXIT_DONE, "failed": EXIT_FAILED, "preempted": EXIT_PREEMPTED, "killed": EXIT_KILLED}
HEARTBEAT_FILE = ".heartbeat"
HEARTBEAT_SECONDS = 30.0
SILENT_SECONDS = 4 * HEARTBEAT_SECONDS  # after which a run on another host counts as dead
CLOCK_SECONDS = 5.0  # by which a process's start may differ after its host's clock was set
MOST_IDLE_ATTEMPTS = 2  # of one job in a row, before it is ended
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


class NoProgress(RlnbError):
    """A job whose attempts end again and again before they have saved a further step."""


@dataclasses.dataclass(frozen=True)
class Status:
    """The state of an attempt: the contents of status.json.

    state: running, unreadable (status.json is damaged), or one of EXIT_CODES. exit: the exit code of
    `rlnb run`, None while running. signal: the name of the signal that stopped it, else "". started, ended:
    ISO times in UTC. process_started: seconds since the epoch. job: SLURM's id, 31_2 in an array, else "".
    restarts: of that job. saved_step: of the checkpoint that the attempt began with. idle_attempts: of the
    same job, in a row before this one, that saved no further step.
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
    process_started: float | None = None
    job: str = ""
    restarts: int = 0
    saved_step: int = 0
    idle_attempts: int = 0


def status_path(directory: Path, rank: int) -> Path:
    """Return the file of a rank's status: status.json of rank 0, status.rank1.json of rank 1."""
    return directory / ("status.json" if rank == 0 else f"status.rank{rank}.json")


def read_status(directory: Path, rank: int = 0, *, jobs: Mapping[str, str] | None = None) -> Status | None:
    """Return the status of the latest attempt, None where there was none.

    The status says killed where the file says running and its process is gone. jobs: as `jobs_in_queue` has
    returned it for this run, if somebody has asked already.
    """
    path = status_path(directory, rank)
    if not path.exists():
        return None
    # Imported here: `rlnb doctor` and --help need no pydantic.
    from pydantic import TypeAdapter

    try:
        status = TypeAdapter(Status).validate_json(path.read_bytes())
    except ValueError:
        return Status("unreadable", _last_attempt(directory), "", 0, "", "", reason=f"{path} is unreadable")
    reason = _why_gone(status, directory, jobs) if status.state == "running" else ""
    return dataclasses.replace(status, state="killed", reason=reason) if reason else status


def _why_gone(status: Status, directory: Path, jobs: Mapping[str, str] | None) -> str:
    """Return why a run that its file calls running is not, "" where it is.

    Its process tells on this host, else SLURM, and only where neither can be asked the heartbeat's file.
    """
    if status.host == socket.gethostname():
        is_alive = _is_running(status.pid, status.process_started)
        return "" if is_alive else f"process {status.pid} is gone without having said how it ended"
    if status.job and status.job == own_job() and status.restarts < num_restarts():
        return f"{status.host} is gone, and SLURM has started job {status.job} again"
    jobs = jobs_in_queue([status.job]) if jobs is None and status.job else jobs
    if status.job and jobs is not None:
        is_alive = jobs.get(status.job) in RUNNING
        return "" if is_alive else f"job {status.job} is not running any more and has not said how it ended"
    heartbeat = directory / HEARTBEAT_FILE
    heard = heartbeat.stat().st_mtime if heartbeat.exists() else 0.0
    is_alive = time.time() - heard < SILENT_SECONDS
    return "" if is_alive else f"nothing was heard of it on {status.host} for {SILENT_SECONDS:.0f} s"


def _is_running(pid: int, started: float | None) -> bool:
    """Return whether this host runs the process that began then, and not another one with its number."""
    try:
        process = psutil.Process(pid)
        is_same = started is None or abs(process.create_time() - started) < CLOCK_SECONDS
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start_attempt(directory: Path, *, notebook: str, saved_step: int = 0) -> Status:
    """Write and return the status of the next attempt, which is running from now on."""
    last, started = read_status(directory, rank()), now()
    status = Status(
        "running",
        attempt=1 if last is None else last.attempt + 1,
        notebook=notebook,
        pid=os.getpid(),
        host=socket.gethostname(),
        started=started,
        process_started=psutil.Process().create_time(),
        job=own_job(),
        restarts=num_restarts(),
        saved_step=saved_step,
        idle_attempts=idle_before(last, saved_step),
    )
    write_status(directory, status)
    touch_heartbeat(directory)
    return status


def touch_heartbeat(directory: Path) -> None:
    """Tell other hosts that the run lives; rank 0 only."""
    if rank() == 0:
        (directory / HEARTBEAT_FILE).touch()


def count_idle_attempts(status: Status | None, saved_step: int) -> int:
    """Return how many attempts of its job, in a row up to this one, have saved no step beyond `saved_step`.

    One that SLURM preempted, by SIGTERM, neither counts nor ends the row: it was not given its time.
    """
    if status is None or saved_step > status.saved_step:
        return 0
    return status.idle_attempts + (status.signal != "SIGTERM")


def idle_before(last: Status | None, saved_step: int) -> int:
    """Return `count_idle_attempts` of a job that SLURM has started again since then, 0 for any other."""
    is_same = last is not None and last.job == own_job() and last.restarts < num_restarts()
    return count_idle_attempts(last, saved_step) if is_same else 0


def check_progress(directory: Path, last: Status | None, saved_step: int, *, idle: int) -> None:
    """Raise NoProgress for a job that has had MOST_IDLE_ATTEMPTS in a row, `last` of them, and write it."""
    if last is None or idle < MOST_IDLE_ATTEMPTS:
        return
    reason = (
        f"job {own_job()}: {idle} attempts in a row have ended without a further saved step (the last is "
        f"{saved_step}), so it is not put back into the queue. Give the job more time (--time), or save more "
        "often (training.save_steps)."
    )
    end_attempt(directory, last, state="failed", signal=last.signal, reason=reason)
    raise NoProgress(reason)


def end_attempt(directory: Path, status: Status, *, state: str, signal: str = "", reason: str = "") -> None:
    """Write how the attempt ended; the arguments are fields of `Status`."""
    ended = dataclasses.replace(
        status, ended=now(), state=state, exit=EXIT_CODES[state], signal=signal, reason=reason
    )
    write_status(directory, ended)
    if rank() == 0:
        (directory / HEARTBEAT_FILE).unlink(missing_ok=True)


def attempt_notebook(directory: Path, *, rank: int = 0) -> Path:
    """Return the file of the next attempt: attempt-01.ipynb and so on, attempt-01.rank1.ipynb for rank 1.

    Every rank counts its own files, since rank 0 may already be running when another rank asks.
    """
    suffix = ".ipynb" if rank == 0 else f".rank{rank}.ipynb"
    return directory / f"attempt-{_last_attempt(directory, suffix) + 1:02d}{suffix}"


def choose_directory(
    base: Path, profile: str, *, params_text: Callable[[Path], str], without: Collection[Path] = ()
) -> Path:
    """Return the newest unfinished run of this profile with the same parameters, or else a new directory.

    A job that SLURM has started again goes on where it was, whichever is the newest. params_text: returns
    what params.yaml would hold in a directory (it differs in output_dir). without: directories in use.
    """
    numbered = re.compile(rf"{re.escape(profile)}-(\d+)")
    runs = [(int(match[1]), path) for path in base.glob("*") if (match := numbered.fullmatch(path.name))]
    unfinished = []
    for _, directory in sorted(runs, reverse=True):
        params = directory / "params.yaml"
        if directory in without or not params.exists():
            continue
        if params.read_bytes() != params_text(directory).encode():  # bytes: a damaged file is none of ours
            continue
        status = read_status(directory)
        if status is not None and status.job and status.job == own_job() and num_restarts():
            return directory
        if status is None or status.state != "done":
            unfinished.append(directory)
    return unfinished[0] if unfinished else base / f"{profile}-{max(runs)[0] + 1 if runs else 1:03d}"


@contextmanager
def claimed_directory(choose: Callable[[Collection[Path]], Path]) -> Iterator[Path]:
    """Lock and return the directory of `choose`, another one while that is in use.

    choose: returns a directory; its argument are those that are in use. A new one is made here, so that two
    runs that start at the same time get two.
    """
    in_use: set[Path] = set()
    with ExitStack() as stack:
        while True:
            directory = choose(in_use)
            try:
                if not (directory / "params.yaml").exists():
                    directory.mkdir(parents=True)
                stack.enter_context(locked(directory))
                break
            except FileExistsError:
                continue  # another run has just made it; it counts now
            except RunInUse:
                in_use.add(directory)
        yield directory


@contextmanager
def stopping_early() -> Iterator[None]:
    """Raise StoppedEarly on the first of STOPPING_SIGNALS; later ones are ignored while it unwinds.

    SIGUSR1 is left alone where it is ignored: slurm/run.sbatch starts a run like that, since Python would die
    of it before it has a handler, and sends it again until the run has ended.
    """
    repeated = signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN

    def stop(signal_number: int, frame: FrameType | None) -> None:
        for each in signals_to_handle():
            signal.signal(each, signal.SIG_IGN)
        raise StoppedEarly(signal_number)

    with handling_signals(
        stop, [each for each in STOPPING_SIGNALS if not (repeated and each == signal.SIGUSR1)]
    ):
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
    """Lock the directory against a second run; raises RunInUse, which names the process that holds it.

    Some network file systems have no locks, or none that another host sees: there status.json decides.
    """
    # Without `fallback_to_soft`: such a lock outlives a run that is killed.
    lock = FileLock(directory / ".lock", fallback_to_soft=False)
    with suppress(OSError, NotImplementedError):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise _in_use(directory, read_status(directory)) from None
    try:
        status = read_status(directory)
        if status is not None and status.state == "running" and status.pid != os.getpid():
            raise _in_use(directory, status)
        yield
    finally:
        lock.release()


def _in_use(directory: Path, status: Status | None) -> RunInUse:
    is_known = status is not None and status.state == "running"
    holder = f"process {status.pid} on {status.host}" if status and is_known else "another process"
    job = f" (job {status.job})" if status and is_known and status.job else ""
    return RunInUse(f"{directory}: {holder}{job} is running here. Wait for it, or give another --out.")


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
    """Write by rename, so a reader sees the whole old or the whole new text.

    This holds if the writer is killed, the machine crashes, or the disk is full.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        sync(part)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def say(output_dir: str | Path, line: str) -> None:
    """Print a line and append it to train.log; rank 0 only."""
    if rank() == 0:
        print(line, flush=True)
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        log_line(output_dir, line)


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


def write_status(directory: Path, status: Status) -> None:
    """Write status.json, over the old one where the disk has no room for a second."""
    path, text = status_path(directory, rank()), json.dumps(dataclasses.asdict(status), indent=1) + "\n"
    try:
        write_text(path, text)
    except OSError as error:
        if not lacks_room(error) or not path.exists():
            raise
        with path.open("r+", encoding="utf-8") as file:  # the block that it has needs no further room
            file.write(text)
            file.truncate()


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
