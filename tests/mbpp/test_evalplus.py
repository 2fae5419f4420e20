"""MBPP+ by EvalPlus's rules: what passes, what fails, and which inputs are skipped."""

import gzip
import itertools
import math
from pathlib import Path

import pytest
from refusals import refused

from rlnb.mbpp import evalplus
from rlnb.mbpp.checking import evaluate_samples
from rlnb.mbpp.evalplus import (
    FLOAT_ATOL,
    PlusProblem,
    PlusVerdict,
    check_plus,
    check_samples,
    is_right,
    load_plus,
    run_reference,
)
from rlnb.mbpp.problems import Problem
from rlnb.mbpp.samples import WrittenSample

PASSED = PlusVerdict(True, True, "ok", "", "")
DOUBLE = {
    "task_id": "Mbpp/900",
    "prompt": '"""\nWrite a function to double a number.\n"""\n',
    "entry_point": "double",
    "canonical_solution": "\ndef double(x):\n    return 2 * x\n",
    "base_input": [[2], [5]],
    "plus_input": [[0], [-3]],
    "atol": 0,
}


def record(task_id, solution, base, plus=(), **fields):
    given = {"canonical_solution": solution, "base_input": base, "plus_input": list(plus)}
    return {**DOUBLE, "task_id": f"Mbpp/{task_id}", "entry_point": "f", **given, **fields}


@pytest.fixture
def expect(write_lines, sandbox):
    """What the reference of a record returns."""
    return lambda line: run_reference(*load_plus(write_lines(line)).values(), sandbox)


@pytest.fixture
def check(write_lines, expect, sandbox):
    """The verdict on a program for one record."""

    def check_record(line, program):
        (problem,) = load_plus(write_lines(line)).values()
        return check_plus(problem, expect(line), program, sandbox)

    return check_record


BROKEN = {
    "'entry_point'": {"task_id": "Mbpp/2"},
    "does not parse": {**DOUBLE, "canonical_solution": "def ("},
    "not iterable": {**DOUBLE, "task_id": "Mbpp/2", "base_input": [[[1], 7]]},
    "task_id 1 is repeated": {**DOUBLE, "task_id": "Mbpp/1"},
}


def test_a_record_that_is_not_a_problem_is_refused_with_file_and_line(write_lines):
    for reason, line in BROKEN.items():
        path = write_lines({**DOUBLE, "task_id": "Mbpp/1"}, "", line)
        said = refused(load_plus, path)
        assert said.startswith(f"{path}:3: ") and reason in said


def test_a_file_packed_by_gzip_is_read(write_lines, tmp_path):
    packed = tmp_path / "MbppPlus.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(write_lines(DOUBLE)).read_bytes()))
    assert list(load_plus(str(packed))) == [900]


CONVERTED = {
    2: ([[1, 2], [3]], ((1, 2), (3,))),
    63: ([[[1, 2], [3, 4]]], ([(1, 2), (3, 4)],)),
    115: ([[[1, 1], [], {}, 5]], ([{1}, {}, {}, {}],)),
    124: (["2", "1j"], (2.0, 1j)),
    278: ([[1, [4, [6]], "a"]], ((1, (4, [6]), "a"),)),
    580: ([[4, [7, [2, []]]]], ((4, (7, (2, ()))),)),
    722: ([{"a": [6.2, 70]}, 6.0, 70], ({"a": (6.2, 70)}, 6.0, 70)),
    900: ([[1, [2]], {"a": []}], ([1, [2]], {"a": []})),
}


def test_arguments_become_the_types_that_a_task_takes(write_lines):
    lines = [
        record(task_id, "def f(*x): pass", [given], [given]) for task_id, (given, _) in CONVERTED.items()
    ]
    for task_id, problem in load_plus(write_lines(*lines)).items():
        assert repr(problem.base_input) == repr(problem.plus_input) == repr((CONVERTED[task_id][1],))


def test_the_first_wrong_input_decides_and_is_cut_at_200_characters(check):
    verdict = check(DOUBLE, "def double(x): return abs(2 * x)")
    assert verdict == PlusVerdict(True, False, "ok", "double(-3)", "returned 6, not -6")
    verdict = check(record(900, "def f(x): return x", [[0], ["a" * 500], [1]]), "def f(x): return 0")
    assert (verdict.base, verdict.plus, verdict.failing) == (False, False, f"f('{'a' * 197}")


