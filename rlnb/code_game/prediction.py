"""The question what a program prints, how its answer is read, and fixed programs to measure a reader on."""

import json
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from rlnb.source_code.checks import normalise

PREDICTION_STOP = "\n```"  # where an answer ends
SEPARATOR = "\n\n"  # between questions
# What tokenizers of published models take for a marker: <|im_end|>, <tool_call>, <extra_id_0>, [INST].
CONTROL_TOKEN = re.compile(
    r"<[|｜][^|｜<>\n]{1,60}[|｜]?>|<[^|｜<>\s]{1,60}[|｜]>|</?[a-z]+(?:_[a-z\d]+)+>|<</?SYS>>"
    r"|</?(?:s|bos|eos|pad|unk|mask|think|filename|reponame|unused\d+)>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|IMG|THINK|CLS|SEP|PAD|UNK|MASK)\]"
)
MARKS = ("Mn", "Me", "Mc")  # categories of characters that are drawn on others; NFC leaves some
INVISIBLE = frozenset("\u115f\u1160\u3164\uffa0\u2800\ufffd")  # although Unicode calls them printable
FENCE_LINE = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)
Shots = Sequence[tuple[str, str]]  # solved examples: program and output
# A literal, arithmetic, a loop, texts and lists; and others of the same kinds. None is of the fixed set.
SHOTS: Shots = (
    ("print('sunday')", "sunday"),
    ("print(6 * 7)", "42"),
    ("total = 0\nfor k in range(4):\n    total += k\nprint(total)", "6"),
    ("word = 'stone'\nprint(word[::-1])", "enots"),
    ("xs = [4, 1, 9]\nprint(sorted(xs))", "[1, 4, 9]"),
    ("def f(n):\n    return n + 10\nprint(f(5), f(6))", "15 16"),
)
OTHER_SHOTS: Shots = (
    ("print('violin')", "violin"),
    ("print(9 * 5)", "45"),
    ("n = 1\nfor k in range(4):\n    n *= 2\nprint(n)", "16"),
    ("name = 'otter'\nprint(name.upper())", "OTTER"),
    ("ys = [3, 8, 2]\nprint(ys[::-1])", "[2, 8, 3]"),
    ("def g(x):\n    return x - 3\nprint(g(9), g(4))", "6 1"),
)
PREDICTION_FILE = Path(__file__).with_name("prediction_set.jsonl")
# What the programs of a level do. Above the first, the code does not hold the output.
PREDICTION_LEVELS = {
    "L1": "prints a literal",
    "L2": "one arithmetic expression",
    "L3": "a short loop",
    "L4": "texts and lists",
}


def prediction_prompt(program: str, *, shots: Shots = ()) -> str:
    """Return the question what a program prints, as a text to be continued: the answer's fence is open."""
    solved = [prediction_question(code) + prediction_answer(output) for code, output in shots]
    return SEPARATOR.join([*solved, prediction_question(program)])


def prediction_question(program: str) -> str:
    """Return the question without solved examples."""
    return f"Program:\n```python\n{program.strip()}\n```\nOutput:\n```\n"


def prediction_answer(output: str) -> str:
    """Return the right continuation of the question, up to the fence that closes it."""
    return output + PREDICTION_STOP


def parse_prediction(text: str) -> str:
    """Return the output that an answer predicts: all up to its closing fence, normalised."""
    return normalise_output(("\n" + text).partition(PREDICTION_STOP)[0][1:])


def normalise_output(output: str) -> str:
    """Return an output without differences that nobody sees.

    These are ends of lines, blanks at them, empty lines before and after, indentation that all lines share,
    and how a letter with an accent is encoded. `print("", x)` is as easy to predict as `print(x)`.
    """
    text = normalise("NFC", output.replace("\r\n", "\n").replace("\r", "\n"))
    return textwrap.dedent("\n".join(line.rstrip() for line in text.split("\n"))).strip("\n")


def is_readable(output: str) -> bool:
    """Return whether an answer can hold an output: printable characters, and no line that closes the fence.

    Bytes that are not text, colours of terminals and characters without width cannot be predicted by any
    reader, without being hard to predict.
    """
    text = output.replace("\n", "").replace("\t", "")
    is_visible = text.isprintable() and not any(unicodedata.category(letter) in MARKS for letter in text)
    return is_visible and not (set(text) & INVISIBLE or FENCE_LINE.search(output))


def compile_markers(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """Return a pattern of the texts that a tokenizer takes for single tokens of its own, not for characters.

    An opponent cannot write them letter by letter, and in a program they would seem to end the question.
    Added runs of blanks, which some tokenizers have for code, are not among them.
    """
    tokens = tokenizer.added_tokens_decoder.values()
    special = {token.content for token in tokens if token.special}.union(tokenizer.all_special_tokens)
    added = tokenizer.get_added_vocab()
    visible = {text for text in added if any(letter.isprintable() and letter != " " for letter in text)}
    return re.compile(
        "|".join(sorted(re.escape(text) for text in special | visible if text.strip())) or "(?!)"
    )


@dataclass(frozen=True)
class PredictionProgram:
    """A short program of the fixed set. level: of PREDICTION_LEVELS. output: what it prints, normalised."""

    level: str
    code: str
    output: str


@lru_cache(maxsize=1)
def load_prediction_set() -> tuple[PredictionProgram, ...]:
    """Return the fixed programs, 15 a level, in the order of levels."""
    lines = PREDICTION_FILE.read_text(encoding="utf-8").splitlines()
    return tuple(PredictionProgram(**json.loads(line)) for line in lines)
