"""This process's side of a zygote (`_zygote.py`): starting it, asking it, ending it."""

import contextlib
import ctypes
import fcntl
import functools
import json
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import IO, cast

from rlnb.sandbox import _layers
from rlnb.sandbox.executions import Answer, Limits, Variation

SCRIPT = str(Path(__file__).with_name("_zygote.py"))
MAKING = threading.Lock()  # else a thread takes a folder that another one has not locked yet for a dead one
INTERPRETER = os.path.realpath(sys.executable)  # a shim of a version manager costs milliseconds a start
# By this, modules of clusters let Python find its own library. Programs do not see it.
FOR_THE_LOADER = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
FOLDER_PREFIX = "rlnb-program-"
REMOVE = 'trap "" TERM; exec 2>/dev/null; chmod -R u+rwx -- "$0"; rm -rf -- "$0"'
# As in _zygote.py, which nothing imports.
FRAME = struct.Struct(">cII")
ANSWER = struct.Struct(">1s16siddI?II")
LOOK_SECONDS = 0.05  # how often it is asked whether to go on
START_SECONDS = 60.0  # on a starved machine an interpreter starts slowly
CLOSE_SECONDS, REMOVE_SECONDS, CLOSE_LOOK_SECONDS = 2.0, 60.0, 0.003
GRACE_SECONDS = 60.0  # beyond a program's own limit, until its zygote counts as hung


class ZygoteLost(Exception):
    """A zygote has died or hangs, and what became of its program is not known."""


