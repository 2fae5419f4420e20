"""MBPP, Mostly Basic Python Problems: Austin et al. 2021, arXiv:2108.07732.

From the hub, from a file in its format, or the 50 problems of the same format that come with rlnb.
"""

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rlnb.errors import ParamsError
from rlnb.tasks.extraction import parse
from rlnb.tasks.records import Record, checked, json_records, typed

HUB_ID = "google-research-datasets/mbpp"
BUILTIN = Path(__file__).with_name("mbpp_builtin.jsonl")
# As published, by task_id; the built-in problems have 1 to 50.
SPLITS = {
    "prompt": range(1, 11),
    "test": range(11, 511),
    "validation": range(511, 601),
    "train": range(601, 975),
}
FILES = {"full": "mbpp.jsonl", "sanitized": "sanitized-mbpp.json"}

Subset = Literal["full", "sanitized"]


@dataclass(frozen=True)
class Problem:
    """One record: what to write, a reference that does it, and asserts.

    setup: code that belongs behind a program, before the tests. imports: statements that the tests need.
    challenge_tests: further asserts, which the published protocol does not count.
    """

    task_id: int
    text: str
    code: str
    tests: tuple[str, ...]
    setup: str = ""
    imports: tuple[str, ...] = ()
    challenge_tests: tuple[str, ...] = ()


class ProblemSet(NamedTuple):
    """Problems by task_id, where they came from, and the SHA-256 of that.

    Of a file, or of the hub's records as JSON lines with sorted keys, in the order of task_ids.
    """

    problems: Mapping[int, Problem]
    source: str
    sha256: str

    def split(self, name: str) -> list[Problem]:
        """The problems of a published split, or of "all", in the order of task_ids."""
        ids = range(2**31) if name == "all" else SPLITS[name]
        return [problem for task_id, problem in sorted(self.problems.items()) if task_id in ids]


def load_mbpp(
    source: Literal["hub", "builtin"] = "hub", *, path: str = "", subset: Subset = "full"
) -> ProblemSet:
    """The problems of a file in MBPP's format, of a directory with one, of the hub, or the built-in ones.

    path: a file, or a directory with the published file of the subset (FILES); it wins over source. subset:
    "sanitized" are the 427 of the 974 that people have checked. Raises ParamsError for what cannot be read or
    is no problem, and for a task_id that stands there twice.
    """
    if source == "hub" and not path:
        records = list(hub_records(subset))
        plain = sorted((record for _, record in records), key=lambda record: record["task_id"])
        data = "".join(json.dumps(record, sort_keys=True) + "\n" for record in plain).encode()
        return ProblemSet(read_problems(records), f"{HUB_ID} ({subset})", hashlib.sha256(data).hexdigest())
    file = Path(path) if path else BUILTIN
    file = file / FILES[subset] if file.is_dir() else file
    problems = read_problems(json_records(file))
    name = "built-in problems of rlnb" if file == BUILTIN else str(file)
    return ProblemSet(problems, name, hashlib.sha256(file.read_bytes()).hexdigest())


def read_problems(records: Iterable[Record]) -> dict[int, Problem]:
    """Problems by task_id; see `load_mbpp`."""
    problems: dict[int, Problem] = {}
    for place, record in records:
        problem = checked(problem_of, place, record)
        if problem.task_id in problems:
            raise ParamsError(f"{place}: task_id {problem.task_id} stands there twice; give each its own")
        problems[problem.task_id] = problem
    return problems


def hub_records(subset: Subset) -> Iterator[Record]:
    """MBPP's records from the hub, or from its cache."""
    from datasets import load_dataset  # heavy, and not needed for files

    try:
        parts = load_dataset(HUB_ID, subset)
    except (OSError, ValueError) as error:
        raise ParamsError(
            f"{HUB_ID}: cannot be had from the hub ({type(error).__name__}); set MBPP_DATASET_PATH to a copy "
            f"of {FILES[subset]}, or take the built-in problems: tasks.source or mbpp.source = 'builtin'"
        ) from error
    for part in parts.values():
        for record in part:
            yield f"{HUB_ID}: task_id {record['task_id']}", record


def problem_of(record: Mapping[str, Any]) -> Problem:
    """The problem of a record: `text` (full) or `prompt` (sanitized), `code`, `test_list` and the like."""
    tests = texts(record["test_list"], "test_list", entry="an assert")
    if not tests:
        raise ValueError("test_list is empty; write at least one assert")
    problem = Problem(
        task_id=typed(record["task_id"], int, name="task_id"),
        text=typed(record.get("text") or record["prompt"], str, name="text").strip(),
        code=typed(record["code"], str, name="code").replace("\r\n", "\n"),
        tests=tests,
        setup=typed(record.get("test_setup_code") or "", str, name="test_setup_code").replace("\r\n", "\n"),
        imports=texts(record.get("test_imports") or [], "test_imports"),
        challenge_tests=texts(record.get("challenge_test_list") or [], "challenge_test_list"),
    )
    for test in tests + problem.challenge_tests:
        if not any(isinstance(node, ast.Assert) for node in ast.walk(parse(test))):
            raise ValueError(f"{test[:80]!r} asserts nothing")
    names = interface(problem)
    if not names.functions and not names.values:
        raise ValueError("its asserts use nothing that its code defines")
    return problem


def texts(values: Any, name: str, *, entry: str = "an entry") -> tuple[str, ...]:
    """A list of texts as a tuple. Raises TypeError for anything else."""
    return tuple(typed(value, str, name=entry) for value in typed(values, list, name=name))


class Interface(NamedTuple):
    """What the tests of a problem ask a program for, and what they have of their own; see `check_tests`."""

    functions: tuple[str, ...]
    values: tuple[str, ...]
    imports: str


def interface(problem: Problem) -> Interface:
    """Read off the reference: the names of its own that the tests use, and its imports.

    Only the data set's code is executed on the trusted side, and of that only imports and asserts.
    """
    statements = parse(f"{problem.code}\n{problem.setup}").body
    asserts = "\n".join(problem.tests + problem.challenge_tests)
    used = {node.id for node in ast.walk(parse(asserts)) if isinstance(node, ast.Name)}
    functions: list[str] = []
    values: list[str] = []
    imports = list(problem.imports)
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            functions.append(statement.name)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            imports.append(ast.unparse(statement))
        else:  # `f = lambda x: x`, and what stands inside of an if
            nodes = list(ast.walk(statement))
            functions += [n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)]
            stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            is_lambda = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Lambda)
            (functions if is_lambda else values).extend(stored)
    return Interface(
        functions=tuple(sorted(used & set(functions))),
        values=tuple(sorted(used & set(values) - set(functions))),
        imports="\n".join(imports),
    )
