"""What was given, and where: YAML files by line, environment variables, --set on a command line."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic.fields import FieldInfo
from yaml.reader import ReaderError

from rlnb.errors import ParamsError
from rlnb.params.problems import show, show_name

# The names that the earlier scripts had, and every field that each of them sets.
ENVIRONMENT_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("MBPP_EVAL_NUM_QUESTIONS", ("evaluation", "num_questions")),
    ("MBPP_DATASET_PATH", ("tasks", "mbpp_path")),
    ("MBPP_DATASET_PATH", ("mbpp", "path")),
)
PREFIX = "RLNB_"
NO_FIELDS = ("RLNB_OFFLINE",)  # what rlnb/machine reads
MOST_VALUES = 1000  # of one field, each alias counted as what it stands for
LONGEST_NUMBER = 100  # characters
NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
# YAML 1.1 takes these for text, since they have no dot: 1e-5, 2E3.
NUMBER_WITHOUT_DOT = re.compile(r"[-+]?\d+[eE][-+]?\d+")

FieldPath = tuple[str, ...]  # ("seed",) or ("training", "max_steps")


class Typed(str):
    """A value as it was typed on a command line; what it is, the field it is for will tell."""


class Given(NamedTuple):
    """A value, the field it is meant for, and where it stands."""

    field: FieldPath
    value: Any
    place: str


class _Refused(yaml.MarkedYAMLError):
    """YAML that is valid, but not a value of a parameter."""


class _Loader(yaml.SafeLoader):
    """SafeLoader whose work is bounded, and whose only errors are YAMLError and RecursionError.

    Aliases of aliases multiply: 400 bytes can stand for 10**8 values.
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

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        before, is_alias = self._num_values, self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if node is not None:
            self._num_values += self._sizes.get(node, 1) if is_alias else 1
            self._sizes.setdefault(node, self._num_values - before)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if self._sizes[node] > MOST_VALUES:
            reason = f"holds more than {MOST_VALUES} values, aliases (*name) written out; write fewer"
            raise _Refused(problem=reason, problem_mark=node.start_mark)
        written = f"= {show(node.value)} " if isinstance(node, yaml.ScalarNode) else ""
        if written and node.tag in NUMBER_TAGS and len(node.value) > LONGEST_NUMBER:
            reason = f"{written}is a number of {len(node.value)} characters; write at most {LONGEST_NUMBER}"
            raise _Refused(problem=reason, problem_mark=node.start_mark)
        try:
            return super().construct_object(node, deep)
        # What PyYAML's constructors raise for 2001-99-99, !!int '', !!bool maybe, !!timestamp now.
        except (ValueError, ArithmeticError, LookupError, AttributeError) as error:
            reason = f"{written}is not the number, date or switch that it is written as; put text in quotes"
            raise _Refused(problem=reason, problem_mark=node.start_mark) from error


def parse_yaml(text: str) -> Any:
    """Return the value that a short YAML text stands for. Raises yaml.YAMLError and RecursionError."""
    return yaml.load(text, _Loader)


