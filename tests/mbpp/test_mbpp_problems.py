"""MBPP's problems: read from each form they come in, split as published, asked in each form."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hub_server import write_mbpp
from refusals import refused
from waiting import run_python

from rlnb.json_records import read_records
from rlnb.mbpp.problems import FILES, SPLITS, Problem, ProblemSet, find_fault, interface, load_mbpp
from rlnb.mbpp.prompts import TEMPLATES, build_question, is_complete, read_program
from rlnb.params.model_cache import MBPP_REVISION

RECORD = {
    "task_id": 11,
    "text": "Write a function to double a number.",
    "code": "import math\r\ndef double(n):\r\n    return 2 * n",
    "test_list": ["assert double(2) == 4", "assert double(3) == 6", "assert double(0) == 0"],
    "test_setup_code": "",
}
DOUBLE = Problem(11, RECORD["text"], "def double(n):\n    return 2 * n", tuple(RECORD["test_list"]))


def test_a_record_becomes_a_problem_and_a_folder_holds_the_file_of_each_subset(write_lines, tmp_path):
    path = write_lines(RECORD)
    data = load_mbpp(path=path)
    assert data.sha256 == hashlib.sha256(Path(path).read_bytes()).hexdigest()
    assert data.problems[11].code == "import math\ndef double(n):\n    return 2 * n"
    assert data.problems[11].tests == tuple(RECORD["test_list"])
    record = {
        "task_id": 12, "prompt": "Double it.", "code": "def f(n): return n", "test_imports": ["import math"],
        "test_list": ["assert f(1) == 1"],
    }  # fmt: skip
    (tmp_path / "sanitized-mbpp.json").write_text(json.dumps([record]))
    assert list(load_mbpp(path=str(tmp_path)).problems) == [11]
    sanitized = load_mbpp(path=str(tmp_path), subset="sanitized").problems
    assert (sanitized[12].text, sanitized[12].imports) == ("Double it.", ("import math",))


def test_a_record_that_is_not_a_problem_is_named_with_its_line(write_lines):
    for field, value in (("task_id", "eleven"), ("task_id", 1.5), ("task_id", True), ("task_id", "11"),
                         ("test_list", []), ("test_list", ["f(1)"]), ("code", "def f(:")):  # fmt: skip
        path = write_lines(RECORD, {**RECORD, "task_id": 12, field: value})
        assert refused(load_mbpp, path=path).startswith(f"{path}:2: "), field


@pytest.mark.parametrize("task_id", ["Mbpp/11", "mbpp/11", "11", "011", 11.0, "11.0"])
def test_an_id_is_read_as_the_tools_write_it(write_lines, task_id):
    assert list(load_mbpp(path=write_lines({**RECORD, "task_id": task_id})).problems) == [11]


def test_the_builtin_problems_are_50_of_which_40_are_for_testing():
    data = load_mbpp("builtin")
    assert [len(data.split(name)) for name in (*SPLITS, "all")] == [10, 40, 0, 0, 50]
    assert {len(problem.tests) for problem in data.problems.values()} == {3}


def test_mbpp_has_the_published_splits(whole_mbpp_folder):
    for subset, sizes in (("full", [10, 500, 90, 374]), ("sanitized", [7, 257, 43, 120])):
        assert [len(load_mbpp(path=whole_mbpp_folder, subset=subset).split(name)) for name in SPLITS] == sizes


@pytest.mark.parametrize("subset", FILES)
def test_the_hubs_problems_are_those_published_or_refused(whole_mbpp_folder, tmp_path, subset):
    records = [record for _, record in read_records(Path(whole_mbpp_folder, FILES[subset]))]
    snapshots = "datasets--google-research-datasets--mbpp/snapshots"
    write_mbpp(tmp_path / "right" / snapshots / MBPP_REVISION / subset, records)
    data = load_mbpp(subset=subset, cache_dir=tmp_path / "right")
    assert data.problems == load_mbpp(path=whole_mbpp_folder, subset=subset).problems
    for name, changed in {
        "a test": {**records[-1], "test_list": [*records[-1]["test_list"], "assert True"]},
        "a solution": {**records[-1], "code": records[-1]["code"] + "\n"},
        "an id": {**records[-1], "task_id": records[-1]["task_id"] - 1},
        "a text": {**records[-1], "test_list": ["no program ("]},
    }.items():
        write_mbpp(tmp_path / name / snapshots / MBPP_REVISION / subset, [*records[:-1], changed])
        said = refused(load_mbpp, subset=subset, cache_dir=tmp_path / name)
        assert said.count("\n") == 0 and "mbpp.path" in said, name


def test_the_interface_is_what_tests_use_of_the_reference():
    problem = Problem(
        1, "", "import sys, re\nimport gc\nLIMIT = 3\nOTHER = 4\ndef helper(): pass\ndef f(n): return n",
        ("assert f(LIMIT) == 3", "assert re.search(str(tree), str(f(1)))"), setup="tree = [1]",
        imports=("import math",),
    )  # fmt: skip
    assert interface(problem) == (("f",), ("LIMIT", "tree"), "import math\nimport re")


def test_without_a_solution_the_names_come_from_the_asserts(write_lines):
    tests = (
        "assert set(f([n for n in LIMITS], key=lambda a: a)) == {math.pi}",
        "try: sum_of(1)\nexcept ValueError as e: assert re.search(str(e), tree)",
    )
    for code in ({}, {"code": None}, {"code": ""}):
        record = {"task_id": 1, "text": "", "test_list": tests, "test_imports": ["import re"], **code}
        problem = load_mbpp(path=write_lines(record)).problems[1]
        assert interface(problem) == (("f", "sum_of"), ("LIMITS", "tree"), "import re\nimport math")
    assert "task_id 2, 3, 4" in refused(
        build_question, problem, TEMPLATES["paper"], dict.fromkeys((2, 3, 4), problem)
    )


WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = None
from rlnb.mbpp.problems import Problem, find_fault
tests = ("assert pytest.approx(f(1)) == 1",)
print(find_fault(Problem(1, "", "def f(n): return n", tests, imports=("import pytest",))))
"""