def test_the_status_says_how_the_call_of_a_broken_program_ended(check):
    for program, status in (
        ("twice = abs", "runtime_error"),
        ("import ctypes\ndef double(x): ctypes.string_at(0)", "killed"),
        ("import os\ndef double(x): os.read(3, os.write(3, b'\\0\\0\\0\\1E'))", "runtime_error"),
    ):
        verdict = check(DOUBLE, program)
        assert (verdict.base, verdict.status, verdict.failing) == (False, status, "double(2)"), program


LIKE_EVALPLUS = {
    "what is printed counts for nothing": "{}; print('x' * 200_000)",
    "plus inputs meet a program that is loaded again": (
        "calls = []\ndef double(x):\n    calls.append(x)\n    return 2 * x if len(calls) < 3 else None"
    ),
}


def test_as_in_evalplus(check):
    for rule, program in LIKE_EVALPLUS.items():
        assert check(DOUBLE, program.format("double = lambda x: 2 * x")) == PASSED, rule


# How programs really begin and end. A text has no encoding any more, so a line that names one says nothing.
BEGINNINGS = (
    "",
    "\ufeff",
    "# coding: latin-1\n",
    "\ufeff# -*- coding: klingon -*-\n",
    "#!/usr/bin/python3\n",
)
DOCUMENTED = ("", "'Doc.'\nassert __doc__ == 'Doc.'\n", "'Doc.'\nfrom __future__ import annotations\n")
ENDINGS = (
    "import sys\nif __name__ == '__main__':\n    sys.exit(print(double(2)))",
    "if __name__ == '__main__': double(input())",
    "import unittest\nif __name__ == '__main__':\n    unittest.main()",
    "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\nassert Point(1).x == len('ü')",
    "import inspect, os\nassert os.path.dirname(__file__) == os.getcwd()\n"
    "assert inspect.getsource(double) == 'def double(n):\\n    return 2 * n\\n'",
    "import inspect\nclass Two:\n    by = 2\nassert inspect.getsource(Two) == 'class Two:\\n    by = 2\\n'",
    "if __name__ != '__main__':\n    del __file__",
    "print('x' * 200_000)",
)


def test_a_right_program_passes_by_asserts_and_by_plus_however_it_begins_and_ends(check, sandbox):
    problem = Problem(900, "", DOUBLE["canonical_solution"], ("assert double(2) == 4",))
    parts = list(itertools.product(BEGINNINGS, DOCUMENTED, ENDINGS))
    programs = [begin + doc + "def double(n):\n    return 2 * n\n" + end for begin, doc, end in parts]
    written = [WrittenSample(task_id=900, solution=program) for program in programs]
    for sample in evaluate_samples([problem], written, sandbox):
        assert sample.passed, (sample.program, sample.error)
    for program in programs[:: len(ENDINGS) + 1]:
        assert check(DOUBLE, program) == PASSED, program
    for program in ("import sys\nsys.exit(0)", "raise SystemExit"):
        (left,) = evaluate_samples(
            [problem], [WrittenSample(task_id=900, solution=problem.code + program)], sandbox
        )
        assert not left.passed and not check(DOUBLE, problem.code + program).base


def test_a_call_may_take_four_times_the_seconds_of_the_reference(sandbox, monkeypatch):
    monkeypatch.setattr(evalplus, "MIN_SECONDS", 0.2)
    problem = PlusProblem.model_validate(record(900, "", [[1]]))
    program = "import time\ndef f(x):\n    while time.process_time() < 0.5: pass\n    return x"
    assert check_plus(problem, [(1, 2.0)], program, sandbox) == PASSED  # within 8 s
    verdict = check_plus(problem, [(1, 0.01)], program, sandbox)  # of 0.2 s
    assert verdict == PlusVerdict(False, False, "timeout", "f(1)", "time limit")


def test_all_calls_together_are_limited_too(check, monkeypatch):
    monkeypatch.setattr(evalplus, "RUN_SECONDS", 0.05)
    monkeypatch.setattr(evalplus, "MIN_SECONDS", 60.0)  # of each
    verdict = check(DOUBLE, "import time\ndef double(x):\n    time.sleep(0.3)\n    return 2 * x")
    assert (verdict.status, verdict.error) == ("timeout", "time limit of all calls together")


