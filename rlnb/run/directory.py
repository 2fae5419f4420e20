"""The directory of a run: choose it, lock it, and record how each attempt ended and what it ran with.

params.yaml      all parameters of the run
versions.json    packages, git revision and machine of the latest attempt
status.json      the state of the latest attempt; written by rename
.heartbeat       touched every half a minute while the run lives
status.rank1.json, attempt-01.rank1.ipynb, attempt-01.rank1.log: the same of rank 1, and what it printed
attempt-01.ipynb the executed notebook, one per attempt; the notebook itself writes the other files
train.log        lines about training: each step, warnings
metrics.jsonl    rows with a step, a line of JSON each; so is games.jsonl of self-play
"""

import dataclasses
import datetime
import functools
import importlib.metadata
import itertools
import json
import os
import platform
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

import rlnb
from rlnb.errors import RlnbError
from rlnb.machine import Machine, rank
from rlnb.run.disk import lacks_room, write_bytes, write_text
from rlnb.run.slurm import RUNNING, is_preempted, jobs_in_queue, num_restarts, own_job

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# Signals that end a run early: SLURM's, Ctrl-C, and that of a closed terminal.
STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
PROGRESS = "rlnb/progress"  # in a display's metadata: {"label", "done", "total"}, for the terminal
POINTS_FILE = "points.json"  # in the folder of a sweep, whose points have directories of their own
POINT_NAME = r"^[\w=+][\w.=+-]*$"  # of a point of a sweep, and so of a folder in that of the sweep
EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_PREEMPTED, EXIT_KILLED = 0, 1, 2, 85, 138
# How an attempt ended: a cell raised, a signal stopped it (run again to go on), the kernel or the run died.
EXIT_CODES = {"done": EXIT_DONE, "failed": EXIT_FAILED, "preempted": EXIT_PREEMPTED, "killed": EXIT_KILLED}
PROGRAM = Path(sys.executable).with_name("rlnb")  # the command of this environment
HEARTBEAT_FILE = ".heartbeat"
HEARTBEAT_SECONDS = 30.0
SILENT_SECONDS = 4 * HEARTBEAT_SECONDS  # after which a run on another host counts as dead
AGREEMENT_SECONDS = 300.0  # for rank 0 to choose a directory; it may start and check later than the others
MOST_IDLE_ATTEMPTS = 3  # of one job in a row, before it is ended
DAMAGED_SUFFIX = ".damaged"
TAIL_BYTES = 1 << 18  # of metrics.jsonl, some hundred steps
SOCKET_PATH_BYTES = 107  # at most, on Linux
AskQueue = Callable[[Sequence[str]], Mapping[str, str] | None]


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

    state: running, or one of EXIT_CODES. exit: the exit code of `rlnb run`, None while running. signal: the
    name of the signal that stopped it, else "". started, ended: ISO times in UTC. process: see
    `identify_process`. job: SLURM's id, 31_2 in an array, else "". restarts: of that job. first_step: of the
    checkpoint that the attempt began with, in an evaluation the number of answers kept. ran_to_limit: its job
    was told that its time limit is near. idle_attempts: of the same job, in a row before this one, that ran
    to their limit and saved no further step.
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
    process: str = ""
    job: str = ""
    restarts: int = 0
    first_step: int = 0
    ran_to_limit: bool = False
    idle_attempts: int = 0


