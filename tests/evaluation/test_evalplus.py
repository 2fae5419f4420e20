"""MBPP+ by EvalPlus's rules: what passes, what fails, and what the references' answers are kept in."""

import json
import math
from hashlib import sha256

import pytest

from rlnb.errors import ParamsError
from rlnb.evaluation import evalplus
from rlnb.evaluation.evalplus import (
    CONVERSIONS,
    Expected,
    PlusProblem,
    PlusVerdict,
    check_plus,
    expected_outputs,
    is_right,
    load_plus,
)
from rlnb.sandbox import Limits, Sandbox

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


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(num_workers=2) as opened:
        yield opened


@pytest.fixture
def write(tmp_path):
    def write_lines(*records):
        path = tmp_path / "plus.jsonl"
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in records))
        return str(path)

    return write_lines


def record(task_id, solution, base, plus=(), **fields):
    name = solution.partition("def ")[2].partition("(")[0]
    texts = {"task_id": f"Mbpp/{task_id}", "entry_point": name, "canonical_solution": solution}
    return {**DOUBLE, **texts, "base_input": base, "plus_input": list(plus), **fields}


@pytest.fixture
def check(write, sandbox, tmp_path):
    """The verdict on a program for one record, with the reference's answers from the sandbox."""

    def check_one(line, program):
        path = write(line)
        ((task_id, problem),) = load_plus(path).items()
        expected = expected_outputs({task_id: problem}, sandbox, data_path=path, cache_dir=tmp_path / "cache")
        return check_plus(problem, expected[task_id], program, sandbox)

    return check_one


def test_a_line_becomes_a_problem(write):
    assert load_plus(write(DOUBLE)) == {
        900: PlusProblem(
            task_id=900,
            entry_point="double",
            solution='"""\nWrite a function to double a number.\n"""\n\ndef double(x):\n    return 2 * x\n',
            base_inputs=((2,), (5,)),
            plus_inputs=((0,), (-3,)),
            atol=0.0,
        )
    }


def message_of(path):
    with pytest.raises(ParamsError) as raised:
        load_plus(path)
    return str(raised.value)


