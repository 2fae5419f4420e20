"""Tests are data: what they may say, and that nothing else is there where they run."""

import os
from pathlib import Path

import pytest

from rlnb.sandbox import Limits, check_tests
from rlnb.sandbox.assertions import PLACE, compile_test

SANDBOX = {"num_workers": 1, "require": "none"}
ORDINARY = [
    "assert f(2) == 2 and not f(0)",
    "assert f([1, 2])[0] == 1 and {**f({'a': 1})} == {'a': 1}, 'why'",
    "for n in (1, 2):\n    assert f(n) == n",
    "def check(n):\n    assert f(n) == n\n    return True\nassert check(3)",
    "items = [3, 1]\nassert sorted(f(items), key=lambda n: -n) == items",
    "assert all(f(n) == n for n in range(3)) and [f(n) for n in 'ab'] == ['a', 'b']",
    "import math\nassert math.isclose(f(0.1) * 3, 0.3)",
    "from math import *\nassert isclose(f(0.1) * 3, 0.3)",
    "import re as r\nassert r.fullmatch('a+', f('aa')).group(0) == 'aa'",
    "from collections import Counter\nassert Counter(f('aab')).most_common(1) == [('a', 2)]",
    "import numpy as np\nassert np.allclose(f([0.1]), [0.1])",
    "import pytest\nwith pytest.raises(Exception):\n    f(1, 2)",
    "try:\n    f(1, 2)\nexcept Exception as error:\n    assert 'argument' in f'{error}'",
    "input = 4\nassert f(input) == input and type(f(1)) is int and isinstance(f(''), str)",
    "import datetime\nassert datetime.date(2020, 1, 31) + datetime.timedelta(days=f(1)) > datetime.date.min",
    "assert '%s' % f(1) == str(1) == '1'.strip() if f(True) else False",
]


def test_ordinary_tests_pass(sandbox):
    verdict = check_tests(sandbox, "def f(x): return x", ORDINARY, functions=["f"])
    assert verdict.passed, verdict


# Ways to what a test has no business with: files, the environment, code, this process's own objects.
REACHING = [
    "open('/etc/passwd')", "eval('1')", "exec('')", "compile('1', '', 'eval')", "globals()", "vars(f)",
    "getattr(f, 'x')", "setattr(f, 'x', 1)", "breakpoint()", "input()", "help()", "exit()", "memoryview(b'')",
    "__import__('os')", "__builtins__['open']", "__loader__", "f.__globals__", "().__class__.__mro__",
    "(lambda: 0).__code__", "(n for n in ()).gi_frame.f_back.f_globals", "''.format(f)",
    "'{0.__globals__}'.format_map({'0': f})", "str.format('{0.__class__}', f)", "f.\uff3f\uff3fglobals__",
    "[(yield)]", "(await f)", "(x := 1)", "super", "object", "classmethod", "SystemExit", "KeyboardInterrupt",
]  # fmt: skip
STATEMENTS = [
    "import os", "import os.path", "import sys, os", "from os import environ", "from sys import modules",
    "import sys\nsys.modules", "import re\nre.enum.sys", "from re import enum", "from . import oracle",
    "from collections import namedtuple", "from functools import partial", "import importlib",
    "import builtins", "import rlnb", "import antigravity", "from numpy import load",
    "import pytest\npytest.main()", "from string import Formatter", "import operator",
    "import math\nmath.pi = 3", "f.x = 1", "del f", "class A:\n    pass",
    "while f(1):\n    pass", "async def g():\n    pass", "global f",
    "with open('x') as g:\n    pass", "match f(1):\n    case 1:\n        pass", "import math as __builtins__",
    "def __import__(name):\n    return 1", "__builtins__ = {}", "import math\nmath.__loader__",
]  # fmt: skip


@pytest.mark.parametrize("source", [*(f"f(1) or {reach}" for reach in REACHING), *STATEMENTS])
def test_a_test_that_reaches_further_is_refused_and_never_runs(source):
    with pytest.raises((ValueError, SyntaxError)):
        compile_test(f"{source}\nassert f(1)", frozenset({"f"}))


def test_a_function_of_the_program_may_have_the_name_of_a_builtin(sandbox):
    verdict = check_tests(sandbox, "def open(x): return x", ["assert open(1) == 1"], functions=["open"])
    assert verdict.passed, verdict


def test_a_refused_test_fails_and_refused_imports_are_an_error(sandbox, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    test = "import os\nassert f(1) == 1 and os.system('touch MARK') == 0"
    verdict = check_tests(sandbox, "def f(x): return x", ["assert f(1) == 1", test], functions=["f"])
    assert verdict.results == (True, False) and "import os is not on the list" in verdict.error
    with pytest.raises(ValueError, match="import os"):
        check_tests(sandbox, "def f(x): return x", ["assert f(1)"], functions=["f"], imports="import os")
    assert not Path("MARK").exists()


# What the type of a thing that is no plain data would make: a class, a module's stand-in, an array.
MADE = [
    "type(type(1))('A', (), {})", "import math\ntype(math)(**{'__array_interface__': f(1)})",
    "import numpy as np\ntype(np.array([1]))((1,), 'O', bytes(8))", "type(type)", "type(f)",
]  # fmt: skip


@pytest.mark.parametrize("source", MADE)
def test_no_test_makes_objects_with_attributes_of_any_name(source, sandbox):
    """With them numpy reads any memory of this process, and `copy` changes classes of the library."""
    lines = source.split("\n")
    test = "\n".join([*lines[:-1], f"assert {lines[-1]}"])
    verdict = check_tests(sandbox, "def f(x): return x", [test], functions=["f"])
    assert verdict.results == (False,) and "TypeError: a test may ask" in verdict.error, verdict


@pytest.mark.parametrize("way", ["import os\n    os._exit(0)", "while True: pass"])
def test_an_end_is_not_the_error_that_a_test_expects(way, sandbox):
    test = "try:\n    f(1)\nexcept Exception:\n    pass\nelse:\n    assert False"
    program = "def f(x):\n    {}"
    verdict = check_tests(sandbox, program.format("raise ValueError"), [test], functions=["f"])
    assert verdict.passed, verdict
    limits = Limits(cpu_seconds=0.1)
    verdict = check_tests(sandbox, program.format(way), [test, test], functions=["f"], limits=limits)
    assert verdict.results == (None, None) and verdict.status in ("runtime_error", "timeout"), verdict


def test_keys_are_not_where_tests_run(monkeypatch):
    """Even code that no list has read: neither modules nor the environment can be had there."""
    for name in ("HF_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "MY_PASSWORD"):
        monkeypatch.setenv(name, "a-made-up-key")
        assert os.environ[name]
    for way in (
        "__import__('os')", "open('/proc/self/environ')", "globals()['os']", "eval('1')",
        "__import__('sys').modules", "__import__('re').enum", "__import__('string').Formatter",
    ):  # fmt: skip
        with pytest.raises((NameError, KeyError, AttributeError)):
            exec(f"seen = {way}", {"__builtins__": PLACE})
