"""A profile put together answer by answer: what can be asked, what an answer means, what is written.

All of it is made from the pydantic models of rlnb/params. The terminal (rlnb/wizard.py) and the form of the
notebook (rlnb/display/configure_form.py) are two faces of it.
"""

import dataclasses
import json
import os
import shlex
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import rlnb
from rlnb.errors import ParamsError
from rlnb.machine import Machine, recommend
from rlnb.params import check_machine, describe, load_params, parse_set, resolve
from rlnb.params.answers import ANSWER, Question, as_typed, asked_value, list_of, questions_of, read_answer
from rlnb.params.problems import show
from rlnb.params.reading import ENVIRONMENT_NAMES, NO_FIELDS, PREFIX, read_yaml
from rlnb.params.sections import NotebookParams, Section, value_of

ROOT = Path(rlnb.__file__).resolve().parents[1]
OWN = "configure"  # the notebook of the form has parameters too, which nobody configures
LEAST_PROFILES = 2  # a field that so many profiles set is one that matters


@dataclasses.dataclass(frozen=True)
class Draft:
    """A profile on its way: always valid, and never changed; `answer` returns the next one.

    profile: what was started from, never "auto". base: its values, default: those of default.yaml, both
    without the environment's, which is not the profile's business. answers: {field: value} over the base.
    """

    notebook: str
    profile: str
    root: Path
    default: NotebookParams
    base: NotebookParams
    params: NotebookParams
    answers: Mapping[str, Any]

    def answer(self, texts: Mapping[str, str], *, place: str = ANSWER) -> "Draft":
        """With these answers, {field: text as typed}, given at once.

        Raises ParamsError as `load_params` does: every problem, conflicts of all fields included.
        """
        answers = dict(self.answers)
        for name, text in texts.items():
            field, value = read_answer(self.params, name, text)
            answers.pop(field, None)
            answers[field] = value  # the last, so that a conflict is said to be this answer's
        return self._with(answers, place)

    def refusal(self, texts: Mapping[str, str]) -> str:
        """What is wrong with these answers, as `answer` would say it; empty where nothing is."""
        try:
            self.answer(texts)
        except ParamsError as error:
            return str(error)
        return ""

    def blank(self) -> "Draft":
        """Without any answer."""
        return dataclasses.replace(self, params=self.base, answers={})

    def _with(self, answers: Mapping[str, Any], place: str) -> "Draft":
        nested: dict[str, Any] = {}
        for name, value in answers.items():
            section, _, field = name.rpartition(".")
            (nested.setdefault(section, {}) if section else nested)[field] = value
        params = load_params(
            self.notebook, profile=self.profile, overrides=nested, place=place, environ={}, root=self.root
        )
        moved = {
            name: value
            for name, value in answers.items()
            if value_of(params, name) != value_of(self.base, name)
        }
        return dataclasses.replace(self, params=params, answers=moved)

    def questions(self) -> list[Question]:
        """Every field, in the order of the model; the items of a list of sections behind the list."""
        return questions_of(self.params)

    def main_fields(self) -> list[str]:
        """The fields that matter most: those that default.yaml sets, or at least two other profiles."""
        folder = self.root / "params" / self.notebook
        counts: Counter[str] = Counter()
        for path in sorted(folder.glob("*.yaml")):
            given, _ = read_yaml(path, path.name)
            weight = LEAST_PROFILES if path.stem == "default" else 1
            counts.update({".".join(entry.field): weight for entry in given})
        return [row.field for row in describe(self.params) if counts[row.field] >= LEAST_PROFILES]

    def source(self, field: str) -> str:
        """Where the value of a field comes from."""
        name = list_of(field)
        return next(row.source for row in describe(self.params) if row.field == name)

    def typed(self, field: str) -> str:
        """The present value of a field, as one would type it."""
        return as_typed(asked_value(self.params, field))

    def changes(self) -> list[tuple[str, Any, Any]]:
        """(field, the base's value, the present one) of what differs from the base."""
        rows = [(row.field, value_of(self.base, row.field)) for row in describe(self.base)]
        return [(name, old, value_of(self.params, name)) for name, old in rows if name in self.answers]


def notebooks(root: Path = ROOT) -> list[str]:
    """Names of the notebooks that can be configured."""
    return sorted({path.parent.name for path in root.glob("params/*/default.yaml")} - {OWN})


