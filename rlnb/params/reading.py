"""Reading values with their places: YAML files by line, environment variables, --set on a command line."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import NamedTuple, get_args

import yaml
from pydantic.fields import FieldInfo
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from rlnb.errors import ParamsError
from rlnb.params.problems import show

CELL = "parameters cell"  # as a place where values are given
PREFIX = "RLNB_"
NO_FIELDS = ("RLNB_OFFLINE", "RLNB_GPU_MEMORY")  # read by rlnb/machine
# Variables without the prefix, and their fields.
OTHER_VARIABLES = {"MBPP_EVAL_NUM_QUESTIONS": "evaluation.num_questions", "MBPP_DATASET_PATH": "mbpp.path"}
# What PyYAML raises for text that is not YAML, and for 2001-99-99, !!int '' and !!bool maybe.
NOT_YAML = (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)


INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
# As in YAML 1.2. PyYAML reads YAML 1.1, where 010 is eight, 1:30 is ninety and 1e-5 is a text.
NUMBERS = {
    INT: re.compile(r"[-+]?[0-9]+$"),
    FLOAT: re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.inf$|\.nan$"),
}


class Loader(yaml.CSafeLoader):  # by libyaml, several times as fast as yaml.SafeLoader
    """Reads YAML with the numbers of YAML 1.2."""


class Dumper(yaml.SafeDumper):
    """Writes YAML for `Loader`: texts that look like numbers in quotes."""


def read_numbers_plainly(reader: type[Resolver]) -> None:
    """Let a loader, or a dumper for it, take NUMBERS for numbers, and nothing else."""
    reader.yaml_implicit_resolvers = {
        first: [pair for pair in pairs if pair[0] not in NUMBERS]
        for first, pairs in reader.yaml_implicit_resolvers.items()
    }
    for tag, pattern in NUMBERS.items():
        reader.add_implicit_resolver(tag, pattern, list("-+.0123456789"))
    if issubclass(reader, SafeConstructor):
        reader.add_constructor(INT, _construct_integer)


def _construct_integer(loader: Loader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))


read_numbers_plainly(Loader)
read_numbers_plainly(Dumper)


class TypedText(str):
    """A value as it was typed on a command line; its type follows from its field."""


class GivenValue(NamedTuple):
    """A value, the field it is for ("seed", "training.max_steps"), and the place where it was given.

    short_name: what was written instead of the field, such as max_steps; "" where the field was.
    """

    field: str
    value: object
    place: str
    short_name: str = ""

    @property
    def name(self) -> str:
        """The name that the user wrote."""
        return self.short_name or self.field


def parse_yaml(text: str) -> object:
    """Return the value of a YAML text. Raises yaml.YAMLError for anything else."""
    try:
        return yaml.load(str(text), Loader)  # libyaml takes no `TypedText`
    except NOT_YAML as error:
        raise yaml.YAMLError(str(error)) from error


def read_yaml(path: Path, shown: str) -> tuple[list[GivenValue], list[str]]:
    """Return the values of a file in order, and its problems; shown: its name in messages. JSON is YAML."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ParamsError(f"{shown}: cannot be read: {error}") from error
    except NOT_YAML as error:
        mark = getattr(error, "problem_mark", None)
        position = f":{mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ParamsError(f"{shown}{position}: is not YAML: {reason}") from error
    if root is None:
        return [], []
    if not isinstance(root, yaml.MappingNode):
        return [], [f"{shown}:1: holds no sections; write them as 'training:' with indented fields below"]
    given: dict[str, GivenValue] = {}
    problems = []
    for field, node, line in _leaves(root):
        place = f"{shown}:{line}"
        if field in given:
            problems.append(f"{place}: {field} is already set in {given[field].place}; keep one")
        else:
            given[field] = GivenValue(field, _construct(node), place)
    return list(given.values()), problems


def _leaves(mapping: yaml.MappingNode, above: str = "") -> Iterator[tuple[str, yaml.Node, int]]:
    """Yield the fields of a file with their values and lines; what is inside of a section's field is one."""
    for key, node in mapping.value:
        field = above + (key.value if isinstance(key, yaml.ScalarNode) else "[...]")
        if isinstance(node, yaml.MappingNode) and not above:
            yield from _leaves(node, f"{field}.")
        else:
            yield field, node, key.start_mark.line + 1


def _construct(node: yaml.Node) -> object:
    """Return the value of a node; its text where that is not the number, date or switch it looks like."""
    try:
        return Loader("").construct_object(node, deep=True)
    except NOT_YAML:
        return node.value if isinstance(node, yaml.ScalarNode) else node.tag


