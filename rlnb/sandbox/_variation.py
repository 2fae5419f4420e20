"""Make a zygote's interpreter differ from others in accidents: the hour, the environment, addresses.

Runs in the zygote (`_zygote.py`) before any program; the hash seed is the interpreter's own. Standard library
only. What tells of the machine (`os.uname`) is the same everywhere: the code game lets no program import it.
"""

import ctypes
import gc
import os
import resource
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

import _child
import _layers

# They read the clock in C, so their import fails. Of the first ones Python has its own versions.
TWINS = ("_datetime", "_zoneinfo", "_uuid")
ABSENT = ("_sqlite3", "_ctypes", "ctypes")
CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime")
STACK_BYTES = 8 * 2**20  # what a script has
LARGEST_INT = 2**31 - 1  # of C


class Endings(NamedTuple):
    """How a program ends in a varied interpreter; see `_child.run_as_script`.

    finalize: Python's own end of a script, in about 7 ms; None in all interpreters but the first.
    """

    finalize: Callable[[int], object] | None

    def make_refusals_fatal(self) -> None:
        """Raise `Refusal` instead of MemoryError from C; `MemoryError` itself stays as it is."""
        raised = ctypes.py_object.in_dll(ctypes.pythonapi, "PyExc_MemoryError")
        raised.value = Refusal  # type: ignore[assignment]


class Refusal(MemoryError):
    """Replaces MemoryError where Python itself raises it: a program that catches one ends there.

    How much memory there is, is a limit of ours. Python alone would have gone on.
    """

    def __new__(cls, *_: object, leave: Callable[[int], object] = os._exit) -> "Refusal":  # type: ignore[return]
        leave(_child.MEMORY_EXIT_CODE)


def own_folder(folder: str) -> str:
    """Make a folder for programs in `folder`, with an accidental name, and return its path."""
    folder = os.path.join(folder, accident(hash_seed()))
    os.mkdir(folder, mode=0o700)
    os.chdir(folder)
    return folder


def vary(clock_shift_seconds: float, folder: str) -> Endings:
    """Shift this interpreter's clocks, and change its environment. folder: its programs'.

    Without a shift it keeps what a script has: modules in C, the limit of recursion, Python's own end. The
    others recurse deeper and collect garbage at other moments: what they print otherwise then shows.
    """
    seed = hash_seed()
    _layers.limit_resources({resource.RLIMIT_STACK: STACK_BYTES})
    sys.stdout.reconfigure(errors="strict")  # type: ignore[union-attr]
    for name in (*ABSENT, *(TWINS if clock_shift_seconds else ())):
        sys.modules[name] = None  # type: ignore[assignment]
    if clock_shift_seconds:
        shift_clocks(clock_shift_seconds)
        set_limit, deeper = sys.setrecursionlimit, 20 * seed
        set_limit(sys.getrecursionlimit() + deeper)
        sys.setrecursionlimit = lambda limit: set_limit(min(limit + deeper, LARGEST_INT))
        gc.set_threshold(700 - 20 * (seed % 32))
    for member in vars(import_module("datetime")).values():
        if getattr(member, "__module__", "") == "_pydatetime":  # where its Python version lies since 3.12
            member.__module__ = "datetime"
    vary_environment(seed, folder)
    return Endings(None if clock_shift_seconds else ctypes.pythonapi.Py_Exit)


def hash_seed() -> int:
    return int(os.environ["PYTHONHASHSEED"])


def accident(seed: int) -> str:
    """Return a name; those of 16 seeds in a row also differ in length."""
    return "v" * (1 + seed % 16) + f"{seed:010d}"


def shift_clocks(seconds: float) -> None:
    """Patch `time` so that all its clocks are `seconds` ahead."""
    nanoseconds = round(seconds * 1e9)
    for name in CLOCKS:
        setattr(time, name, plus(getattr(time, name), seconds))
        setattr(time, f"{name}_ns", plus(getattr(time, f"{name}_ns"), nanoseconds))
    for name in ("localtime", "gmtime", "ctime"):
        setattr(time, name, with_default_time(getattr(time, name)))
    asctime, strftime = time.asctime, time.strftime
    time.asctime = lambda *when: asctime(*when or (time.localtime(),))
    time.strftime = lambda form, *when: strftime(form, *when or (time.localtime(),))


def plus(read: Callable[..., float], shift: float) -> Callable[..., float]:
    return lambda *args: read(*args) + shift


def with_default_time(convert: Callable[[float], object]) -> Callable[..., object]:
    """`time.localtime` and its like, which ask the clock where they get no time."""
    return lambda seconds=None: convert(time.time() if seconds is None else seconds)


def vary_environment(seed: int, folder: str) -> None:
    """Change the environment, its size, and the time zone."""
    name = accident(seed)
    os.environ.update(
        dict.fromkeys(("USER", "LOGNAME", "HOSTNAME", "SHELL"), name), HOME=folder, TMPDIR=folder
    )
    os.environ.update({f"{name}_{index}": name for index in range(seed % 16)})
    os.environ["PATH"] += f":/{name}"
    os.environ["TZ"] = f"{chr(65 + seed % 26) * 3}-{seed % 12}"
    time.tzset()


def blocks() -> tuple[object, ...]:
    """Memory of each size, to keep: the kernel moves whole pages only, and within its page all would stay.

    Call this last: programs get the memory that is free by then. No list is made and freed here,
    which would leave its place to the first one of the program.
    """
    count = 2 + hash_seed() % 61
    sizes = tuple(bytes(size) for size in range(2, 480, 16) for _ in range(count))
    return sizes, tuple((object(), {}, [], (index,), 1.5 + index) for index in range(count))