class Zygote:
    """A running zygote, for one program at a time. `layers`: {layer: "on" or why it is off}, by its own word.

    Raises OSError or ZygoteLost where none can be started.
    """

    def __init__(self, without: Collection[str] = (), variation: Variation | None = None) -> None:
        fill_standard_streams()
        self.is_usable = True
        self._is_removing, self._deadline = False, 0.0
        with contextlib.ExitStack() as undo:
            # Where this process is killed its zygote may not remove the folder: the next one to be made does.
            self.folder, self._lock = make_folder()
            undo.callback(os.close, self._lock)
            undo.callback(os.rmdir, self.folder)
            self._control, theirs = socket.socketpair()
            undo.callback(self._control.close)
            with theirs:
                descriptors = theirs.fileno(), self._lock, load_library()
                self._process = start(descriptors, self.folder, without, variation)
            undo.pop_all()
        cast(IO[bytes], self._process.stdout).close()  # it writes nothing; its programs get other streams
        self._errors = cast(IO[bytes], self._process.stderr)
        try:
            self._wait(START_SECONDS, lambda: False)
            _, size, _ = FRAME.unpack(self._read(FRAME.size))
            self.layers: dict[str, str] = json.loads(self._read(size))
        except BaseException:
            self.close()
            raise

    def run(self, source: bytes, limits: Limits, *, stopped: Callable[[], bool]) -> tuple[Answer, bytes]:
        """Run a program to its end; return how it ended and what it printed, see `make_execution`."""
        self.send_job(source, limits)
        return self.answer(limits.longest_seconds, stopped)

    def send_job(self, source: bytes, limits: Limits, *, connection: socket.socket | None = None) -> None:
        """Start a program. With a connection it answers calls there, and only calls are timed."""
        header = make_header(limits, connection is not None)
        self.is_usable = False  # until it has answered
        try:
            self._control.sendall(FRAME.pack(b"J", len(header), len(source)) + header + source)
            if connection is not None:
                socket.send_fds(self._control, [b"F"], [connection.fileno()])
        except OSError as error:
            raise ZygoteLost(str(error)) from None

    def answer(self, seconds: float, stopped: Callable[[], bool]) -> tuple[Answer, bytes]:
        """Wait for the program's end; return how it ended and what it printed, see `make_execution`."""
        self._wait(seconds + GRACE_SECONDS, stopped)
        try:
            letter, ended_for, *usage, is_spent, num_message, num_body = ANSWER.unpack(
                self._read(ANSWER.size)
            )
            rest = self._read(num_message + num_body)
        except (OSError, struct.error) as error:
            raise ZygoteLost(f"{type(error).__name__}: {error}") from None
        self.is_usable = not is_spent
        texts = (data.strip(b"\0").decode("latin-1") for data in (letter, ended_for))
        message = rest[:num_message].decode("utf-8", "replace")
        return Answer._make([*texts, *usage, message]), rest[num_message:]

    def answers_within(self, seconds: float) -> bool:
        """Return whether the program's answer arrives within `seconds`; do not read it."""
        return is_ready(self._control, select.POLLIN, seconds)

    def is_alive(self) -> bool:
        """Return whether its process still runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the program that runs; it still has to be answered for."""
        with contextlib.suppress(OSError):
            self._control.send(b"!")

    def let_go(self) -> None:
        """Let it end, and whatever it runs, without waiting for that: ask `has_ended`."""
        self._control.close()  # it ends by itself at that, and kills its child first
        self._deadline = time.monotonic() + CLOSE_SECONDS

    def has_ended(self) -> bool:
        """Return whether it has ended and its folder is gone, once it was let go. End one that hangs."""
        if self._process.poll() is None:
            if time.monotonic() > self._deadline:
                self._process.terminate()  # a keeper, with its hanging zygote; one that removes goes on
            return False
        if not self._is_removing:  # the folder is there still where its keeper was killed
            self._is_removing = True
            with contextlib.suppress(OSError):
                os.rmdir(self.folder)
            with contextlib.suppress(OSError):  # nothing can be started: the next zygote's start removes it
                if os.path.lexists(self.folder):
                    self._process = start_removal(self.folder, self._lock)
                    return False
        self._errors.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        return True

    def close(self) -> None:
        """Let it go, and wait until it has ended and its folder is gone, or takes too long to remove."""
        self.let_go()
        deadline = time.monotonic() + REMOVE_SECONDS
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(CLOSE_LOOK_SECONDS)

    def _wait(self, seconds: float, stopped: Callable[[], bool]) -> None:
        """Wait until it says something; `stopped` ends its program. Raises ZygoteLost."""
        has_stopped, deadline = False, time.monotonic() + seconds
        while not self.answers_within(LOOK_SECONDS):
            if time.monotonic() > deadline:
                raise ZygoteLost(f"it did not answer in {seconds:g} s")
            if not has_stopped and stopped():
                has_stopped = True
                self.stop()

    def _read(self, size: int) -> bytes:
        data = self._control.recv(size, socket.MSG_WAITALL) if size else b""
        if len(data) < size:
            os.set_blocking(self._errors.fileno(), False)
            lines = (self._errors.read() or b"").decode(errors="replace").split("\n")
            raise ZygoteLost("it ended" + (f": {lines[-2]}" if len(lines) > 1 else ""))
        return data


def is_ready(connection: socket.socket, event: int, seconds: float) -> bool:
    """Return whether an event of `select.poll` happens to a connection within `seconds`."""
    poller = select.poll()
    poller.register(connection, event)
    return bool(poller.poll(seconds * 1000))


@functools.cache  # thousands of programs in a row have the same limits
def make_header(limits: Limits, serves_calls: bool) -> bytes:
    """Return the header of a job; where it serves calls, only they are timed, on this side."""
    job = {**asdict(limits), "output_bytes": limits.output_kib * 1024}
    if serves_calls:
        job |= {"cpu_seconds": 1e9}
    return json.dumps({**job, "serves_calls": serves_calls}).encode()


