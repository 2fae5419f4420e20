"""Make a zygote's interpreter differ from others in accidents: the hour, the machine, addresses.

Names that the library takes from a program's objects are checked here, too: the check of the code game reads
those that are written. Runs in the zygote (`_zygote.py`) before any program; the hash seed is the
interpreter's own. Standard library only. For programs that read what they should not, not for those that dig
for the functions replaced here.
"""

import contextlib
import copy
import ctypes
import dataclasses
import functools
import gc
import os
import posix
import random
import resource
import socket
import sys
import time
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import _child
import _layers

# They read the clock in C, so their import fails. Of the first ones Python has its own versions, which ask
# `time`; of SQL's "now" and the C library's functions it has none.
TWINS = ("_datetime", "_zoneinfo", "_uuid")
ABSENT = ("_sqlite3", "_ctypes", "ctypes")
CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime")
FIELD_NAME: Any = dataclasses.Field.__dict__["name"]
GET_CACHED: Any = functools.cached_property.__get__
SEED = int(os.environ["PYTHONHASHSEED"])
NAME = "v" * (1 + SEED % 16) + f"{SEED:010d}"  # those of 16 seeds in a row also differ in length

# With it the C library ends threads that run on when Python's own end comes; no program may read its file.
with contextlib.suppress(OSError):
    ctypes.CDLL("libgcc_s.so.1")


class Refusal(MemoryError):
    """Replaces MemoryError where Python raises it: a program that met our limit of memory ends there."""

    def __new__(cls, *_: object, leave: Callable[[int], object] = os._exit) -> "Refusal":  # type: ignore[return]
        leave(_child.MEMORY_EXIT_CODE)


class BuiltIn(staticmethod):
    """In place of a built-in function: like it no method, pickled by its name, shown without an address."""

    def __repr__(self) -> str:
        return f"<built-in function {self.__name__}>"

    def __reduce__(self) -> str:
        return self.__name__


def own_folder(folder: str) -> str:
    """Make a folder for programs in `folder`, with an accidental name, and return its path."""
    os.mkdir(place := os.path.join(folder, NAME), mode=0o700)
    os.chdir(place)
    return place


def vary(clock_shift_seconds: float, folder: str) -> Callable[[int], object] | None:
    """Shift this interpreter's clocks, and change what it says of its machine. folder: its programs'.

    Without a shift it keeps what a script has: modules in C, the limit of recursion, and Python's own end,
    which it returns. The others recurse deeper and collect garbage at other moments.
    """
    _layers.limit_resources({resource.RLIMIT_STACK: 8 * 2**20})  # what a script has
    sys.stdout.reconfigure(errors="strict")  # type: ignore[union-attr]
    for name in (*ABSENT, *(TWINS if clock_shift_seconds else ())):
        sys.modules[name] = None  # type: ignore[assignment]
    if clock_shift_seconds:
        shift_clocks(clock_shift_seconds)
        set_limit, deeper = sys.setrecursionlimit, 20 * SEED
        set_limit(sys.getrecursionlimit() + deeper)
        put(lambda limit: set_limit(min(limit + deeper, 2**31 - 1)), "setrecursionlimit", sys)
        gc.set_threshold(700 - 20 * (SEED % 32))
    guard_names()
    for member in vars(import_module("datetime")).values():
        if getattr(member, "__module__", "") == "_pydatetime":  # where its Python version lies since 3.12
            member.__module__ = "datetime"
    vary_machine(folder)
    return None if clock_shift_seconds else ctypes.pythonapi.Py_Exit


class FieldName:
    """The name of a dataclass's field, which becomes a part of texts that are run: it has to be a name."""

    def __get__(self, field: object, _: type) -> object:
        name = FIELD_NAME.__get__(field)
        if name is not None and not (type(name) is str and name.isidentifier() and is_ordinary(name)):
            raise TypeError("a field's name was made up")
        return name

    def __set__(self, field: object, name: object) -> None:
        FIELD_NAME.__set__(field, name)


def is_ordinary(name: str) -> bool:
    """Return whether a name is none of Python's own, such as `__globals__`."""
    return not name[:2] == name[-2:] == "__"


def set_slot(owner: object, name: str, value: object) -> None:
    """Set an attribute of a copy, to what the original says of itself."""
    if isinstance(owner, type) or not is_ordinary(name):
        raise TypeError("an attribute's name was made up")
    setattr(owner, name, value)


