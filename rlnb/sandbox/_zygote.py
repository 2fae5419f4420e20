"""A small clean interpreter that forks one limited child for each program it is given.

Started by path, with `-P -s -S` and a clean environment: standard library only, one thread, no secrets. It
listens on a socket and ends when its parent does. Every bit of what it answers comes from the kernel (how the
child ended, what it used) or from a letter that the child wrote before any untrusted code had run: "C"
compiled, "S" syntax error, "X" the sandbox itself failed. The descriptor of that letter is closed by then.
"""

import _thread
import bisect
import contextlib
import fcntl
import functools
import gc
import json
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import TypedDict

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import _child  # noqa: E402
import _keeper  # noqa: E402
import _layers  # noqa: E402
import _library  # noqa: E402

_variation = import_module("_variation") if len(sys.argv) > 4 else None
del sys.path[0]

# What programs import most; each costs a child's fork some microseconds and saves its import milliseconds.
PRELOADED = (
    "bisect", "cmath", "collections", "copy", "datetime", "functools", "heapq", "itertools", "math",
    "operator", "random", "re", "string", "typing",
)  # fmt: skip
FRAME = struct.Struct(">cII")  # "J" a job or "L" the layers, bytes of the JSON that follows, bytes behind it
# Letter, what ended it, exit code, CPU seconds, MiB, bytes of standard output, whether this process is spent,
# bytes of the message and of both outputs, which follow. Not JSON: it touches pages, and each is a fault.
ANSWER = struct.Struct(">1s16siddI?II")
STOP = b"!"
KEPT_DESCRIPTORS = 40  # those that outlive a job lie above this number
# How often a running program's clock is read and its threads are counted; while it floods its output.
LOOK_MS, FLOOD_LOOK_MS = 50, 1
CHUNK = 65536
USUAL_STACK = 2**23
# The kernel puts them, down, into every new network namespace where the host has loaded their modules.
FALLBACK_TUNNELS = (
    "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "sit0", "ip6tnl0", "ip6gre0", "ip6_vti0",
)  # fmt: skip
USUAL_SOURCE = 2**20  # bytes; a zygote that got more of one program is spent
MAX_JOBS = 10_000
NUM_PLACES, NUM_SLICES = 32, 8  # more integers, and more slices of buffers, than a program's end takes
SHORT_INTEGER, LONG_INTEGER, FLOAT = 2**10, 2**40, 0.5
Fields = tuple[bytes, bytes, int, float, float, int]  # of ANSWER, up to the bytes of standard output


class Job(TypedDict):
    """The header of a job, and `rlimits`, which the zygote adds."""

    cpu_seconds: float
    memory_mib: int
    output_bytes: int
    file_mib: int
    max_threads: int
    serves_calls: bool
    rlimits: dict[int, int]


class Pages:
    """What a program is, says or has written, in memory of its own.

    A child inherits this process's memory, freed parts included: what stayed there of one program, the next
    one could read, and by the addresses of its own objects it could tell how much that was. So all texts are
    read into such pages: the source's are emptied before the next fork, the others are not inherited.
    """

    def __init__(self, capacity: int, *, is_inherited: bool = False) -> None:
        self.pages = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if not is_inherited:
            self.pages.madvise(mmap.MADV_DONTFORK)
        self.buffer = memoryview(self.pages)
        self.size = 0

    def read(self, descriptor: int) -> int:
        """Take what is there, up to CHUNK bytes; 0 at the end. Raises BlockingIOError."""
        count = os.readv(descriptor, [self.buffer[self.size : self.size + CHUNK]])
        self.size += count
        return count


