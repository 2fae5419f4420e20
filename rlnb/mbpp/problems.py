"""MBPP (Austin et al. 2021, arXiv:2108.07732): of the hub, of a file, or 50 problems that come with rlnb."""

import ast
import builtins
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, StrictInt, StrictStr, TypeAdapter
from pydantic.dataclasses import dataclass

from rlnb.errors import ParamsError
from rlnb.json_records import Record, check_record, read_records
from rlnb.params.model_cache import MBPP_ID, find_mbpp
from rlnb.params.resolving import PREFETCH
from rlnb.source_code.checks import bound_names, names_in
from rlnb.source_code.extraction import parse

BUILTIN = Path(__file__).with_name("mbpp_builtin.jsonl")
# As published, by task_id; the built-in problems have 1 to 50.
SPLITS = {
    "prompt": range(1, 11),
    "test": range(11, 511),
    "validation": range(511, 601),
    "train": range(601, 975),
}
FILES = {"full": "mbpp.jsonl", "sanitized": "sanitized-mbpp.json"}


def parse_task_id(value: object) -> object:
    """Return the number in "Mbpp/11" (EvalPlus), "Mbpp_11" (its folders), "11" or 11.0 (pandas)."""
    named = re.fullmatch(r"(?:mbpp[/_])?(\d{1,18})(?:\.0)?", str(value), re.IGNORECASE)
    return int(named[1]) if named else value


TaskId = Annotated[StrictInt, BeforeValidator(parse_task_id)]
Text = Annotated[StrictStr, AfterValidator(str.strip)]
Code = Annotated[StrictStr, AfterValidator(lambda code: code.replace("\r\n", "\n"))]
CodeOrNull = Annotated[Code, BeforeValidator(lambda value: value or "")]
Statements = Annotated[tuple[StrictStr, ...], BeforeValidator(lambda value: value or ())]


@dataclass(frozen=True, config={"populate_by_name": True})
class Problem:
    """A description, a reference solution, and asserts; the aliases are the names of the published records.

    code: empty where there is none. setup: code that runs after a program and before the tests. imports:
    statements that the tests need.
    """

    task_id: TaskId
    text: Annotated[Text, Field(validation_alias=AliasChoices("text", "prompt"))]
    code: CodeOrNull
    tests: Annotated[tuple[StrictStr, ...], Field(validation_alias="test_list", min_length=1)]
    setup: Annotated[CodeOrNull, Field(validation_alias="test_setup_code")] = ""
    imports: Annotated[Statements, Field(validation_alias="test_imports")] = ()


PROBLEM = TypeAdapter(Problem)


class ProblemSet(NamedTuple):
    """Problems by task_id, where they came from, and the SHA-256 of that file or of the hub's records."""

    problems: Mapping[int, Problem]
    source: str
    sha256: str

    def split(self, name: str) -> list[Problem]:
        """Return the problems of a published split, or all for "all" and "plus", by task_id."""
        ids = range(2**31) if name in ("all", "plus") else SPLITS[name]
        return [problem for task_id, problem in sorted(self.problems.items()) if task_id in ids]


def load_mbpp(
    source: str = "hub", *, path: str = "", subset: str = "full", cache_dir: str | Path = "./model_cache"
) -> ProblemSet:
    """Return the problems of a file in MBPP's format, of the hub, or the built-in ones.

    source: "hub" or "builtin". path: a file, or a directory with the subset's file (FILES); it wins. subset:
    "full", or "sanitized", the 427 of the 974 that people have checked. Raises ParamsError for what cannot be
    read, for a record that is not a problem, and for a repeated task_id.
    """
    if source == "hub" and not path:
        hub = sorted(read_hub(subset, cache_dir), key=lambda record: int(record["task_id"]))
        data = "".join(json.dumps(record, sort_keys=True) + "\n" for record in hub).encode()
        records = ((f"{MBPP_ID}: task_id {record['task_id']}", record) for record in hub)
        return ProblemSet(parse_problems(records), f"{MBPP_ID} ({subset})", hashlib.sha256(data).hexdigest())
    file = Path(path) if path else BUILTIN
    file = file / FILES[subset] if file.is_dir() else file
    problems = parse_problems(read_records(file))
    name = "built-in problems of rlnb" if file == BUILTIN else str(file)
    return ProblemSet(problems, name, hashlib.sha256(file.read_bytes()).hexdigest())


