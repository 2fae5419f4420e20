"""Every reader of a completion takes time that grows with its length, whatever a hostile text repeats."""

import ast
import gc
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from rlnb.code_game.determinism import find_forbidden_use
from rlnb.code_game.prediction import is_readable, parse_prediction
from rlnb.code_game.programs import is_echo, is_trivial, program_shape, strip_comments
from rlnb.game_2048.checks import is_suspicious
from rlnb.game_2048.strategies import extract_strategy
from rlnb.games.answers import parse_answer
from rlnb.mbpp.prompts import TEMPLATES, is_complete, read_program
from rlnb.source_code import extraction
from rlnb.source_code.extraction import extract_program, is_complete_answer

LENGTHS = (4_000, 16_000, 64_000)
F = "```"
HEAD = 'def f(n):\n    """F."""\n'
READERS: dict[str, Callable[[str], object]] = {
    "a program": lambda text: extract_program(text, function="f"),
    "an end": lambda text: is_complete_answer(text, prefix=HEAD, function="f"),
    "a strategy": lambda text: is_suspicious(extract_strategy(text).code or text),
    "an answer of MBPP": lambda text: [
        reader(text, TEMPLATES["docstring"], "f") for reader in (read_program, is_complete)
    ],
    "an action": lambda text: parse_answer(text, {0: "(0,0)", 1: "pass", 2: "bet 3"}),
    "a prediction": lambda text: is_readable(parse_prediction(text)),
    "a program of the code game": lambda text: [
        strip_comments(text), find_forbidden_use(text), is_trivial(text), program_shape(text),
        is_echo(text, "1" * 200),
    ],
}  # fmt: skip
UNITS = [
    " ", "\n", "\t\n", "a", "1", "`", "`` ", f"{F} ", f"a {F} b\n", f"> a {F}\n", f"> {F}\n", f"{F}a",
    "~~~\n", "[", "(", "a[", "a[b]", "a.", "a, ", "a: b | ", "a :", "a = ", "x = y z\n", "for x \n",
    "if a:", "-", "lambda: ", "@a\n", "a;", "'''\n", "f'{", "# a\n", "x = 1\n", "from a.", "import a\n",
    "\\boxed{", "\\boxed{1}", "<answer>", "<answer>1</answer>", "I pick 1, ", "move ", "1.0", "<think>",
    "</think>", "<think>\n</think>", "[THINK]", "<|channel|>", "<|channel|>final", "</s>\n", "\n[DONE]",
    "<|a", "<pre\n", "<pre>\n", "<code\n", "</code>", "&#1", '"', '"\\', '\\"', '"def f(", ',
    "@", "\\", "\0", "> ", "lambda x=", "x = \\\n", "x='''```\n", f"{F}python\n@a\n", "boxed    ",
    "answer is the ", "\\boxed{{", "action id ", "place X in row 2, column ", "\\text{", "- 1",
    "def strategy(b):\n x y\n", "\u0301\u0323", "\ufdfa", "\uff11", "\xa0 ", ">>> ", "%a", "a\r",
    f"{F}bash\nx y\n{F}\n", f"{F}python\ndef g(n): return n\n{F}\n", "    a\n", f"{F}python\nx = (\n{F}\n",
    f"{F}\n'''\n", "class A:\n def f(s): pass\n", "def g(n):\n return f(n)\n", "def f{0}(): return {0}\n",
    "def f{0}():\n global g\n g = {0}\n", "x{0} = x{1}\n",
    "def f{0}():\n global g{0}\n g{0} = f{1}()\n", f"{F}python\ndef f{{0}}(): f{{1}}()\n{F}\n",
]  # fmt: skip
STRATEGY = "def strategy(board):\n    return g\n"
FORMS = [
    *(("", unit) for unit in UNITS),
    (F, " "), (F, "a"), (F, "\n"), (f"{F}python\n", "x = 1\n"), (f"{F}python\n", "a;"), (f"{F}bash\n", "a "),
    (f"{F}python\n", "    a\n"), (f"{F}python\n", "> "), ('{"code": "', '\\"'), ('{"code": "', "\\n"),
    ("</code>&#", "1"), ("</code>&", "a"), ("<pre", " "), ("<code", "\n"), ("def ", " "), ("from a", " "),
    ("a", " "), ("a: b", " "), ("a[", "b, "), ("1.", "0"), ("\\boxed{", "1 "), ("<answer>", "1 "),
    ("<think>", " "), ("analysis", " "), (STRATEGY, "a;"), (STRATEGY, "a = "),
    *((STRATEGY, unit) for unit in UNITS if "{0}" in unit),
]  # fmt: skip


def write(start: str, unit: str, length: int) -> str:
    """Return a text of about so many characters that ends with a whole unit."""
    units = range((length - len(start)) // len(unit.format(999, 999) if "{0}" in unit else unit))
    return start + "".join(unit.format(n, n + 1) if "{0}" in unit else unit for n in units)


def read_seconds(read: Callable[[str], object], text: str) -> float:
    start = time.process_time()
    read(text)
    return time.process_time() - start


@pytest.fixture
def no_collection():
    """Collecting garbage takes longer than reading, and comes when it likes."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(("start", "prefix"), [(f"{F}python\ndef f(n):\n", ""), ("", HEAD)])
def test_what_is_being_written_is_not_parsed_at_each_look_for_its_end(start, prefix, monkeypatch):
    parsed: list[int] = []
    monkeypatch.setattr(extraction, "parse", lambda code: parsed.append(len(code)) or ast.parse(code))
    text = start + "    n = [i * 2 for i in range(n)]\n" * 100
    for end in range(0, len(text), 32):
        assert not is_complete_answer(text[:end], prefix=prefix, function="f")
    assert sum(parsed) < 10 * len(text)
    assert is_complete_answer(f"{text}{F}\n", prefix=prefix, function="f")


@pytest.mark.parametrize("reader", READERS)
def test_four_times_the_text_takes_less_than_eight_times_as_long(reader, no_collection):
    """The square would take sixteen times. What seems slow is tried again: the machine may have been busy."""
    read, slow = READERS[reader], []
    for start, unit in FORMS:
        texts = [write(start, unit, length) for length in LENGTHS]
        seconds = [read_seconds(read, text) for text in texts]
        for _ in range(9):
            if all(longer < 8 * max(shorter, 0.005) for shorter, longer in pairwise(seconds)):
                break
            seconds = [min(old, read_seconds(read, text)) for old, text in zip(seconds, texts, strict=True)]
        else:
            slow.append((start, unit, [round(value, 4) for value in seconds]))
    assert slow == []
