"""The strategy in a completion: the one that a reader would take, or why there is none."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlnb.game_2048.checks import check_strategy, is_suspicious
from rlnb.game_2048.strategies import Extraction, extract_strategy

CODE = 'def strategy(board):\n    return "a"\n'
DRAFT = 'def strategy(board):\n    return "é"\n'
PREFIX = "```python\ndef strategy(board):"


def fenced(code):
    return f"```python\n{code}```\n"


HINTS = "from typing import List\n\ndef strategy(board: List[List[int]]) -> str:\n    return KEYS[0]\n"
AROUND = f'import random\n\ndef best(board):\n    return KEYS[0]\n\n{HINTS}\nKEYS = "éuai"\n'
FORMS = {
    "a fence": (fenced(CODE), CODE),
    "type hints, helpers and constants around": (fenced(AROUND), AROUND),
    "a draft before": (f"First:\n{fenced(DRAFT)}No, left:\n{fenced(CODE)}", CODE),
    "a demonstration behind, in a block": (fenced(CODE) + fenced("print(strategy([[2, 0]]))\n"), CODE),
    "a draft that breaks off": (f"{fenced(CODE)}Or:\n```python\ndef strategy(board):\n    return max(", CODE),
    "a final channel": (
        f"<|channel|>analysis<|message|>Left?\n{fenced(DRAFT)}<|end|><|start|>assistant"
        f"<|channel|>final<|message|>{fenced(CODE)}<|return|>",
        CODE,
    ),
    "a draft behind the end of thinking only": (f"<think>\n{fenced(CODE)}</think>\nSee above.", CODE),
    "defaults": ("def strategy(board, depth=2, *, size=4):\n    return 'a'\n",) * 2,
    "an import of the future": (
        f"from __future__ import annotations\n{CODE}",
        f"from __future__ import annotations\n{CODE}",
    ),
}
DEMONSTRATIONS = {
    "an example board": "# Example\nboard = [[0] * 4 for _ in range(4)]\nprint(strategy(board))",
    "a game": "game = GameBoard(6, 2048)\nwhile game.state() == 1:\n    game.move(strategy(game.board()))",
    "a main part": 'if __name__ == "__main__":\n    import sys\n    print(strategy([[2]]), file=sys.stderr)',
}
REFUSED = {
    " \n": ("no_code", "empty"),
    "```python\n# To do.\n```": ("no_code", "no code"),
    fenced("def move(board):\n    return 'a'\n"): ("no_function", "no function"),
    "class Player:\n    def strategy(self, board):\n        return 'a'\n": ("no_function", "no function"),
    "strategy = 'a'\n": ("no_function", "not a function"),
    "strategy = lambda: 'a'\n": ("no_function", "`strategy()`"),
    "def strategy(board, score):\n    return 'a'\n": ("no_function", "`strategy(board, score)`"),
    "```python\ndef strategy(board):\n    x = 1\n    return max(": ("syntax_error", "Line 3"),
    "def strategy(board):\n    x = 1\nreturn 'a'\n": ("syntax_error", "Line 3"),
    "def strategy(board):\n    return '\ud800'\n": ("syntax_error", "characters"),
    "def strategy(board):\n    return " + "-" * 9000 + "1\n": ("syntax_error", "nested"),
    fenced(CODE + "x = 1\n" * 4000): ("syntax_error", "longer"),
    fenced(f"import os, numpy\n{CODE}"): ("forbidden", "imports numpy"),
}
FORBIDDEN = {
    "import re, numpy.linalg as la": "numpy.linalg",
    "from torch import nn": "torch",
    "if board: import pandas": "pandas",
    "__import__('numpy').random": "numpy",
    "__import__(name='numpy')": "numpy",
    "import importlib as i; i.import_module('numpy.random')": "numpy.random",
}
# The rule is about packages. What is odd in these is a metric, and gains nothing (strategy_table.py).
FINE = [
    "import re, os.path, importlib, _codecs",
    "from . import re",
    "from enum import Enum\nfrom random import _os",
    "x = open('x').read()\nexec('import numpy')",
    "class Meta(type): pass\nA = type('A', (), {'__match' + '_args__': ('__globals__',)})",
    "import dataclasses\nclass A: __annotations__['x, print()'] = int\nA = dataclasses.dataclass(A)",
    "def strategy(board):\n    board[0][0] = 2048\n    return 'a'",
]
SUSPICIOUS = [
    "import os.path, math",
    "from random import _os\nrandom._os",
    "random.choice = max",
    "[].__class__",
    "getattr(random, 'choice')",
    "try: pass\nexcept BaseException: pass",
    "n = 0\ndef strategy(b):\n    global n\n    n += 1",
    "import time",
    "random.seed(1)",
    "game.state = 1",
]
HONEST = [
    "import random, math, itertools, functools, collections, copy, heapq, operator, bisect, typing",
    "from collections.abc import Callable\nclass A:\n    def __init__(self): self.__x = super().__init__()",
    "def f(input): return input",
    "try: pass\nexcept ValueError: pass",
    "random.choice('éu')",
    "def (",
    "",
]


def test_the_strategy_is_found_in_every_form():
    for form, (completion, code) in FORMS.items():
        assert extract_strategy(completion) == Extraction(code, "", ""), form


def test_a_demonstration_of_the_strategy_is_left_out():
    for form, demonstration in DEMONSTRATIONS.items():
        assert extract_strategy(fenced(f"{CODE}\n{demonstration}\n")) == Extraction(CODE, "", ""), form
        before = extract_strategy(fenced(f"{demonstration}\n{CODE}")).code
        assert before.removeprefix("# Example").strip() == CODE.strip(), form


FILLED = """\
import random
ORDER = list("éuai")
def fill():
    ORDER.append("é")
