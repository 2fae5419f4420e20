"""Functions of a program that is kept alive: their values come back, their faults are data."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import wait_for

from rlnb.sandbox import Limits, Sandbox, calls, check_tests

FAST = Limits(cpu_seconds=0.4, memory_mib=128)  # little memory is filled long before the time is up
SANDBOX = {"require": "none"}


def test_functions_are_called_with_plain_data(sandbox):
    with sandbox.load("seen = []\ndef f(*x):\n    seen.append(x)\n    return {len(seen): x}") as program:
        assert program.call("f", 1, [2.5, "x"], {"a": (3,)}).value == {1: (1, [2.5, "x"], {"a": (3,)})}
        assert program.call("f").value == {2: ()}


def test_what_is_no_plain_data_can_be_passed_back(sandbox):
    source = "class Pair:\n    def __init__(self, a): self.a = a\n"
    source += "def f(pairs): return [p.a for p in pairs]\np = Pair(7)"
    with sandbox.load(source) as program:
        pair = program.call("Pair", 3).value
        assert program.call("f", [pair, program.get("p").value]).value == [3, 7]


def test_an_exception_is_a_value_of_the_call_and_not_the_end(sandbox):
    with sandbox.load("def f(x): return 1 // x") as program:
        failed = program.call("f", 0)
        assert failed.status == "runtime_error" and failed.error.startswith("ZeroDivisionError")
        assert program.call("g").error.startswith("NameError")
        assert program.call("f", 1).value == 1


LOADS = {
    "def (": "syntax_error",
    "1 / 0": "runtime_error",
    "import sys; sys.exit(0)": "runtime_error",
    "x = []\nwhile True: x.append(bytearray(10**7))": "memory_exceeded",
    "while True: print('x' * 999)": "output_exceeded",
}


@pytest.mark.parametrize("source", LOADS)
def test_a_program_that_does_not_load_says_why_at_every_call(sandbox, source):
    with sandbox.load(source, limits=FAST) as program:
        assert program.ended is not None
        call = program.call("f")
    assert call.status == LOADS[source]


ENDS = {
    "never returns": ("while True: pass", "timeout"),
    "exits at once": ("import os; os._exit(0)", "runtime_error"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "killed"),
    "takes all memory": ("return len(bytearray(2**40))", "runtime_error"),
    "returns too much": ("return 'x' * 2**21", "runtime_error"),
    "returns without an end": ("import itertools; return itertools.count()", "runtime_error"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_call_that(name, sandbox):
    body, status = ENDS[name]
    with sandbox.load(f"def f():\n    {body}", limits=FAST) as program:
        assert program.call("f").status == status


def test_the_limit_is_that_of_a_call_and_not_of_all_together(sandbox):
    slow = "from time import *\ndef f():\n    end = process_time() + .2\n    while process_time() < end: pass"
    with sandbox.load(slow, limits=FAST) as program:
        assert [program.call("f").status for _ in range(5)] == ["ok"] * 5


NOISE = [r"b'\0\0\0\5V1234' * 3", "b'x' * 100000"]


@pytest.mark.parametrize("noise", NOISE)
def test_forged_answers_and_noise_on_the_connection_change_only_its_own_values(sandbox, noise):
    with sandbox.load(f"import os\nos.write(3, {noise})\ndef f(): return 7", limits=FAST) as program:
        assert program.call("f").status in ("ok", "runtime_error", "timeout")
        program.call("f")
    with sandbox.load("def f(): return 7") as program:
        assert program.call("f").value == 7


def test_a_closed_program_answers_no_more_and_leaves_nothing(sandbox):
    before = len(os.listdir("/proc/self/fd"))
    program = sandbox.load("def f(): return 7")
    program.close()
    program.close()
    assert program.ended.status == "ok"
    assert program.call("f").error == "it has ended"
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_interrupted_load_ends_its_program(monkeypatch):
    def interrupt(program, name):
        raise KeyboardInterrupt

    with Sandbox(num_workers=1, require="none") as sandbox:
        (zygote,) = sandbox._idle
        monkeypatch.setattr(calls.LoadedProgram, "get", interrupt)
        with pytest.raises(KeyboardInterrupt) as kept:  # with its frames, as a notebook keeps them
            sandbox.load("while True: pass")
        zygote._process.wait(60)
        assert kept.tb is not None


def test_a_closed_sandbox_ends_the_programs_that_it_keeps_alive():
    with Sandbox(num_workers=1, require="none") as closed:
        program = closed.load("def f(): return 7")
    assert not os.path.exists(f"/proc/{program.pid}")
    assert program.call("f").status == program.ended.status == "sandbox_error"


def test_a_sandbox_is_closed_while_another_thread_waits_for_a_call():
    with ThreadPoolExecutor(1) as pool, Sandbox(num_workers=1, require="none") as closed:
        program = closed.load("def f(): return 7\ndef wait():\n    while True: pass")
        waits = pool.submit(program.call, "wait", cpu_seconds=600.0)
        wait_for(lambda: program.cpu_seconds() > 0.2)
        closed.close()
        assert waits.result().status == "sandbox_error"


def test_arguments_that_are_too_large_are_refused_here(sandbox):
    with sandbox.load("def f(x): return 7") as program:
        with pytest.raises(ValueError):
            program.call("f", "x" * 2**20)
        assert "too many values" in program.call("f", [1] * 125_000).error
        assert program.call("f", 1).value == 7


TESTS = ["assert double(2) == 4", "assert double(-1) == -2", "assert set(map(double, [1])) == {2}"]


FAULTS = {  # program: results of the tests, status, what is said
    "def double(x): return 2 * x": ((True, True, True), "ok", ""),
    "def double(x): return x + 2": ((True, False, False), "ok", "assert double(-1) == -2"),
    "def double(x):\n    if x < 0: raise KeyError(x)\n    return 2 * x": (
        (True, None, True), "runtime_error", "assert double(-1) == -2: KeyError: -1"),
}  # fmt: skip


@pytest.mark.parametrize("program", FAULTS)
def test_tests_run_on_this_side_against_the_function_on_that(program, sandbox):
    verdict = check_tests(sandbox, program, TESTS, functions=["double"])
    assert (verdict.results, verdict.status, verdict.error) == FAULTS[program]
    assert verdict.passed == all(verdict.results)


def test_a_test_that_raises_what_is_no_exception_fails(sandbox):  # pytest's own derive from BaseException
    row = "import pytest\nwith pytest.raises(ValueError):\n    f(2)"
    verdict = check_tests(sandbox, "def f(n): return n", [row], functions=["f"])
    assert verdict.results == (False,) and "DID NOT RAISE" in verdict.error


OPTIMIZED = """
import sys
from rlnb.sandbox import Sandbox, assertions, check_oracle, check_tests
tests = ["assert f(2) == 4", "for n in (1, 2): assert f(n) == 2 * n", "def t(): assert f(2) == 4\\nt()"]
with Sandbox(num_workers=1, require="none") as sandbox:
    check_oracle(sandbox)
    for answer in ("5", "2 * n"):
        print(check_tests(sandbox, f"def f(n): return {answer}", tests, functions=["f"]).results)
    assertions.compile_test.cache_clear()
    assertions.compile = lambda source, name, mode, **_: compile(source, name, mode)
    check_oracle(sandbox)