@functools.cache
def load_library() -> int:
    """Return the descriptor of the standard library's image (see `_library.py`), made once a process.

    What programs still read, shared libraries, is kept in memory by this process: none can find a part of
    them there, or not, by another's doing.
    """
    image = os.memfd_create("rlnb-library", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    script = str(Path(SCRIPT).with_name("_library.py"))
    command = [INTERPRETER, "-B", "-P", "-s", "-S", script, str(image)]
    try:
        environment = {"LANG": "C.UTF-8", **FOR_THE_LOADER}
        done = subprocess.run(command, pass_fds=[image], capture_output=True, text=True, env=environment)
        if done.returncode:
            raise OSError(f"the standard library cannot be read: {done.stderr.strip()[-500:]}")
    except BaseException:
        os.close(image)
        raise
    fcntl.fcntl(image, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    libc = _layers.load_libc()
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_ssize_t, [ctypes.c_ssize_t] * 6
    for path in (INTERPRETER, *json.loads(done.stdout)):
        with open(path, "rb") as file:
            mapping = 0, os.path.getsize(path), mmap.PROT_READ, mmap.MAP_SHARED | mmap.MAP_POPULATE
            # Where this user may lock no more memory, it is there from the start at least.
            if libc.mmap(*mapping[:3], mapping[3] | _layers.MAP_LOCKED, file.fileno(), 0) == -1:
                libc.mmap(*mapping, file.fileno(), 0)
    return image


def start(
    descriptors: tuple[int, int, int], folder: str, without: Collection[str], variation: Variation | None
) -> "subprocess.Popen[bytes]":
    """Start the interpreter in `folder`. `Popen` uses vfork: a large trainer is not copied.

    descriptors: of the socket to talk to it by, of the folder's lock, and of the library's image. Not `-I`,
    which would ignore the hash seed: `-P -s` and a clean environment isolate as well.
    """
    environment = {
        **FOR_THE_LOADER,
        "PATH": os.defpath,
        "LD_BIND_NOW": "1",
        "LANG": "C.UTF-8",
        "HOME": folder,
        "TMPDIR": folder,
        "TZ": "UTC0",  # programs cannot read the machine's; `zoneinfo` has all
        "PYTHONTZPATH": "",
        "PYTHONHASHSEED": str(variation.hash_seed) if variation else "0",
        "PYTHONIOENCODING": "utf-8:backslashreplace",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MALLOC_ARENA_MAX": "1",  # each further arena takes 64 MiB of the address space that is limited
    }
    arguments = [",".join(map(str, descriptors)), folder, ",".join(without)]
    if variation:
        arguments.append(repr(float(variation.clock_shift_seconds)))
    return subprocess.Popen(
        [INTERPRETER, "-P", "-s", "-S", SCRIPT, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,  # not /dev/null, of which Python would keep in mind that it can seek there
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment,
        pass_fds=descriptors,
        start_new_session=True,
    )


def fill_standard_streams() -> None:
    """Open /dev/null on closed descriptors of 0 to 2, which daemons leave: a child takes them for streams."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def make_folder() -> tuple[str, int]:
    """Create a zygote's folder, and return it with the descriptor that holds its lock.

    Those of dead processes are removed, told by their locks: a lock ends with its process, while a process
    id could be reused, or belong to another container.
    """
    with MAKING:
        root = tempfile.gettempdir()
        for left in Path(root).glob(f"{FOLDER_PREFIX}????????"):
            if (descriptor := lock_folder(str(left))) is not None:
                with contextlib.suppress(OSError):
                    start_removal(str(left), descriptor)
                os.close(descriptor)
        while True:
            folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=root)
            try:
                descriptor = lock_folder(folder)
            except OSError:
                os.rmdir(folder)
                raise
            if descriptor is not None:
                if os.path.exists(folder):  # or another process has removed it as dead
                    return folder, descriptor
                os.close(descriptor)


def lock_folder(folder: str) -> int | None:
    """Return the descriptor that locks a folder, None where it is gone, locked or another user's."""
    with contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            raise
        return descriptor
    return None


def start_removal(folder: str, lock: int) -> "subprocess.Popen[bytes]":
    """Start to remove a zygote's folder, whatever programs made of it; it stays locked until it is gone."""
    command = ["/bin/sh", "-c", REMOVE, folder]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[lock], start_new_session=True)