def get_cached(self: Any, owner: object, kind: type | None = None) -> object:
    """Return a cached property, not one of a class, whose attributes it would read by any name."""
    if isinstance(owner, type):
        raise TypeError("a class caches no property")
    return GET_CACHED(self, owner, kind)


def guard_names() -> None:
    """Refuse Python's own names where its library takes names from a program's objects: it may make them up.

    What is replaced stays in this module: no program finds it in a function's closure.
    """
    copy.setattr = set_slot  # type: ignore[attr-defined]
    dataclasses.Field.name = FieldName()  # type: ignore[assignment, misc]
    functools.cached_property.__get__ = get_cached  # type: ignore[method-assign, assignment]


def make_refusals_fatal() -> None:
    """Raise `Refusal` instead of MemoryError from C; `MemoryError` itself stays as it is."""
    raised = ctypes.py_object.in_dll(ctypes.pythonapi, "PyExc_MemoryError")
    raised.value = Refusal  # type: ignore[assignment]


def put(function: Callable[..., object], name: str, *modules: ModuleType) -> None:
    """Replace what the modules call `name`."""
    original = getattr(modules[-1], name)
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):  # not __wrapped__: no way back
        setattr(function, attribute, getattr(original, attribute))
    built_in = BuiltIn(function)
    for module in modules:
        setattr(module, name, built_in)


def shift_clocks(seconds: float) -> None:
    """Patch `time`, `os` and `resource` so that all clocks of this process are `seconds` ahead."""
    for name in CLOCKS:
        put(plus(getattr(time, name), seconds), name, time)
        put(plus(getattr(time, f"{name}_ns"), round(seconds * 1e9)), f"{name}_ns", time)
    for name in ("localtime", "gmtime", "ctime"):
        put(with_default_time(getattr(time, name)), name, time)
    asctime, strftime, times, getrusage = time.asctime, time.strftime, os.times, resource.getrusage
    put(lambda *when: asctime(*when or (time.localtime(),)), "asctime", time)
    put(lambda form, *when: strftime(form, *when or (time.localtime(),)), "strftime", time)
    put(lambda: os.times_result(value + seconds for value in times()), "times", posix, os)
    ahead, usage = (lambda value: value + type(value)(seconds)), resource.struct_rusage
    put(lambda who: usage(map(ahead, getrusage(who))), "getrusage", resource)


def plus(read: Callable[..., float], shift: float) -> Callable[..., float]:
    return lambda *args: read(*args) + shift


def plus_each(read: Callable[[], tuple[int, ...]], shift: int) -> Callable[[], tuple[int, ...]]:
    return lambda: tuple(each + shift for each in read())


def with_default_time(convert: Callable[[float], object]) -> Callable[..., object]:
    return lambda seconds=None: convert(time.time() if seconds is None else seconds)


def vary_machine(folder: str) -> None:
    """Change the environment, the time zone, and what the machine says of itself, its users and its load."""
    names = ("USER", "LOGNAME", "HOSTNAME", "SHELL", *(f"{NAME}_{index}" for index in range(SEED % 16)))
    os.environ.update(dict.fromkeys(names, NAME), HOME=folder, TMPDIR=folder)
    os.environ["PATH"] += f":/{NAME}"
    os.environ["TZ"] = f"{chr(65 + SEED % 26) * 3}-{SEED % 12}"
    time.tzset()
    uname, affinity = os.uname(), os.sched_getaffinity
    other = os.uname_result((uname.sysname, NAME, uname.release + NAME, uname.version + NAME, uname.machine))
    put(lambda: other, "uname", posix, os)
    put(lambda: NAME, "gethostname", sys.modules["_socket"], socket)
    usable = set(range(SEED, SEED + 1 + SEED % 64))
    put(lambda pid: usable if affinity(pid) else set(), "sched_getaffinity", posix, os)
    for function in ("getresuid", "getresgid"):
        put(plus_each(getattr(os, function), SEED), function, posix, os)
    for function in ("getuid", "geteuid", "getgid", "getegid", "cpu_count"):
        put(plus(getattr(os, function), SEED), function, posix, os)
    setattr(import_module("uuid"), "_node", random.Random(SEED).getrandbits(48))  # noqa: B010


def blocks() -> tuple[object, ...]:
    """Memory of each size, to keep: the kernel moves whole pages only, and within its page all would stay.

    Call this last. No list is made and freed here: it would leave its place to the program's first one.
    """
    count = 2 + SEED % 61
    sizes = tuple(bytes(size) for size in range(2, 480, 16) for _ in range(count))
    return sizes, tuple((object(), {}, [], (index,), 1.5 + index) for index in range(count))