"""


def test_no_assert_is_left_out_by_an_optimizing_python_and_one_that_is_ends_all():
    """An oracle that compiles as this process does has no asserts: the check of it says so."""
    run = [sys.executable, "-c", OPTIMIZED]
    for optimize, error in (("", ""), ("1", "a function that returns 5 passes"), ("2", "returns 5 passes")):
        environ = {**os.environ, "PYTHONOPTIMIZE": optimize}
        done = subprocess.run(run, env=environ, capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines() == ["(False, False, False)", "(True, True, True)"], done
        assert error in done.stderr and bool(error) == bool(done.returncode)


FOREIGN = {
    "an integer that cannot be printed": "10**5000",
    "an iterator": "iter([1])",
    "a terminal's commands": r"'\x1b[2J\ud800x' + 'c' * 10**5",
    "an object of its own": "object()",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_a_test_says_of_a_value_is_one_line_without_addresses(name, sandbox):
    program = f"def f(x): return {FOREIGN[name]}"
    for test in ("assert f(1) == 2, f(1)", "raise LookupError(f(1))"):
        verdict = check_tests(sandbox, program, [test], functions=["f"])
        assert not verdict.passed and verdict.error and " at 0x" not in verdict.error
        assert verdict.error.isprintable() and len(verdict.error) <= 2000


SILENT = {
    "closes its connection in a call": "import os, time\ndef f(x):\n    os.close(3)\n    time.sleep(99)",
    "closes its connection at import": "import os\nos.close(3)\nwhile True: pass",
    "shuts its connection": "import socket\nsocket.socket(fileno=3).shutdown(1)\nwhile True: pass",
    "answers a byte at a time": (
        "import os, time\ndef f(x):\n    os.write(3, (10**5).to_bytes(4, 'big') + b'V')\n"
        "    while True:\n        os.write(3, b' ')\n        time.sleep(0.01)"),
}  # fmt: skip


@pytest.mark.parametrize("name", SILENT)
def test_the_fault_is_the_programs_if_it(name, sandbox, monkeypatch):
    """And not the sandbox's, which would leave it out of all rates and in the end stop the run."""
    monkeypatch.setattr(calls, "EXIT_SECONDS", 0.3)
    verdict = check_tests(
        sandbox, SILENT[name], ["assert f(2) == 4"], functions=["f"], limits=Limits(cpu_seconds=0.5)
    )
    assert (verdict.passed, verdict.status in ("runtime_error", "timeout")) == (False, True)


