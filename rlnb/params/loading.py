"""How YAML files, environment variables and overrides become one validated set of parameters, and back.

Later ones win: default.yaml, <profile>.yaml, environment, overrides. A file that `dump_yaml` wrote holds all
values of its run, also those from the environment, and is read alone, so that a resumed run does not change.
All problems are reported at once, one per line: place, field, value, reason, remedy. reading.py splits
`--set a.b=c` and reads its value.
"""

import importlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

import rlnb
from rlnb.errors import ParamsError
from rlnb.machine import probe, recommend
from rlnb.params.problems import did_you_mean, show
from rlnb.params.reading import (
    CELL,
    Dumper,
    GivenValue,
    find_field,
    nest,
    read_cell,
    read_environment,
    read_mapping,
    read_yaml,
)
from rlnb.params.sections import NotebookParams, Section, value_of

ROOT = Path(rlnb.__file__).resolve().parents[1]
# The parameters of each notebook, imported when they are needed.
MODELS = {
    "compare_runs": "rlnb.batch.params:CompareRunsParams",
    "gpt_oss_2048": "rlnb.game_2048.params:GptOss2048Params",
    "grpo_code_execution": "rlnb.code_execution.params:GrpoCodeExecutionParams",
    "grpo_code_game": "rlnb.code_game.params:GrpoCodeGameParams",
    "mbpp_eval": "rlnb.mbpp.params:MbppEvalParams",
    "ppo_openspiel": "rlnb.ppo.params:PpoOpenspielParams",
    "spiral_self_play": "rlnb.spiral.params:SpiralSelfPlayParams",
}
PROFILE_ENDINGS = (".yaml", ".json")  # of a profile that is given by its path
NOT_FIELDS = ("notebook", "profile")  # what `dump_yaml` writes next to the fields


class ShownParameter(NamedTuple):
    """A field, its value as YAML shows it, the place that set it ("default" where none did), its help."""

    field: str
    value: str
    source: str
    help: str


def load_params(
    notebook: str,
    *,
    profile: str = "auto",
    cell: Mapping[str, object] | None = None,
    overrides: Mapping[str, object] | None = None,
    place: str = CELL,
    environ: Mapping[str, str] | None = None,
    root: Path = ROOT,
) -> NotebookParams:
    """Return the validated parameters of a notebook, an instance of its class in MODELS.

    profile: a file of params/<notebook>/ by its name, a path ending in .yaml or .json, or auto, which is the
    file for this machine, or default.yaml where there is none; the parameters keep its name, and that of the
    profile of a run's params.yaml. cell: names and values of a parameters cell.
    overrides: a mapping, nested or with dotted names, for instance from `parse_set`; it wins over the cell.
    place: its name in messages. root: the folder that holds params/. Raises ParamsError with every problem
    found.
    """
    environ = os.environ if environ is None else environ
    model = load_model_class(notebook, root)
    fields = list_fields(model)
    if profile == "auto":
        machine = probe(ask_hub=False, environ=environ)
        profile = choose_profile(notebook, recommend(machine, environ=environ).profile, root)
    given, problems = _read_profile(notebook, profile, root)
    name = Path(profile).stem if profile.endswith(PROFILE_ENDINGS) else profile
    if any(entry.field == "notebook" for entry in given):  # by `dump_yaml`
        saved = {entry.field: str(entry.value) for entry in given if entry.field in NOT_FIELDS}
        given = [entry for entry in given if entry.field not in NOT_FIELDS]
        if saved["notebook"] != notebook:
            raise ParamsError(f"{profile}: holds the parameters of {saved['notebook']}, not of {notebook}")
        name = saved.get("profile", name)
    else:
        defaults, default_problems = _read_profile(notebook, "default", root)
        from_environment, environment_problems = read_environment(environ, fields)
        given = defaults + given + from_environment
        problems = default_problems + problems + environment_problems
    from_cell, cell_problems = read_cell(cell or {}, fields)
    given += from_cell + read_mapping(overrides or {}, place, fields)
    problems = problems + cell_problems
    params = _validate(model, fields, given, problems)
    params._profile = name
    return params


def choose_profile(notebook: str, recommended: str, root: Path = ROOT) -> str:
    """Return the profile recommended for a machine, or "default" if the notebook has no such file."""
    return recommended if (root / "params" / notebook / f"{recommended}.yaml").is_file() else "default"


def load_model_class(notebook: str, root: Path = ROOT) -> type[NotebookParams]:
    """Return the class of a notebook's parameters. Raises ParamsError for an unknown notebook."""
    known = sorted(path.parent.name for path in root.glob("params/*/default.yaml"))
    if notebook not in known:
        raise ParamsError(f"notebook {notebook!r} is not in params/; known: {', '.join(known)}")
    module, _, name = MODELS[notebook].partition(":")
    model: type[NotebookParams] = getattr(importlib.import_module(module), name)
    return model


def list_fields(model: type[NotebookParams]) -> dict[str, FieldInfo]:
    """Return every field of a notebook in its order: "seed" and "training.max_steps"."""
    fields: dict[str, FieldInfo] = {}
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            fields |= {f"{name}.{inner}": field for inner, field in info.annotation.model_fields.items()}
        else:
            fields[name] = info
    return fields