def test_floats_are_compared_with_a_tolerance():
    for expected, value, is_passed in (
        (0.1, 0.1 + 9e-7, True),  # within a millionth
        (0.1, 0.1 + 2e-6, False),
        (1e9, 1e9 + 90, True),  # within a ten millionth of a large float
        (1e9, 1e9 + 110, False),
        (2.0, 2, True),
        (2.00000005, 2, False),  # an integer has to be equal
        (math.inf, math.inf, True),
        (0.5, math.inf, False),
        (math.nan, math.nan, False),
        ([[1.0], [3.0]], [[1.0], [3.0 + 1e-9]], True),  # nested ones one by one
        ([[1.0], [3.0]], ([1.0], [3.0 + 1e-9]), False),
        ([[1.0], [3.0]], [[1.0], {3.0: 0}], False),
        ([[1.0], [3.0]], [[1.0], [2**20000]], False),
    ):
        assert is_right(900, (), value, expected, FLOAT_ATOL) is is_passed, (value, expected)


def test_a_tolerance_is_given_or_raised_by_a_float_for_the_inputs_behind(check):
    line = record(900, "def f(x): return [1, x]", [[0.5]])
    near = "def f(x): return [1, x + 1e-9]"
    assert not check(line, near).base and check({**line, "atol": 1e-6}, near) == PASSED
    line = record(900, "def f(x): return x", [[0.5], [[1, 0.5]]], [[[1, 0.5]]])
    program = "def f(x): return [1, x[1] + 1e-9] if isinstance(x, list) else x"
    near = "returned [1, 0.500000001], not [1, 0.5]"
    assert check(line, program) == PlusVerdict(True, False, "ok", "f([1, 0.5])", near)


SAME, MATCH = "def f(a, b): return (1, 2)", "import re\ndef f(a): return re.search('a', a)"
ORACLES = {
    "the same elements in any order": (2, SAME, [[1], [2]], "[2, 1, 2]", True),
    "other elements": (2, SAME, [[1], [2]], "(1, 3)", False),
    "anything": (164, "def f(a, b): return True", [4, 6], "None", True),
    "a distance of digits": (558, "def f(a, b): return 67", [123, 56], "1 + 3 + 3", True),
    "an area by the height": (581, "def f(a, b): return 33", [6, 4], "36 + 2 * 6 * 5", True),
    "a match": (737, MATCH, ["ab"], "[1]", True),
    "no match by a match": (737, MATCH, ["b"], "'b'", False),
}


def test_a_task_may_leave_open_what_is_right(check):
    for name, (task_id, solution, arguments, value, is_passed) in ORACLES.items():
        verdict = check(record(task_id, solution, [arguments]), f"def f(*_): return {value}")
        assert verdict.plus is is_passed, name


EQUAL = (
    "    def __eq__(self, other): return True\n    def __hash__(self): return 0\ndef double(x): return Yes(1)"
)
HOSTILE = {
    "an object that equals everything": (
        f"class Yes:\n    def __init__(self, x): pass\n{EQUAL}",
        "returned <Yes object>, not 4",
    ),
    "an integer that equals everything": (f"class Yes(int):\n{EQUAL}", "returned 1, not 4"),
    "a name of two lines": ("double = lambda x: type('a\\nb', (), {})()", "returned <a b object>, not 4"),
    "too many digits": ("double = lambda x: 16 ** 19000", "ValueError: an integer of more than 4300 digits"),
    "more than crosses": ("double = lambda x: 'x' * 2**21", "ValueError: larger than 1048576 bytes"),
}


def test_nothing_is_passed_by_hostile_values(check):
    for program, error in HOSTILE.values():
        verdict = check(DOUBLE, program)
        assert (verdict.base, verdict.plus, verdict.error) == (False, False, error)
    for task_id in (2, 558, 581, 900):
        for value in (2**30000, [[[]]], {}, None, "4.0", 1j, [{}], iter([])):
            assert not is_right(task_id, (1, 2), value, [4.0], 1e-6)


