"""Where tasks come from: the built-in families, MBPP, or a file. Each source gives the same three splits."""

import ast
import json
import keyword
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
    Raises ParamsError for a file that cannot be read, a record that is no task, and nothing to train on.
    """
    if source == "builtin":
        return split_tasks(builtin_tasks(levels), new_families=NEW_FAMILIES, known_share=KNOWN_SHARE, seed=0)
    if source == "mbpp":
        by_number = mbpp_tasks(mbpp_records(mbpp_path))
        splits = {name: [by_number[n] for n in ids if n in by_number] for name, ids in MBPP_SPLITS.items()}
        if not splits["train"]:
            raise ParamsError(
                f"{mbpp_path or MBPP_HUB_ID}: no task_id is of MBPP's train split, 601 to 974; add such tasks"
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


def mbpp_tasks(records: Iterable[Record]) -> dict[int, Task]:
    """MBPP's tasks by their number, without those that cannot be checked from outside their process."""
    tasks = {}
    for place, record in records:
        task = checked(mbpp_task, place, record)
        if task is not None:
            tasks[record["task_id"]] = task
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
        if split not in (None, *splits):
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
        text = path.read_text(encoding="utf-8-sig")  # some editors of Windows begin with a mark
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
    except json.JSONDecodeError as error:
        reason = error.msg
    except ValueError:
        reason = "a number is too long"
    except RecursionError:
        reason = "nested too deeply"
    raise ParamsError(f"{place}: not JSON ({reason}); write one task a line")


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
    except (RecursionError, MemoryError) as error:
        raise ParamsError(f"{place}: no task: nested too deeply") from error
    except (TypeError, ValueError) as error:
        raise ParamsError(f"{place}: no task: {error}") from error


def typed(value: Any, kind: type, *, name: str) -> Any:
    """The value of a field. Raises TypeError where it is of another kind."""
    if type(value) is not kind:
        words = {str: "text", list: "list", int: "whole number", dict: "object with named fields"}
        raise TypeError(f"{name} = {value!r} is no {words[kind]}")
    return value


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


def mbpp_task(record: Mapping[str, Any]) -> Task | None:
    """A task of MBPP's format, None where its asserts are more than a call compared with a literal.

    `text`, or `prompt` in the sanitized edition, `code`, and `test_list` of asserts. The first assert is the
    prompt's example.
    """
    if record.get("test_setup_code") or record.get("test_imports"):
        return None
    asserts = typed(record["test_list"], list, name="test_list")
    number = typed(record["task_id"], int, name="task_id")
    calls = [literal_call(typed(assertion, str, name="an assert")) for assertion in asserts]
    usable = [call for call in calls if call is not None]
    if len(usable) < len(calls) or len(usable) < 2 or len({name for name, _ in usable}) > 1:
        return None
    function = usable[0][0]
    tests = [test for _, test in usable]
    return Task(
        id=f"mbpp-{number}",
        family="mbpp",
        level=1,
        function=function,
        parameters=parameters_of(typed(record["code"], str, name="code"), function),
        statement=typed(record.get("text") or record["prompt"], str, name="text").strip(),
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
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return ast.unparse(node.args)
    raise ValueError(f"the reference defines no {function}")
