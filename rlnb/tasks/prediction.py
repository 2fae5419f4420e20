"""How a reader is asked what a program prints, and how its answer is read: one place for every opponent."""

import re
from collections.abc import Sequence

PREDICTION_STOP = "\n```"  # where an answer ends
SEPARATOR = "\n\n"  # before a question that has another one in front
FENCE_LINE = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)
# Solved examples: a literal, arithmetic, a loop, texts and lists. No program of `prediction_set`.
SHOTS: Sequence[tuple[str, str]] = (
    ("print('sunday')", "sunday"),
    ("print(6 * 7)", "42"),
    ("total = 0\nfor k in range(4):\n    total += k\nprint(total)", "6"),
    ("word = 'stone'\nprint(word[::-1])", "enots"),
    ("xs = [4, 1, 9]\nprint(sorted(xs))", "[1, 4, 9]"),
    ("def f(n):\n    return n + 10\nprint(f(5), f(6))", "15 16"),
)
MAX_SHOTS = len(SHOTS)


def prediction_prompt(program: str, *, num_shots: int = 0) -> str:
    """The question what `program` prints, as a text to be continued; the answer's fence is open."""
    return shots_text(num_shots) + SEPARATOR * bool(num_shots) + asked(program)


def shots_text(num_shots: int) -> str:
    """The first solved examples, in the form of the question."""
    return SEPARATOR.join(asked(program) + answered(output) for program, output in SHOTS[:num_shots])


def asked(program: str) -> str:
    """The question itself, without examples."""
    return f"Program:\n```python\n{program.strip()}\n```\nOutput:\n```\n"


def answered(output: str) -> str:
    """The right continuation of the question, up to where it ends."""
    return output + PREDICTION_STOP


def parse_prediction(text: str) -> str:
    """The output that an answer predicts: all up to its closing fence, normalised."""
    return normalised(("\n" + text).partition(PREDICTION_STOP)[0][1:])


def normalised(output: str) -> str:
    """An output without differences that nobody sees: ends of lines, and blanks at them and at the end."""
    lines = output.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).rstrip("\n")


def is_readable(output: str) -> bool:
    """Whether an output can be written as an answer: printable characters, and no line that closes the fence.

    Other bytes than text, colours of terminals, characters without width are beyond any reader's guess
    without being hard to predict.
    """
    text = output.replace("\n", "").replace("\t", "")
    return text.isprintable() and "\ufffd" not in text and not FENCE_LINE.search(output)