def test_a_program_that_does_not_end_after_its_calls_is_ended(sandbox, monkeypatch):
    monkeypatch.setattr(calls, "EXIT_SECONDS", 0.3)
    program = "import atexit, time\natexit.register(time.sleep, 99)\ndef f(x): return 2 * x"
    assert check_tests(sandbox, program, ["assert f(2) == 4"], functions=["f"]).passed
    assert sandbox.run("print(1)").stdout == "1\n"


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("Fraction(1, 2)", "0.5"), ("Fraction(1, 3)", "1 / 3"), ("Decimal(3)", "3"),
        ("Decimal('0.1')", "0.1"),
        ("Counter('aab')", "{'a': 2, 'b': 1}"), ("deque([1, 2])", "[1, 2]"), ("{2: 1}.keys()", "{2}"),
        ("[{2: 1}.keys()]", "[{2}]"), ("{2: [1]}.items()", "[(2, [1])]"), ("{2: 1}.values()", "[1]"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "shape", ["f() == {}", "sorted([f()]) == [{}]", "len(f()) == len({})", "list(f()) == {}"]
)
def test_a_value_of_the_library_passes_what_it_passes_in_plain_python(sandbox, returned, expected, shape):
    """But views of values, which arrive as iterators and have no length."""
    imports = "from collections import *\nfrom decimal import Decimal\nfrom fractions import Fraction\n"
    program, test = f"{imports}def f(): return {returned}", f"assert {shape.format(expected)}"
    try:
        exec(f"{program}\n{test}", {})
        passes = ".values()" not in returned or "len" not in shape
    except (AssertionError, TypeError):
        passes = False
    assert check_tests(sandbox, program, [test], functions=["f"]).passed == passes


NAMELESS = (
    "import ctypes, threading, time\ndef hide():\n    ctypes.CDLL(None).prctl(15, b'\\xff', 0, 0, 0)\n"
    "    time.sleep(99)\n"
)


def test_a_threads_name_that_is_no_text_is_nobodys_error(sandbox, monkeypatch):
    monkeypatch.setattr(calls, "EXIT_SECONDS", 0.3)
    program = NAMELESS + "threading.Thread(target=hide).start()\ndef f(x): return 2 * x"
    assert check_tests(sandbox, program, ["assert f(2) == 4"], functions=["f"]).passed
    assert sandbox.run(NAMELESS + "hide()", limits=Limits(cpu_seconds=0.5)).status == "timeout"


def test_a_class_that_is_named_like_a_number_is_refused_here(sandbox):
    program = "class Decimal:\n    def __str__(self): return '1/2'\ndef f(): return Decimal()"
    with sandbox.load(program) as loaded:
        assert loaded.call("f").status == "runtime_error"
