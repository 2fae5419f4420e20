"""The built-in tasks: enough of them, told apart by their tests, held out as they say."""

from collections.abc import Callable

from rlnb.code_execution.sources import load_tasks
from rlnb.code_execution.tasks import Task

REPORT, DEVELOPMENT = (load_tasks("builtin", held_out=split) for split in ("report", "development"))
TASKS = [
    task for splits in (REPORT, {**DEVELOPMENT, "train": []}) for part in splits.values() for task in part
]


def solve(task: Task) -> Callable[[object], object]:
    """Return the function of a task's solution, a text of this package."""
    namespace: dict[str, Callable[[object], object]] = {}
    exec(task.solution, namespace)
    return namespace[task.function]


def test_there_are_enough_families_and_tasks_of_every_level():
    assert len({task.family for task in TASKS}) >= 25 and len(TASKS) >= 250
    assert {task.level for task in TASKS} == {1, 2, 3}
    assert len({task.id for task in TASKS}) == len({task.statement for task in TASKS}) == len(TASKS)


def test_only_a_tasks_own_solution_passes_its_tests_which_are_different_calls():
    solutions = [(task, solve(task)) for task in TASKS]
    for task, solution in solutions:
        calls = [repr(test.arguments) for test in (task.example, *task.tests)]
        assert len(set(calls)) == len(calls) and len(task.tests) >= 6, task.id
        arguments, expected = [test.arguments for test in task.tests], [repr(t.expected) for t in task.tests]
        assert [repr(solution(*given)) for given in arguments] == expected, task.id
        assert [repr(given[0]) for given in arguments] != expected, task.id
        assert len(set(expected)) > 1, task.id
        kind = [type(value) for value in task.example.arguments], task.parameters
        for other, wrong in solutions:
            alike = ([type(value) for value in other.example.arguments], other.parameters) == kind
            if alike and other is not task:
                assert any(repr(wrong(*given)) != e for given, e in zip(arguments, expected, strict=True))


def test_new_families_are_never_trained_and_trained_ones_have_tasks_held_out():
    assert DEVELOPMENT["train"] == REPORT["train"] and load_tasks("builtin", seed=2) == REPORT
    report, development = (
        {name: {task.family for task in tasks} for name, tasks in splits.items()}
        for splits in (REPORT, DEVELOPMENT)
    )
    assert report["train"] == report["known"] and not report["train"] & report["new"]
    assert development["known"] <= report["train"]
    assert not development["new"] & (report["train"] | report["new"])
