"""A forked child: it limits itself, compiles its program, writes the letter, and becomes the program."""

import _thread
import atexit
import builtins
import contextlib
import gc
import io
import linecache
import os
import resource
import signal
import site
import sys
import warnings
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, NoReturn

import _codec
import _layers

if TYPE_CHECKING:
    from rlnb.sandbox._zygote import Job, Zygote

MEMORY_EXIT_CODE, FLUSH_EXIT_CODE = 77, 120  # the second is Python's own
MAX_OPEN_FILES = 64
RUNNING_TEXT = frozenset(("compile", "eval", "exec"))
QUIET = ("ignore", None, Warning, None, 0)  # a filter of warnings


def warm_up() -> None:
    """Do once in the zygote what its children do, so that they inherit what Python makes at first use.

    The first compilation alone takes a millisecond. Warnings are off from here on, until a program runs.
    """
    warnings.filters.insert(0, QUIET)  # type: ignore[attr-defined]
    for give in (site.setquit, site.setcopyright, site.sethelper):  # `-S` leaves them out, a script has them
        give()
    sys.argv = ["program.py"]
    code = compile("import math\nprint(sum(i for i in [1]))\ndef f(x): return x\nf(1) / 0", "<warm>", "exec")
    streams = sys.stdout, sys.stderr
    with open(os.devnull, "w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        try:
            exec(code, {"__name__": "__main__"})
        except ZeroDivisionError as error:
            sys.excepthook(type(error), error, error.__traceback__)
        flush()
        sys.stdout, sys.stderr = streams


def become(zygote: "Zygote", job: "Job", *, streams: tuple[int, int], connection: int | None) -> NoReturn:
    """Limit this process, compile the program, write the letter, and run the program.

    job: the limits. streams: where output and errors go.
    """
    try:
        for descriptor, stream in enumerate(streams, start=1):
            os.dup2(stream, descriptor)
        if connection is not None:
            connection = os.dup2(connection, 3)
        lock_down(zygote, job)
    except Exception as error:
        os.write(zygote.status_write, b"X" + repr(error).encode(errors="replace")[:2000])
        os._exit(0)
    if connection is not None:
        os.write(connection, b"C")  # with it the kernel tells the other side the number of this process
    try:
        # Warnings are off: thousands of them would pass the output limit before the letter.
        # Of a text, a line that names an encoding is ignored.
        text = str(zygote.source.buffer[: zygote.source.size], "utf-8").removeprefix("\ufeff")
        code = compile(text, "<program>", "exec", dont_inherit=True)
        # For `inspect.getsource`. A file would be a trace that the next program could find.
        lines = len(text), None, list(io.StringIO(text + "\n" * (text[-1:] != "\n"), None)), "<program>"
        linecache.cache |= dict.fromkeys(("<program>", script_path(zygote.folder)), lines)
        warnings.filters.remove(QUIET)  # type: ignore[attr-defined]
    except Exception as error:  # SyntaxError, ValueError, ...; SystemError of what breaks the compiler
        message = f"{type(error).__name__}: {error}"
        os.write(zygote.status_write, b"S" + message.encode(errors="replace")[:2000])
        os._exit(0)
    os.write(zygote.status_write, b"C")
    os.closerange(3 if connection is None else 4, MAX_OPEN_FILES)
    if zygote.variation:
        gc.freeze()  # so collections come at the same moments, whatever this zygote ran before
        zygote.variation.make_refusals_fatal()
    gc.enable()
    run_as_script(code, connection, zygote.finalize, folder=zygote.folder)


def script_path(folder: str) -> str:
    """Return the program's `__file__`, by which `inspect` looks for the source of classes."""
    return os.path.join(folder, "program.py")


def make_rlimits(zygote: "Zygote", job: "Job") -> dict[int, int]:
    """Return the limits that a child sets. Called in the zygote: a page that a child writes costs a copy."""
    if zygote.layers["limits"] != "on":
        return {}
    limits = {
        resource.RLIMIT_AS: job["memory_mib"] * 2**20,
        resource.RLIMIT_CPU: int(min(job["cpu_seconds"], 2**31)) + 2,
        resource.RLIMIT_FSIZE: job["file_mib"] * 2**20,
    }
    if zygote.seccomp is None:  # the only thing that holds a fork bomb then, and not one of root's
        limits[resource.RLIMIT_NPROC] = 0
    return limits


def lock_down(zygote: "Zygote", job: "Job") -> None:
    os.setpgid(0, 0)  # signals to its group reach no other process
    if os.getppid() != 1:  # the first process of a namespace takes all others with it
        zygote.libc.prctl(_layers.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _layers.limit_resources(job["rlimits"])
    if zygote.seccomp is not None:
        _layers.deny_system_calls(zygote.libc, zygote.seccomp)


def run_as_script(
    code: CodeType, connection: int | None, finalize: Callable[[int], object] | None, *, folder: str
) -> NoReturn:
    """Run the program as Python runs a script, and end as a script ends.

    It is the module `__main__`; with a connection, to be called, it is `program`, as where it is imported.
    Its globals are destroyed in Python's order: collect garbage, forget the module, collect again. Python's
    own end takes 7 ms and does more, which hardly any program shows. finalize: that end, called with the
    exit code; None where a program ends without it. What decides about the end is bound before the program
    can replace it.
    """
    name = "__main__" if connection is None else "program"
    program = type(sys)(name)
    file = script_path(folder)
    vars(program).update(__annotations__={}, __builtins__=builtins, __cached__=None, __file__=file)
    sys.modules["__main__"] = sys.modules[name] = program
    leave, print_traceback, num_threads = os._exit, sys.excepthook, _thread._count
    run_exit_functions, modules, collect = atexit._run_exitfuncs, sys.modules, gc.collect
    # Without functions, classes or texts to run, a program has nothing that shows when it is destroyed.
    has_code = CodeType in map(type, code.co_consts) or not RUNNING_TEXT.isdisjoint(code.co_names)
    count_collections = gc.get_stats
    counts = count_collections() if has_code else []
    exit_code = 1
    try:
        exec(code, vars(program))
        if connection is not None:
            answer_calls(connection, vars(program))
        exit_code = 0
    except SystemExit as error:
        exit_code = exit_code_for(error)
    except MemoryError:
        exit_code = MEMORY_EXIT_CODE
    except BaseException as error:
        frames = error.__traceback__ and error.__traceback__.tb_next  # without this one
        print_traceback(type(error), error.with_traceback(frames), frames)
        del frames
    finally:
        try:
            if num_threads() and (threading := modules.get("threading")):  # else they are of _thread alone
                threading._shutdown()
            run_exit_functions()
            flush()
            del program
            if finalize:
                finalize(exit_code)
            if has_code:
                # All is in the youngest generation yet: the same order without a full collection's 0.4 ms.
                is_young = count_collections() == counts
                collect(0 if is_young else 2)
                modules["__main__"] = modules[name] = None  # type: ignore[assignment]
                collect(1 if is_young else 2)
                flush()
        except BaseException:
            exit_code = exit_code or FLUSH_EXIT_CODE
        leave(exit_code)


def exit_code_for(error: SystemExit) -> int:
    """Return the exit code that Python derives from SystemExit; print a text, as Python does."""
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def flush() -> None:
    for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
        is_open = False
        with contextlib.suppress(ValueError):  # its buffer was taken from it
            is_open = not getattr(stream, "closed", True)
        if stream is not None and is_open:
            stream.flush()


def answer_calls(connection: int, program: dict[str, _codec.PlainData]) -> None:
    """Call the program's functions for the other side, until it closes the connection.

    A request is ["get", name] or ["call", name, arguments, keywords]; an answer begins with "V", a value, or
    "E", the text of an exception.
    """
    kept: list[object] = []
    while size := read_all(connection, 4):
        data = read_all(connection, int.from_bytes(size, "big"))
        try:
            request = _codec.loads(data, kept)
            if request[1] not in program:
                raise NameError(f"name {request[1]!r} is not defined")
            member = program[request[1]]
            value = member(*request[2], **request[3]) if request[0] == "call" else member
            answer = b"V" + _codec.dumps(value, kept)
        except BaseException as error:
            answer = b"E" + f"{type(error).__name__}: {error}".encode(errors="replace")[:2000]
        left = memoryview(len(answer).to_bytes(4, "big") + answer)
        while left:
            left = left[os.write(connection, left) :]


def read_all(descriptor: int, size: int) -> bytes:
    """Return the next `size` bytes, none at the end."""
    data = os.read(descriptor, size)
    while 0 < len(data) < size:
        more = os.read(descriptor, size - len(data))
        data = data + more if more else b""
    return data
