"""Whether a program is over its time: on the wall, without what it waited for a processor.

So a busy machine ends nobody. Standard library only: the keeper of a zygote (`_keeper.py`) asks as well.
"""

import os

MOST = 100  # the longest that a program lives, in its limits, however busy the machine is


def is_over(process: str, elapsed: float, seconds: float, *, before: float = 0) -> bool:
    """Return whether a running program is over a limit; the arguments are those of `has_passed`.

    One that is ready to run may be waiting now, which is counted when it has run: its limit of CPU time ends
    it, or the clock once MOST limits are over. Raises OSError when it has ended.
    """
    if not has_passed(process, elapsed, seconds, before=before):
        return False
    return elapsed > MOST * seconds + 1 or is_asleep(process)


def has_passed(process: str, elapsed: float, seconds: float, *, before: float = 0, waiter: str = "") -> bool:
    """Return whether a limit has passed for a program that began `elapsed` seconds ago, without its waits.

    process: its folder in /proc. waiter: that of a thread that it waits for in between, if any. before:
    `waited_seconds` of both at the beginning. Where the kernel does not count waits, the limit is twice as
    long, and a second.
    """
    if elapsed <= seconds:
        return False
    try:
        return elapsed - (waited_seconds(process, waiter) - before) > seconds
    except (OSError, ValueError):
        return elapsed > 2 * seconds + 1


def waited_seconds(process: str, waiter: str = "") -> float:
    """Return how long a process's threads, and another one, have waited for a processor so far.

    Raises OSError or ValueError where the kernel does not count it.
    """
    waited = 0
    threads = [f"{process}/task/{thread}" for thread in os.listdir(f"{process}/task")]
    for thread in [*threads, waiter] if waiter else threads:
        with open(f"{thread}/schedstat") as file:
            _, nanoseconds, num_turns = map(int, file.read().split())
        if not num_turns:
            raise ValueError("a thread that has run had no turn")
        waited += nanoseconds
    return waited / 1e9


def is_asleep(process: str) -> bool:
    """Return whether no thread of a process is ready to run, or waits for a disk."""
    for thread in os.listdir(f"{process}/task"):
        with open(f"{process}/task/{thread}/stat", "rb") as file:  # with the thread's name, any bytes
            if file.read().rpartition(b") ")[2][:1] in (b"R", b"D"):
                return False
    return True


def is_hidden(pid: int) -> bool:
    """Return whether a process runs that /proc does not show, as where it is mounted with `hidepid`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not os.path.exists(f"/proc/{pid}/task")
