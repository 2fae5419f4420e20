"""Reading values with their places: YAML files by line, environment variables, --set on a command line."""

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml
from pydantic.fields import FieldInfo
from yaml.reader import ReaderError

from rlnb.errors import ParamsError
from rlnb.params.older_names import OLDER_NAMES, moved_fields
from rlnb.params.problems import show, show_name

# The variables of the older scripts. Each sets the first of its fields that a notebook has.
ENVIRONMENT_NAMES: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = tuple(
    (row.older, tuple(tuple(field.split(".")) for field in fields.split(" or ")))
    for row in OLDER_NAMES
    if row.kind == "variable" and row.answer == "accepted"
    for fields in row.here.split("; ")
)
PREFIX = "RLNB_"
NO_FIELDS = ("RLNB_OFFLINE", "RLNB_GPU_MEMORY")  # read by rlnb/machine
MAX_VALUES = 1000  # of one field, aliases expanded
MAX_NUMBER_LENGTH = 100  # characters
NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
# YAML 1.1 takes these for text, since they have no dot: 1e-5, 2E3.
NUMBER_WITHOUT_DOT = re.compile(r"[-+]?\d+[eE][-+]?\d+")
# Of a JSON file: texts, comments, tabs between values; of a text: surrogate pairs, other escapes.
JSON_PARTS = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|\t')
ESCAPE = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|\\.", re.IGNORECASE)

FieldPath = tuple[str, ...]  # ("seed",) or ("training", "max_steps")


class TypedText(str):
    """A value as it was typed on a command line; its type follows from its field."""


class GivenValue(NamedTuple):
    """A value, the field it is for, and the place where it was given."""

    field: FieldPath
    value: object
    place: str


class _Refused(yaml.MarkedYAMLError):
    """YAML that is valid, but not a value of a parameter."""


class _Loader(yaml.SafeLoader):
    """SafeLoader whose work is bounded, and whose only errors are YAMLError and RecursionError.

    Aliases of aliases multiply: 400 bytes can expand to 10**8 values.
    """

    def __init__(self, text: str) -> None:
        self._sizes: dict[yaml.Node, int] = {}
        self._num_values = 0
        super().__init__(text)

    def fetch_more_tokens(self) -> None:
        try:
            super().fetch_more_tokens()
        except (ValueError, OverflowError) as error:  # "\UFFFFFFFF", or %YAML with 5,000 digits
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=self.get_mark()) from error

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        before, is_alias = self._num_values, self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if node is not None:
            self._num_values += self._sizes.get(node, 1) if is_alias else 1
            self._sizes.setdefault(node, self._num_values - before)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        if self._sizes[node] > MAX_VALUES:
            reason = f"holds more than {MAX_VALUES} values, aliases (*name) written out; write fewer"
            raise _Refused(problem=reason, problem_mark=node.start_mark)
        written = f"= {show(node.value)} " if isinstance(node, yaml.ScalarNode) else ""
        if written and node.tag in NUMBER_TAGS and len(node.value) > MAX_NUMBER_LENGTH:
            reason = (
                f"{written}is a number of {len(node.value)} characters; write at most {MAX_NUMBER_LENGTH}"
            )
            raise _Refused(problem=reason, problem_mark=node.start_mark)
        try:
            return super().construct_object(node, deep)
        # What PyYAML's constructors raise for 2001-99-99, !!int '', !!bool maybe, !!timestamp now.
        except (ValueError, ArithmeticError, LookupError, AttributeError) as error:
            reason = f"{written}is not the number, date or switch that it is written as; put text in quotes"
            raise _Refused(problem=reason, problem_mark=node.start_mark) from error


def parse_yaml(text: str) -> object:
    """Return the value of a short YAML text. Raises yaml.YAMLError and RecursionError."""
    return yaml.load(text, _Loader)


def json_as_yaml(text: str) -> str:
    """Return a text in JSON as YAML, line by line: no tabs, no // comments, no halves of characters.

    PyYAML refuses tabs between values, and takes each \\u of a surrogate pair for a character.
    """

    def join_halves(escape: re.Match[str]) -> str:
        if escape[1] is None:
            return escape[0]
        return f"\\U{0x10000 + ((int(escape[1], 16) - 0xD800) << 10) + int(escape[2], 16) - 0xDC00:08x}"

    def convert(part: re.Match[str]) -> str:
        return ESCAPE.sub(join_halves, part[0]) if part[0].startswith('"') else " "

    return JSON_PARTS.sub(convert, text)


