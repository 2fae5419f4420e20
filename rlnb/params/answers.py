"""Fields as questions, and what is typed as an answer: made from the models, whatever asks them."""

import json
import re
from typing import Any, Literal, NamedTuple, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from rlnb.errors import ParamsError
from rlnb.params.problems import show
from rlnb.params.reading import Typed, parse_yaml, read_mapping
from rlnb.params.reporting import describe
from rlnb.params.sections import NotebookParams, Section, value_of

ANSWER = "your answer"  # what messages call the place of an answer
ITEM = re.compile(r"(?P<list>[\w.]+)\[(?P<number>\d+)\]\.(?P<inner>\w+)")
QUOTES = "\"'"
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "multiple_of": "a multiple of"}


class Question(NamedTuple):
    """A field that can be asked for.

    field: "seed", "training.max_steps", or "curriculum.stages[0].threshold" of a list of sections. choices:
    what may be typed, () where that is no list. bounds: "at least 1", "" where there are none. is_list: a
    list, typed with commas. is_yaml: a list of sections, typed as YAML.
    """

    field: str
    help: str
    choices: tuple[str, ...] = ()
    bounds: str = ""
    is_switch: bool = False
    is_list: bool = False
    is_yaml: bool = False

    @property
    def section(self) -> str:
        """ "training", and "" for a field that is in none."""
        return self.field.partition(".")[0] if "." in self.field else ""


def read_answer(params: NotebookParams, name: str, text: str) -> tuple[str, Any]:
    """(the field that an answer sets, its value) of what was typed; what it is worth, the model will tell.

    Lists may be typed with commas, without brackets; "" in quotes is an empty text. An item's field sets the
    whole list.
    """
    item = ITEM.fullmatch(name)
    if item is None:
        return name, _read(text, _info(params, name))
    items = value_of(params, item["list"])
    if not int(item["number"]) < len(items):
        raise ParamsError(f"{ANSWER}: {item['list']} has no item {item['number']}; its first is 0")
    values = [one.model_dump(mode="json") for one in items]
    info = type(items[0]).model_fields.get(item["inner"])
    values[int(item["number"])][item["inner"]] = _read(text, info)
    return item["list"], values


def _read(text: str, info: FieldInfo | None) -> Any:
    text = text.strip()
    annotation: Any = None if info is None else info.annotation
    if annotation is str:
        return "" if text in ("''", '""') else text
    if get_origin(annotation) is tuple and not _is_section(get_args(annotation)[0]):
        item = FieldInfo(annotation=get_args(annotation)[0])
        return [_read_quoted(one, item) for one in _split(text)]
    if get_origin(annotation) is tuple:
        return _read_structure(text)
    return read_mapping({"": Typed(text)}, "", {} if info is None else {("",): info})[0].value


def _read_structure(text: str) -> Any:
    """A list of sections, or a text in quotes, as JSON, which `as_typed` writes, or as YAML."""
    for read in (json.loads, parse_yaml):
        try:
            return read(text)
        except (ValueError, yaml.YAMLError, RecursionError):
            continue
    return text


def _read_quoted(text: str, item: FieldInfo) -> Any:
    if len(text) > 1 and text[0] == text[-1] and text[0] in QUOTES:
        return _read_structure(text)
    return read_mapping({"": Typed(text)}, "", {("",): item})[0].value


def _split(text: str) -> list[str]:
    """At commas outside brackets and quotes: breakthrough(rows=6,columns=6) is one item."""
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    items, depth, quote, is_escaped = [""], 0, "", False
    for letter in text:
        if is_escaped:
            is_escaped = False
        elif quote == '"' and letter == "\\":
            is_escaped = True
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in QUOTES and not items[-1].strip():
            quote = letter
        else:
            depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not quote and depth <= 0:
            items.append("")
        else:
            items[-1] += letter
    return [item.strip() for item in items if item.strip()]


def as_typed(value: Any) -> str:
    """A value as `read_answer` reads it back."""
    if isinstance(value, tuple) and value and isinstance(value[0], Section):
        return json.dumps([item.model_dump(mode="json") for item in value], ensure_ascii=False)
    if isinstance(value, tuple):
        return ", ".join(_item_typed(item) for item in value) or "[]"
    if isinstance(value, str):
        return value or '""'
    return show(value)


def _item_typed(item: Any) -> str:
    """Quoted where it would not be read alone: with commas, quotes, or brackets that do not close."""
    text = item if isinstance(item, str) else show(item)
    is_read_alone = _split(f"x,{text},(y,z)") == ["x", text, "(y,z)"] and text[0] not in "\"'["
    return text if is_read_alone else json.dumps(text, ensure_ascii=False)


def questions_of(params: NotebookParams) -> list[Question]:
    """Every field, in the order of the model; the items of a list of sections behind the list."""
    return [question for row in describe(params) for question in _questions(params, row.field)]


def _questions(params: NotebookParams, field: str) -> list[Question]:
    info, value = _info(params, field), value_of(params, field)
    found = [_question(field, info)] if info is not None else []
    if isinstance(value, tuple) and value and isinstance(value[0], Section):
        for number, item in enumerate(value):
            inner = type(item).model_fields.items()
            found += [_question(f"{field}[{number}].{name}", own) for name, own in inner]
    return found


def _question(field: str, info: FieldInfo) -> Question:
    annotation: Any = info.annotation
    is_switch, is_list = annotation is bool, get_origin(annotation) is tuple
    choices: tuple[str, ...] = ("true", "false") if is_switch else ()
    if get_origin(annotation) is Literal:
        choices = tuple(as_typed(choice) for choice in get_args(annotation))
    bounds = [
        f"{words} {show(getattr(bound, name))}"
        for bound in info.metadata
        for name, words in BOUNDS.items()
        if getattr(bound, name, None) is not None
    ]
    is_yaml = is_list and _is_section(get_args(annotation)[0])
    return Question(field, info.description or "", choices, ", ".join(bounds), is_switch, is_list, is_yaml)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _info(params: NotebookParams, field: str) -> FieldInfo | None:
    section, _, name = field.rpartition(".")
    owner = getattr(params, section, None) if section else params
    return type(owner).model_fields.get(name) if isinstance(owner, Section) else None


def list_of(field: str) -> str:
    """The field that holds what is asked for: the list of an item's field, else the field itself."""
    item = ITEM.fullmatch(field)
    return field if item is None else item["list"]


def asked_value(params: NotebookParams, field: str) -> Any:
    """The value of what is asked for, an item's field or a field."""
    item = ITEM.fullmatch(field)
    if item is None:
        return value_of(params, field)
    return getattr(value_of(params, item["list"])[int(item["number"])], item["inner"])