def test_a_problem_that_imports_what_is_not_installed_has_a_fault():
    told = run_python(WITHOUT_PYTEST, check=True).stdout
    assert told.startswith("import pytest: import pytest is not on the list")


def test_mbpps_asserts_name_what_its_solutions_define_and_say_what_a_test_may(whole_mbpp_folder):
    for subset in FILES:
        for problem in load_mbpp(path=whole_mbpp_folder, subset=subset).problems.values():
            assert interface(replace(problem, code=""))[:2] == interface(problem)[:2], problem.task_id
            assert find_fault(problem) == ""


SHOTS = {
    number: Problem(number, f"Task {number}.", f"def f{number}(): pass", ("assert True",))
    for number in (2, 3, 4)
}


def test_the_papers_question_has_three_solved_examples_or_is_refused():
    text = build_question(DOUBLE, TEMPLATES["paper"], SHOTS)
    assert text.startswith(
        "You are an expert Python programmer, and here is your task: Task 2. "
        "Your code should pass these tests:\n\nassert True\n[BEGIN]\ndef f2(): pass\n[DONE]\n\nYou are"
    )
    assert text.endswith("assert double(2) == 4\nassert double(3) == 6\nassert double(0) == 0\n[BEGIN]\n")
    assert text.count("[DONE]") == 3
    assert "task_id 3, 4," in refused(build_question, DOUBLE, TEMPLATES["paper"], {2: SHOTS[2]})


def test_the_other_questions_show_one_assert():
    for name in ("docstring", "chat"):
        text = build_question(DOUBLE, TEMPLATES[name], {})
        assert RECORD["text"] in text and DOUBLE.code not in text
        assert [test in text for test in DOUBLE.tests] == [True, False, False]


@pytest.mark.parametrize(
    ("name", "completion", "program"),
    [
        ("paper", "def f(): pass\n[DONE]\n\nYou are", "def f(): pass\n"),
        ("paper", "Here it is:\n```python\ndef f(): pass\n[DONE]\n```\nYou", "def f(): pass\n"),
        ("docstring", "Here it is:\n\n```python\ndef f(): pass\n```\nIt", "def f(): pass\n"),
        ("docstring", "def f():\n    return 1\n\nprint(f())", "def f():\n    return 1\n"),
        ("docstring", "def f():\n    assert 1\nassert f()", "def f():\n    assert 1\n"),
        ("docstring", "\n# nothing\n", None),
        ("chat", "Sure:\n```python\nx = 1\n```\nand\n```python\nx = 2\n```", "x = 1\n"),
    ],
)
def test_a_program_ends_where_the_template_says(name, completion, program):
    assert read_program(completion, TEMPLATES[name]) == program


@pytest.mark.parametrize(
    ("name", "open_answer", "rest"),
    [
        ("paper", "x = 1\n", "[DONE]"),
        ("docstring", "x = 1\n", "class"),
        ("chat", "```\nan example\n```\n```python\n# to do\n```\n```python\nx = 1\n", "```"),
    ],
)
def test_an_answer_is_complete_once_nothing_behind_it_counts(name, open_answer, rest):
    template, answer = TEMPLATES[name], open_answer + rest
    assert not is_complete(open_answer, template) and is_complete(answer, template)
    behind = "\n```python\nx = 3\n```\nassert x\n[DONE]\n"
    assert read_program(answer + behind, template) == read_program(answer, template)


def test_all_means_every_id():
    problem = replace(DOUBLE, task_id=2**40)
    assert ProblemSet({2**40: problem}, "", "").split("all") == [problem]
