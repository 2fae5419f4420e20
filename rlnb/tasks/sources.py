"""Where tasks come from: the built-in families, MBPP, or a file. Each source gives the same three splits."""

import ast
import keyword
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlnb.errors import ParamsError
from rlnb.tasks.extraction import parse
from rlnb.tasks.families import NEW_FAMILIES, builtin_tasks
from rlnb.tasks.mbpp import SPLITS, Problem, load_mbpp, problem_of
from rlnb.tasks.programming import Task, Test, split_tasks
from rlnb.tasks.records import Record, checked, json_records, typed

KNOWN_SHARE = 0.3
MBPP_SPLITS = {"train": SPLITS["train"], "known": SPLITS["validation"], "new": SPLITS["test"]}


def load_tasks(
    source: str,
    *,
    levels: tuple[int, ...] = (1, 2, 3),
    mbpp_path: str = "",
    jsonl_path: str = "",
    seed: int = 42,
) -> dict[str, list[Task]]:
    """The splits "train", "known" and "new" of a source: the values of `TasksParams`.

    builtin: "known" holds out tasks of trained families, "new" whole families; the same for every seed, so
    that runs compare. mbpp: the published ranges of task ids. jsonl: the records' own "split" where they have
    one, else "known" holds out tasks by the seed. Levels choose among built-in tasks and those of a file.
    Raises ParamsError for a file that cannot be read, a record that is no task, and nothing to train on.
    """
    if source == "builtin":
        return split_tasks(builtin_tasks(levels), new_families=NEW_FAMILIES, known_share=KNOWN_SHARE, seed=0)
    if source == "mbpp":
        problems = load_mbpp("hub", path=mbpp_path)
        by_number = mbpp_tasks(problems.problems.values())
        splits = {name: [by_number[n] for n in ids if n in by_number] for name, ids in MBPP_SPLITS.items()}
        if not splits["train"]:
            raise ParamsError(
                f"{problems.source}: no task_id is of MBPP's train split, 601 to 974; add such tasks"
            )
        return splits
    if source == "jsonl":
        splits = file_tasks(json_records(Path(jsonl_path)), levels, seed=seed)
        if not splits["train"]:
            raise ParamsError(
                f"{jsonl_path}: no task of tasks.levels = {list(levels)} is in split 'train'; "
                "add some, or allow more levels"
            )
        return splits
    raise ParamsError(f"tasks.source = {source!r} is no source of tasks; write 'builtin', 'mbpp' or 'jsonl'")


def mbpp_tasks(problems: Iterable[Problem]) -> dict[int, Task]:
    """The tasks by number, without those whose asserts are more than calls compared with literals."""
    tasks = {problem.task_id: mbpp_task(problem) for problem in problems}
    return {number: task for number, task in tasks.items() if task is not None}


def file_tasks(records: Iterable[Record], levels: tuple[int, ...], *, seed: int) -> dict[str, list[Task]]:
    """The splits of a file's tasks, which may be MBPP's or ours."""
    splits: dict[str, list[Task]] = {"train": [], "known": [], "new": []}
    undecided: list[Task] = []
    seen: dict[str, str] = {}
    for place, record in records:
        is_mbpp = isinstance(record, Mapping) and "test_list" in record
        task = checked(mbpp_record_task if is_mbpp else plain_task, place, record)
        if task is None:
            continue
        if task.id in seen:
            raise ParamsError(
                f"{place}: id {task.id!r} stands at {seen[task.id]} already; give each task its own"
            )
        seen[task.id] = place
        split = record.get("split")
        if split not in (None, *splits):
            raise ParamsError(f"{place}: split = {split!r} is unknown; write 'train', 'known' or 'new'")
        if task.level in levels:
            (undecided if split is None else splits[split]).append(task)
    drawn = split_tasks(undecided, new_families=(), known_share=KNOWN_SHARE, seed=seed)
    return {name: splits[name] + drawn[name] for name in splits}


