"""Load tasks from the built-in file, MBPP, or a file of yours. Each source gives the same three splits."""

import ast
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, Field, StrictInt, StrictStr

from rlnb.code_execution.tasks import Task, Test, split_tasks
from rlnb.errors import ParamsError
from rlnb.json_records import check_record, read_records
from rlnb.mbpp.problems import SPLITS, Problem, load_mbpp, parse_problem
from rlnb.source_code.extraction import parse

# Families of small functions; the tasks of one differ in constants and wording. Levels: 1 one operation, 2 a
# loop or a condition, 3 two steps. Untrained SmolLM2-135M-Instruct passes most families between 0.05 and 0.6.
BUILTIN = Path(__file__).with_name("builtin_tasks.jsonl")
KNOWN_SHARE = 0.3
MBPP_SPLITS = {"train": SPLITS["train"], "known": SPLITS["validation"], "new": SPLITS["test"]}


def load_tasks(
    source: str,
    *,
    held_out: str = "report",
    mbpp_path: str = "",
    cache_dir: str | Path = "./model_cache",
    seed: int = 42,
) -> dict[str, list[Task]]:
    """Return the splits "train", "known" and "new" of a source, which is written as `TasksParams.source`.

    builtin: "known" holds out tasks of trained families, "new" whole families; the same for every seed, so
    that runs can be compared. With held_out = "development" both come from a fourth split, which no report
    uses: choose parameters by it. mbpp: the published ranges of task ids. A file: each record's "split" where
    it has one, else "known" holds out tasks by the seed. cache_dir: of what the hub gives. Raises ParamsError
    for a file that cannot be read, an invalid record, and a source without training tasks.
    """
    if source == "builtin":
        parts: dict[str, list[Task]] = defaultdict(list)
        for record in map(json.loads, BUILTIN.read_text(encoding="utf-8").splitlines()):
            parts[record["split"]] += filter(None, [parse_task(record)])
        prefix = "development_" if held_out == "development" else ""
        splits = {"train": parts["train"]} | {name: parts[prefix + name] for name in ("known", "new")}
    elif source == "mbpp":
        problems = load_mbpp("hub", path=mbpp_path, cache_dir=cache_dir)
        tasks = mbpp_tasks(problems.problems.values())
        splits = {name: [tasks[i] for i in ids if i in tasks] for name, ids in MBPP_SPLITS.items()}
        if not splits["train"]:
            raise ParamsError(
                f"{problems.source}: no task_id is of MBPP's train split, 601 to 974; add such tasks"
            )
    else:
        splits = file_tasks(source, seed=seed)
        if not splits["train"]:
            raise ParamsError(f"{source}: no task is in split 'train'; add some")
    return splits


def mbpp_tasks(problems: Iterable[Problem]) -> dict[int, Task]:
    """Return the tasks by MBPP's task_id, without those whose asserts are not `f(literals) == literal`."""
    tasks = {problem.task_id: mbpp_task(problem) for problem in problems}
    return {task_id: task for task_id, task in tasks.items() if task is not None}


def file_tasks(path: str, *, seed: int) -> dict[str, list[Task]]:
    """Return the splits of a file's tasks, which may have MBPP's format or our own."""
    splits: dict[str, list[Task]] = {"train": [], "known": [], "new": []}
    undecided: list[Task] = []
    seen: dict[str, str] = {}
    for place, record in read_records(Path(path)):
        task = check_record(parse_task, place, record)
        if task is None:
            continue
        if task.id in seen:
            raise ParamsError(
                f"{place}: id {task.id!r} is already used at {seen[task.id]}; give each task its own"
            )
        seen[task.id] = place
        split = record.get("split") if isinstance(record, Mapping) else None
        if split not in (None, *splits):
            raise ParamsError(f"{place}: split = {split!r} is unknown; write 'train', 'known' or 'new'")
        (undecided if split is None else splits[split]).append(task)
    train, known = split_tasks(undecided, known_share=KNOWN_SHARE, seed=seed)
    return splits | {"train": splits["train"] + train, "known": splits["known"] + known}