def start_draft(
    notebook: str,
    machine: Machine,
    *,
    profile: str = "auto",
    assignments: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    root: Path = ROOT,
) -> Draft:
    """A draft of a notebook's profile.

    profile: as for `load_params`. assignments: "training.max_steps=3", as --set takes them. Raises
    ParamsError for a notebook, profile or assignment that is not valid.
    """
    if profile == "auto":
        profile = recommend(machine, environ=environ).profile
    options: dict[str, Any] = {"environ": {}, "root": root}
    default = load_params(notebook, profile="default", **options)
    base = load_params(notebook, profile=profile, **options)
    draft = Draft(notebook, profile, root, default, base, base, {})
    given = parse_set(*assignments)
    flat = {name: value for name, value in given.items() if not isinstance(value, dict)}
    for section, fields in given.items():
        if isinstance(fields, dict):
            flat |= {f"{section}.{name}": value for name, value in fields.items()}
    return draft.answer(flat, place="--set") if flat else draft


def profile_text(draft: Draft) -> str:
    """The profile as YAML: what differs from default.yaml, since that is what a profile is read over.

    What the answers changed has the base's value beside it.
    """
    head = f"# By `rlnb configure`, from profile {draft.profile}: what differs from default.yaml."
    lines, section = [head], ""
    changed = {name: show(old) for name, old, _ in draft.changes()}
    for row in describe(draft.params):
        value, (own, _, name) = value_of(draft.params, row.field), row.field.rpartition(".")
        if value == value_of(draft.default, row.field):
            continue
        if own and own != section:
            lines += ["", f"{own}:"]
        section = own or section
        block = _yaml({name: value}).rstrip("\n").split("\n")
        if row.field in changed:
            block[0] += f"  # {draft.profile}: {changed[row.field]}"
        lines += [("  " if own else "") + line for line in block]
    return "\n".join(lines) + "\n"


class _OneLine(yaml.SafeDumper):
    """Writes a text with line breaks on one line, behind which a comment can stand."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if len(f"{text}.".splitlines()) > 1 else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_OneLine.add_representer(str, _represent_text)


def _yaml(values: Mapping[str, Any]) -> str:
    """Lists in one line; every character that a file would not give back is escaped."""
    plain = {
        name: [
            one.model_dump(mode="json", exclude_defaults=True) if isinstance(one, Section) else one
            for one in value
        ]
        if isinstance(value, tuple)
        else value
        for name, value in values.items()
    }
    text: str = yaml.dump(
        plain,
        Dumper=_OneLine,
        sort_keys=False,
        default_flow_style=None if any(isinstance(value, tuple) for value in values.values()) else False,
        width=10**6,
        allow_unicode=json.dumps(plain, ensure_ascii=False).isprintable(),
    )
    return text


def default_output(draft: Draft) -> Path:
    """params/<notebook>/mine.yaml of the project."""
    return draft.root / "params" / draft.notebook / "mine.yaml"


def check_output(path: str | Path) -> Path:
    """The path, of a file that a profile may be written to; raises ParamsError with the reason against it."""
    path = Path(path)
    if path.suffix != ".yaml":
        raise ParamsError(f"{path}: does not end in .yaml, by which profiles are known; add it")
    if path.name == "default.yaml":
        raise ParamsError(f"{path}: is what all profiles are read over; choose another name")
    if path.is_dir():
        raise ParamsError(f"{path}: is a directory; name a file in it")
    return path


def save_profile(draft: Draft, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the profile, whole or not at all; raises ParamsError where there is a file, or none can be."""
    path = check_output(path)
    if path.exists() and not overwrite:
        raise ParamsError(f"{path}: is there already; choose another name, or say that it may go")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            file.write(profile_text(draft))
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    except OSError as error:
        raise ParamsError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def shown_path(path: Path) -> str:
    """From here where that is shorter."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def run_command(draft: Draft, path: str | Path) -> str:
    """What runs the notebook with the profile."""
    notebook = draft.root / "notebooks" / f"{draft.notebook}.ipynb"
    parts = ["rlnb", "run", shown_path(notebook), "--profile", shown_path(Path(path))]
    return shlex.join(parts)


def remarks(draft: Draft, machine: Machine, *, environ: Mapping[str, str] = os.environ) -> list[str]:
    """What this machine would refuse, and which environment variables come over the profile here."""
    try:
        check_machine(resolve(draft.params, recommend(machine, environ=environ)), machine, environ=environ)
        found = []
    except ParamsError as error:
        found = [f"this machine would refuse it: {line}" for line in str(error).splitlines()]
    older = [name for name, _ in ENVIRONMENT_NAMES]
    names = [name for name in environ if name.startswith(PREFIX) and name not in NO_FIELDS or name in older]
    return found + [
        f"environment variable {name} will come over the profile here" for name in sorted(set(names))
    ]
