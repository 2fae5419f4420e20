"""The built-in tasks: enough of them, told apart by their tests, the same everywhere."""

import ast

import pytest

from rlnb.code_execution.families import (
    MAX_TESTS,
    MIN_TESTS,
    NEW_FAMILIES,
    builtin_members,
    builtin_tasks,
    choose_tests,
)  # fmt: skip
from rlnb.code_execution.sources import load_tasks

TASKS = builtin_tasks() + builtin_tasks(development=True)


def test_there_are_enough_families_and_tasks_of_every_level():
    assert len({task.family for task in TASKS}) >= 25 and len(TASKS) >= 250
    assert {task.level for task in TASKS} == {1, 2, 3}
    assert len({task.id for task in TASKS}) == len({task.statement for task in TASKS}) == len(TASKS)
    first = TASKS[0]
    assert (first.id, first.parameters, first.statement) == ("multiply-01", "n", "Return n multiplied by 2.")


def test_the_tests_and_the_example_are_different_calls_of_plain_literals():
    for task in TASKS:
        calls = [(test.arguments, test.expected) for test in (task.example, *task.tests)]
        assert MIN_TESTS <= len(task.tests) <= MAX_TESTS, task.id
        assert len({repr(arguments) for arguments, _ in calls}) == len(calls), task.id
        assert ast.literal_eval(repr(calls)) == calls, task.id


def test_only_a_tasks_own_reference_passes():
    members = builtin_members()
    for task, member in zip(TASKS, members, strict=True):
        expected = [repr(test.expected) for test in task.tests]
        arguments = [test.arguments[0] for test in task.tests]
        assert list(map(repr, member.results(arguments))) == expected, task.id
        assert [repr(argument) for argument in arguments] != expected, task.id
        assert len(set(expected)) > 1, task.id
        alike = [other for other in members if other.family.inputs == member.family.inputs]
        for other in alike:
            if other is not member:
                assert list(map(repr, other.results(arguments))) != expected, other.id


def test_a_rare_difference_becomes_a_test_and_a_task_that_no_test_tells_from_another_is_refused():
    results = [str(number) for number in range(100)]
    wrong = [*results[:99], "other"]
    _, *chosen = choose_tests("rare-01", results, [wrong])
    assert 99 in chosen
    with pytest.raises(ValueError, match="same-01"):
        choose_tests("same-01", ["1", "2"] * 20, [["1", "2"] * 20])


def test_new_families_are_never_trained_and_trained_ones_have_tasks_held_out():
    splits = load_tasks("builtin", seed=1)
    families = {name: {task.family for task in tasks} for name, tasks in splits.items()}
    assert families["new"] == set(NEW_FAMILIES)
    assert families["train"] == families["known"]
    assert not families["train"] & families["new"]
    assert splits == load_tasks("builtin", seed=2)


def test_the_development_split_is_held_out_from_training_and_from_reports():
    report, development = (load_tasks("builtin", held_out=split) for split in ("report", "development"))
    assert development["train"] == report["train"]
    families = {name: {task.family for task in tasks} for name, tasks in development.items()}
    assert families["known"] <= families["train"]
    assert not families["new"] & (families["train"] | set(NEW_FAMILIES))
    held_out = {task.statement for task in development["known"] + development["new"]}
    assert not held_out & {task.statement for tasks in report.values() for task in tasks}