class Zygote:
    """What stays the same from child to child."""

    def __init__(
        self,
        control: socket.socket,
        keeper: socket.socket,
        library: _library.Library,
        folder: str,
        without: list[str],
        lacks_proc: bool,
    ) -> None:
        self.control, self.keeper, self.lacks_proc = control, keeper, lacks_proc
        self.folder, self.folder_times, self.library = folder, (0, 0), library
        self.libc = _layers.load_libc()
        self.status_read, self.status_write = (high(end) for end in os.pipe())
        os.set_blocking(self.status_read, False)
        self.children = high(os.open("/proc/thread-self/children", os.O_RDONLY))
        self.load = high(os.open("/proc/loadavg", os.O_RDONLY))  # ends with this namespace's last process
        self.last_pid = 0
        self.null_flags = fcntl.fcntl(0, fcntl.F_GETFL)
        self.last_header = b""
        self.last_job: Job
        self.source = Pages(USUAL_SOURCE, is_inherited=True)
        self.letter, self.frame, self.streams = Pages(CHUNK), Pages(CHUNK), (Pages(CHUNK), Pages(CHUNK))
        self.seccomp: _layers.Filter | None = None
        self.shared_memory: list[int] = []  # descriptors of the kernel's lists of it, this namespace's
        for kind in ("shm", "sem", "msg") if os.path.exists("/proc/sysvipc") else ():
            self.shared_memory.append(high(os.open(f"/proc/sysvipc/{kind}", os.O_RDONLY)))
        self.layers: dict[str, str] = {}
        self.kept: tuple[object, ...] = ()
        self.variation = _variation
        self.finalize: Callable[[int], object] | None = None
        for layer in ("namespaces", "process", "limits", "files", "system calls"):
            try:
                if layer in without:
                    raise OSError("switched off")
                self.set_up(layer)
                self.layers[layer] = "on"
            except (OSError, AttributeError) as error:  # AttributeError: a C library without such a call
                self.layers[layer] = str(error)
            if layer == "namespaces" and _variation is not None:  # the next layers protect the final folder
                self.folder = _variation.own_folder(self.folder)

    def set_up(self, layer: str) -> None:
        """Apply to this process what children inherit, and prepare what they apply themselves."""
        if layer == "namespaces":
            enter = functools.partial(_layers.enter_namespaces, self.libc, self.folder, self.library.files)
            _layers.in_a_child(enter)
            self.folder = enter()
            if {name for _, name in socket.if_nameindex()} - {"lo", *FALLBACK_TUNNELS}:
                raise OSError("the network is still there")
            os.environ.update(HOME=self.folder, TMPDIR=self.folder)
        elif layer == "process":
            _layers.check(self.libc.prctl(_layers.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")
            _layers.drop_privileges(self.libc)
        elif layer == "limits":
            if self.lacks_proc:
                raise OSError("/proc is another namespace's, so threads cannot be counted; mount it again")
            fixed = {resource.RLIMIT_NOFILE: _child.MAX_OPEN_FILES, resource.RLIMIT_CORE: 0}
            fixed |= {_layers.RLIMIT_MSGQUEUE: 0, _layers.RLIMIT_SIGPENDING: 0}
            _layers.limit_resources(fixed | {resource.RLIMIT_STACK: 64 * 2**20})
        elif layer == "files":
            _layers.protect_files(self.libc, self.library.files, writable=self.folder)
        elif layer == "system calls":
            self.seccomp = _layers.Filter(_layers.make_filter(os.uname().machine))


def high(descriptor: int) -> int:
    """Move a descriptor to a number that no stream of a child takes, and return it."""
    duplicate = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, KEPT_DESCRIPTORS)
    os.close(descriptor)
    return duplicate


def main() -> None:
    """Become two processes: a zygote, and its keeper, which the layers do not bind."""
    # Numbers of its parent's, which may be beyond all that a child closes.
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < _child.MAX_OPEN_FILES:
        raise OSError(f"fewer than {_child.MAX_OPEN_FILES} files may be open; raise `ulimit -n`")
    os.environ.pop("LD_LIBRARY_PATH", None)  # the loader keeps it; see zygotes.py
    # The C library gives each thread so much address space, which is limited, as `ulimit -s` says.
    if resource.getrlimit(resource.RLIMIT_STACK)[0] > USUAL_STACK:
        _thread.stack_size(USUAL_STACK)
    control, lock, image = (high(int(descriptor)) for descriptor in sys.argv[1].split(","))
    folder, without, trainer = sys.argv[2], sys.argv[3].split(","), os.getppid()
    libc = _layers.load_libc()
    libc.prctl(_layers.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    lacks_proc = os.readlink("/proc/self") != str(os.getpid())
    # Interpreters that differ keep the machine's process numbers, which differ.
    if "process" not in without and _variation is None:
        enter = functools.partial(_layers.enter_process_namespace, libc)
        with contextlib.suppress(OSError):  # this user may not: programs are ended one by one
            _layers.in_a_child(enter)
            enter()
    to_zygote, to_keeper = socket.socketpair()
    pid = _layers.fork()
    if pid:  # it holds the lock of the folder until that is removed
        os.close(control)
        os.close(image)
        to_keeper.close()
        _keeper.keep(pid, to_zygote, trainer)
        _keeper.remove(folder, lock)
        return
    os.close(lock)
    to_zygote.close()
    libc.prctl(_layers.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    link = socket.socket(fileno=high(to_keeper.detach()))
    library = _library.Library(image)
    os.close(image)
    sys.meta_path.insert(2, library)  # before the finder of files
    serve(Zygote(socket.socket(fileno=control), link, library, folder, without, lacks_proc))


def serve(zygote: Zygote) -> None:
    """Run one program after the other, until the parent is gone or this process has done enough."""
    control = zygote.control
    sys.path_importer_cache.clear()  # it lists folders that have gone
    if _variation is not None:
        zygote.finalize = _variation.vary(float(sys.argv[4]), zygote.folder)
    for name in PRELOADED:
        import_module(name)
    layers = json.dumps(zygote.layers).encode()
    control.sendall(FRAME.pack(b"L", len(layers), 0) + layers)
    _child.warm_up()
    zygote.folder_times = folder_times(zygote.folder)
    if _variation is not None:
        zygote.kept = _variation.blocks()
    gc.disable()
    gc.freeze()
    for job_count in range(1, MAX_JOBS + 1):
        job = receive(zygote)
        if job is None:
            return
        connection = socket.recv_fds(control, 1, 1)[1][0] if job["serves_calls"] else None
        fields, parts = run(zygote, job, connection)
        fcntl.fcntl(0, fcntl.F_SETFL, zygote.null_flags)  # the file is the same for the next program
        # What stops a program may be its own doing, at once, and shows in this process's memory.
        is_usual = zygote.source.size <= USUAL_SOURCE and fields[1] != b"stopped"
        is_clean = is_usual and _keeper.end_children(zygote.children) and not has_changed(zygote)
        send(zygote, (*fields, job_count == MAX_JOBS or not is_clean), parts)
        del fields, parts  # the next program would find them in this process's memory
        zygote.source.pages.madvise(mmap.MADV_DONTNEED)
        zygote.last_pid = zygote.source.size = zygote.letter.size = 0
        for pages in zygote.streams:
            pages.size = 0
        forget_numbers(zygote)


def forget_numbers(zygote: Zygote) -> None:
    """Put the free places of integers back in the order of their addresses, and constants where numbers were.

    Python keeps small integers and makes all others: by the places that it gets, a program could tell the
    exit code of the last one, and whether its source and outputs were long. Nothing else depends on these.
    """
    places: list[object] = []
    for _ in range(NUM_PLACES):
        bisect.insort(places, SHORT_INTEGER + NUM_PLACES, key=id)
    while places:
        places.pop()
    places = [-LONG_INTEGER for _ in range(NUM_PLACES + 2)]  # two more have held addresses
    # In slices and in the arrays of `sendmsg` there are lengths, in floats the memory that was used.
    places = [(zygote.frame.buffer[:0], bytes(31), bytes(287), -FLOAT) for _ in range(NUM_SLICES)]


def receive(zygote: Zygote) -> Job | None:
    """Return the next job, None when the parent has gone; its program is in `zygote.source` then."""
    control, frame = zygote.control, zygote.frame.buffer
    while control.recv_into(frame, 1):
        if frame[:1] != STOP:  # for a program that had ended already
            break
    else:
        return None
    control.recv_into(frame[1:], FRAME.size - 1, socket.MSG_WAITALL)
    _, header_bytes, body_bytes = FRAME.unpack_from(frame)
    header = control.recv(header_bytes, socket.MSG_WAITALL)
    if header != zygote.last_header:
        zygote.last_header, zygote.last_job = header, json.loads(header)
        zygote.last_job["rlimits"] = _child.make_rlimits(zygote, zygote.last_job)
        capacity = zygote.last_job["output_bytes"] + CHUNK
        zygote.streams = Pages(capacity), Pages(capacity)
    if body_bytes > USUAL_SOURCE:
        zygote.source = Pages(body_bytes, is_inherited=True)
    zygote.source.size = body_bytes
    if body_bytes:
        control.recv_into(zygote.source.buffer, body_bytes, socket.MSG_WAITALL)
    return zygote.last_job


def send(zygote: Zygote, fields: tuple[object, ...], parts: list[memoryview]) -> None:
    """Answer, in one call where it fits: a second one would wake the other side twice."""
    ANSWER.pack_into(zygote.frame.buffer, 0, *fields, len(parts[0]), sum(map(len, parts[1:])))
    left = [zygote.frame.buffer[: ANSWER.size], *parts]
    count = zygote.control.sendmsg(left)
    for part in left:
        if count < len(part):
            zygote.control.sendall(part[count:])
        count = max(0, count - len(part))


def run(zygote: Zygote, job: Job, connection: int | None) -> tuple[Fields, list[memoryview]]:
    """Fork a child that becomes the program, watch it to its end, and say how it ended.

    The parts are the message and what the streams hold, in buffers that stay.
    """
    (out_read, out_write), (error_read, error_write) = os.pipe(), os.pipe()
    pid = zygote.last_pid = _layers.fork()
    if pid == 0:
        try:
            _child.become(zygote, job, streams=(out_write, error_write), connection=connection)
        finally:
            os._exit(1)
    for descriptor in (out_write, error_write, *([] if connection is None else [connection])):
        os.close(descriptor)
    output, errors = zygote.streams
    streams = {out_read: output, error_read: errors}
    ended_for = "stopped"
    try:
        ended_for = watch(zygote, pid, job, streams)
    finally:
        if ended_for:
            os.kill(pid, signal.SIGKILL)
        _, wait_status, usage = os.wait4(pid, 0)
        read_pipes(streams, job["output_bytes"])
        for descriptor in streams:
            os.close(descriptor)
    with contextlib.suppress(BlockingIOError):
        zygote.letter.read(zygote.status_read)
    size = zygote.letter.size
    letter, message = bytes(zygote.letter.buffer[: min(1, size)]), zygote.letter.buffer[1 : max(1, size)]
    cap = job["output_bytes"]
    if not ended_for and max(output.size, errors.size) > cap:
        ended_for = "output_exceeded"
    # Empty ones too: newer Pythons keep in their code which way conditions went last.
    parts = [message, output.buffer[: min(output.size, cap)], errors.buffer[: min(errors.size, cap)]]
    exit_code, seconds = os.waitstatus_to_exitcode(wait_status), usage.ru_utime + usage.ru_stime
    used = exit_code, seconds, usage.ru_maxrss / 1024, min(output.size, cap)
    return (letter, ended_for.encode(), *used), parts


def watch(zygote: Zygote, pid: int, job: Job, streams: dict[int, Pages]) -> str:
    """Wait until a child ends, or passes a limit: "" or which one.

    Its streams are read at each look, not when something comes: pipes hold what most programs ever write,
    and how often this process woke up would show in its memory, which the next program inherits.
    """
    started = time.monotonic()
    control, exit_signal = zygote.control.fileno(), open_pidfd(pid)
    poller = select.poll()
    for descriptor in (control, *exit_signal):
        poller.register(descriptor, select.POLLIN)
    is_flooding = False
    try:
        while True:
            for descriptor, _ in poller.poll(FLOOD_LOOK_MS if is_flooding or not exit_signal else LOOK_MS):
                if descriptor != control:
                    return ""
                if not zygote.control.recv(1):
                    sys.exit(0)  # the parent is gone; what runs is ended on the way out
                return "stopped"
            is_flooding = read_pipes(streams, job["output_bytes"])
            if max(stream.size for stream in streams.values()) > job["output_bytes"]:
                return "output_exceeded"
            if not exit_signal and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return ""
            if _layers.cpu_seconds(pid) > job["cpu_seconds"]:
                return "timeout"
            if _keeper.ask(zygote.keeper, b"?") > job["max_threads"]:
                return "too many threads"
            if time.monotonic() - started > job["cpu_seconds"]:
                times, frame = _keeper.TIMES, zygote.frame.buffer  # not inherited
                times.pack_into(frame, 0, time.monotonic() - started, job["cpu_seconds"])
                if _keeper.ask(zygote.keeper, frame[: times.size]):
                    return "timeout"
    finally:
        for descriptor in exit_signal:
            os.close(descriptor)


def open_pidfd(pid: int) -> list[int]:
    """Return [a descriptor that becomes readable when the child ends], [] before Linux 5.3."""
    try:
        return [os.pidfd_open(pid)]
    except (AttributeError, OSError):
        return []


def read_pipes(streams: dict[int, Pages], cap: int) -> bool:
    """Read what is in a program's pipes, up to a bit above `cap`. Return whether one was half full."""
    was_full = False
    for descriptor, stream in streams.items():
        os.set_blocking(descriptor, False)
        with contextlib.suppress(BlockingIOError):
            while stream.size <= cap and stream.read(descriptor) > CHUNK // 2:
                was_full = True
    return was_full


def folder_times(folder: str) -> tuple[int, int]:
    """Return when something was made or removed in a folder last, and when it was listed."""
    state = os.stat(folder)
    return state.st_mtime_ns, state.st_atime_ns


def has_changed(zygote: Zygote) -> bool:
    """Return whether the last program left anything that the next one could find: this process is spent then.

    Files that it made and removed move the numbers of later ones, threads the numbers of later processes.
    Where this process has a namespace, shared memory is looked for too: only the filter forbids it.
    """
    if folder_times(zygote.folder) != zygote.folder_times:
        return True
    if os.getpid() != 1:
        return False
    pages = zygote.frame.pages  # not inherited: the machine's load is there, too
    size = os.preadv(zygote.load, [pages], 0)
    if int(pages[pages.rfind(b" ", 0, size) : size]) != zygote.last_pid:
        return True
    is_listed = zygote.seccomp is None and zygote.shared_memory
    return bool(is_listed) and any(os.pread(kind, CHUNK, 0).count(b"\n") > 1 for kind in zygote.shared_memory)


if __name__ == "__main__":
    main()
