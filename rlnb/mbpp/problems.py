"""MBPP (Austin et al. 2021, arXiv:2108.07732): of the hub, of a file, or 50 problems that come with rlnb."""

import ast
import builtins
import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, StrictInt, StrictStr, TypeAdapter
from pydantic.dataclasses import dataclass

from rlnb.errors import ParamsError
from rlnb.json_records import Record, check_record, read_records
from rlnb.params.model_cache import MBPP_ID, MBPP_REVISION, find_mbpp
from rlnb.params.resolving import PREFETCH
from rlnb.sandbox.assertions import MODULES, compile_test
from rlnb.source_code.checks import count_bindings, iterate_scopes, names_in
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
# `hash_problems` of each subset as published.
PUBLISHED_SHA256 = {
    "full": "04899b1d55c3f973db2759a000d8683ea59f1f0cec50eb081cdb13764fdb4f3e",
    "sanitized": "ce0920ccbd8c9a617c5caa100c86976799d3a0975f724b1da7eadcb23e1ee916",
}


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
    """Problems by task_id, where they came from, and the SHA-256 of that file, or of the hub's problems."""

    problems: Mapping[int, Problem]
    source: str
    sha256: str

    def split(self, name: str) -> list[Problem]:
        """Return the problems of a published split, or all for "all", by task_id."""
        ids = self.problems if name == "all" else SPLITS[name]
        return [problem for task_id, problem in sorted(self.problems.items()) if task_id in ids]


def load_mbpp(
    source: str = "hub", *, path: str = "", subset: str = "full", cache_dir: str | Path = "./model_cache"
) -> ProblemSet:
    """Return the problems of a file in MBPP's format, of the hub, or the built-in ones.

    source: "hub" or "builtin". path: a file, or a directory with the subset's file (FILES); it wins. subset:
    "full", or "sanitized", the 427 of the 974 that people have checked. Raises ParamsError for what cannot be
    read, for a record that is not a problem, for a repeated task_id, and for other problems of the hub than
    those published.
    """
    if source == "hub" and not path:
        hub = read_hub(subset, cache_dir)
        with contextlib.suppress(ParamsError):
            problems = parse_problems((f"record {n}", record) for n, record in enumerate(hub))
            if hash_problems(problems) == PUBLISHED_SHA256[subset]:
                return ProblemSet(problems, f"{MBPP_ID} ({subset})", PUBLISHED_SHA256[subset])
        raise ParamsError(
            f"{MBPP_ID} ({subset}) in {cache_dir}: its {len(hub)} problems are not those published; remove "
            "its folder there and fetch it again, or set mbpp.path to a file of the problems that you mean"
        )
    file = Path(path) if path else BUILTIN
    file = file / FILES[subset] if file.is_dir() else file
    problems = parse_problems(read_records(file))
    name = "built-in problems of rlnb" if file == BUILTIN else str(file)
    return ProblemSet(problems, name, hashlib.sha256(file.read_bytes()).hexdigest())


def hash_problems(problems: Mapping[int, Problem]) -> str:
    """Return the SHA-256 of problems, whatever form they were read from."""
    rows = [astuple(problems[task_id]) for task_id in sorted(problems)]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


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
    """Return MBPP's records from the model cache, fetched at MBPP_REVISION if they are not there."""
    from huggingface_hub import snapshot_download  # heavy, and not needed for files
    from pyarrow import parquet

    try:
        if not find_mbpp(cache_dir, subset):
            snapshot_download(
                MBPP_ID, repo_type="dataset", revision=MBPP_REVISION, cache_dir=cache_dir,
                allow_patterns=[f"{subset}/*.parquet"],
            )  # fmt: skip
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


@functools.cache
def interface(problem: Problem) -> Interface:
    """Return what the tests use of the solution; without one, of what only a program can define."""
    tree = parse("\n".join([*problem.imports, *problem.tests]))
    nodes = list(ast.walk(tree))
    called = {
        node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    imported = {node.name.partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    used = names_in(tree) - count_bindings(tree).keys() - imported
    code = f"{problem.code}\n{problem.setup}"
    imports = list(problem.imports)
    for statement in parse(code).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            star = "*" if getattr(statement, "module", "") in MODULES else ""
            kept = [a for a in statement.names if (a.asname or a.name).partition(".")[0] in (used | {star})]
            statement.names = kept
            imports += [ast.unparse(statement)] if kept else []
    if problem.code:
        symbols = [symbol for symbol in next(iterate_scopes(code)).get_symbols() if symbol.is_assigned()]
        names = used & {symbol.get_name() for symbol in symbols if not symbol.is_imported()}
        functions = names & (called | {symbol.get_name() for symbol in symbols if symbol.is_namespace()})
    else:
        names = used - {*dir(builtins)} or used & called  # Mbpp/126 has a `sum` of its own
        modules = names & MODULES.keys() - called
        imports += [f"import {name}" for name in sorted(modules)]
        names, functions = names - modules, names & called
    return Interface(tuple(sorted(functions)), tuple(sorted(names - functions)), "\n".join(imports))


def find_fault(problem: Problem) -> str:
    """Return what a problem's tests or imports say that no test may say, "" for nothing."""
    functions, values, imports = interface(problem)
    try:
        for source in (imports, *problem.tests):
            compile_test(source, frozenset(functions + values))
    except ValueError as error:
        return f"{' '.join(source.split())[:80]}: {error}"
    return ""
