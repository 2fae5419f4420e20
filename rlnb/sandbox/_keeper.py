"""The keeper of a zygote: a process that ends and removes whatever programs and the zygote leave.

The layers bind the zygote, not the keeper, so it may look into /proc and remove the folder. Standard library
only.
"""

import contextlib
import os
import select
import signal
import socket
import struct
import time

import _clock

LOOK_AT_TRAINER_SECONDS, END_SECONDS = 1.0, 5.0
# Of the zygote: one byte asks for the number of threads, two numbers whether a program is over its time, as
# `_clock.is_over` takes them.
TIMES, ANSWER = struct.Struct("dd"), struct.Struct("i")
CHUNK = 65536


def keep(zygote: int, link: socket.socket, trainer: int) -> None:
    """Answer about a program when asked, until the zygote or the trainer ends; then end the rest."""
    children = f"/proc/{zygote}/task/{zygote}/children"
    with contextlib.suppress(ConnectionError):  # the zygote has ended
        while os.getppid() == trainer:
            if select.select([link], [], [], LOOK_AT_TRAINER_SECONDS)[0]:
                if not (question := link.recv(TIMES.size)):
                    break
                times = TIMES.unpack(question) if len(question) == TIMES.size else ()
                link.send(ANSWER.pack(is_over(children, *times) if times else count_threads(children)))
    os.kill(zygote, signal.SIGKILL)
    os.waitpid(zygote, 0)
    end_children(os.open("/proc/thread-self/children", os.O_RDONLY))


def ask(link: socket.socket, question: bytes | memoryview) -> int:
    """Ask the keeper, from the zygote, about the program that runs."""
    link.send(question)
    (answer,) = ANSWER.unpack(link.recv(ANSWER.size, socket.MSG_WAITALL))
    return int(answer)


def find_program(children: str) -> str:
    """Return the folder in /proc of the first of a list of children. Raises OSError or IndexError."""
    with open(children) as listed:
        return f"/proc/{listed.read().split()[0]}"


def count_threads(children: str) -> int:
    """Return how many threads the program has, 0 once it has ended."""
    try:
        with open(f"{find_program(children)}/stat", "rb") as file:  # with the program's name, any bytes
            return int(file.read().rpartition(b")")[2].split()[17])
    except (OSError, IndexError):
        return 0


def is_over(children: str, elapsed: float, seconds: float) -> bool:
    """Return whether the program is over its time, False once it has ended.

    A /proc that is mounted with `hidepid` hides it, and what it waited: then the limit is twice as long.
    """
    if not os.path.exists(children):
        return elapsed > 2 * seconds + 1
    try:
        return _clock.is_over(find_program(children), elapsed, seconds)
    except (OSError, IndexError):
        return False


def remove(folder: str, lock: int) -> None:
    """Remove the programs' folder, as another program if there is something in it: that may take a minute.

    lock: descriptor of the folder's lock, which is held as long.
    """
    with contextlib.suppress(OSError):
        os.rmdir(folder)
    if os.path.lexists(folder):
        os.set_inheritable(lock, True)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # Without a shell: this process can have no children any more, its namespace for them has ended.
        os.execv("/bin/rm", ["rm", "-rf", "--", folder])


def end_children(children: int) -> bool:
    """Kill whatever a program has left running: orphans come to this process. Return False where that fails.

    children: descriptor of the list of this process's children.
    """
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return True
        os.lseek(children, 0, os.SEEK_SET)
        # The first process of a namespace may end all others; elsewhere that would be everybody.
        pids = [-1] if os.getpid() == 1 else map(int, os.read(children, CHUNK).split())
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    return False
