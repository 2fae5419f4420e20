"""The processes below a sandbox: a keeper for each zygote, below it the zygote, below that the program."""

import contextlib
from pathlib import Path

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
