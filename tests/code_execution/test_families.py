"""The built-in tasks: enough of them, told apart by their tests, held out as they say."""

import re
from collections.abc import Callable, Sequence

from rlnb.code_execution.sources import load_tasks
from rlnb.code_execution.tasks import Task

REPORT, DEVELOPMENT = (load_tasks("builtin", held_out=split) for split in ("report", "development"))
TASKS = [
    task for splits in (REPORT, {**DEVELOPMENT, "train": []}) for part in splits.values() for task in part
]
LAST_DIGIT = {"digits-03", "remainder-10"}  # which are one function, in other words


def results(solution: Task, arguments: Sequence[tuple[object, ...]]) -> list[str]:
    """Return what a task's solution, a text of this package, returns; "" for an error."""
    namespace: dict[str, Callable[..., object]] = {}
    exec(solution.solution, namespace)
    returned = []
    for given in arguments:
        try:
            returned.append(repr(namespace[solution.function](*given)))
        except (TypeError, ValueError, IndexError):  # of other arguments than it is for
            returned.append("")
    return returned


def test_there_are_enough_families_and_tasks_of_every_level():
    assert len({task.family for task in TASKS}) >= 25 and len(TASKS) >= 250
    assert {task.level for task in TASKS} == {1, 2, 3}
    assert len({task.id for task in TASKS}) == len({task.statement for task in TASKS}) == len(TASKS)


def test_only_a_tasks_own_solution_passes_its_tests_which_are_different_calls():
    for task in TASKS:
        calls = [repr(test.arguments) for test in (task.example, *task.tests)]
        assert len(set(calls)) == len(calls) and len(task.tests) >= 6, task.id
        arguments = [test.arguments for test in task.tests]
        expected = [repr(test.expected) for test in task.tests]
        assert results(task, arguments) == expected, task.id
        assert [repr(given[0]) for given in arguments] != expected and len(set(expected)) > 1, task.id
        alike = [other for other in TASKS if other.parameters == task.parameters and other is not task]
        same = {other.id for other in alike if results(other, arguments) == expected}
        assert same | {task.id} in ({task.id}, LAST_DIGIT), task.id


def test_no_program_passes_that_ignores_part_of_the_statement():
    for task in TASKS:
        numbers = [int(text) for text in re.findall(r"-?\d+", task.statement)]
        expected = [test.expected for test in task.tests]
        if all(type(value) is int for value in expected):  # a condition between the statement's numbers
            assert not set(expected) <= set(numbers), task.id
        if "how often" in task.statement:  # whether
            assert max(expected) > 1, task.id
        if task.family == "without":  # removed once
            assert any(test.arguments[0].count(numbers[0]) > 1 for test in task.tests), task.id


def test_new_families_are_never_trained_and_trained_ones_have_tasks_held_out():
    assert DEVELOPMENT["train"] == REPORT["train"] and load_tasks("builtin", seed=2) == REPORT
    report, development = (
        {name: {task.family for task in tasks} for name, tasks in splits.items()}
        for splits in (REPORT, DEVELOPMENT)
    )
    assert report["train"] == report["known"] and not report["train"] & report["new"]
    assert development["known"] <= report["train"]
    assert not development["new"] & (report["train"] | report["new"])
