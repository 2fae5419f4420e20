"""The built-in tasks: enough of them, told apart by their tests, the same everywhere."""

import ast
from collections import Counter

import pytest

from rlnb.tasks.families import (
    MAX_TESTS,
    MIN_TESTS,
    NEW_FAMILIES,
    builtin_members,
    builtin_tasks,
    choose_tests,
)
from rlnb.tasks.sources import load_tasks

TASKS = builtin_tasks()


def test_there_are_enough_families_and_tasks_of_every_level():
    assert len({task.family for task in TASKS}) >= 25
    assert len(TASKS) >= 250
    assert {task.level for task in TASKS} == {1, 2, 3}


def test_names_and_statements_are_unique():
    assert max(Counter(task.id for task in TASKS).values()) == 1
    assert max(Counter(task.statement for task in TASKS).values()) == 1


def test_the_first_task_reads_as_it_should():
    task = TASKS[0]
    assert (task.id, task.family, task.level) == ("multiply-01", "multiply", 1)
    assert (task.parameters, task.statement) == ("n", "Return n multiplied by 2.")
    assert [test.expected for test in task.tests] == [2 * test.arguments[0] for test in task.tests]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_the_tests_and_the_example_are_different_calls(task):
    calls = [repr(test.arguments) for test in (task.example, *task.tests)]
    assert MIN_TESTS <= len(task.tests) <= MAX_TESTS
    assert len(set(calls)) == len(calls)


@pytest.mark.parametrize(
    ("task", "member"), list(zip(TASKS, builtin_members(), strict=True)), ids=[task.id for task in TASKS]
)
def test_only_the_own_reference_passes(task, member):
    expected = [repr(test.expected) for test in task.tests]
    arguments = [test.arguments[0] for test in task.tests]
    assert [repr(member.result(argument)) for argument in arguments] == expected
    others = [
        other
        for other in builtin_members()
        if other.id != member.id and other.family.inputs == member.family.inputs
    ]
    assert others
    for other in others:
        assert [repr(other.result(argument)) for argument in arguments] != expected, other.id
    assert [repr(argument) for argument in arguments] != expected
    assert len(set(expected)) > 1


def test_a_task_that_no_test_tells_from_another_is_refused():
    with pytest.raises(ValueError, match="same-01: 10 tests do not tell it from 1 wrong programs"):
        choose_tests("same-01", ["1", "2"] * 20, [["1", "2"] * 20])


def test_a_rare_difference_becomes_a_test():
    results = [str(number) for number in range(100)]
    wrong = [*results[:99], "other"]
    _, *chosen = choose_tests("rare-01", results, [wrong])
    assert 99 in chosen


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_calls_and_results_are_plain_literals(task):
    for test in (task.example, *task.tests):
        assert ast.literal_eval(repr(test.arguments)) == test.arguments
        assert ast.literal_eval(repr(test.expected)) == test.expected


def test_the_tasks_of_a_level_do_not_depend_on_the_others():
    assert builtin_tasks((2,)) == [task for task in TASKS if task.level == 2]


def test_new_families_exist_and_are_never_trained():
    splits = load_tasks("builtin")
    assert {task.family for task in splits["new"]} == set(NEW_FAMILIES)
    assert not {task.family for task in splits["train"] + splits["known"]} & set(NEW_FAMILIES)


def test_every_trained_family_has_tasks_held_out():
    splits = load_tasks("builtin")
    assert {task.family for task in splits["train"]} == {task.family for task in splits["known"]}


def test_the_split_of_the_builtin_tasks_is_the_same_for_every_seed():
    assert load_tasks("builtin", seed=1) == load_tasks("builtin", seed=2)
