"""A profile in the making: its questions, the answers to them, and the file that is written.

All of it comes from the pydantic models. The terminal (terminal.py) and the form (widget.py) use it.
"""

import dataclasses
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from rlnb.errors import ParamsError
from rlnb.machine import Machine, recommend
from rlnb.params import check_machine, load_params, parse_set, resolve
from rlnb.params.loading import ROOT, choose_profile, list_fields
from rlnb.params.older_names import accepted_fields
from rlnb.params.problems import show
from rlnb.params.reading import ENVIRONMENT_NAMES, NO_FIELDS, PREFIX, nest, parse_yaml, read_typed, read_yaml
from rlnb.params.sections import NotebookParams, Section, value_of
from rlnb.run.directory import write_text

PLACE = "your answer"  # of an answer, in messages
ITEM_FIELD = re.compile(r"(?P<list>[\w.]+)\[(?P<index>\d+)\]\.(?P<name>\w+)")
# An item of a list as it is typed: in quotes, or without commas except in breakthrough(rows=6,columns=6).
LIST_ITEM = re.compile(r"""\s*("(?:\\.|[^"\\])*"|'[^']*'|(?:\([^()]*\)|[^,])+)""")
UNQUOTED_ITEM = re.compile(r"""[^\s,"'()[\]{}][^,"'()[\]{}]*(?:\([^()]*\))?""")
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "multiple_of": "a multiple of"}
MIN_PROFILES = 2  # a field that so many profiles set is a main one


@dataclasses.dataclass(frozen=True)
class Question:
    """A field to ask for: "seed", "training.max_steps", or "curriculum.stages[0].threshold" of a list."""

    field: str
    info: FieldInfo

    @property
    def section(self) -> str:
        return self.field.partition(".")[0] if "." in self.field else ""

    @property
    def help(self) -> str:
        return self.info.description or ""

    @property
    def is_switch(self) -> bool:
        return self.info.annotation is bool

    @property
    def is_section_list(self) -> bool:
        return issubclass(_item_class(self.info) or object, Section)

    @property
    def choices(self) -> tuple[str, ...]:
        """What may be typed, () where that is not a fixed list."""
        if self.is_switch:
            return ("true", "false")
        is_literal = get_origin(self.info.annotation) is Literal
        return tuple(map(as_typed, get_args(self.info.annotation))) if is_literal else ()

    @property
    def bounds(self) -> str:
        """ "at least 1", "" without bounds."""
        return ", ".join(
            f"{words} {show(getattr(bound, name))}"
            for bound in self.info.metadata
            for name, words in BOUNDS.items()
            if getattr(bound, name, None) is not None
        )


@dataclasses.dataclass(frozen=True)
class Draft:
    """A valid set of parameters, and the answers that led to it; `answer` returns the next draft.

    profile: the one to start from, never "auto". base: its values, default: those of default.yaml, both
    without the environment's, which do not belong into a profile. answers: {field: value} over the base.
    """

    notebook: str
    profile: str
    root: Path
    default: NotebookParams
    base: NotebookParams
    params: NotebookParams
    answers: Mapping[str, object]

    def answer(self, texts: Mapping[str, str], *, place: str = PLACE) -> "Draft":
        """Return the draft with these answers, {field: text as typed}, given at once.

        Raises ParamsError as `load_params` does: every problem, conflicts between fields included.
        """
        fields = {".".join(old): ".".join(new) for old, new in accepted_fields(self.notebook).items()}
        new = dict(read_answer(self.params, fields.get(name, name), text) for name, text in texts.items())
        # The new ones are the last, so that a conflict names them.
        old = {field: value for field, value in self.answers.items() if field not in new}
        return self.with_values(old | new, place)

    def refusal(self, texts: Mapping[str, str]) -> str:
        """Return the error that `answer` would raise for these answers; empty where there is none."""
        try:
            self.answer(texts)
        except ParamsError as error:
            return str(error)
        return ""

    def with_values(self, answers: Mapping[str, object], place: str) -> "Draft":
        """Return the draft with these answers instead, {field: value}. Raises ParamsError."""
        overrides = nest(answers)
        params = load_params(
            self.notebook, profile=self.profile, overrides=overrides, place=place, environ={}, root=self.root
        )
        changed = [name for name in answers if value_of(params, name) != value_of(self.base, name)]
        return dataclasses.replace(self, params=params, answers={name: answers[name] for name in changed})

    def questions(self) -> list[Question]:
        """Return every field in the order of the model; the items of a list of sections follow the list."""
        questions = []
        for path, info in list_fields(type(self.params)).items():
            field = ".".join(path)
            questions.append(Question(field, info))
            if questions[-1].is_section_list:
                questions += [
                    Question(f"{field}[{index}].{name}", inner)
                    for index, item in enumerate(value_of(self.params, field))
                    for name, inner in type(item).model_fields.items()
                ]
        return questions

    def main_fields(self) -> list[str]:
        """Return the fields that matter most: those that default.yaml or two other profiles set."""
        counts: Counter[str] = Counter()
        for path in (self.root / "params" / self.notebook).glob("*.yaml"):
            given, _ = read_yaml(path, path.name)
            weight = MIN_PROFILES if path.stem == "default" else 1
            counts.update({".".join(entry.field): weight for entry in given})
        fields = map(".".join, list_fields(type(self.params)))
        return [field for field in fields if counts[field] >= MIN_PROFILES]

    def source(self, field: str) -> str:
        """Return the place that set a field."""
        return self.params._sources.get(field.partition("[")[0], "default")

    def typed(self, field: str) -> str:
        """Return the present value of a field as one would type it."""
        value: Any = self.params
        for name in re.findall(r"\w+", field):
            value = value[int(name)] if name.isdigit() else getattr(value, name)
        return as_typed(value)

    def changes(self) -> list[tuple[str, object, object]]:
        """Return (field, the base's value, the present one) of what the answers changed, in model order."""
        fields = [field for field in map(".".join, list_fields(type(self.params))) if field in self.answers]
        return [(field, value_of(self.base, field), value_of(self.params, field)) for field in fields]