def read_status(directory: Path, rank: int = 0, *, ask: AskQueue | None = None) -> Status | None:
    """Return the status of the latest attempt, None where there was none or its file is damaged.

    The status says killed where the file says running and its process is gone. ask: returns what
    `jobs_in_queue` does, where somebody has asked already, or it does not matter.
    """
    try:
        status = _status_reader().validate_json(_status_path(directory, rank).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    reason = _why_gone(status, directory, ask or jobs_in_queue) if status.state == "running" else ""
    return dataclasses.replace(status, state="killed", reason=reason) if reason else status


@functools.cache
def _status_reader() -> "TypeAdapter[Status]":
    """Return pydantic's reader of a status; it is imported here, for `rlnb doctor` and --help need none."""
    from pydantic import TypeAdapter

    return TypeAdapter(Status)


def _status_path(directory: Path, rank: int) -> Path:
    return directory / ("status.json" if rank == 0 else f"status.rank{rank}.json")


def _why_gone(status: Status, directory: Path, ask: AskQueue) -> str:
    """Return why a run that its file calls running is not, "" where it is.

    Its process tells on this host, else SLURM, and only where neither can be asked the heartbeat's file.
    """
    if status.host == socket.gethostname():
        process = identify_process(status.pid)
        is_alive = process and status.process in ("", process)
        return "" if is_alive else f"process {status.pid} is gone without having said how it ended"
    if status.job and status.job == own_job() and status.restarts < num_restarts():
        return f"{status.host} is gone, and SLURM has started job {status.job} again"
    if status.job and (jobs := ask([status.job])) is not None:
        is_alive = jobs.get(status.job) in RUNNING
        return "" if is_alive else f"job {status.job} is not running any more and has not said how it ended"
    heartbeat = directory / HEARTBEAT_FILE
    if heartbeat.exists() and time.time() - heartbeat.stat().st_mtime < SILENT_SECONDS:
        return ""
    return f"nothing was heard of it on {status.host} for {SILENT_SECONDS:.0f} s"


def identify_process(pid: int) -> str:
    """Return what tells a process from all others of this host, also after its clock was set; "" if it ended.

    The clock's ticks between the host's start, which has an id, and the process's.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        _, _, fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    except OSError:
        return ""
    state, *others = fields.split()
    return "" if state in ("Z", "X") else f"{boot} {others[18]}"


def start_attempt(directory: Path, *, notebook: str, first_step: int = 0) -> Status:
    """Write and return the status of the next attempt, which is running from now on.

    Raises NoProgress, and writes it, for a job that SLURM has started again after MOST_IDLE_ATTEMPTS in a row
    have run to their limit and saved no step.
    """
    last, job = read_status(directory, rank()), own_job()
    num_idle = 0
    if last and last.job == job and last.restarts < num_restarts() and first_step <= last.first_step:
        num_idle = last.idle_attempts + last.ran_to_limit
    status = Status(
        "running", attempt=1 if last is None else last.attempt + 1, notebook=notebook, pid=os.getpid(),
        host=socket.gethostname(), started=now(), process=identify_process(os.getpid()), job=job,
        restarts=num_restarts(), first_step=first_step, idle_attempts=num_idle,
    )  # fmt: skip
    if num_idle >= MOST_IDLE_ATTEMPTS:
        reason = (
            f"job {job}: {num_idle} attempts in a row have ended without a further saved step (the last is "
            f"{first_step}). Give the job more time (--time), or save more often (training.save_steps)."
        )
        end_attempt(directory, status, state="failed", reason=reason)
        raise NoProgress(reason)
    write_status(directory, status, rank())
    touch_heartbeat(directory)
    return status


def touch_heartbeat(directory: Path) -> None:
    """Tell other hosts that the run lives; rank 0 only."""
    if rank() == 0:
        (directory / HEARTBEAT_FILE).touch()


@contextmanager
def heartbeat(directory: Path) -> Iterator[None]:
    """Let a thread touch the run's heartbeat file every HEARTBEAT_SECONDS.

    A model that loads and an evaluation write no metrics, so their times would not do.
    """
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(HEARTBEAT_SECONDS):
            try:
                touch_heartbeat(directory)
            except OSError as error:  # it may pass, and without this thread a run looks dead elsewhere
                print(f"{directory}: the heartbeat cannot be written: {error!r}", file=sys.stderr)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def note_signal(directory: Path, status: Status, name: str) -> Status:
    """Write the signal that tells an attempt to stop, since it may be killed before; return the status."""
    told = _with_signal(status, name)
    write_status(directory, told, rank())
    return told


def _with_signal(status: Status, name: str) -> Status:
    ran_to_limit = name == "SIGUSR1" and bool(status.job) and not is_preempted()
    return dataclasses.replace(status, signal=name, ran_to_limit=ran_to_limit)


def end_attempt(directory: Path, status: Status, *, state: str, signal: str = "", reason: str = "") -> None:
    """Write how the attempt ended; the arguments are fields of `Status`."""
    ended = dataclasses.replace(
        status if status.signal else _with_signal(status, signal),
        ended=now(),
        state=state,
        exit=EXIT_CODES[state],
        signal=signal,
        reason=reason,
    )
    write_status(directory, ended, rank())
    if rank() == 0:
        (directory / HEARTBEAT_FILE).unlink(missing_ok=True)


def attempt_notebook(directory: Path, *, rank: int = 0) -> Path:
    """Return the file of the next attempt: attempt-01.ipynb and so on, attempt-01.rank1.ipynb for rank 1.

    Every rank counts its own files, since rank 0 may already be running when another rank asks.
    """
    suffix = ".ipynb" if rank == 0 else f".rank{rank}.ipynb"
    numbered = re.compile(rf"attempt-(\d+){re.escape(suffix)}")
    numbers = [int(match[1]) for path in directory.iterdir() if (match := numbered.fullmatch(path.name))]
    return directory / f"attempt-{max(numbers, default=0) + 1:02d}{suffix}"


def find_directories(base: Path, profile: str, params_in: Callable[[Path], str]) -> Iterator[Path]:
    """Yield the unfinished runs of this profile with the same parameters, newest first, then new directories.

    params_in: returns the params.yaml that a directory has where its parameters are the same.
    """
    numbered = re.compile(rf"{re.escape(profile)}-(\d+)")
    runs = {int(match[1]): path for path in base.glob("*") if (match := numbered.fullmatch(path.name))}
    for _, directory in sorted(runs.items(), reverse=True):
        path = directory / "params.yaml"
        try:
            status = read_status(directory, ask=lambda _: {})
            is_same = path.exists() and path.read_bytes() == params_in(directory).encode()
        except PermissionError:  # somebody else's
            continue
        if not os.access(directory, os.W_OK):  # who lets others read it
            continue
        if is_same and (status is None or status.state != "done"):
            yield directory
    for index in itertools.count(max(runs, default=0) + 1):
        yield base / f"{profile}-{index:03d}"


@contextmanager
def claimed_directory(directories: Iterable[Path]) -> Iterator[Path]:
    """Lock and return the first of these directories that is not in use.

    A new one is made here, so that two runs that start at the same time get two.
    """
    with ExitStack() as stack:
        for directory in directories:
            with suppress(RunInUse, FileExistsError):  # another run is there, or has just made it
                if not (directory / "params.yaml").exists():
                    directory.mkdir(parents=True)
                stack.enter_context(locked(directory))
                break
        yield directory


@contextmanager
def agreed_directory(directories: Iterable[Path], note: Path, *, num_ranks: int) -> Iterator[Path]:
    """Return the directory that rank 0 claims, as `claimed_directory`; the file `note` tells the other ranks.

    Raises RlnbError on a rank that is told none.
    """
    if rank() == 0:
        with claimed_directory(directories) as directory:
            if num_ranks > 1:
                write_text(note, str(directory))
            try:
                yield directory
            finally:
                note.unlink(missing_ok=True)
        return
    deadline = time.monotonic() + AGREEMENT_SECONDS
    while not note.exists():
        if time.monotonic() > deadline:
            raise RlnbError(f"{note}: is missing after {AGREEMENT_SECONDS:.0f} s; see the output of rank 0")
        time.sleep(0.1)
    yield Path(note.read_text(encoding="utf-8"))


@contextmanager
def stopping_early() -> Iterator[None]:
    """Raise StoppedEarly on the first of STOPPING_SIGNALS; later ones are ignored while it unwinds.

    Ignored ones are left alone: slurm/run.sbatch starts a run that ignores SIGUSR1, since Python would die of
    it before it has a handler, and sends it again until the run has ended.
    """

    def stop(signal_number: int, frame: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise StoppedEarly(signal_number)

    signals = [each for each in STOPPING_SIGNALS if signal.getsignal(each) != signal.SIG_IGN]
    with handling_signals(stop, signals):
        yield


@contextmanager
def handling_signals(
    handler: Callable[[int, FrameType | None], None], signals: Sequence[signal.Signals] = STOPPING_SIGNALS
) -> Iterator[None]:
    """Handle these signals by `handler`; the former handlers return at the end.

    SIGHUP is left alone under nohup, and all of them outside the main thread, where none may be handled.
    """
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signals = [each for each in signals if each != signal.SIGHUP]
    is_main = threading.current_thread() is threading.main_thread()
    former = {each: signal.signal(each, handler) for each in signals if is_main}
    try:
        yield
    finally:
        for each, former_handler in former.items():
            signal.signal(each, former_handler)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory against a second run; raises RunInUse, which names the process that holds it.

    Some network file systems have no locks, or none that another host sees: there status.json decides.
    """
    # Without `fallback_to_soft`: such a lock outlives a run that is killed.
    path, holder = directory / ".lock", ""
    lock = FileLock(path, fallback_to_soft=False)
    with suppress(OSError, NotImplementedError):
        try:
            lock.acquire(timeout=0)
            path.write_text(name_process(os.getpid(), socket.gethostname(), own_job()))
        except Timeout:
            holder = "another process"
            holder = path.read_text() or holder
    try:
        status = read_status(directory)
        if not holder and status and status.state == "running" and status.pid != os.getpid():
            holder = name_process(status.pid, status.host, status.job)
        if holder:
            raise RunInUse(
                f"{directory}: {holder} is running here. Wait, or give another --out (output_dir)."
            )
        yield
    finally:
        lock.release()


def name_process(pid: int, host: str, job: str) -> str:
    return f"process {pid} on {host}" + (f" (job {job})" if job else "")


@contextmanager
def socket_directory() -> Iterator[Path]:
    """Create a private directory for the kernel's sockets, and remove it at the end."""
    longest = f"{tempfile.gettempdir()}/rlnb-zmq-12345678/kernel-ipc-99"
    root = None if len(os.fsencode(longest)) <= SOCKET_PATH_BYTES else "/tmp"
    with tempfile.TemporaryDirectory(prefix="rlnb-zmq-", dir=root, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


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


def write_versions(directory: Path, *, machine: Machine) -> None:
    """Write versions.json: Python, all installed packages, the git revision of the project, the machine."""
    project = shlex.quote(os.path.dirname(rlnb.__file__))
    # An interrupted update leaves a folder without metadata.
    installed = [item for item in importlib.metadata.distributions() if item.metadata]
    packages = {item.metadata["Name"]: item.version for item in installed}
    versions = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        # The revision, "-dirty" behind it where tracked files differ; a sentence where there is none.
        "git": subprocess.getoutput(f"git -C {project} describe --always --abbrev=40 --exclude='*' --dirty"),
        "machine": dataclasses.asdict(machine),
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }
    write_text(directory / "versions.json", json.dumps(versions, indent=1) + "\n")


def write_status(directory: Path, status: Status, rank: int = 0) -> None:
    """Write a rank's status.json, over the old one where the disk has no room for a second."""
    path, text = _status_path(directory, rank), json.dumps(dataclasses.asdict(status), indent=1) + "\n"
    try:
        write_text(path, text)
    except OSError as error:
        if not lacks_room(error):
            raise
        path.write_text(text, encoding="utf-8")


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def read_last_step(directory: Path) -> int | None:
    """Return the step of the last row of a run's metrics.jsonl that is whole, None without one."""
    row = read_last_row(directory / "metrics.jsonl")
    return None if row is None else row["step"]


def read_last_row(path: Path) -> dict[str, Any] | None:
    """Return the last row of a .jsonl file that is whole, None without one."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        rows = map(parse_row, reversed(file.read().splitlines()))
        return next((row for row in rows if row is not None), None)


def cut_rows(path: Path, *, after: int) -> None:
    """Drop the rows of steps after one, and move damaged lines to a file of their own, with a warning.

    A last line without an end is dropped: it is of a later step, since a step's rows are written before its
    checkpoint.
    """
    if not path.exists():
        return
    kept, damaged = bytearray(), []
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            row = parse_row(line)
            if row is None:
                damaged.append(line)
            elif row["step"] <= after:
                kept += line
    if damaged:
        aside = path.with_name(path.name + DAMAGED_SUFFIX)
        with aside.open("ab") as file:
            file.writelines(damaged)
        say(path.parent, f"warning: {path}: damaged lines moved to {aside}: {len(damaged)}")
    if path.stat().st_size > len(kept):
        write_bytes(path, bytes(kept))


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line, None for a damaged one."""
    try:
        row = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    has_step = isinstance(row, dict) and type(row.get("step")) is int
    return row if has_step else None
