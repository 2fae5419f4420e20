"""Tasks from files and from MBPP; what is no task is refused with its file and line."""

import json
import os
from dataclasses import replace

import pytest
from refusals import refused
from waiting import run_python

from rlnb.code_execution.prompts import question
from rlnb.code_execution.sources import MBPP_SPLITS, literal_call, load_tasks, mbpp_tasks
from rlnb.mbpp.problems import load_mbpp
from rlnb.mbpp.prompts import chat_question

RECORD = {
    "id": "double-1",
    "family": "double",
    "function": "double",
    "parameters": "n",
    "statement": "Return twice n.",
    "tests": [{"arguments": [2], "expected": 4}, {"arguments": [5], "expected": 10}],
}


@pytest.fixture(scope="module")
def mbpp(mbpp_folder):
    return load_tasks("mbpp", mbpp_path=mbpp_folder)


def test_a_line_becomes_a_task_whose_first_test_is_the_example(write_lines):
    known = {**RECORD, "level": 2, "split": "known"}
    (task,) = load_tasks(write_lines(known, {**RECORD, "id": "other"}))["known"]
    assert (task.id, task.family, task.level) == ("double-1", "double", 2)
    assert (task.example_call, task.example.expected) == ("double(2)", 4)
    assert [(test.arguments, test.expected) for test in task.tests] == [((5,), 10)]


def test_records_without_a_split_family_or_id_are_split_by_the_seed(write_lines):
    bare = {name: RECORD[name] for name in ("function", "parameters", "statement", "tests")}
    splits = load_tasks(write_lines(*[bare] * 10))
    assert {name: len(tasks) for name, tasks in splits.items()} == {"train": 7, "known": 3, "new": 0}


def message_of(path, source=""):
    return refused(load_tasks, source or path, mbpp_path=path)


BROKEN = {
    "at least 2": {**RECORD, "tests": RECORD["tests"][:1]},
    "function = 5": {**RECORD, "function": 5},
    "does not parse": {**RECORD, "parameters": "n, n"},
    "on one line": {**RECORD, "parameters": "n): return 2 #"},
    "'double(n,\\n)'": {**RECORD, "parameters": "n,\n"},
    "'f(n): pass": {**RECORD, "function": "f(n): pass\ndef g"},
    "not finite": {**RECORD, "tests": [*RECORD["tests"], {"arguments": [float("nan")], "expected": 1}]},
    "write finite": {**RECORD, "tests": [*RECORD["tests"], {"arguments": [1], "expected": float("inf")}]},
    "split = 'dev'": {**RECORD, "split": "dev"},
    "already used": {**RECORD, "id": "good"},
}


def test_the_error_names_file_and_line_of_an_invalid_record(write_lines):
    for problem, record in BROKEN.items():
        path = write_lines({**RECORD, "id": "good"}, record)
        message = message_of(path)
        assert message.startswith(f"{path}:2: ") and problem in message, (problem, message)


MBPP_RECORD = {
    "task_id": 11,
    "text": "Return twice n.",
    "code": "def double(n):\n    return 2 * n",
    "test_list": ["assert double(2) == 4", "assert double(5) == 10"],
}


def test_a_file_without_a_task_to_train_on_is_refused(write_lines):
    for record, source in (({**RECORD, "split": "new"}, ""), (MBPP_RECORD, "mbpp")):
        path = write_lines(record)
        message = message_of(path, source)
        assert message.startswith(f"{path}: ") and "train" in message


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for source, file in (("", tmp_path), ("mbpp", tmp_path / "mbpp.jsonl")):
        assert message_of(str(tmp_path), source).startswith(f"{file}: ")


def test_a_file_may_be_a_list_and_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps([RECORD]), encoding="utf-8-sig")
    assert [task.id for task in load_tasks(str(path))["train"]] == ["double-1"]


def test_mbpp_is_split_as_published(mbpp):
    assert {name: len(tasks) for name, tasks in mbpp.items()} == {"train": 371, "known": 88, "new": 498}
    for name, tasks in mbpp.items():
        assert all(int(task.id.removeprefix("mbpp-")) in MBPP_SPLITS[name] for task in tasks)


def test_an_mbpp_task_shows_its_first_assert_and_keeps_the_others(mbpp):
    task = next(task for task in mbpp["new"] if task.id == "mbpp-11")
    assert (task.function, task.parameters) == ("remove_Occ", "s, ch")
    assert (task.example_call, task.example.expected) == ("remove_Occ('hello', 'l')", "heo")
    assert [test.expected for test in task.tests] == ["bcd", "H"]


@pytest.mark.parametrize("code", ["f = lambda n: 2 * n", "class f(int):\n    pass", ""])
def test_a_solution_that_defines_its_function_in_another_way_leaves_its_parameters_unnamed(code, write_lines):
    tests = ["assert f(1) == 2", "assert f(2) == 4"]
    path = write_lines({"task_id": 601, "text": "It.", "code": code, "test_list": tests})
    ((task,), *_) = load_tasks("mbpp", mbpp_path=path).values()
    assert task.parameters == "arg0"


def test_a_head_asks_for_no_import(write_lines):
    code = "from typing import List\ndef f(xs: List[int], k: int = 2) -> int: return k"
    tests = ["assert f([1]) == 2", "assert f([1], 3) == 3"]
    path = write_lines({"task_id": 601, "text": "It.", "code": code, "test_list": tests})
    ((task,), *_) = load_tasks("mbpp", mbpp_path=path).values()
    assert task.parameters == "xs, k=2"
    path = write_lines({**RECORD, "parameters": "n: List[int] = 3"})
    assert load_tasks(path)["train"][0].parameters == "n=3"


def test_a_test_of_two_asserts_is_not_half_a_test():
    assert literal_call("assert f(2) == 4\nassert f(3) == 9") is None


def test_without_a_printed_example_mbpp_is_asked_as_mbpp_eval_asks(mbpp_folder):
    problems = load_mbpp(path=mbpp_folder).problems
    for task_id, task in mbpp_tasks(problems.values()).items():
        words, mine = chat_question(problems[task_id].text, ""), question(task, printed_example=False)
        assert mine.startswith(words.removesuffix("\n```"))
        (shown,) = mbpp_tasks([replace(problems[task_id], tests=(mine.splitlines()[-2],) * 2)]).values()
        assert shown.example == task.example


def outputs_by_hash_seed(program: str, seeds) -> set[str]:
    environs = [os.environ | {"PYTHONHASHSEED": str(seed)} for seed in seeds]
    return {run_python(program, env=environ, check=True).stdout for environ in environs}


def test_a_prompt_is_the_same_in_every_process():
    program = """
from rlnb.code_execution.tasks import Task, Test, source_of
words = {"in", "of", "by", "at"}
example = Test((words, {"a": frozenset(words)}), ([words], (words,), set()))
assert eval(source_of(example.expected)) == example.expected
task = Task("t", "f", 1, "double", "n", "Return twice n.", example, (example,))
print((task.example_call, task.example_result))
"""
    prompts = """
from rlnb.code_execution.prompts import question
print([question(task, printed_example=printed) for printed in (True, False)])
"""
    assert len(outputs_by_hash_seed(program, range(4))) == 1
    assert len(outputs_by_hash_seed(program + prompts, range(2))) == 1  # importing it takes seconds
