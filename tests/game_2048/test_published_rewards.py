"""The published rewards, answer by answer: those of the document, and where it is silent of its notebook.

The document: +1 or -2 for valid Python, -20 for a forbidden import, +20 for a win, +2 for a valid attempt.
The notebook behind it: -0.5 where defining the function fails, -1 without a function and for the time limit,
-3 for an exception, 0 where nothing was played; a function with a forbidden import is played all the same.
(Its code takes 20 for a syntax error, too, where the document speaks of imports alone.)
"""

import pytest

from rlnb.game_2048.board import BoardKind
from rlnb.game_2048.play import BoardRules
from rlnb.game_2048.reward import StrategyReferee

EASY, HOPELESS = BoardKind(3, 16), BoardKind(2, 2048)  # random keys win the first; nobody wins the second
KEY = "random.choice('éuai')"
MODULES = (
    "re, enum, abc, time, json, numbers, array, decimal, fractions, contextlib, hashlib, os, ctypes, socket"
)
RULES = BoardRules(move_cpu_seconds=0.5, board_cpu_seconds=0.5, wall_seconds=0.5)


def body(*lines: str) -> str:
    """Return an answer whose function has these lines."""
    return "```python\ndef strategy(board):\n" + "".join(f"    {line}\n" for line in lines) + "```"


# answer, [function_works, no_cheating, strategy_succeeds], why
ANSWERS = [
    (body("import random", f"return {KEY}"), [1, 1, 20], "it wins"),
    (body(f"import random, {MODULES}", f"return {KEY}"), [1, 1, 20], "the standard library is allowed"),
    (f"```python\nimport random\ndef strategy(board):\n    return {KEY}\n```", [1, 1, 20], "also above it"),
    (f"import random\ndef strategy(board):\n    return {KEY}\n", [1, 1, 20], "found without a fence too"),
    ("```python\nimport random\ndef strategy(board: list[list[int]]) -> str:\n"
     f"    return {KEY}\n```", [1, 1, 20], "type hints are Python"),
    (body("import random", "def draw():", f"    return {KEY}", "return draw()"), [1, 1, 20], "a helper"),
    ("```python\nimport random\ndef draw():\n"
     f"    return {KEY}\ndef strategy(board):\n    return draw()\n```", [1, 1, 20], "a helper before it"),
    (body("import random", f"return ' ' + {KEY}.upper()"), [1, 1, 20], "keys in either case, with spaces"),
    (body("import random", "board[0][0] = 2048", f"return {KEY}"), [1, 1, 20], "the board is a copy"),
    (body("import random", "print('x' * 50_000)", f"return {KEY}"), [1, 1, 20], "output counts for nothing"),
    ("```python\nfrom __future__ import annotations\nimport random\ndef first(node: Node) -> str:\n"
     "    return random.choice(node.keys)\nclass Node:\n    keys = 'éuai'\n"
     "def strategy(board):\n    return first(Node)\n```", [1, 1, 20], "annotations name its classes"),
    (body("return None"), [1, 1, 2], "no key: the game is lost, and the function ran"),
    (body("return 3"), [1, 1, 2], "the same"),
    (body("return 'Q'"), [1, 1, 2], "the same"),
    (body("return ''"), [1, 1, 2], "the same"),
    (body("return 'ai'"), [1, 1, 2], "the same"),
    (body("return 'a'"), [1, 1, -1], "a move that changes nothing, until the time is up"),
    (body("while True: pass"), [1, 1, -1], "the time limit"),
    (body("import time", "time.sleep(60)"), [1, 1, -1], "the time limit"),
    (body("return 1 // 0"), [1, 1, -3], "an exception"),
    (body("return np.argmax(board)"), [1, 1, -3], "an exception: np is not defined"),
    (body("return strategy(board)"), [1, 1, -3], "an exception: endless recursion"),
    (body("return board[9][9]"), [1, 1, -3], "an exception"),
    (body("from . import tables", "return 'a'"), [1, 1, -3], "no package is named, and none found"),
    (body("import numpy as np", f"return {KEY}"), [1, -20, -3], "valid Python; the import fails in the game"),
    (body("from pandas import DataFrame", "return 'a'"), [1, -20, -3], "the same"),
    (body("return __import__('numpy').random.choice(list('éuai'))"), [1, -20, -3], "the same, as a call"),
    (body("import random", "try:", "    import numpy", "except ImportError:", "    pass", f"return {KEY}"),
     [1, -20, 20], "forbidden, and it wins without"),
    (body("import random", "if not board: import torch", f"return {KEY}"), [1, -20, 20], "the same"),
    ("```python\nimport numpy as np\ndef strategy(board):\n    return 'a'\n```", [1, -20, 0],
     "valid Python that cannot be defined without the package, so nothing is played"),
    ("```python\ndef strategy(board, size=1 // 0):\n    return 'a'\n```", [-0.5, 1, 0], "defining it fails"),
    ("```python\n@undefined\ndef strategy(board):\n    return 'a'\n```", [-0.5, 1, 0], "the same"),
    (body("retrun 'a'"), [-2, -1, 0], "a syntax error, so there is no function"),
    (body("break"), [-2, -1, 0], "the same; the compiler alone sees it"),
    (body("max(board, key=len, key=len)", "return 'a'"), [-2, -1, 0], "the same"),
    (body("await board", "return 'a'"), [-2, -1, 0], "the same"),
    (body("global board", "return 'a'"), [-2, -1, 0], "the same"),
    ("```python\ndef strategy(board)\n    return 'a'\n```", [-2, -1, 0], "the same"),
    ("```python\ndef strategy():\n    return 'a'\n```", [-2, -1, 0], "not a function of the board"),
    ("```python\ndef play(board):\n    return 'a'\n```", [-2, -1, 0], "another name"),
    ("Always move left, then down.", [-2, -1, 0], "no function"),
    ("", [-2, -1, 0], "no answer"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "rewards", "why"), ANSWERS, ids=range(len(ANSWERS)))
def test_an_answer_earns_what_was_published(answer, rewards, why, sandbox, presets):
    (judged,) = StrategyReferee(sandbox, RULES).judge([answer], [""], [EASY], [(1,)])
    assert [function(judged) for function in presets["requirements"]] == rewards, (why, judged)


def test_a_lost_game_is_a_valid_attempt(sandbox, presets):
    (lost,) = StrategyReferee(sandbox, RULES).judge([ANSWERS[0][0]], [""], [HOPELESS], [(1, 2)])
    assert [function(lost) for function in presets["requirements"]] == [1, 1, 2]