def notebooks() -> list[str]:
    """Return the names of the notebooks that can be configured: all but the form itself."""
    return sorted({path.parent.name for path in ROOT.glob("params/*/default.yaml")} - {"configure"})


def start_draft(
    notebook: str,
    machine: Machine,
    *,
    profile: str = "auto",
    assignments: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    root: Path = ROOT,
) -> Draft:
    """Return the draft of a notebook's profile.

    profile: as for `load_params`. assignments: "training.max_steps=3", as --set takes them. Raises
    ParamsError for a notebook, profile or assignment that is not valid.
    """
    if profile == "auto":
        profile = choose_profile(notebook, recommend(machine, environ=environ).profile, root)
    default = load_params(notebook, profile="default", environ={}, root=root)
    base = load_params(notebook, profile=profile, environ={}, root=root)
    draft = Draft(notebook, profile, root, default, base, base, {})
    parse_set(*assignments)  # raises for what is not an assignment
    parts = [assignment.partition("=") for assignment in assignments]
    return draft.answer({name.strip(): text for name, _, text in parts}, place="--set")


def check_games(params: NotebookParams) -> list[str]:
    """Return the warnings of a curriculum's gates.

    Raises ParamsError for games, opponents and thresholds that a run of self-play or PPO would refuse.
    """
    # Imported here: these bring torch.
    from rlnb.games.opponents import check_opponents
    from rlnb.ppo.curriculum import load_curriculum, weak_gates
    from rlnb.ppo.params import PpoOpenspielParams
    from rlnb.selfplay.arena import playable_opponents
    from rlnb.spiral.params import SpiralSelfPlayParams

    if isinstance(params, PpoOpenspielParams):
        curriculum = load_curriculum(params)
        for game in curriculum.games.values():
            check_opponents(game, playable_opponents(game, params.evaluation.opponents))
        return weak_gates(curriculum)
    if isinstance(params, SpiralSelfPlayParams):
        params.load_game()
    return []


def read_answer(params: NotebookParams, name: str, text: str) -> tuple[str, object]:
    """Return the field that an answer sets and its value; whether it is valid, the model tells.

    Lists may be typed with commas, without brackets; "" in quotes is an empty text. An item's field sets the
    whole list.
    """
    item = ITEM_FIELD.fullmatch(name)
    if item is None:
        info = list_fields(type(params)).get(tuple(name.split(".")))
        return name, _parse(info, text)
    items, index = value_of(params, item["list"]), int(item["index"])
    if index >= len(items):
        raise ParamsError(f"{PLACE}: {item['list']} has no item {index}; its first is 0")
    values = [section.model_dump(mode="json") for section in items]
    values[index][item["name"]] = _parse(type(items[0]).model_fields.get(item["name"]), text)
    return item["list"], values


def _parse(info: FieldInfo | None, text: str) -> object:
    text = text.strip()
    item_class = None if info is None else _item_class(info)
    if info is not None and info.annotation is str:
        return "" if text in ("''", '""') else text
    if item_class is None:
        return read_typed(info, text)
    if issubclass(item_class, Section):
        return _parse_structure(text)
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    items = filter(None, (match[1].strip() for match in LIST_ITEM.finditer(text)))
    return [
        _parse_structure(item) if item[0] in "\"'" else read_typed(FieldInfo(annotation=item_class), item)
        for item in items
    ]