def parse_problems(records: Iterable[Record]) -> dict[int, Problem]:
    """Return problems by task_id. Raises ParamsError as `load_mbpp` does."""
    problems: dict[int, Problem] = {}
    for place, record in records:
        problem = check_record(parse_problem, place, record)
        if problem.task_id in problems:
            raise ParamsError(f"{place}: task_id {problem.task_id} is repeated; give each problem its own")
        problems[problem.task_id] = problem
    return problems


def read_hub(subset: str, cache_dir: str | Path) -> list[dict[str, Any]]:
    """Return MBPP's records from the model cache, fetched from the hub if they are not there."""
    from huggingface_hub import snapshot_download  # heavy, and not needed for files
    from pyarrow import parquet

    try:
        if not find_mbpp(cache_dir, subset):
            patterns = [f"{subset}/*.parquet"]
            snapshot_download(MBPP_ID, repo_type="dataset", cache_dir=cache_dir, allow_patterns=patterns)
        files = find_mbpp(cache_dir, subset)
        records = [record for file in files for record in parquet.read_table(file).to_pylist()]
        if not records:
            raise FileNotFoundError(MBPP_ID)
    except (OSError, ValueError) as error:
        raise ParamsError(
            f"{MBPP_ID}: is neither in {cache_dir} nor to be had from the hub ({type(error).__name__}); "
            f"{PREFETCH}, set MBPP_DATASET_PATH to a copy of {FILES[subset]}, or use the built-in problems: "
            "tasks.source or mbpp.source = 'builtin'"
        ) from error
    return records


def parse_problem(record: Mapping[str, object]) -> Problem:
    """Return the problem of a record; `check_record` reports its errors."""
    problem = PROBLEM.validate_python({"code": "", **record} if isinstance(record, Mapping) else record)
    for test in problem.tests:
        if not any(isinstance(node, ast.Assert) for node in ast.walk(parse(test))):
            raise ValueError(f"{test[:80]!r} asserts nothing")
    names = interface(problem)
    if not names.functions and not names.values:
        raise ValueError("its asserts use nothing that its code, or a program, defines")
    return problem


class Interface(NamedTuple):
    """The names of a program that a problem's tests use, and the imports of the tests; see `check_tests`."""

    functions: tuple[str, ...]
    values: tuple[str, ...]
    imports: str


def interface(problem: Problem) -> Interface:
    """Return the names of the reference that the tests use; imports and asserts alone run on this side."""
    statements = parse(f"{problem.code or guess_code(problem)}\n{problem.setup}").body
    used = names_in(parse("\n".join(problem.tests)))
    functions: list[str] = []
    values: list[str] = []
    imports = list(problem.imports)
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            functions.append(statement.name)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            bound = {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
            if bound & (used | {"*"}):
                imports.append(ast.unparse(statement))
        else:  # `f = lambda x: x`, and what is inside of an if
            nodes = list(ast.walk(statement))
            functions += [n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)]
            stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            is_lambda = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Lambda)
            (functions if is_lambda else values).extend(stored)
    used_functions, used_values = used & set(functions), used & set(values) - set(functions)
    return Interface(tuple(sorted(used_functions)), tuple(sorted(used_values)), "\n".join(imports))


def guess_code(problem: Problem) -> str:
    """Return code that defines, in place of a solution, what asserts use and only a program can define."""
    tree = parse("\n".join([*problem.imports, *problem.tests]))
    nodes = list(ast.walk(tree))
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    called = {function.id for function in calls if isinstance(function, ast.Name)}
    imported = {node.name.partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    known = bound_names(tree) | imported
    names = names_in(tree) - known - {*dir(builtins)}
    names = names or called - known  # Mbpp/126 has a `sum` of its own
    modules = names & sys.stdlib_module_names - called
    lines = [f"def {name}(): pass" for name in names & called] + [f"import {name}" for name in modules]
    return "\n".join(sorted([*lines, *(f"{name} = None" for name in names - called - modules)]))
