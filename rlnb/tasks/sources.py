"""Where tasks come from: the built-in families, MBPP, or a file. Each source gives the same three splits."""

import ast
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlnb.errors import ParamsError
from rlnb.tasks.families import NEW_FAMILIES, builtin_tasks
from rlnb.tasks.programming import Task, Test, split_tasks

KNOWN_SHARE = 0.3
MBPP_HUB_ID = "google-research-datasets/mbpp"
MBPP_SPLITS = {
    "train": range(601, 975),
    "known": range(511, 601),
    "new": range(11, 511),
}  # Austin et al. 2021


def load_tasks(
    source: str,
    *,
    levels: tuple[int, ...] = (1, 2, 3),
    mbpp_path: str = "",
    jsonl_path: str = "",
    seed: int = 42,
) -> dict[str, list[Task]]:
    """The splits "train", "known" and "new" of a source: the values of `TasksParams`.

    builtin: "known" holds out tasks of trained families, "new" whole families. mbpp: the published train, validation
    and test ranges of task ids, and a task's wording is its only family. jsonl: the records' own "split" where they
    have one, else as builtin. The split of the built-in tasks is fixed, so that runs with other seeds compare.
    """
    if source == "builtin":
        return split_tasks(builtin_tasks(levels), new_families=NEW_FAMILIES, known_share=KNOWN_SHARE, seed=0)
    if source == "mbpp":
        tasks = dict(read_records(mbpp_records(mbpp_path), mbpp_path or MBPP_HUB_ID))
        by_number = {int(task.id.rpartition("-")[2]): task for task, _ in tasks.values()}
        return {
            name: [by_number[n] for n in numbers if n in by_number] for name, numbers in MBPP_SPLITS.items()
        }
    named = dict(read_records(json_lines(Path(jsonl_path)), jsonl_path))
    if all(split for _, split in named.values()):
        return {
            name: [task for task, split in named.values() if split == name]
            for name in ("train", "known", "new")
        }
    return split_tasks(
        [task for task, _ in named.values()], new_families=(), known_share=KNOWN_SHARE, seed=seed
    )


def mbpp_records(path: str) -> Iterator[Mapping[str, Any]]:
    """MBPP's records: from a file, a directory that holds `mbpp.jsonl`, or the hub."""
    if not path:
        from datasets import load_dataset

        splits = load_dataset(MBPP_HUB_ID, "full")
        for name in splits:
            yield from splits[name]
        return
    file = Path(path)
    yield from json_lines(file / "mbpp.jsonl" if file.is_dir() else file)


def json_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Records of a JSONL file, or of a JSON file that holds one list. Raises ParamsError naming the bad line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ParamsError(f"tasks: {path} cannot be read: {error.strerror}") from error
    if text.lstrip().startswith("["):
        yield from json.loads(text)
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise ParamsError(
                f"{path}:{number}: not a JSON object ({error.msg}); write one task a line"
            ) from error


def read_records(records: Iterable[Mapping[str, Any]], place: str) -> Iterator[tuple[str, tuple[Task, str]]]:
    """(id, (task, split or "")) of every record that can be checked from outside its process.

    A record is MBPP's (`text` or `prompt`, `code`, `test_list` of asserts) or ours (`statement`, `function`,
    `parameters`, `tests` of {"arguments", "expected"}; optional `id`, `family`, `level`, `split`). MBPP tasks whose
    asserts are not `f(literals) == literal` are left out, and so are records of no test beside the example.
    """
    for number, record in enumerate(records, start=1):
        try:
            task = mbpp_task(record) if "test_list" in record else plain_task(record, number)
        except (KeyError, TypeError, ValueError) as error:
            raise ParamsError(
                f"{place}: record {number} is no task: {error!r}; see docs/architecture.md"
            ) from error
        if task is not None:
            yield task.id, (task, str(record.get("split", "")))


def plain_task(record: Mapping[str, Any], number: int) -> Task:
    tests = [Test(tuple(test["arguments"]), test["expected"]) for test in record["tests"]]
    if len(tests) < 2:
        raise ValueError("tests must hold at least 2, the first is the prompt's example")
    name = str(record.get("id", f"task-{number}"))
    return Task(
        id=name,
        family=str(record.get("family", name)),
        level=int(record.get("level", 1)),
        function=record["function"],
        parameters=record["parameters"],
        statement=record["statement"],
        example=tests[0],
        tests=tuple(tests[1:]),
    )


def mbpp_task(record: Mapping[str, Any]) -> Task | None:
    """A task of MBPP's format, None where its asserts are more than a call compared with a literal."""
    if record.get("test_setup_code") or record.get("test_imports"):
        return None
    calls = [literal_call(assertion) for assertion in record["test_list"]]
    checked = [call for call in calls if call is not None]
    if len(checked) < len(calls) or len(checked) < 2 or len({name for name, _ in checked}) > 1:
        return None
    function = checked[0][0]
    tests = [test for _, test in checked]
    return Task(
        id=f"mbpp-{record['task_id']}",
        family=f"mbpp-{record['task_id']}",
        level=1,
        function=function,
        parameters=parameters_of(record["code"], function),
        statement=str(record.get("text") or record["prompt"]).strip(),
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
        return call.func.id, Test(arguments, ast.literal_eval(compare.comparators[0]))
    except (SyntaxError, ValueError):
        return None


def parameters_of(code: str, function: str) -> str:
    """The parameters of a function as its reference names them."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return ast.unparse(node.args)
    raise ValueError(f"the reference defines no {function}")
