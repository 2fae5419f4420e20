"""How a reader is asked what a program prints, and how its answer is read: one place for every opponent."""

import re
import textwrap
import unicodedata
from collections.abc import Sequence

PREDICTION_STOP = "\n```"  # where an answer ends
SEPARATOR = "\n\n"  # before a question that has another one in front
CONTROL_TOKEN = re.compile(
    r"<\|[^|\n]{1,60}\|>|</?s>|\[/?INST\]|<</?SYS>>"
    r"|<(?:bos|eos|pad|unk|mask|start_of_turn|end_of_turn|think|/think)>"
)
MARKS = ("Mn", "Me", "Mc")  # left over after NFC, they stand on other characters
UNSEEN = frozenset("\u115f\u1160\u3164\uffa0\u2800\ufffd")  # printable by Unicode's word
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
    """An output without differences that nobody sees.

    Ends of lines, blanks at them, empty lines before and after, blanks before all lines alike, and how a
    letter with an accent is put together. `print("", x)` is no harder to predict than `print(x)`.
    """
    text = unicodedata.normalize("NFC", output.replace("\r\n", "\n").replace("\r", "\n"))
    return textwrap.dedent("\n".join(line.rstrip() for line in text.split("\n"))).strip("\n")


def is_readable(output: str) -> bool:
    """Whether an output can be written as an answer: printable characters, and no line that closes the fence.

    Other bytes than text, colours of terminals, characters without width, markers that a model takes for the
    end are beyond any reader's guess without being hard to predict.
    """
    text = output.replace("\n", "").replace("\t", "")
    is_seen = text.isprintable() and not any(unicodedata.category(one) in MARKS for one in text)
    return is_seen and not (set(text) & UNSEEN or holds_control_token(text) or FENCE_LINE.search(output))


def holds_control_token(text: str) -> bool:
    """Whether a text holds what some tokenizer takes for a marker of its chats and not for characters.

    In a program such a marker would be a way to talk to the reader: it seems to end the question.
    """
    return CONTROL_TOKEN.search(text) is not None
