"""What was given, and where: YAML files by line, environment variables, --set on a command line."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic.fields import FieldInfo

from rlnb.errors import ParamsError

# The names that the earlier scripts had for these two.
ENVIRONMENT_NAMES: dict[str, tuple[str, ...]] = {
    "MBPP_EVAL_NUM_QUESTIONS": ("evaluation", "num_questions"),
    "MBPP_DATASET_PATH": ("tasks", "mbpp_path"),
}
PREFIX = "RLNB_"
# YAML 1.1 takes these for text, since they have no dot: 1e-5, 2E3.
NUMBER_WITHOUT_DOT = re.compile(r"[-+]?\d+[eE][-+]?\d+")


class Given(NamedTuple):
    """A value, the field it is meant for, ("seed",) or ("training", "max_steps"), and where it stands."""

    field: tuple[str, ...]
    value: Any
    place: str


def read_yaml(path: Path, shown: str) -> tuple[list[Given], list[str]]:
    """The values of a YAML file in order, and its problems; `shown` is how messages name the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParamsError(f"{shown}: cannot be read: {error}") from error
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return [], []
        if not isinstance(root, yaml.MappingNode):
            return [], [f"{shown}:1: holds no sections; write them as 'training:' with indented fields below"]
        given: list[Given] = []
        problems: list[str] = []
        for field, node, line in _leaves(root, shown, problems):
            given.append(Given(field, loader.construct_object(node, deep=True), f"{shown}:{line}"))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ParamsError(f"{shown}:{line}: is not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ParamsError(f"{shown}: is not YAML: {error}") from error
    finally:
        loader.dispose()
    return given, problems


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
            full_name = ".".join((*above, name))
            problems.append(
                f"{shown}:{line}: {full_name} stands in line {first_lines[name]} already; keep one"
            )
        else:
            first_lines[name] = line
            yield name, node, line


def read_environment(environ: Mapping[str, str], fields: Mapping[tuple[str, ...], FieldInfo]) -> list[Given]:
    """The fields that environment variables set: RLNB_<SECTION>__<FIELD>, and before them the older names.

    fields: those of the notebook's model. Texts are taken as they stand, all else is read as YAML.
    RLNB_SEED and RLNB_OUTPUT_DIR are fields too, other RLNB_ names without a double underscore are not.
    """
    named = [
        (name, field) for name, field in ENVIRONMENT_NAMES.items() if name in environ and field in fields
    ]
    for name in sorted(environ):
        field = tuple(name.removeprefix(PREFIX).lower().split("__", 1))
        if name.startswith(PREFIX) and (len(field) == 2 or field in fields):
            named.append((name, field))
    given = []
    for name, field in named:
        is_text = field in fields and fields[field].annotation is str
        value = environ[name] if is_text else read_value(environ[name])
        given.append(Given(field, value, f"environment variable {name}"))
    return given


def read_mapping(mapping: Mapping[str, Any], place: str) -> list[Given]:
    """The fields of a nested mapping; an empty section gives nothing."""
    given = []
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            given += [Given((str(name), str(inner)), leaf, place) for inner, leaf in value.items()]
        else:
            given.append(Given((str(name),), value, place))
    return given


def parse_set(*assignments: str) -> dict[str, Any]:
    """{"training": {"learning_rate": 1e-5}} for "training.learning_rate=1e-5"; the last of a field counts."""
    overrides: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        section, _, field = name.strip().rpartition(".")
        if not equals or not field or "." in section:
            raise ParamsError(f"--set {assignment}: is no assignment; write --set section.field=value")
        if section:
            overrides.setdefault(section, {})[field] = read_value(text)
        else:
            overrides[field] = read_value(text)
    return overrides


def read_value(text: str) -> Any:
    """A number, true, false or a list, as YAML reads it; everything else is the text itself."""
    stripped = text.strip()
    if NUMBER_WITHOUT_DOT.fullmatch(stripped):
        return float(stripped)
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return text
    return value if isinstance(value, bool | int | float | str | list) else text