def read_environment(
    environ: Mapping[str, str], fields: Mapping[str, FieldInfo]
) -> tuple[list[GivenValue], list[str]]:
    """Return the values and problems of environment variables: RLNB_<SECTION>__<FIELD>, after MBPP's two.

    MBPP's without a value count as unset. Other names that begin with RLNB_ are problems, since most often an
    underscore is missing.
    """
    named = [
        (name, field) for name, field in OTHER_VARIABLES.items() if environ.get(name) and field in fields
    ]
    problems = []
    for name in sorted(set(environ) - set(NO_FIELDS)):
        field = name.removeprefix(PREFIX).lower().replace("__", ".", 1)
        if name.startswith(PREFIX) and ("." in field or field in fields):
            named.append((name, field))
        elif name.startswith(PREFIX):
            hint = f"write {PREFIX}<SECTION>__<FIELD>, with two underscores"
            problems.append(f"environment variable {name}: sets nothing; {hint}")
    return [
        GivenValue(field, read_typed(fields.get(field), environ[name]), f"environment variable {name}")
        for name, field in named
    ], problems


def read_mapping(
    mapping: Mapping[str, object], place: str, fields: Mapping[str, FieldInfo]
) -> list[GivenValue]:
    """Return the values of a nested mapping, typed texts read by the types of their fields.

    Names are those of fields, "training.max_steps", or short ones.
    """
    leaves: dict[str, object] = {}
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            leaves |= {f"{name}.{key}": leaf for key, leaf in value.items()}
        else:
            leaves[str(name)] = value
    given = []
    for name, leaf in leaves.items():
        field = find_field(name, fields)
        value = read_typed(fields.get(field), leaf) if isinstance(leaf, TypedText) else leaf
        given.append(GivenValue(field, value, place, "" if "." in name else name))
    return given


def read_cell(
    cell: Mapping[str, object], fields: Mapping[str, FieldInfo]
) -> tuple[list[GivenValue], list[str]]:
    """Return the values and problems of a parameters cell, {name: value}.

    "auto" leaves a field as the profile has it. `overrides` is a dictionary of any fields, and wins over the
    other names. A text for a number is read as one: papermill passes on 1e-5 as a text.
    """
    others = {name: value for name, value in cell.items() if name != "overrides" and value != "auto"}
    typed = {name: TypedText(value) if isinstance(value, str) else value for name, value in others.items()}
    given, overrides = read_mapping(typed, CELL, fields), cell.get("overrides", {})
    if isinstance(overrides, Mapping):
        return given + read_mapping(overrides, CELL, fields), []
    problem = f'overrides = {show(overrides)} is not a dictionary; write {{"training.max_steps": 3}}'
    return given, [f"{CELL}: {problem}"]


def find_field(name: str, fields: Iterable[str]) -> str:
    """Return the field that a name stands for: max_steps or training_max_steps is training.max_steps.

    A field's own name is enough where only one section has it. Other names are returned as they are.
    """
    sections = {field.partition(".")[0] for field in fields}
    with_section = [field for field in fields if field.replace(".", "_") == name]
    candidates = with_section or [field for field in fields if field.rpartition(".")[2] == name]
    return candidates[0] if len(candidates) == 1 and name not in sections else name


def nest(values: Mapping[str, object]) -> dict[str, object]:
    """Return {"training": {"max_steps": 3}} for {"training.max_steps": 3}."""
    sections: defaultdict[str, dict[str, object]] = defaultdict(dict)
    for name, value in values.items():
        section, _, field = name.rpartition(".")
        sections[section][field] = value
    return sections.pop("", {}) | sections


def parse_set(*assignments: str) -> dict[str, object]:
    """Return {"training.max_steps": "3"} for "training.max_steps=3", in an order in which the last counts."""
    values: dict[str, object] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not re.fullmatch(r"([^.]+\.)?[^.]+", name.strip()) or not equals:
            raise ParamsError(f"--set {assignment}: is not an assignment; write --set section.field=value")
        values.pop(name.strip(), None)
        values[name.strip()] = TypedText(text)
    return values


def read_typed(field: FieldInfo | None, text: str) -> object:
    """Return what was typed for a field: texts unchanged, numbers, switches and lists as YAML reads them.

    For a text that may be None, "null" is None and a pair of quotes the empty text.
    """
    kinds = {field.annotation, *get_args(field.annotation)} if field is not None else set()
    if str in kinds and kinds <= {str, NoneType, str | None}:
        if NoneType in kinds and text.strip() in ("null", "~"):
            return None
        return "" if NoneType in kinds and text.strip() in ("''", '""') else str(text)
    try:
        value = parse_yaml(text)
    except yaml.YAMLError:
        return str(text)
    return value if isinstance(value, bool | int | float | str | list) else str(text)