def prepare(times):
    for _ in range(times):
        fill()
def show(board):
    print(strategy(board))
def strategy(board):
    return random.choice(ORDER)
"""


@pytest.mark.parametrize("call", ["prepare(3)", "random.shuffle(ORDER)", "ORDER.reverse()"])
def test_what_prepares_a_table_that_the_strategy_reads_stays(call):
    assert extract_strategy(f"{FILLED}{call}\nshow([[2, 0]])\nprint(ORDER)\n").code == f"{FILLED}{call}\n"


def test_a_refusal_says_why():
    for completion, (problem, reason) in REFUSED.items():
        extraction = extract_strategy(completion)
        assert extraction.problem == problem and reason in extraction.reason, completion
        assert (extraction.code is None) == (extraction.problem == "no_code")


def test_a_prefilled_answer_continues_or_starts_over():
    for completion, code in (
        ("\n    return 'a'\n\nIt moves left.", "def strategy(board):\n    return 'a'\n"),
        (f"\nSure.\n{fenced(CODE)}", CODE),
    ):
        assert extract_strategy(completion, prefix=PREFIX) == Extraction(code, "", "")


def test_a_forbidden_program_is_refused_with_the_line_and_the_package():
    for line, package in FORBIDDEN.items():
        code = f"def strategy(board):\n    {line}\n    return 'a'\n"
        said = f"Line 2 imports {package}, which is not in the standard library; do without it."
        assert extract_strategy(fenced(code)) == Extraction(code, "forbidden", said)


def test_what_imports_no_other_package_is_not_refused():
    programs = [*FINE, *SUSPICIOUS, *HONEST[:-2]]
    assert {code: check_strategy(code) for code in programs} == dict.fromkeys(programs, "")


def test_suspicious_programs_are_told_from_others():
    assert [code for code in SUSPICIOUS + HONEST if is_suspicious(code)] == SUSPICIOUS


PIECES = [
    "```", "```python", "~~~", "def strategy(board):", "async def strategy", "strategy = ", "    return 'a'",
    "\n", "\n", " ", "\t", "(", "[", "{", "'", '"""', "@a\n", "lambda x: ", "import os", "x = 1; ",
    "assistantfinal", "</think>", "<|channel|>final<|message|>", "class A:\n", "if __name__ == '__main__':",
    "é", "\0", "\ud800", "\r", "\f", "\\", "__class__", "board[0] = ", "global n", "match x:\n    case ",
    "f'{x!r:>{", "#", "return", "yield", "del ", "*",
]  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=40), st.booleans())
def test_any_text_is_read_without_an_error(pieces, is_begun):
    text = "".join(pieces)
    extraction = extract_strategy(text, prefix=PREFIX if is_begun else "")
    is_suspicious(text)
    assert isinstance(check_strategy(text), str)
    assert (extraction.problem == "") == (extraction.reason == "")
    if extraction.problem in ("", "forbidden"):
        assert bool(check_strategy(extraction.code)) == (extraction.problem == "forbidden")
        assert extract_strategy(fenced(extraction.code)).code == extraction.code or "`" in extraction.code


FILLINGS = {
    "rows of a table": "T = [[0] * 4 for _ in range(4)]\nfor i, row in enumerate(T):\n    row[0] = i\n",
    "an imported function": "from random import shuffle\nT = list('éuai')\nshuffle(T)\n",
    "a function": "T = {}\ndef fill(table):\n    table[0] = 'a'\nfill(T)\n",
    "a function by keyword": "T = {}\ndef fill(table):\n    table[0] = 'a'\nfill(table=T)\n",
    "a library's function by keyword": "import random\nT = list('éuai')\nrandom.shuffle(x=T)\n",
    "a function of a function": (
        "T = {}\ndef fill(t):\n    t[0] = 'a'\ndef begin(t):\n    fill(t)\nbegin(T)\n"
    ),
    "a global in a function": "T = {}\ndef fill(t):\n    t[0] = 'a'\ndef begin():\n    fill(T)\nbegin()\n",
}


@pytest.mark.parametrize("filling", FILLINGS)
def test_what_fills_a_table_under_another_name_stays_and_a_demonstration_goes(filling):
    code = f"{FILLINGS[filling]}def strategy(board):\n    return T[0]\n"
    assert extract_strategy(f"```python\n{code}print(strategy([[2, 0]]))\n```").code == code


def test_what_a_strategy_keeps_in_its_own_attributes_stays():
    code = "def strategy(board):\n    strategy.n += 1\n    return 'a'\nstrategy.n = 0\n"
    assert extract_strategy(f"```python\n{code}print(strategy([[2, 0]]))\n```").code == code