def read_yaml(path: Path, shown: str) -> tuple[list[Given], list[str]]:
    """The values of a YAML file in order, and its problems; `shown` is how messages name the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParamsError(f"{shown}: cannot be read: {error}") from error
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return [], []
        if not isinstance(root, yaml.MappingNode):
            return [], [f"{shown}:1: holds no sections; write them as 'training:' with indented fields below"]
        given: list[Given] = []
        problems: list[str] = []
        for field, node, line in _leaves(root, shown, problems):
            try:
                given.append(Given(field, loader.construct_object(node, deep=True), f"{shown}:{line}"))
            except _Refused as error:
                problems.append(f"{shown}:{_line(error)}: {'.'.join(field)} {error.problem}")
    except yaml.MarkedYAMLError as error:
        raise ParamsError(f"{shown}:{_line(error)}: is not YAML: {error.problem}") from error
    except ReaderError as error:
        line, name = text.count("\n", 0, error.position) + 1, f"U+{int(error.character):04X}"
        raise ParamsError(
            f"{shown}:{line}: holds the character {name}, which YAML forbids; remove it"
        ) from error
    except RecursionError:
        raise ParamsError(f"{shown}: is nested too deeply; parameters are sections of fields") from None
    return given, problems


def _line(error: yaml.MarkedYAMLError) -> int:
    return error.problem_mark.line + 1 if error.problem_mark else 1


def _leaves(
    root: yaml.MappingNode, shown: str, problems: list[str]
) -> Iterator[tuple[tuple[str, ...], yaml.Node, int]]:
    for name, node, line in _entries(root, shown, (), problems):
        if isinstance(node, yaml.MappingNode):
            for inner, leaf, inner_line in _entries(node, shown, (name,), problems):
                yield (name, inner), leaf, inner_line
        else:
            yield (name,), node, line


def _entries(
    mapping: yaml.MappingNode, shown: str, above: tuple[str, ...], problems: list[str]
) -> Iterator[tuple[str, yaml.Node, int]]:
    first_lines: dict[str, int] = {}
    for key, node in mapping.value:
        line = key.start_mark.line + 1
        name = key.value if isinstance(key, yaml.ScalarNode) else "[...]"
        if name in first_lines:
            full_name = show_name(".".join((*above, name)))
            problems.append(
                f"{shown}:{line}: {full_name} stands in line {first_lines[name]} already; keep one"
            )
        else:
            first_lines[name] = line
            yield name, node, line


def read_environment(
    environ: Mapping[str, str], fields: Mapping[FieldPath, FieldInfo]
) -> tuple[list[Given], list[str]]:
    """What environment variables set, RLNB_<SECTION>__<FIELD> and the older names before them; the problems.

    fields: those of the notebook's model. Other RLNB_ names are refused: most often an underscore is missing.
    """
    named = [(name, field) for name, field in ENVIRONMENT_NAMES if name in environ and field in fields]
    problems = []
    for name in sorted(environ):
        field = tuple(name.removeprefix(PREFIX).lower().split("__", 1))
        if not name.startswith(PREFIX) or name in NO_FIELDS:
            continue
        if len(field) == 2 or field in fields:
            named.append((name, field))
        else:
            problems.append(f"environment variable {name}: sets nothing{_variables_meant(name, fields)}")
    given = [
        Given(field, _read_as(fields.get(field), environ[name]), f"environment variable {name}")
        for name, field in named
    ]
    return given, problems


def _variables_meant(name: str, fields: Iterable[FieldPath]) -> str:
    """'; did you mean RLNB_TRAINING__MAX_STEPS?' for RLNB_TRAINING_MAX_STEPS and for RLNB_MAX_STEPS."""
    words = name.removeprefix(PREFIX).lower()
    variables = {PREFIX + "__".join(field).upper(): field for field in fields}
    meant = [
        variable for variable, field in variables.items() if words in ("_".join(field), field[-1])
    ] or difflib.get_close_matches(name, [*variables, *NO_FIELDS], n=1)
    return f"; did you mean {' or '.join(meant)}?" if meant else f"; write {PREFIX}<SECTION>__<FIELD>"


def read_mapping(
    mapping: Mapping[str, Any], place: str, fields: Mapping[FieldPath, FieldInfo]
) -> list[Given]:
    """The values of a nested mapping, those typed as their fields have it; an empty section gives nothing."""
    values: list[tuple[FieldPath, Any]] = []
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            values += [((str(name), str(inner)), leaf) for inner, leaf in value.items()]
        else:
            values.append(((str(name),), value))
    return [
        Given(field, _read_as(fields.get(field), value) if isinstance(value, Typed) else value, place)
        for field, value in values
    ]


def parse_set(*assignments: str) -> dict[str, Any]:
    """{"training": {"max_steps": Typed("3")}} for "training.max_steps=3"; the last of a field counts."""
    overrides: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        section, _, field = name.strip().rpartition(".")
        if not equals or not field or "." in section:
            raise ParamsError(f"--set {assignment}: is no assignment; write --set section.field=value")
        level = overrides.setdefault(section, {}) if section else overrides
        level[field] = Typed(text)
    return overrides


def _read_as(field: FieldInfo | None, text: str) -> Any:
    """Texts as they stand, 010 and 1e5 included; all else is read as YAML."""
    return str(text) if field is not None and field.annotation is str else _read_value(text)


def _read_value(text: str) -> Any:
    """A number, true, false or a list, as YAML reads it; everything else is the text itself."""
    stripped = text.strip()
    if NUMBER_WITHOUT_DOT.fullmatch(stripped):
        return float(stripped)
    try:
        value = parse_yaml(text)
    except (yaml.YAMLError, RecursionError):
        return str(text)
    return value if isinstance(value, bool | int | float | str | list) else str(text)