def read_yaml(path: Path, shown: str) -> tuple[list[GivenValue], list[str]]:
    """Return the values of a YAML or JSON file in order, and its problems; shown: its name in messages."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParamsError(f"{shown}: cannot be read: {error}") from error
    is_json = path.suffix == ".json"
    form = "JSON" if is_json else "YAML"
    sections = '{"training": {...}}' if is_json else "'training:' with indented fields below"
    if is_json:
        text = json_as_yaml(text)
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return [], []
        if not isinstance(root, yaml.MappingNode):
            return [], [f"{shown}:1: holds no sections; write them as {sections}"]
        given: list[GivenValue] = []
        problems: list[str] = []
        for field, node, line in _leaves(root, shown, problems):
            try:
                given.append(GivenValue(field, loader.construct_object(node, deep=True), f"{shown}:{line}"))
            except _Refused as error:
                problems.append(f"{shown}:{_line(error)}: {'.'.join(field)} {error.problem}")
    except yaml.MarkedYAMLError as error:
        raise ParamsError(f"{shown}:{_line(error)}: is not {form}: {error.problem}") from error
    except ReaderError as error:
        line, name = text.count("\n", 0, error.position) + 1, f"U+{int(error.character):04X}"
        raise ParamsError(
            f"{shown}:{line}: holds the character {name}, which {form} forbids; remove it"
        ) from error
    except RecursionError:
        raise ParamsError(f"{shown}: is nested too deeply; parameters are sections of fields") from None
    return given, problems


def _line(error: yaml.MarkedYAMLError) -> int:
    return error.problem_mark.line + 1 if error.problem_mark else 1


def _leaves(
    mapping: yaml.MappingNode, shown: str, problems: list[str], above: FieldPath = ()
) -> Iterator[tuple[FieldPath, yaml.Node, int]]:
    """Yield the fields of a file with their values and lines; what is inside of a section's field is one."""
    first_lines: dict[str, int] = {}
    for key, node in mapping.value:
        line = key.start_mark.line + 1
        name = key.value if isinstance(key, yaml.ScalarNode) else "[...]"
        field = (*above, name)
        if name in first_lines:
            first = first_lines[name]
            problems.append(
                f"{shown}:{line}: {show_name('.'.join(field))} is already set in line {first}; keep one"
            )
            continue
        first_lines[name] = line
        if isinstance(node, yaml.MappingNode) and not above:
            yield from _leaves(node, shown, problems, field)
        else:
            yield field, node, line


def read_environment(
    environ: Mapping[str, str],
    fields: Mapping[FieldPath, FieldInfo],
    renamed: Mapping[FieldPath, FieldPath],
) -> tuple[list[GivenValue], list[str]]:
    """Return the values and problems of environment variables: older names, then RLNB_<SECTION>__<FIELD>.

    An older name without a value counts as unset. Other names that begin with RLNB_ are problems, since most
    often an underscore is missing. renamed: what accepted keys of the older scripts are now.
    """
    named = [
        (name, next(field for field in candidates if field in fields))
        for name, candidates in ENVIRONMENT_NAMES
        if environ.get(name) and any(field in fields for field in candidates)
    ]
    problems = []
    for name in sorted(environ):
        field = tuple(name.removeprefix(PREFIX).lower().split("__", 1))
        if not name.startswith(PREFIX) or name in NO_FIELDS:
            continue
        if len(field) == 2 or field in fields or field in renamed:
            named.append((name, field))
        else:
            problems.append(f"environment variable {name}: sets nothing{_variables_meant(name, fields)}")
    given = [
        GivenValue(
            field,
            read_typed(fields.get(renamed.get(field, field)), environ[name]),
            f"environment variable {name}",
        )
        for name, field in named
    ]
    return given, problems


def _variables_meant(name: str, fields: Iterable[FieldPath]) -> str:
    """Return the hint for RLNB_TRAINING_MAX_STEPS, RLNB_MAX_STEPS and other names that set nothing."""
    words = name.removeprefix(PREFIX).lower()
    variables = {PREFIX + "__".join(field).upper(): field for field in fields}
    moved = moved_fields(words, variables.values())
    matching = [
        variable
        for variable, field in variables.items()
        if ".".join(field) in moved or (not moved and words in ("_".join(field), field[-1]))
    ] or difflib.get_close_matches(name, [*variables, *NO_FIELDS], n=1)
    return f"; did you mean {' or '.join(matching)}?" if matching else f"; write {PREFIX}<SECTION>__<FIELD>"


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
    stripped = text.strip()
    if field is not None and field.annotation is str:
        return str(text)
    if NUMBER_WITHOUT_DOT.fullmatch(stripped):
        return float(stripped)
    try:
        value = parse_yaml(text)
    except (yaml.YAMLError, RecursionError):
        return str(text)
    return value if isinstance(value, bool | int | float | str | list) else str(text)
