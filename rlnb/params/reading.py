"""Reading values with their places: YAML files by line, environment variables, --set on a command line."""

import difflib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml
from pydantic.fields import FieldInfo

from rlnb.errors import ParamsError
from rlnb.params.problems import show, show_name

FieldPath = tuple[str, ...]  # ("seed",) or ("training", "max_steps")

PREFIX = "RLNB_"
NO_FIELDS = ("RLNB_OFFLINE", "RLNB_GPU_MEMORY")  # read by rlnb/machine
# Variables without the prefix. Each sets the first of its fields that a notebook has.
OTHER_VARIABLES: tuple[tuple[str, tuple[FieldPath, ...]], ...] = (
    ("MBPP_EVAL_NUM_QUESTIONS", (("mbpp", "num_questions"), ("evaluation", "num_questions"))),
    ("MBPP_DATASET_PATH", (("mbpp", "path"),)),
)
# YAML 1.1 takes these for text, since they have no dot: 1e-5, 2E3.
NUMBER_WITHOUT_DOT = re.compile(r"[-+]?\d+[eE][-+]?\d+")
# What PyYAML raises for text that is not YAML, and for 2001-99-99, !!int '' and !!bool maybe.
NOT_YAML = (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)


class TypedText(str):
    """A value as it was typed on a command line; its type follows from its field."""


class GivenValue(NamedTuple):
    """A value, the field it is for, and the place where it was given."""

    field: FieldPath
    value: object
    place: str


def parse_yaml(text: str) -> object:
    """Return the value of a YAML text. Raises yaml.YAMLError for anything else."""
    try:
        return yaml.safe_load(text)
    except NOT_YAML as error:
        raise yaml.YAMLError(str(error)) from error


def read_yaml(path: Path, shown: str) -> tuple[list[GivenValue], list[str]]:
    """Return the values of a YAML or JSON file in order, and its problems; shown: its name in messages."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return read_mapping(dict(json.loads(text)), shown, {}), []
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ParamsError(f"{shown}: cannot be read: {error}") from error
    except (*NOT_YAML, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        position = f":{mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or " ".join(str(error).split())
        form = "a JSON object" if path.suffix == ".json" else "YAML"
        raise ParamsError(f"{shown}{position}: is not {form}: {reason}") from error
    if root is None:
        return [], []
    if not isinstance(root, yaml.MappingNode):
        return [], [f"{shown}:1: holds no sections; write them as 'training:' with indented fields below"]
    given, problems, lines = [], [], dict[FieldPath, int]()
    for field, node, line in _leaves(root):
        if field in lines:
            name = show_name(".".join(field))
            problems.append(f"{shown}:{line}: {name} is already set in line {lines[field]}; keep one")
            continue
        lines[field] = line
        try:
            value = yaml.SafeLoader("").construct_object(node, deep=True)
        except NOT_YAML as error:
            written = show(node.value) if isinstance(node, yaml.ScalarNode) else "..."
            reason = getattr(error, "problem", None) or "is not the number, date or switch that it looks like"
            problems.append(f"{shown}:{line}: {'.'.join(field)} = {written}: {reason}; put text in quotes")
        else:
            given.append(GivenValue(field, value, f"{shown}:{line}"))
    return given, problems


def _leaves(mapping: yaml.MappingNode, above: FieldPath = ()) -> Iterator[tuple[FieldPath, yaml.Node, int]]:
    """Yield the fields of a file with their values and lines; what is inside of a section's field is one."""
    for key, node in mapping.value:
        field = (*above, key.value if isinstance(key, yaml.ScalarNode) else "[...]")
        if isinstance(node, yaml.MappingNode) and not above:
            yield from _leaves(node, field)
        else:
            yield field, node, key.start_mark.line + 1


def read_environment(
    environ: Mapping[str, str], fields: Mapping[FieldPath, FieldInfo]
) -> tuple[list[GivenValue], list[str]]:
    """Return the values and problems of environment variables: RLNB_<SECTION>__<FIELD>, after MBPP's two.

    MBPP's without a value count as unset. Other names that begin with RLNB_ are problems, since most often an
    underscore is missing.
    """
    named = [
        (name, next(field for field in candidates if field in fields))
        for name, candidates in OTHER_VARIABLES
        if environ.get(name) and any(field in fields for field in candidates)
    ]
    problems = []
    for name in sorted(environ):
        field = tuple(name.removeprefix(PREFIX).lower().split("__", 1))
        if not name.startswith(PREFIX) or name in NO_FIELDS:
            continue
        if len(field) == 2 or field in fields:
            named.append((name, field))
            continue
        variables = [PREFIX + "__".join(path).upper() for path in fields]
        near = difflib.get_close_matches(name, [*variables, *NO_FIELDS], n=1)
        hint = f"did you mean {near[0]}?" if near else f"write {PREFIX}<SECTION>__<FIELD>"
        problems.append(f"environment variable {name}: sets nothing; {hint}")
    return [
        GivenValue(field, read_typed(fields.get(field), environ[name]), f"environment variable {name}")
        for name, field in named
    ], problems


def read_mapping(
    mapping: Mapping[str, object], place: str, fields: Mapping[FieldPath, FieldInfo]
) -> list[GivenValue]:
    """Return the values of a nested mapping, typed texts read by the types of their fields."""
    given = []
    for name, value in mapping.items():
        entries = value.items() if isinstance(value, Mapping) else [(None, value)]
        for inner, leaf in entries:
            field = (str(name),) if inner is None else (str(name), str(inner))
            typed = read_typed(fields.get(field), leaf) if isinstance(leaf, TypedText) else leaf
            given.append(GivenValue(field, typed, place))
    return given


def nest(values: Mapping[str, object]) -> dict[str, object]:
    """Return {"training": {"max_steps": 3}} for {"training.max_steps": 3}."""
    sections: defaultdict[str, dict[str, object]] = defaultdict(dict)
    for name, value in values.items():
        section, _, field = name.rpartition(".")
        sections[section][field] = value
    return sections.pop("", {}) | sections


def parse_set(*assignments: str) -> dict[str, object]:
    """Return {"training": {"max_steps": "3"}} for "training.max_steps=3"; the last of a field counts."""
    values = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not re.fullmatch(r"([^.]+\.)?[^.]+", name.strip()) or not equals:
            raise ParamsError(f"--set {assignment}: is not an assignment; write --set section.field=value")
        values[name.strip()] = TypedText(text)
    return nest(values)


def read_typed(field: FieldInfo | None, text: str) -> object:
    """Return what was typed for a field: texts unchanged, numbers, switches and lists as YAML reads them."""
    if field is not None and field.annotation is str:
        return str(text)
    if NUMBER_WITHOUT_DOT.fullmatch(text.strip()):
        return float(text)
    try:
        value = parse_yaml(text)
    except yaml.YAMLError:
        return str(text)
    return value if isinstance(value, bool | int | float | str | list) else str(text)
