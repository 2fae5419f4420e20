"""What a program may use, and how it ended: plain data."""

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rlnb.params.sections import SandboxParams
from rlnb.sandbox._clock import MOST

Status = Literal[
    "ok",
    "syntax_error",
    "runtime_error",
    "timeout",
    "memory_exceeded",
    "output_exceeded",
    "killed",
    "sandbox_error",
]
Level = Literal["none", "basic", "standard", "strict"]
MEMORY_EXIT_CODE = 77  # as in _child.py, which nothing imports
LONGEST_LINE = 2000  # characters
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    cpu_seconds: of the processor, compilation included, and on the wall without what the program waited for
    a processor (see `_clock.py`), so they end a sleeping one as well. output_kib: of standard output and of
    standard error each. file_mib: of each file. max_threads: at once; they are counted every 50 ms.
    """

    cpu_seconds: float = 5.0
    memory_mib: int = 512
    output_kib: int = 64
    file_mib: int = 8
    max_threads: int = 64

    @classmethod
    def from_params(cls, params: SandboxParams) -> "Limits":
        return cls(params.timeout_seconds, params.memory_mib)

    @property
    def longest_seconds(self) -> float:
        """Return the wall time after which a program is ended however busy the machine is."""
        return MOST * self.cpu_seconds + 1


@dataclass(frozen=True)
class Variation:
    """How an interpreter differs from others in what no program should depend on.

    hash_seed: of texts and bytes, 0 to 2**32 - 1; also chooses host name, user, time zone, folder and other
    variables of the environment. clock_shift_seconds: added to every clock (see `_variation.py`).
    """

    hash_seed: int
    clock_shift_seconds: float


@dataclass(frozen=True)
class Execution:
    """How one program ended.

    stdout, stderr: text, cut at the output limit. error: one line saying why it did not end well, untrusted.
    seconds: CPU seconds used. peak_memory_mib: resident. isolation: the level at which it ran.
    """

    status: Status
    stdout: str
    stderr: str
    error: str
    seconds: float
    peak_memory_mib: float
    isolation: Level


class Answer(NamedTuple):
    """What a zygote reports of one program.

    letter: "C" compiled, "S" syntax error, "X" the sandbox failed, "" none was written. ended_for: the limit
    that it passed, "" for none. exit_code: negative for a signal. seconds: of CPU time. output_bytes: of
    standard output. message: of a syntax error or a failure.
    """

    letter: str
    ended_for: str
    exit_code: int
    seconds: float
    peak_memory_mib: float
    output_bytes: int
    message: str


def not_run(status: Status, error: str) -> Execution:
    """Return the execution of a program that never started."""
    return Execution(status, "", "", error, 0.0, 0.0, "none")


def one_line(text: str) -> str:
    """Return untrusted text as one printable line, cut at LONGEST_LINE, without the addresses of objects.

    Addresses differ from run to run, and those of this process concern no program.
    """
    text = ADDRESS.sub("", text[:LONGEST_LINE])
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def describe(value: object, to_text: Callable[[object], str] = str) -> str:
    """Return what a program returned, or an error about it, as one printable line; never raise."""
    try:
        text = to_text(value)
    except Exception as error:
        text = f"{type(value).__name__} that cannot be printed ({type(error).__name__})"
    return one_line(text)


def make_execution(answer: Answer, body: bytes, *, limits: Limits, isolation: Level) -> Execution:
    """Return what happened, by the kernel's word and the letter from before the program ran.

    body: standard output and standard error, one after the other.
    """
    letter, ended_for, exit_code = answer.letter, answer.ended_for, answer.exit_code
    stdout = body[: answer.output_bytes].decode("utf-8", "replace")
    stderr = body[answer.output_bytes :].decode("utf-8", "replace")
    status: Status
    if ended_for == "stopped":
        status, error = "sandbox_error", "stopped while it ran"
    elif letter == "S":
        status, error = "syntax_error", answer.message
    elif ended_for == "timeout":
        status, error = "timeout", "time limit" if letter else "time limit while compiling"
    elif ended_for == "output_exceeded":
        status, error = "output_exceeded", "output limit"
    elif ended_for == "too many threads":
        status, error = "killed", f"more than {limits.max_threads} threads at once"
    elif exit_code in (-signal.SIGXCPU, -signal.SIGKILL) and answer.seconds > limits.cpu_seconds:
        status, error = "timeout", "CPU time limit"
    elif letter != "C" and exit_code == -signal.SIGSEGV:  # the compiler's stack: the program's doing
        status, error = "killed", f"signal {-exit_code} while compiling"
    elif letter != "C":
        status = "sandbox_error"
        error = answer.message or f"no program was started (exit code {exit_code})"
    elif exit_code < 0:
        status, error = "killed", f"signal {-exit_code}"
    elif exit_code == MEMORY_EXIT_CODE:
        status, error = "memory_exceeded", "MemoryError"
    elif exit_code:
        last_line = one_line(stderr.strip().rpartition("\n")[2][:500])
        status, error = "runtime_error", last_line or f"exit code {exit_code}"
    else:
        status, error = "ok", ""
    return Execution(status, stdout, stderr, error, answer.seconds, answer.peak_memory_mib, isolation)