def _parse_structure(text: str) -> object:
    """Return the value of a text in JSON, which `as_typed` writes, or in YAML; else the text itself."""
    for read in (json.loads, parse_yaml):
        try:
            return read(text)
        except (ValueError, yaml.YAMLError, RecursionError):
            continue
    return text


def _item_class(info: FieldInfo) -> type | None:
    """Return the class of a list's items, None for a field that is not a list."""
    return get_args(info.annotation)[0] if get_origin(info.annotation) is tuple else None


def as_typed(value: object) -> str:
    """Return the text that `read_answer` reads back as this value."""
    if isinstance(value, tuple) and value and isinstance(value[0], Section):
        return json.dumps([item.model_dump(mode="json") for item in value], ensure_ascii=False)
    if isinstance(value, tuple):
        texts = [item if isinstance(item, str) else show(item) for item in value]
        items = [
            text
            if UNQUOTED_ITEM.fullmatch(text) and text == text.strip()
            else json.dumps(text, ensure_ascii=False)
            for text in texts
        ]
        return ", ".join(items) or "[]"
    return show(value) if not isinstance(value, str) else value or '""'


def profile_text(draft: Draft) -> str:
    """Return the profile as YAML: what differs from default.yaml, over which profiles are read.

    A comment gives the base's value of what the answers changed.
    """
    lines = [f"# By `rlnb configure`, from profile {draft.profile}: what differs from default.yaml."]
    last_section = ""
    changed = {name: show(old) for name, old, _ in draft.changes()}
    for path in list_fields(type(draft.params)):
        field, section = ".".join(path), path[0] if len(path) == 2 else ""
        value = value_of(draft.params, field)
        if value == value_of(draft.default, field):
            continue
        if section and section != last_section:
            lines += ["", f"{section}:"]
        last_section = section or last_section
        block = _yaml(path[-1], value).rstrip("\n").split("\n")
        if field in changed:
            block[-1] += f"  # {draft.profile}: {changed[field]}"
        lines += [("  " if section else "") + line for line in block]
    return "\n".join(lines) + "\n"


def _yaml(name: str, value: object) -> str:
    """Return `name: value`, lists on one line; characters that a file would not give back are escaped."""
    if isinstance(value, tuple):
        value = [
            item.model_dump(mode="json", exclude_defaults=True) if isinstance(item, Section) else item
            for item in value
        ]
    text: str = yaml.safe_dump(
        {name: value},
        sort_keys=False,
        default_flow_style=None if isinstance(value, list) else False,
        width=10**6,
        allow_unicode=json.dumps(value, ensure_ascii=False).isprintable(),
    )
    return text


def default_output(draft: Draft) -> Path:
    return draft.root / "params" / draft.notebook / "mine.yaml"


def check_output(path: str | Path) -> Path:
    """Return the path if a profile may be written to it. Raises ParamsError with the reason otherwise."""
    path = Path(path)
    if path.suffix != ".yaml":
        raise ParamsError(f"{path}: does not end in .yaml, by which profiles are known; add it")
    if path.name == "default.yaml":
        raise ParamsError(f"{path}: is what all profiles are read over; choose another name")
    if path.is_dir():
        raise ParamsError(f"{path}: is a directory; name a file in it")
    return path


def save_profile(draft: Draft, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the profile, whole or not at all. Raises ParamsError if the file exists or cannot be written."""
    path = check_output(path)
    if path.exists() and not overwrite:
        raise ParamsError(f"{path}: exists already; choose another name, or allow it to be overwritten")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, profile_text(draft))
    except OSError as error:
        raise ParamsError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def shown_path(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def run_command(draft: Draft, path: str | Path) -> str:
    """Return the command that runs the notebook with the profile."""
    notebook = draft.root / "notebooks" / f"{draft.notebook}.ipynb"
    return shlex.join(["rlnb", "run", shown_path(notebook), "--profile", shown_path(Path(path))])


def remarks(draft: Draft, machine: Machine, *, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return what this machine would refuse, and the environment variables that win over the profile here."""
    lines = []
    try:
        check_machine(resolve(draft.params, recommend(machine, environ=environ)), machine, environ=environ)
    except ParamsError as error:
        lines = [f"this machine would refuse it: {line}" for line in str(error).splitlines()]
    older = [name for name, _ in ENVIRONMENT_NAMES]
    names = {name for name in environ if name.startswith(PREFIX) and name not in NO_FIELDS or name in older}
    return lines + [f"environment variable {name} wins over the profile here" for name in sorted(names)]