def describe_params(params: NotebookParams) -> list[ShownParameter]:
    """Return one row per field in the order of the model, for the notebook's table of parameters."""
    rows = []
    for field, info in list_fields(type(params)).items():
        source = params._sources.get(field, "default")
        meaning = " ".join((info.description or "").split())  # some docstrings have several lines
        rows.append(ShownParameter(field, show(value_of(params, field)), source, meaning))
    return rows


def dump_yaml(params: NotebookParams) -> str:
    """Return all values as YAML; `load_params(notebook, profile="its/path.yaml")` restores them."""
    names = {"notebook": notebook_name(params), "profile": params._profile}
    values = {**names, **params.model_dump(mode="json")}
    head = "# All values of one run, written by rlnb. Overrides change them, environment variables do not.\n"
    return head + str(yaml.dump(values, Dumper=Dumper, sort_keys=False))


def notebook_name(params: NotebookParams) -> str:
    """Return the name of the notebook that the parameters are of, as `load_params` takes it."""
    location = f"{type(params).__module__}:{type(params).__name__}"
    return next(name for name, known in MODELS.items() if known == location)


def _read_profile(notebook: str, profile: str, root: Path) -> tuple[list[GivenValue], list[str]]:
    if profile.endswith(PROFILE_ENDINGS):
        return read_yaml(Path(profile), profile)
    folder = root / "params" / notebook
    path = folder / f"{profile}.yaml"
    if not path.is_file() or not path.is_relative_to(root):
        known = sorted(["auto", *(path.stem for path in folder.glob("*.yaml"))])
        raise ParamsError(
            f"profile {profile!r} is not in params/{notebook}/, and a path ends in .yaml; "
            f"known: {', '.join(known)}"
        )
    return read_yaml(path, path.relative_to(root).as_posix())


def _validate(
    model: type[NotebookParams], fields: Mapping[str, FieldInfo], given: list[GivenValue], problems: list[str]
) -> NotebookParams:
    last: dict[str, GivenValue] = {}  # in the order given, so that a conflict names the latest
    for entry in given:
        if problem := _misplaced(entry, fields):
            problems.append(f"{entry.place}: {problem}")
        elif entry.field in fields:
            last.pop(entry.field, None)
            last[entry.field] = entry
    try:
        params = model.model_validate(nest({field: entry.value for field, entry in last.items()}))
    except ValidationError as invalid:
        problems += [_describe_error(error, fields, last) for error in invalid.errors()]
        raise ParamsError("\n".join(problems)) from None
    for conflict in params.conflicts():
        place = [entry.place for field, entry in last.items() if field in conflict.involved]
        name = last[conflict.field].name if conflict.field in last else conflict.field
        value = show(value_of(params, conflict.field))
        problems.append(f"{place[-1] if place else 'default'}: {name} = {value} {conflict.reason}")
    if problems:
        raise ParamsError("\n".join(problems))
    params._sources = {field: entry.place for field, entry in last.items()}
    params._names = {field: entry.name for field, entry in last.items()}
    return params


def _misplaced(entry: GivenValue, fields: Mapping[str, FieldInfo]) -> str:
    """Return why no field takes this value; empty where one does, and for an empty section."""
    section, _, name = entry.field.partition(".")
    sections = {field.partition(".")[0] for field in fields if "." in field}
    if entry.field in fields or (entry.field in sections and entry.value is None):
        return ""
    if entry.field in sections:
        return f"{section} = {show(entry.value)} is not a section; write its fields below it"
    # A right name in a wrong section is likelier than a misspelt one.
    homes = [field for field in fields if field.rpartition(".")[2] == (name or section)]
    if homes:
        names = [field.replace(".", "_") if entry.short_name else field for field in homes]
        return f"{entry.field} is not a field; did you mean {' or '.join(names)}?"
    siblings = [field for field in fields if field.startswith(f"{section}.")]
    listed = siblings or {field.partition(".")[0] for field in fields}
    short_names = {field.rpartition(".")[2] for field in fields if entry.short_name}
    known = {*listed, *(name for name in short_names if find_field(name, fields) in fields)}
    return f"{entry.field} is not a field{did_you_mean(entry.field, known, listed=listed)}"


def _describe_error(
    error: ErrorDetails, fields: Mapping[str, FieldInfo], last: Mapping[str, GivenValue]
) -> str:
    """Return place, field, value and what pydantic says: "should be greater than 0"."""
    location = list(map(str, error["loc"]))
    field = ".".join(location[:2]) if ".".join(location[:2]) in fields else location[0]
    name = last[field].name + "".join(f"[{item}]" for item in location[1 + field.count(".") :])
    value = show(error["input"]) if fields[field].repr else "..."  # it may hold a password or a key
    reason = re.sub(r"^(Value error, |\w+ (?=should ))", "", error["msg"])
    reason = reason.replace("a valid tuple", "a list in brackets, [a, b]")
    return f"{last[field].place}: {name} = {value} {reason}"