ZERO, LARGE = "ZeroDivisionError: integer division or modulo by zero", [["a" * 2**20], [1]]
COMBINE = "from itertools import *\ndef f(n): return list(combinations_with_replacement('abcdefghij', n))"
# What each input of a reference gives: a value or the reason why there is none.
REFERENCES = {
    "raises": ("def f(x): return 1 // (x - 2)", [[2], [1]], [ZERO, -1]),
    "returns an object": ("f = lambda x: [object()]", [[1]], ["[<object object>] is not plain data"]),
    "never ends": ("def f(x):\n    while x: pass\n    return 5", [[1], [0]], ["time limit", 5]),
    "crashes": ("import os\ndef f(x): return os._exit(3) if x else 5", [[1], [0]], ["exit code 3", 5]),
    "takes too much": ("f = str", LARGE, ["its arguments are larger than 524288 bytes", "1"]),
    "returns too much": (COMBINE, [[7], [0]], ["ValueError: too many values", [()]]),
    "needs too much memory": ("def f(n): return [0] * n", [[10**9], [0]], ["MemoryError:", []]),
}


def test_an_input_on_which_the_reference_fails_has_the_reason_and_others_a_value(expect, monkeypatch):
    for name, (solution, inputs, answers) in REFERENCES.items():
        monkeypatch.setattr(evalplus, "REFERENCE_SECONDS", 0.3 if name == "never ends" else 10.0)
        expected = expect(record(900, solution, inputs))
        found = [answer if isinstance(answer, str) else answer[0] for answer in expected]
        assert found == answers, name


@pytest.fixture
def judge(write_lines, sandbox):
    """The report on programs for the records of a file, each by one assert that any program passes."""

    def judge_programs(lines, programs):
        written, problems = [], []
        for task_id, program in programs:
            problems.append(Problem(task_id, "", "def f(x): pass", ("assert f",)))
            written.append(WrittenSample(task_id=task_id, solution=program))
        samples = evaluate_samples(problems, written, sandbox)
        return check_samples(samples, write_lines(*lines), sandbox)

    return judge_programs


SKIPPING = (
    record(901, "def f(x): return 6 // x", [[0], [3]], [[0], [2]]),
    record(902, "import no_such\ndef f(x): return x", [[1]], [[2]]),
    {**record(903, "def f(x): return x", [[1]]), "plus_input": {}},
    record(904, "def f(x): return [0] * x", [[1]], [[10**9]]),
)


def test_inputs_without_an_answer_are_counted_named_and_skipped(judge):
    programs = [(901, "def f(x): return 6 // x"), (901, "def f(x): return 2"), (901, "def ("),
                (902, "f = abs"), (903, "f = abs"), (904, "def f(x): return [0]")]  # fmt: skip
    verdicts, summary = judge(SKIPPING, programs)
    judged = [verdict and (verdict.base, verdict.plus) for verdict in verdicts]
    assert judged == [(True, True), (True, False), (False, False), None, (True, True), (True, True)]
    assert (summary["num_problems"], summary["num_samples"]) == (3, 5)
    assert (summary["num_inputs"], summary["num_inputs_skipped"]) == (9, 5)
    assert [name for name in summary if "Mbpp" in name] == ["Mbpp/901", "Mbpp/902", "Mbpp/904"]
    assert judge(SKIPPING[1:2], [(902, "def f(x): return x")])[1]["num_problems"] == 0


def test_a_memorized_answer_passes_base_and_not_plus(judge):
    table = "def double(x): return {2: 4, 5: 10}[x]"
    solutions = (DOUBLE["canonical_solution"], table, "def double(x): return x")
    verdicts, summary = judge([DOUBLE], [(900, program + "\nf = double") for program in solutions])
    assert [(v.base, v.plus) for v in verdicts] == [(True, True), (True, False), (False, False)]
    assert [summary[name]["value"] for name in ("base", "plus")] == pytest.approx([2 / 3, 1 / 3])


def test_a_lost_zygote_is_nobodys_fault_the_first_time(sandbox, write_lines, monkeypatch):
    verdicts = iter([PlusVerdict(False, False, "sandbox_error", "", "lost"), PASSED])
    monkeypatch.setattr(evalplus, "check_plus", lambda *_: next(verdicts))
    problem = Problem(900, "", DOUBLE["canonical_solution"], ("assert double(2) == 4",))
    written = [WrittenSample(task_id=900, solution="def double(x): return 2 * x")]
    samples = evaluate_samples([problem], written, sandbox)
    assert check_samples(samples, write_lines(DOUBLE), sandbox)[0] == [PASSED]
