"""How YAML files, environment variables and overrides become one validated set of parameters.

Later wins: default.yaml, <profile>.yaml, environment, overrides. A file that `dump_yaml` wrote stands alone:
it holds every value of its run, also those that the environment gave, so that a resumed run does not change.
All problems are told at once, one a line: place, field, value, reason, remedy.
"""

import importlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

import rlnb
from rlnb.errors import ParamsError
from rlnb.machine import probe, recommend
from rlnb.params.problems import all_and_nearest, did_you_mean, explain, show, show_address, show_name
from rlnb.params.reading import FieldPath, Given, read_environment, read_mapping, read_yaml
from rlnb.params.sections import Conflict, NotebookParams, Section, value_of

SAVED_FOR = ("notebook",)  # the key that marks a file as written by dump_yaml


def load_params(
    notebook: str,
    *,
    profile: str = "auto",
    overrides: Mapping[str, Any] | None = None,
    place: str = "parameters cell",
    environ: Mapping[str, str] | None = None,
    root: Path | None = None,
) -> NotebookParams:
    """The validated parameters of a notebook, an instance of the model that bears its name.

    notebook: "grpo_code_execution" is GrpoCodeExecutionParams in rlnb/params/grpo_code_execution.py.
    profile: a file of params/<notebook>/ by its name, a path ending in .yaml, or auto, which is what
    suits this machine. overrides: a nested mapping, as `parse_set` returns it for instance; place is
    what messages call it. root: the folder that holds params/, by default the project's. Raises
    ParamsError with every problem found.
    """
    environ = os.environ if environ is None else environ
    root = Path(rlnb.__file__).resolve().parents[1] if root is None else root
    model = _notebook_model(notebook, root / "params")
    fields = _fields(model)
    if profile == "auto":
        profile = recommend(probe(ask_hub=False, environ=environ), environ=environ).profile
    given, problems = _read_profile(notebook, profile, root)
    saved_for = [value for field, value, _ in given if field == SAVED_FOR]
    if saved_for:
        if saved_for != [notebook]:
            other = saved_for[0] if isinstance(saved_for[0], str) else show(saved_for[0])
            raise ParamsError(
                f"{profile}: holds the parameters of {show_name(other)}, not those of {notebook}"
            )
        given = [entry for entry in given if entry.field != SAVED_FOR]
    else:
        defaults, default_problems = _read_profile(notebook, "default", root)
        given, problems = defaults + given, default_problems + problems
        from_environment, unknown = read_environment(environ, fields)
        given, problems = given + from_environment, problems + unknown
    given += read_mapping(overrides or {}, place, fields)
    return _validate(model, fields, given, problems)


def _notebook_model(notebook: str, folder: Path) -> type[NotebookParams]:
    known = sorted(path.parent.name for path in folder.glob("*/default.yaml"))
    if notebook not in known:
        raise ParamsError(f"notebook {notebook!r} is not in params/{all_and_nearest(notebook, known)}")
    module = importlib.import_module(f"rlnb.params.{notebook}")
    name = "".join(part.capitalize() for part in notebook.split("_")) + "Params"
    model: type[NotebookParams] = getattr(module, name)
    return model


def _read_profile(notebook: str, profile: str, root: Path) -> tuple[list[Given], list[str]]:
    if profile.endswith(".yaml"):
        path = Path(profile)
        if not path.is_file():
            raise ParamsError(f"profile {profile!r} is no file in {os.getcwd()}")
        return read_yaml(path, profile)
    folder = root / "params" / notebook
    known = [path.stem for path in folder.glob("*.yaml")]
    if profile not in known:
        known.append("auto")
        raise ParamsError(
            f"profile {profile!r} is not in params/{notebook}/{all_and_nearest(profile, known)}"
        )
    path = folder / f"{profile}.yaml"
    return read_yaml(path, path.relative_to(root).as_posix())


def _validate(
    model: type[NotebookParams],
    fields: Mapping[FieldPath, FieldInfo],
    given: list[Given],
    problems: list[str],
) -> NotebookParams:
    last: dict[FieldPath, Given] = {}  # in the order given, so that of several fields the latest can be found
    for entry in given:
        problem = _misplaced(entry, fields)
        if problem:
            problems.append(f"{entry.place}: {problem}")
        elif entry.field in fields:
            last.pop(entry.field, None)
            last[entry.field] = entry
    nested: dict[str, Any] = {}
    for (*section, name), value, _ in last.values():
        level = nested.setdefault(section[0], {}) if section else nested
        level[name] = value
    try:
        params = model(**nested)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
        problems += [_invalid(dict(one), fields, last) for one in errors if not _follows(one, errors)]
        raise ParamsError("\n".join(problems)) from None
    problems += [_conflict(params, conflict, last) for conflict in params.conflicts()]
    if problems:
        raise ParamsError("\n".join(problems))
    params._sources = {".".join(field): entry.place for field, entry in last.items()}
    return params


def _misplaced(entry: Given, fields: Mapping[FieldPath, FieldInfo]) -> str:
    """Why no field takes this value; empty where one does, and for a section without anything in it."""
    section, name = entry.field[0], entry.field[-1]
    siblings = [field[-1] for field in fields if field[:-1] == entry.field[:-1]]
    sections = {field[0] for field in fields if len(field) == 2}
    if entry.field in fields:
        return ""
    if entry.field == (section,) and section in sections:
        is_empty = entry.value is None
        return "" if is_empty else f"{section} = {show(entry.value)} is no section; write its fields below it"
    if (section,) in fields:
        return f"{section} is a single value, not a section"
    if len(entry.field) == 2 and section not in sections:
        return f"{show_name(section)} is not a section{did_you_mean(section, sections)}"
    # A right name in a wrong section is likelier than a misspelt one.
    homes = [".".join(field) for field in fields if field[-1] == name]
    hint = f"; did you mean {' or '.join(homes)}?" if homes else did_you_mean(name, siblings)
    return f"{show_name('.'.join(entry.field))} is not a field{hint}"


def _follows(error: Mapping[str, Any], errors: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a list is called too short only because pydantic does not count its faulty items."""
    place = error["loc"]
    return error["type"] == "too_short" and any(
        other["loc"][: len(place)] == place and len(other["loc"]) > len(place) for other in errors
    )


def _invalid(
    error: dict[str, Any], fields: Mapping[FieldPath, FieldInfo], last: Mapping[FieldPath, Given]
) -> str:
    place_in_model = error["loc"]
    field = place_in_model[:2] if place_in_model[:2] in fields else place_in_model[:1]
    name = ".".join(field) + "".join(f"[{item}]" for item in place_in_model[len(field) :])
    value = show(error["input"]) if fields[field].repr else show_address(error["input"])
    return f"{last[field].place}: {show_name(name)} = {value} {explain(error, fields[field])}"


def _conflict(params: NotebookParams, conflict: Conflict, last: Mapping[FieldPath, Given]) -> str:
    """One line; its place is that of whichever field involved was given last."""
    involved = [
        entry.place for field, entry in last.items() if ".".join(field) in (conflict.field, *conflict.beside)
    ]
    place = involved[-1] if involved else "default"
    return f"{place}: {conflict.field} = {show(value_of(params, conflict.field))} {conflict.reason}"


def _fields(model: type[NotebookParams]) -> dict[FieldPath, FieldInfo]:
    """Every field of a notebook: ("seed",) and ("training", "max_steps")."""
    fields: dict[FieldPath, FieldInfo] = {}
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            fields |= {(name, inner): field for inner, field in info.annotation.model_fields.items()}
        else:
            fields[(name,)] = info
    return fields