class TaskRecord(BaseModel):
    """A record of our own format, which docs/architecture.md describes."""

    tests: tuple[Test, ...] = Field(min_length=2)
    id: object
    family: object = "file"
    level: StrictInt = 1
    function: StrictStr
    parameters: StrictStr
    statement: StrictStr
    solution: StrictStr = ""


def parse_task(record: Mapping[str, object]) -> Task | None:
    """Return the task of a record, as `mbpp_task` where it is MBPP's. The first test is the example."""
    if "test_list" in record:
        return mbpp_task(parse_problem(record))
    fields = TaskRecord.model_validate(record)
    if not is_signature(fields.function, fields.parameters):
        text = f"{fields.function}({fields.parameters})"
        raise ValueError(f"{text!r} is no name with parameters, on one line")
    if not is_finite([(test.arguments, test.expected) for test in fields.tests]):
        raise ValueError("tests hold a number that is not finite; write finite ones")
    example, *tests = fields.tests
    parameters = find_parameters(f"def {fields.function}({fields.parameters}): pass", fields.function, 0)
    names = {"id": str(fields.id), "family": str(fields.family), "parameters": parameters}
    return Task(**dict(fields) | names | {"example": example, "tests": tuple(tests)})


def is_finite(value: object) -> bool:
    """Return whether a value survives as source text; NaN and infinities do not."""
    names = (node.id for node in ast.walk(ast.parse(repr(value))) if isinstance(node, ast.Name))
    return not {"nan", "inf"} & set(names)


def is_signature(function: str, parameters: str) -> bool:
    """Return whether texts are the name and the parameters of one `def` alone. Raises SyntaxError."""
    source = f"def {function}({parameters}): pass"
    compile(source, "<signature>", "exec")  # a name given twice, which the parser alone takes
    match ast.parse(source).body:
        case [ast.FunctionDef(name=name, body=[ast.Pass()], returns=None) as defined]:
            is_whole = (defined.end_lineno, defined.end_col_offset) == (1, len(source.encode()))
            return is_whole and name == function
    return False


def mbpp_task(problem: Problem) -> Task | None:
    """Return the task of a problem, None unless each assert compares one call with a literal.

    The first assert is the prompt's example.
    """
    if problem.setup or problem.imports:
        return None
    usable = [call for call in map(literal_call, problem.tests) if call is not None]
    if len(usable) < len(problem.tests) or len(usable) < 2 or len({name for name, _ in usable}) > 1:
        return None
    function = usable[0][0]
    example, *tests = (test for _, test in usable)
    return Task(
        id=f"mbpp-{problem.task_id}",
        family="mbpp",
        level=1,
        function=function,
        parameters=find_parameters(problem.code, function, len(example.arguments)),
        statement=problem.text,
        example=example,
        tests=tuple(tests),
        solution=problem.code,
    )


def literal_call(assertion: str) -> tuple[str, Test] | None:
    """Return (function, test) of `assert f(literals) == literal`, else None."""
    try:
        match ast.parse(assertion.strip()).body:
            case [ast.Assert(ast.Compare(ast.Call(ast.Name(function), arguments, []), [ast.Eq()], [value]))]:
                test = Test(tuple(map(ast.literal_eval, arguments)), ast.literal_eval(value))
                return (function, test) if is_finite((test.arguments, test.expected)) else None
    except (SyntaxError, ValueError, TypeError):
        pass
    return None


def find_parameters(code: str, function: str, num_arguments: int) -> str:
    """Return the parameters of a function in the reference solution, as source, or new names.

    They have no types, whose names may be known by the solution's imports alone.
    """
    for node in ast.walk(parse(code)):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            for inner in ast.walk(node.args):
                if isinstance(inner, ast.arg):
                    inner.annotation = None
            return ast.unparse(node.args)
    return ", ".join(f"arg{index}" for index in range(num_arguments))  # none, or perhaps a lambda