BROKEN = {
    "is no JSON": (
        "{",
        "not JSON (Expecting property name enclosed in double quotes); write one problem a line",
    ),
    "is no object": (5, "no problem: a record is an object with named fields"),
    "lacks a field": ({"task_id": "Mbpp/2"}, "no problem: the field 'atol' is missing"),
    "has a bare number": ({**DOUBLE, "task_id": 2}, "no problem: task_id = 2 is no text"),
    "is of HumanEval": (
        {**DOUBLE, "task_id": "HumanEval/2"},
        "no problem: task_id = 'HumanEval/2' is no 'Mbpp/' and a number",
    ),
    "has a negative tolerance": (
        {**DOUBLE, "atol": -1},
        "no problem: atol = -1 is no tolerance; write 0 or a small number",
    ),
    "has code that is none": (
        {**DOUBLE, "canonical_solution": "def ("},
        "no problem: its code does not parse",
    ),
    "asks for nothing": (
        {**DOUBLE, "base_input": []},
        "no problem: base_input is empty; write the arguments of at least one call",
    ),
    "has inputs without a list": (
        {**DOUBLE, "plus_input": [[1], 2]},
        "no problem: plus_input[1] is no input of task 900: it = 2 is no list",
    ),
    "has an input that its task cannot take": (
        {**DOUBLE, "task_id": "Mbpp/2", "base_input": [[[1], 7]]},
        "no problem: base_input[0] is no input of task 2: 'int' object is not iterable",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_refused_with_file_and_line_is_a_record_that(name, write):
    line, message = BROKEN[name]
    path = write({**DOUBLE, "task_id": "Mbpp/1"}, "", line)
    assert message_of(path) == f"{path}:3: {message}"


def test_a_task_stands_in_a_file_once(write):
    path = write(DOUBLE, DOUBLE)
    assert message_of(path) == f"{path}:2: task_id 900 stands there twice; give each its own"


CONVERTED = {
    2: ([[1, 2], [3]], ((1, 2), (3,))),
    63: ([[[1, 2], [3, 4]]], ([(1, 2), (3, 4)],)),
    75: ([[[1, 2]], 3], ([(1, 2)], 3)),
    106: ([[1], [2]], ([1], (2,))),
    115: ([[[1, 1], [], {}, 5]], ([{1}, {}, {}, {}],)),
    124: (["2", "1j"], (2.0, 1j)),
    250: ([[1, 2], 3], ((1, 2), 3)),
    252: (["(5+1j)"], (5 + 1j,)),
    259: ([[[1, 3]], [[6, 7]]], (((1, 3),), ((6, 7),))),
    278: ([[1, [4, [6]], "a"]], ((1, (4, [6]), "a"),)),
    307: ([["a", 5, []], 2, [50]], (("a", 5, []), 2, [50])),
    580: ([[4, [7, [2, []]]]], ((4, (7, (2, ()))),)),
    722: ([{"a": [6.2, 70]}, 6.0, 70], ({"a": (6.2, 70)}, 6.0, 70)),
    900: ([[1, [2]], {"a": []}], ([1, [2]], {"a": []})),
}


@pytest.mark.parametrize("task_id", CONVERTED)
def test_arguments_are_what_the_function_takes_in_task(task_id, write):
    given, converted = CONVERTED[task_id]
    line = record(task_id, "def f(*x): pass", [given], [given])
    problem = load_plus(write(line))[task_id]
    assert repr(problem.base_inputs) == repr(problem.plus_inputs) == repr((converted,))


def test_each_task_is_converted_in_one_way():
    assert len(CONVERSIONS) == 22 + 15 + 4 + 2 + 8 + 3 + 3 + 5  # as many as EvalPlus names


def test_a_right_program_passes_base_and_plus(check):
    assert check(DOUBLE, "def double(x): return x + x") == PASSED


def test_a_program_that_is_right_on_the_base_inputs_only(check):
    verdict = check(DOUBLE, "def double(x): return abs(2 * x)")
    assert verdict == PlusVerdict(True, False, "ok", "double(-3)", "returned 6, not -6")


def test_the_first_wrong_input_decides(check):
    verdict = check(DOUBLE, "def double(x): return 4 if x == 2 else 'no'")
    assert verdict == PlusVerdict(False, False, "ok", "double(5)", "returned 'no', not 10")


def test_the_failing_input_is_cut_at_200_characters(check):
    line = record(900, "def f(x): return x", [["a" * 500]])
    assert check(line, "def f(x): return 1").failing == f"f('{'a' * 197}"


FAULTS = {
    "raises": (
        "def double(x): raise KeyError('one\\ntwo')",
        ("runtime_error", "double(2)", "KeyError: 'one\\ntwo'"),
    ),
    "raises in two lines": (
        "def double(x): raise ValueError('one\\ntwo')",
        ("runtime_error", "double(2)", "ValueError: one two"),
    ),
    "has another name": ("def twice(x): return 2 * x", ("runtime_error", "double(2)", "KeyError: 'double'")),
    "leaves at import": ("import os; os._exit(0)", ("runtime_error", "double(2)", "it has ended")),
    "crashes": (
        "import ctypes\ndef double(x): ctypes.string_at(0)",
        ("killed", "double(2)", "signal 11"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_status_says_how_the_call_ended_of_a_program_that(name, check):
    program, (status, failing, error) = FAULTS[name]
    assert check(DOUBLE, program) == PlusVerdict(False, False, status, failing, error)


def test_a_program_that_does_not_parse_passes_nothing(check):
    verdict = check(DOUBLE, "def (")
    assert (verdict.base, verdict.plus, verdict.status) == (False, False, "syntax_error")


def test_an_error_without_words_is_an_error(check):
    forged = "import os\ndef double(x):\n    os.write(3, b'\\0\\0\\0\\1E')\n    return 2 * x"
    verdict = check(DOUBLE, forged)
    assert (verdict.base, verdict.plus, verdict.status) == (False, False, "runtime_error")


def test_what_is_guarded_for_a_script_does_not_run(check):
    guarded = "def double(x): return 2 * x\nif __name__ == '__main__': double(input())"
    assert check(DOUBLE, guarded) == PASSED
    assert check(DOUBLE, "from __future__ import annotations\ndef double(x: y): return 2 * x") == PASSED


def test_what_is_printed_counts_for_nothing(check):
    assert check(DOUBLE, "def double(x):\n    print('x' * 200_000)\n    return 2 * x") == PASSED


def test_plus_inputs_meet_a_program_loaded_anew(check):
    program = "calls = []\ndef double(x):\n    calls.append(x)\n    return 2 * x if len(calls) < 3 else None"
    assert check(DOUBLE, program) == PASSED


def test_a_program_cannot_spoil_the_inputs_of_later_calls(check):
    line = record(900, "def f(x): return sum(x)", [[[1, 2]], [[1, 2]]])
    assert check(line, "def f(x):\n    s = sum(x)\n    x.clear()\n    return s") == PASSED


def spin(seconds):
    return (
        f"import time\n    end = time.process_time() + {seconds}\n    while time.process_time() < end: pass"
    )


def test_a_call_may_take_four_times_the_seconds_of_the_reference(sandbox, monkeypatch):
    monkeypatch.setattr(evalplus, "MIN_SECONDS", 0.2)
    problem = PlusProblem(900, "f", "", ((1,),), (), 0.0)
    program = f"def f(x):\n    {spin(0.4)}\n    return x"
    slow, fast = Expected(((1, 0.25),), ()), Expected(((1, 0.01),), ())  # 1 s and 0.2 s
    assert check_plus(problem, slow, program, sandbox) == PASSED
    assert check_plus(problem, fast, program, sandbox) == PlusVerdict(
        False, False, "timeout", "f(1)", "time limit"
    )


def test_a_program_that_never_returns_has_a_second(check):
    assert check(DOUBLE, "def double(x):\n    while x: pass\n    return 0").status == "timeout"


def test_all_calls_together_are_limited_too(check, monkeypatch):
    monkeypatch.setattr(evalplus, "RUN_SECONDS", 0.3)
    verdict = check(DOUBLE, f"def double(x):\n    {spin(0.2)}\n    return 2 * x")
    assert verdict == PlusVerdict(False, False, "timeout", "double(5)", "time limit of all calls together")


HALF = "def half(x):\n    return x / 2"
TOLERANCES = {
    "floats within a millionth": ([[0.2]], "x / 2 + 9e-7", True),
    "floats further off": ([[0.2]], "x / 2 + 2e-6", False),
    "large floats within a ten millionth of them": ([[2e9]], "x / 2 + 90", True),
    "large floats further off": ([[2e9]], "x / 2 + 110", False),
    "an integer that equals the float": ([[4]], "x // 2", True),
    "an integer near the float": ([[4.0000001]], "2", False),
    "infinity for infinity": ([[math.inf]], "x", True),
    "infinity for a number": ([[1.0]], "float('inf')", False),
    "NaN, even where it is expected": ([[math.nan]], "x", False),
    "text": ([[1.0]], "str(x / 2)", False),
}


@pytest.mark.parametrize("name", TOLERANCES)
def test_floats_are_compared_with_a_tolerance_as_for(name, check):
    inputs, value, is_passed = TOLERANCES[name]
    assert check(record(900, HALF, inputs), f"def half(x): return {value}").base is is_passed


def test_only_floats_are_compared_with_a_tolerance_that_was_not_given(check):
    line = record(900, "def f(x): return [1, x]", [[0.5]])
    near = "def f(x): return [1, x + 1e-9]"
    assert not check(line, near).base
    assert check({**line, "atol": 1e-6}, near) == PASSED


def test_a_tolerance_once_raised_stays_for_the_inputs_behind(check):
    line = record(900, "def f(x): return x", [[0.5], [[1, 0.5]]], [[[1, 0.5]]])
    program = "def f(x): return [1, x[1] + 1e-9] if isinstance(x, list) else x"
    assert check(line, program) == PlusVerdict(
        True, False, "ok", "f([1, 0.5])", "returned [1, 0.500000001], not [1, 0.5]"
    )


NESTED = [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("value", "is_near"),
    [
        ([[1.0, 2.0], [3.0, 4.0 + 1e-9]], True),
        ([(1.0, 2.0), (3.0, 4.0 + 1e-9)], True),
        ([[1.0, 2.0], [3.0]], False),
        ([[1.0, 2.0]], False),
        ([[1.0, 2.0], {3.0: 0, 4.0: 0}], False),
        (((1.0, 2.0), (3.0, 4.0)), False),
        ([[1.0, 2.0], [3.0, "4.0"]], False),
        ([[1.0, 2.0], [3.0, 2**20000]], False),
    ],
)
def test_nested_floats_are_near_in_the_same_shape(value, is_near):
    assert is_right(900, (), value, NESTED, 1e-6) is is_near


ORACLES = {
    "the same elements in any order": (2, "def f(a, b): return (1, 2)", [[[1], [2]]], "[2, 1, 2]", True),
    "other elements": (2, "def f(a, b): return (1, 2)", [[[1], [2]]], "(1, 3)", False),
    "no elements at all": (2, "def f(a, b): return (1, 2)", [[[1], [2]]], "None", False),
    "anything": (164, "def f(a, b): return True", [[4, 6]], "None", True),
    "no proper divisors": (295, "def f(a): return 7", [[8]], "0", True),
    "other divisors": (295, "def f(a): return 7", [[8]], "8", False),
    "a distance of digits": (558, "def f(a, b): return 6", [[123, 56]], "1 + 3 + 3", True),
    "the distance of something else": (558, "def f(a, b): return 6", [[123, 56]], "8", False),
    "an area by the height": (581, "def f(a, b): return 33", [[6, 4]], "36 + 2 * 6 * 5", True),
    "another area": (581, "def f(a, b): return 33", [[6, 4]], "95", False),
    "a match": (737, "import re\ndef f(a): return re.search('a', a)", [["ab"]], "[1]", True),
    "a match by True": (737, "import re\ndef f(a): return re.search('a', a)", [["ab"]], "True", True),
    "no match by False": (737, "import re\ndef f(a): return re.search('a', a)", [["b"]], "False", True),
    "no match by a match": (737, "import re\ndef f(a): return re.search('a', a)", [["b"]], "'b'", False),
}


@pytest.mark.parametrize("name", ORACLES)
def test_where_the_task_leaves_it_open_what_counts_as_right_is(name, check):
    task_id, solution, inputs, value, is_passed = ORACLES[name]
    assert check(record(task_id, solution, inputs), f"def f(*_): return {value}").plus is is_passed


EQUAL = "    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
HOSTILE = {
    "an object that equals everything": (
        f"class Yes:\n{EQUAL}    __hash__ = object.__hash__\ndef double(x): return Yes()",
        "returned <Yes object>, not 4",
    ),
    "an integer that equals everything": (
        f"class Yes(int):\n{EQUAL}    __hash__ = int.__hash__\ndef double(x): return Yes(1)",
        "returned 1, not 4",
    ),
    "a type with a name of two lines": (
        "def double(x): return type('a\\nb', (), {})()",
        "returned <a b object>, not 4",
    ),
    "an integer of too many digits": (
        "def double(x): return 16 ** 19000",
        "returned a int of too many digits, not 4",
    ),
    "more than crosses": ("def double(x): return 'x' * 2**21", "ValueError: larger than 1048576 bytes"),
    "a list in itself": (
        "def double(x):\n    x = []\n    x.append(x)\n    return x",
        "ValueError: nested more than 60 deep",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_is_passed_by(name, check):
    program, error = HOSTILE[name]
    verdict = check(DOUBLE, program)
    assert (verdict.base, verdict.plus, verdict.error) == (False, False, error)


def test_what_cannot_be_compared_is_wrong():
    for value in (2**30000, [[[]]], {}, None, "4.0", iter([4.0]), 1j):
        assert not is_right(900, (), value, [4.0], 1e-6)
        assert not is_right(581, (6, 4), value, 4.5, 0.0)
        assert value == {} or value == [[[]]] or not is_right(2, (), value, (4.0,), 0.0) or value is None


@pytest.fixture
def expect(write, sandbox, tmp_path):
    """expected_outputs of some records, with the cache in tmp_path / "cache"."""

    def expect_all(*lines, of=None, **arguments):
        path = write(*lines)
        problems = load_plus(path)
        chosen = {task_id: problems[task_id] for task_id in of or problems}
        options = {"data_path": path, "cache_dir": tmp_path / "cache", **arguments}
        return expected_outputs(chosen, sandbox, **options)

    return expect_all


def test_references_answer_with_values_and_seconds(expect):
    expected = expect(record(900, "def f(x): return (x, {x}, 1.5)", [[1], [2]], [[3]]))[900]
    assert [value for value, _ in expected.base] == [(1, {1}, 1.5), (2, {2}, 1.5)]
    assert [value for value, _ in expected.plus] == [(3, {3}, 1.5)]
    assert all(0 < seconds < 5 for _, seconds in expected.base + expected.plus)


def test_progress_counts_the_problems(expect):
    seen = []
    lines = [record(number, "def f(x): return x", [[1]]) for number in (901, 902)]
    expect(*lines, progress=lambda *counts: seen.append(counts))
    expect(*lines, progress=lambda *counts: seen.append(counts))
    assert seen == [(1, 2), (2, 2)]  # the second time nothing was computed


def the_cache(tmp_path):
    (path,) = (tmp_path / "cache").iterdir()
    return path


def test_the_cache_is_named_by_the_data_and_decides(expect, tmp_path):
    first = expect(DOUBLE)
    path = the_cache(tmp_path)
    digest = sha256((tmp_path / "plus.jsonl").read_bytes()).hexdigest()
    assert path.name == f"mbpp_plus_{digest[:16]}.json"
    assert expect(DOUBLE) == first
    path.write_text(json.dumps({"900": [["4", 0.5], ["11", 0.5], ["0", 0.5], ['{"tuple":[6]}', 0.5]]}))
    assert expect(DOUBLE)[900] == Expected(base=((4, 0.5), (11, 0.5)), plus=((0, 0.5), ((6,), 0.5)))


DAMAGES = {
    "is cut off": '{"900": [["4", 0.',
    "is empty": "",
    "is no object": "[]",
    "lacks the task": '{"901": []}',
    "lacks an answer": '{"900": [["4", 0.5]]}',
    "has a value that is none": '{"900": [["4", 0.5], ["{}", 0.5], ["0", 0.5], ["6", 0.5]]}',
    "has seconds that are none": '{"900": [["4", 0.5], ["10", null], ["0", 0.5], ["6", 0.5]]}',
    "is nested deeply": "[" * 100_000,
}


@pytest.mark.parametrize("name", DAMAGES)
def test_computed_again_is_a_cache_that(name, expect, tmp_path):
    expect(DOUBLE)
    sound = the_cache(tmp_path)
    sound.write_text(DAMAGES[name])
    assert [value for value, _ in expect(DOUBLE)[900].base] == [4, 10]
    assert len(json.loads(sound.read_text())["900"]) == 4


def test_a_part_of_the_problems_is_served_by_the_cache_of_all(expect, tmp_path):
    lines = [record(number, f"def f(x): return {number} + x", [[1]]) for number in (901, 902)]
    expect(*lines)
    before = the_cache(tmp_path).read_text()
    assert {number: kept.base[0][0] for number, kept in expect(*lines, of=[902]).items()} == {902: 903}
    assert the_cache(tmp_path).read_text() == before


REFERENCES = {
    "raises": ("def f(x): return 1 // (x - 2)", "f(2): the canonical solution fails: ZeroDivisionError: "
               "integer division or modulo by zero; mend that line"),
    "is not there": ("def g(x): return x", "f(1): the canonical solution fails: KeyError: 'f'; mend that line"),
    "does not load": ("1 // 0", "f(1): the canonical solution fails: ZeroDivisionError: integer division or "
                      "modulo by zero; mend that line"),
    "returns an object": ("class A: pass\ndef f(x): return [A()]", "f(1): the canonical solution fails: "
                          "[<A object>] is no plain data; mend that line"),
    "takes too long": ("def f(x):\n    while True: pass", "f(1): the canonical solution fails: time limit; "
                       "mend that line"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCES)
def test_refused_with_its_input_is_a_reference_that(name, expect, tmp_path, monkeypatch):
    monkeypatch.setattr(evalplus, "RUN_SECONDS", 0.3)
    solution, message = REFERENCES[name]
    with pytest.raises(ParamsError) as raised:
        expect(record(901, "def f(x): return x", [[1]]), record(900, solution, [[1]], [[2]], entry_point="f"))
    assert str(raised.value) == f"{tmp_path / 'plus.jsonl'}: Mbpp/900: {message}"
    assert not (tmp_path / "cache").exists()  # written whole or not at all


def test_an_input_too_large_for_the_sandbox_is_named(expect, tmp_path):
    with pytest.raises(ParamsError) as raised:
        expect(record(900, "def f(x): return 1", [["a" * 2**20]]))
    assert str(raised.value) == (
        f"{tmp_path / 'plus.jsonl'}: Mbpp/900: f('{'a' * 197}: the canonical solution fails: "
        "its arguments are larger than 1048576 bytes; mend that line"
    )


def test_references_run_with_the_sandboxes_memory(write, tmp_path):
    path = write(record(900, "def f(x): return len(bytearray(2**27))", [[1]]))
    with (
        Sandbox(Limits(memory_mib=100), num_workers=1) as small,
        pytest.raises(ParamsError, match="MemoryError"),
    ):
        expected_outputs(load_plus(path), small, data_path=path, cache_dir=tmp_path)
