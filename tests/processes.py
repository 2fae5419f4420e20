"""The processes below a sandbox: a keeper for each zygote, below it the zygote, below that the program."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_for

from rlnb.sandbox import Sandbox


def children_of(pid: int | str) -> set[str]:
    """The direct children of all threads of a process, dead ones too; all of them may end meanwhile."""
    children: set[str] = set()
    with contextlib.suppress(FileNotFoundError):  # the process has gone
        for listed in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children |= set(listed.read_text().split())
    return children


def name_of(pid: str) -> str:
    """The name of a process, dead ones too; "" where it has gone meanwhile."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def zygotes_children(sandbox: Sandbox) -> list[str]:
    """What runs below the zygotes when they wait: nothing. Above each lies its keeper."""
    zygotes = [zygote for idle in sandbox._idle for zygote in children_of(idle._process.pid)]
    return [child for zygote in zygotes for child in children_of(zygote)]


def programs() -> set[str]:
    """What the zygotes of this process run."""
    zygotes = set().union(*map(children_of, children_of("self")))
    return set().union(*map(children_of, zygotes))


@contextlib.contextmanager
def interrupted() -> Iterator[None]:
    """Send this process a SIGINT as soon as a zygote runs a program: what runs in here must pass it on."""

    def interrupt() -> None:
        wait_for(programs)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    thread.join()


def belongings() -> set[str]:
    """What this process has: children, programs, threads and open descriptors, none named as another."""
    owned = {f"child {pid} {name}" for pid in children_of("self") if (name := name_of(pid))}
    owned |= {f"program {pid}" for pid in programs()}
    owned |= {f"thread {thread.ident} {thread.name}" for thread in threading.enumerate()}
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of this list
            owned.add(f"descriptor {descriptor} {os.readlink(f'/proc/self/fd/{descriptor}')}")
    return owned