def plain_task(record: Mapping[str, Any]) -> Task:
    """A task of our format, see docs/architecture.md. The first test is the prompt's example."""
    calls = [typed(test, dict, name="a test") for test in typed(record["tests"], list, name="tests")]
    tests = [
        Test(tuple(typed(call["arguments"], list, name="arguments")), call["expected"]) for call in calls
    ]
    if len(tests) < 2:
        raise ValueError("tests must hold at least 2; the first is the prompt's example")
    if any(not is_literal(test.arguments) or not is_literal(test.expected) for test in tests):
        raise ValueError("tests hold a number that is not finite; write finite ones")
    function = typed(record["function"], str, name="function")
    if not function.isidentifier() or keyword.iskeyword(function):
        raise ValueError(f"function = {function!r} is no name")
    parameters = typed(record["parameters"], str, name="parameters")
    if not is_signature(parameters):
        raise ValueError(f"parameters = {parameters!r} is no signature's inside, on one line")
    return Task(
        id=str(record["id"]),
        family=str(record.get("family", "file")),
        level=typed(record.get("level", 1), int, name="level"),
        function=function,
        parameters=parameters,
        statement=typed(record["statement"], str, name="statement"),
        example=tests[0],
        tests=tuple(tests[1:]),
    )


def is_literal(value: Any) -> bool:
    """Whether a value crosses a process boundary as its source: NaN and infinities do not."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except ValueError:
        return False
    except SyntaxError as error:  # the parser's limit
        raise ValueError("tests are nested too deeply") from error


def is_signature(parameters: str) -> bool:
    """Whether parameters fill the parentheses of one `def` and nothing else. Raises SyntaxError."""
    source = f"def f({parameters}): pass"
    body = ast.parse(source).body
    function = body[0]
    return (
        len(body) == 1
        and isinstance(function, ast.FunctionDef)
        and function.returns is None
        and isinstance(function.body[0], ast.Pass)
        and (function.end_lineno, function.end_col_offset) == (1, len(source.encode()))
    )


def mbpp_record_task(record: Mapping[str, Any]) -> Task | None:
    """The task of a record in MBPP's format; see `mbpp_task`."""
    return mbpp_task(problem_of(record))


def mbpp_task(problem: Problem) -> Task | None:
    """The task of a problem, None where its asserts are more than a call compared with a literal.

    The first assert is the prompt's example.
    """
    if problem.setup or problem.imports:
        return None
    calls = [literal_call(test) for test in problem.tests]
    usable = [call for call in calls if call is not None]
    if len(usable) < len(calls) or len(usable) < 2 or len({name for name, _ in usable}) > 1:
        return None
    function = usable[0][0]
    tests = [test for _, test in usable]
    return Task(
        id=f"mbpp-{problem.task_id}",
        family="mbpp",
        level=1,
        function=function,
        parameters=parameters_of(problem.code, function),
        statement=problem.text,
        example=tests[0],
        tests=tuple(tests[1:]),
    )


def literal_call(assertion: str) -> tuple[str, Test] | None:
    """(function, test) of `assert f(literals) == literal`, else None."""
    try:
        statement = ast.parse(assertion.strip()).body[0]
        if not isinstance(statement, ast.Assert) or not isinstance(statement.test, ast.Compare):
            return None
        call, compare = statement.test.left, statement.test
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
            return None
        if len(compare.ops) != 1 or not isinstance(compare.ops[0], ast.Eq):
            return None
        arguments = tuple(ast.literal_eval(argument) for argument in call.args)
        test = Test(arguments, ast.literal_eval(compare.comparators[0]))
        return (call.func.id, test) if is_literal((test.arguments, test.expected)) else None
    except (SyntaxError, ValueError, TypeError, IndexError):
        return None


def parameters_of(code: str, function: str) -> str:
    """The parameters of a function as its reference names them."""
    for node in ast.walk(parse(code)):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return ast.unparse(node.args)
    raise ValueError(f"the reference defines no {function}")
