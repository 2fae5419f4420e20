"""Calling the functions of a program that is kept alive. Only plain data crosses: see `_codec.py`."""

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rlnb.errors import SandboxUnavailable
from rlnb.sandbox import _codec
from rlnb.sandbox._clock import has_passed, is_hidden, is_over, waited_seconds
from rlnb.sandbox._layers import cpu_seconds
from rlnb.sandbox.executions import Execution, Level, Limits, Status, make_execution, not_run, one_line
from rlnb.sandbox.zygotes import Zygote, ZygoteLost, is_ready

OVER: tuple[Status, str] = ("timeout", "time limit")
CREDENTIALS = struct.Struct("3i")  # process, user, group: what the kernel says of a sender
NO_DESCRIPTORS = "sandbox: this process may open no further file ({}); close some, or raise `ulimit -n`"
LOOK_SECONDS, START_SECONDS = 0.05, 60.0
THIS_THREAD = "/proc/thread-self"
EXIT_SECONDS = 3.0  # for a program that has let go of its connection, or lost it, to end by itself


@dataclass(frozen=True)
class Call:
    """What became of one call: `value` where status is "ok", else one line of `error`, untrusted.

    status: "runtime_error" for an exception, "timeout", or how the program ended in mid-call. seconds: wall
    time from the request to the answer.
    """

    status: Status
    value: _codec.PlainData
    error: str
    seconds: float


class Clock:
    """The time of a program from now on: of the processor, and on the wall without waits for a processor."""

    def __init__(self, pid: int) -> None:
        self._pid, self._folder = pid, f"/proc/{pid}"
        self._started, self._used = time.monotonic(), cpu_seconds(pid)
        self._waited = self._waited_by_both = 0.0
        with contextlib.suppress(OSError, ValueError):  # it is not counted: as `has_passed` says
            self._waited = waited_seconds(self._folder)
            self._waited_by_both = waited_seconds(self._folder, THIS_THREAD)

    def has_passed(self, seconds: float) -> bool:
        """Return whether a limit has passed without the waits of the program and of this thread."""
        elapsed = time.monotonic() - self._started
        return has_passed(self._folder, elapsed, seconds, before=self._waited_by_both, waiter=THIS_THREAD)

    def is_over(self, seconds: float) -> bool:
        """Return whether a program that this thread waits for is over a limit."""
        if cpu_seconds(self._pid) - self._used > seconds:
            return True
        elapsed = time.monotonic() - self._started
        try:
            return is_over(self._folder, elapsed, seconds, before=self._waited)
        except OSError:  # it has ended meanwhile, or is hidden: `has_passed` took twice its limit then
            return is_hidden(self._pid)


