"""Where tasks come from: the built-in families, MBPP, or a file. Each source gives the same three splits."""

import ast
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlnb.errors import ParamsError
from rlnb.tasks.families import NEW_FAMILIES, builtin_tasks
from rlnb.tasks.programming import Task, Test, split_tasks

KNOWN_SHARE = 0.3
MBPP_HUB_ID = "google-research-datasets/mbpp"
# The published train, validation and test ranges: Austin et al. 2021, arXiv:2108.07732.
MBPP_SPLITS = {"train": range(601, 975), "known": range(511, 601), "new": range(11, 511)}

Record = tuple[str, Any]  # where it stands, as an error names it, and what stands there


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
    Raises ParamsError for a file that cannot be read and a record that is no task.
    """
    if source == "builtin":
        return split_tasks(builtin_tasks(levels), new_families=NEW_FAMILIES, known_share=KNOWN_SHARE, seed=0)
    if source == "mbpp":
        by_number = mbpp_tasks(mbpp_records(mbpp_path))
        return {name: [by_number[n] for n in ids if n in by_number] for name, ids in MBPP_SPLITS.items()}
    if source == "jsonl":
        return file_tasks(json_records(Path(jsonl_path)), levels, seed=seed)
    raise ParamsError(f"tasks.source = {source!r} is no source of tasks; write 'builtin', 'mbpp' or 'jsonl'")


def mbpp_tasks(records: Iterable[Record]) -> dict[int, Task]:
    """MBPP's tasks by their number, without those that cannot be checked from outside their process."""
    tasks = {}
    for place, record in records:
        task = checked(mbpp_task, place, record)
        if task is not None:
            tasks[int(record["task_id"])] = task
    return tasks


def file_tasks(records: Iterable[Record], levels: tuple[int, ...], *, seed: int) -> dict[str, list[Task]]:
    """The splits of a file's tasks, which may be MBPP's or ours."""
    splits: dict[str, list[Task]] = {"train": [], "known": [], "new": []}
    undecided: list[Task] = []
    seen: dict[str, str] = {}
    for place, record in records:
        is_mbpp = isinstance(record, Mapping) and "test_list" in record
        task = checked(mbpp_task if is_mbpp else plain_task, place, record)
        if task is None:
            continue
        if task.id in seen:
            raise ParamsError(
                f"{place}: id {task.id!r} stands at {seen[task.id]} already; give each task its own"
            )
        seen[task.id] = place
        split = record.get("split")
        if split is not None and split not in splits:
            raise ParamsError(f"{place}: split = {split!r} is unknown; write 'train', 'known' or 'new'")
        if task.level in levels:
            (undecided if split is None else splits[split]).append(task)
    drawn = split_tasks(undecided, new_families=(), known_share=KNOWN_SHARE, seed=seed)
    return {name: splits[name] + drawn[name] for name in splits}


def mbpp_records(path: str) -> Iterator[Record]:
    """MBPP's records: from a file, a directory that holds `mbpp.jsonl`, or the hub."""
    if path:
        file = Path(path)
        yield from json_records(file / "mbpp.jsonl" if file.is_dir() else file)
        return
    from datasets import load_dataset  # heavy, and not needed by the other sources

    try:
        parts = load_dataset(MBPP_HUB_ID, "full")
    except (OSError, ValueError) as error:
        raise ParamsError(
            f"tasks.source = 'mbpp': {MBPP_HUB_ID} cannot be had from the hub ({type(error).__name__}); "
            "set MBPP_DATASET_PATH to a copy of mbpp.jsonl, or tasks.source to 'builtin'"
        ) from error
    for part in parts.values():
        for record in part:
            yield f"{MBPP_HUB_ID}: task_id {record['task_id']}", record


def json_records(path: Path) -> Iterator[Record]:
    """Records of a JSONL file, or of a JSON file that holds one list."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ParamsError(f"{path}: cannot be read: {error.strerror}; name a file of tasks") from error
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path}: is no UTF-8 text (byte {error.start}); name a file of tasks") from error
    if text.lstrip().startswith("["):
        for number, record in enumerate(parsed(text, str(path)), start=1):
            yield f"{path}: record {number}", record
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", parsed(line, f"{path}:{number}")


def parsed(text: str, place: str) -> Any:
    """The value of a JSON text. Raises ParamsError naming the place."""
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        raise ParamsError(f"{place}: not JSON ({reason}); write one task a line") from error


def checked(read: Callable[[Mapping[str, Any]], Task | None], place: str, record: Any) -> Task | None:
    """The task that `read` makes of a record. Raises ParamsError naming the place and what is wrong."""
    try:
        if not isinstance(record, Mapping):
            raise TypeError("a record is an object with named fields")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of doubtful escapes in the code of a record
            return read({"id": place, **record})
    except KeyError as error:
        raise ParamsError(f"{place}: no task: the field {error} is missing") from error
    except SyntaxError as error:
        raise ParamsError(f"{place}: no task: its code does not parse") from error
    except (TypeError, ValueError) as error:
        raise ParamsError(f"{place}: no task: {error}") from error


def plain_task(record: Mapping[str, Any]) -> Task:
    """A task of our format, see docs/architecture.md. The first test is the prompt's example."""
    tests = [Test(tuple(test["arguments"]), test["expected"]) for test in record["tests"]]
    if len(tests) < 2:
        raise ValueError("tests must hold at least 2; the first is the prompt's example")
    if any(not is_literal(test.arguments) or not is_literal(test.expected) for test in tests):
        raise ValueError("tests hold a number that is not finite; write finite ones")
    if not record["function"].isidentifier():
        raise ValueError(f"function = {record['function']!r} is no name")
    ast.parse(f"def f({record['parameters']}): pass")
    return Task(
        id=str(record["id"]),
        family=str(record.get("family", "file")),
        level=int(record.get("level", 1)),
        function=record["function"],
        parameters=record["parameters"],
        statement=record["statement"],
        example=tests[0],
        tests=tuple(tests[1:]),
    )


def is_literal(value: Any) -> bool:
    """Whether a value crosses a process boundary as its source: NaN and infinities do not."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except ValueError:
        return False


def mbpp_task(record: Mapping[str, Any]) -> Task | None:
    """A task of MBPP's format, None where its asserts are more than a call compared with a literal.

    `text`, or `prompt` in the sanitized edition, `code`, and `test_list` of asserts. The first assert is the
    prompt's example.
    """
    if record.get("test_setup_code") or record.get("test_imports"):
        return None
    calls = [literal_call(assertion) for assertion in record["test_list"]]
    usable = [call for call in calls if call is not None]
    if len(usable) < len(calls) or len(usable) < 2 or len({name for name, _ in usable}) > 1:
        return None
    function = usable[0][0]
    tests = [test for _, test in usable]
    return Task(
        id=f"mbpp-{record['task_id']}",
        family="mbpp",
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
    except (SyntaxError, ValueError, IndexError):
        return None


def parameters_of(code: str, function: str) -> str:
    """The parameters of a function as its reference names them."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return ast.unparse(node.args)
    raise ValueError(f"the reference defines no {function}")
