"""The truth of the code game is Python's: a program prints what its script prints, or it is invalid."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlnb.sandbox import Limits

SANDBOX = {"limits": Limits(cpu_seconds=1.0), "num_workers": 1}
NOISY = "class A:\n    def __init__(self, n): self.n = n\n    def __del__(self): print('del', self.n)\n"
AS_A_SCRIPT = {
    "a global is destroyed": NOISY + "a = A(1)\nprint('end')",
    "many are, in order": NOISY + "b = A(2)\n_a = A(1)\nc = [A(3), A(4)], {'x': A(5)}\nd = A(6)\nd.e = A(7)",
    "a cycle": NOISY + "a = A(1)\na.me = a\nb = A(2)\nb.a, a.b = a, b\ndel a, b\nprint('end')",
    "globals are whole until then":
        NOISY + "import math\nn = 7\nA.__del__ = lambda self: print(n, math.pi)\na = A(1)",
    "after exit functions": NOISY + "import atexit\natexit.register(print, 'exit')\na = A(1)",
    "after sys.exit": NOISY + "import sys\na = A(1)\ndef f():\n    b = A(2)\n    sys.exit()\nf()",
    "a generator is closed":
        "def f():\n    try: yield 1\n    finally: print('closed')\na = f()\nprint(next(a))",
    "what a cache holds": NOISY + "import functools\n@functools.lru_cache\ndef f(n): return A(n)\nf(1), f(2)",
    "the names that site gives": "print(exit, quit, copyright, sep='|')\nexit()",
    "an exception of its own": "try: raise MemoryError('full')\nexcept MemoryError as error: print(error)",
    "no annotations": "try: print(__annotations__)\nexcept NameError: print('none')",
    "annotations": "a: int = 1\nprint(__annotations__)",
    "its globals": "print(sorted(globals().keys() - {'__file__'}))",
    "recursion that is caught": "def f(): f()\ntry: f()\nexcept RecursionError as error: print(error)",
}  # fmt: skip
DEPTH = (
    "depth = 0\ndef f():\n    global depth\n    depth += 1\n    f()\n"
    "try: f()\nexcept RecursionError: print(depth)"
)
LARGE = "bytearray(600 * 2**20); print('big')"
INVALID = {
    "a month": ("import datetime\ntry: datetime.date(1, 13, 1)\nexcept ValueError as e: print(e)", "printed"),
    "a number of days": (
        "import datetime\ntry: datetime.timedelta(days=[])\nexcept TypeError as e: print(e)", "printed"),
    "a depth": (DEPTH, "printed"),
    "a depth of its own": (f"import sys\nsys.setrecursionlimit(200)\n{DEPTH}", "printed"),
    "memory": (f"try: {LARGE}\nexcept MemoryError: print('small')", "MemoryError"),
    "memory, all caught": (f"try: {LARGE}\nexcept: print('small')", "MemoryError"),
    "memory, piece by piece": (
        "x = []\ntry:\n    while True: x.append(bytes(10**7))\nexcept Exception: print(0)", "MemoryError"),
    "memory, swallowed": (
        f"import contextlib\nwith contextlib.suppress(MemoryError): {LARGE}\nprint(1)", "MemoryError"),
    "a surrogate": ("print('\\ud800')", "UnicodeEncodeError"),
    "an escaped byte": ("print('\\udc80')", "UnicodeEncodeError"),
    "when garbage is collected": (
        NOISY.replace("print('del', self.n)", "A.dead += 1") + "A.dead = 0\nfor n in range(5000):\n"
        "    a = A(n)\n    a.me = a\nprint(A.dead)", "printed"),
    "an import at the end": (
        NOISY.replace("print('del', self.n)", "import wave; print(1)") + "a = A(1)", "printed"),
    # Python has 8 MiB of stack for it, and each level takes some hundred bytes of C's.
    "a stack deeper than that of Python": (
        "import sys\nsys.setrecursionlimit(10**6)\nclass A:\n    def __init__(self, a): self.a = a\n"
        "    def __repr__(self): return repr(self.a)\na = 1\nfor _ in range(40_000): a = A(a)\n"
        "print(repr(a))", ""),
}  # fmt: skip
SETUP = (
    f"{NOISY}import itertools\nn = itertools.count()\n"
    "def wrap(x):\n    a = A(next(n))\n    a.x = x\n    return a\n"
)
names = st.sampled_from(["a", "_b", "c", "__d", "e"])
values = st.recursive(
    st.just("A(next(n))"),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
        inner.map(lambda part: f"{{1: {part}}}"),
        inner.map(lambda part: f"wrap({part})"),
    ),
    max_leaves=5,
)


def printed_by_python(program: str, folder) -> str:
    script = folder / "program.py"
    script.write_text(program)
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", AS_A_SCRIPT)
def test_a_script_ends_with(name, reruns, sandbox, tmp_path):
    program = AS_A_SCRIPT[name]
    (rerun,) = reruns.run_many([program])
    printed = printed_by_python(program, tmp_path)
    assert rerun.difference == ""
    assert rerun.execution.stdout == sandbox.run(program).stdout == printed != ""


@pytest.mark.parametrize("name", INVALID)
def test_no_output_depends_on(name, reruns):
    program, said = INVALID[name]
    (rerun,) = reruns.run_many([program])
    assert rerun.difference or rerun.execution.error, rerun
    assert said in (rerun.difference or rerun.execution.error)


@given(parts=st.lists(st.tuples(names, values), min_size=1, max_size=6))
@settings(max_examples=25)
def test_globals_are_destroyed_in_the_order_of_python(parts, sandbox, tmp_path_factory):
    program = SETUP + "\n".join(f"{name} = {value}" for name, value in parts)
    assert sandbox.run(program).stdout == printed_by_python(program, tmp_path_factory.mktemp("script"))