class LoadedProgram:
    """A program that has run to its end and whose functions can be called; `Sandbox.load` makes it.

    `ended` is None while it lives; a program that did not load has ended from the start. Calls of an ended
    one say how it ended. Use as a context manager, or call `close()`.
    """

    def __init__(
        self, zygote: Zygote, source: bytes, limits: Limits, level: Level, release: Callable[[Zygote], None]
    ) -> None:
        self.limits = limits
        self.ended: Execution | None = None
        self.has_lost_its_zygote = False  # while it ran: not its fault the first time
        self._zygote, self._level, self._release = zygote, level, release
        self._lock = threading.RLock()  # its sandbox may be closed by another thread
        try:
            self._connection, theirs = socket.socketpair()
        except OSError as error:
            release(zygote)
            raise SandboxUnavailable(NO_DESCRIPTORS.format(error)) from None
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.pid = 0  # of its process, as the kernel reports it; 0 where it never ran
        try:
            self._load(source, theirs)
        except BaseException:  # an interrupted cell's too: nobody else could end this program
            self._connection.close()
            if self.ended is None:
                release(zygote)
            raise

    def __enter__(self) -> "LoadedProgram":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self,
        name: str,
        *arguments: object,
        keywords: Mapping[str, object] | None = None,
        cpu_seconds: float | None = None,
    ) -> Call:
        """Call a function with plain data, or with what a call returned.

        A value that is not plain data comes as a `Reference`. keywords: the call's keyword arguments.
        cpu_seconds: of this call, by default that of the program's limits. Raises ValueError for arguments
        that are not plain data, too large or too deep.
        """
        limits = self.limits if cpu_seconds is None else replace(self.limits, cpu_seconds=cpu_seconds)
        return self._ask(["call", name, list(arguments), dict(keywords or {})], limits)

    def get(self, name: str) -> Call:
        """Return the value of a global name, as a call would return it."""
        return self._ask(["get", name], self.limits)

    def cpu_seconds(self) -> float:
        """CPU seconds it has used so far, loading included; 0 once it has ended."""
        return cpu_seconds(self.pid) if self.ended is None else 0.0

    def stop(self) -> None:
        """End the program at once, also while another thread calls it; `close` then says how it ended."""
        if self.ended is None:
            self._zygote.stop()

    def close(self) -> None:
        """End the program; `ended` then says "ok" if nothing else had ended it."""
        with self._lock:
            if self.ended is None:
                self._connection.close()  # its loop of calls ends there, and it as a script ends
                self._end()

    def _load(self, source: bytes, theirs: socket.socket) -> None:
        """Start the program and wait until it is compiled and has run: until it answers."""
        try:
            with theirs:
                self._zygote.send_job(source, self.limits, connection=theirs)
        except ZygoteLost as error:
            self._give_back(not_run("sandbox_error", str(error)))
            return
        if not is_ready(self._connection, select.POLLIN, START_SECONDS):
            self._end(("sandbox_error", f"no program was started in {START_SECONDS:g} s"))
            return
        letter, ancillary, _, _ = self._connection.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size))
        if letter and ancillary:
            self.pid = CREDENTIALS.unpack(ancillary[0][2])[0]
            self._connection.setblocking(False)
            self.get("__name__")
        else:
            self._end()

    def _ask(self, request: object, limits: Limits) -> Call:
        data = _codec.dumps(request)
        with self._lock:
            return self._ask_alone(data, limits)

    def _ask_alone(self, data: bytes, limits: Limits) -> Call:
        if self.ended is not None:
            return self.how_it_ended()
        started = time.monotonic()
        try:
            answer = self._exchange(len(data).to_bytes(4, "big") + data, limits.cpu_seconds)
        except OSError as error:  # reset by its end, or it does not read
            self._end(OVER if isinstance(error, TimeoutError) else None)
            answer = None
        except ValueError as error:
            self._end(("runtime_error", f"no answer but {error}"))
            answer = None
        seconds = time.monotonic() - started
        if answer is None:
            return self.how_it_ended(seconds)
        if answer[:1] != b"V":
            return Call("runtime_error", None, one_line(answer[1:].decode("utf-8", "replace")), seconds)
        try:
            return Call("ok", _codec.loads(answer[1:]), "", seconds)
        except ValueError as error:
            return Call("runtime_error", None, f"what it returned is refused: {error}", seconds)

    def _exchange(self, request: bytes, seconds: float) -> bytes | None:
        """Send a request and return its answer, None if the program ended instead.

        Raises OSError, TimeoutError where the program is over its time, and ValueError.
        """
        clock: Clock | None = None  # from the first look on: most calls are over before
        unsent, data, size = memoryview(request), bytearray(), 4
        while len(data) < size:
            has_come = is_ready(self._connection, select.POLLOUT if unsent else select.POLLIN, LOOK_SECONDS)
            if has_come and unsent:
                unsent = unsent[self._connection.send(unsent) :]
                if not unsent:
                    continue
            elif has_come:
                chunk = self._connection.recv(65536)
                if not chunk:
                    self._end()
                    return None
                data += chunk
                if len(data) >= 4:
                    size = 4 + int.from_bytes(data[:4], "big")
                    if size > _codec.MAX_TEXT_BYTES + 1 or len(data) > size:
                        raise ValueError("bytes of its own")
                if len(data) == size:
                    break
            # Also where something came: an answer may come a byte at a time.
            clock = clock or Clock(self.pid)
            if clock.has_passed(seconds) if has_come else clock.is_over(seconds):
                raise TimeoutError
        return bytes(data[4:])

    def _end(self, said: tuple[Status, str] | None = None) -> None:
        """End what still runs and ask how it ended; `said` is what this side knows better.

        A program whose connection is closed has EXIT_SECONDS to end as a script ends, whoever closed it.
        """
        if said is not None:
            self._zygote.stop()
        elif not self._ends_by_itself():
            said = ("runtime_error", "it closed its connection, or did not end when its calls were over")
            self._zygote.stop()
        try:
            answer, body = self._zygote.answer(EXIT_SECONDS, lambda: False)
            execution = make_execution(answer, body, limits=self.limits, isolation=self._level)
            if said == OVER and not answer.letter:
                said = ("timeout", "time limit while compiling")
        except ZygoteLost as error:
            self.has_lost_its_zygote = True
            execution = not_run("sandbox_error", f"its zygote was lost: {error}")
        if said is not None:
            execution = replace(execution, status=said[0], error=said[1])
        self._give_back(execution)

    def _ends_by_itself(self) -> bool:
        """Wait for the program's end, up to EXIT_SECONDS of its time."""
        if not self.pid:  # no process of its own: it never started
            return self._zygote.answers_within(EXIT_SECONDS)
        clock = Clock(self.pid)
        while not self._zygote.answers_within(LOOK_SECONDS):
            if clock.is_over(EXIT_SECONDS):
                return False
        return True

    def _give_back(self, execution: Execution) -> None:
        self.ended = execution
        self._connection.close()
        self._release(self._zygote)

    def how_it_ended(self, seconds: float = 0.0) -> Call:
        """Return what a call of a program that has ended says."""
        ended = self.ended
        if ended is None or ended.status == "ok":
            return Call("runtime_error", None, "it has ended", seconds)
        return Call(ended.status, None, ended.error, seconds)
