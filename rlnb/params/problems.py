"""What is wrong with a value, in one line that ends in the remedy."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from pydantic.fields import FieldInfo

LEADING_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
LONGEST_SHOWN = 60  # characters of a value in a message
SECRET_MARKS = frozenset("@?#")  # of what may hold a password or a key in an address


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """'; did you mean max_steps?', or the known names where none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name[:LONGEST_SHOWN].lower(), names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(names)}"


def all_and_nearest(name: str, known: Iterable[str]) -> str:
    """'; known: cpu, v100; did you mean v100?', the question only where one is near."""
    names = sorted(known)
    hint = did_you_mean(name, names)
    listed = f"; known: {', '.join(names)}"
    return listed if hint == listed else listed + hint


def show(value: Any) -> str:
    """A value as one would write it in YAML, texts in quotes, shortened."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return show_number(value)
    if isinstance(value, list | tuple):
        text = f"[{_join(map(show, value))}]"
    elif isinstance(value, Mapping):
        text = f"{{{_join(f'{show(key)}: {show(item)}' for key, item in value.items())}}}"
    elif isinstance(value, int) and value.bit_length() > 4 * LONGEST_SHOWN:
        text = hex(value)  # Python writes no integer of more than 4,300 digits in decimal
    else:
        text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 4]} ..."


def _join(items: Iterable[str]) -> str:
    """The items with commas, up to the first that is not shown: a list may hold 10**8."""
    text = ""
    for item in items:
        text += f", {item}" if text else item
        if len(text) > LONGEST_SHOWN:
            break
    return text


def show_name(name: str) -> str:
    """The name of a field as it was given; quoted and shortened where it cannot be a name."""
    return name if name.isprintable() and len(name) <= LONGEST_SHOWN else show(name)


def show_address(value: Any) -> str:
    """An address for a message; '...' where it may hold a password or a key."""
    return show(value) if isinstance(value, str) and not SECRET_MARKS & set(value) else "..."


def show_number(number: float) -> str:
    """1.0e-5 for 0.00001: with a dot, so that YAML 1.1 takes it for a number."""
    text = repr(number)
    if "e" not in text:
        return text
    digits, exponent = text.split("e")
    return f"{digits if '.' in digits else digits + '.0'}e{int(exponent):+d}"


def explain(error: dict[str, Any], field: FieldInfo) -> str:
    """The reason and remedy of one of pydantic's errors, for a message that begins with field = value."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    words = {
        "greater_than": "must be above {gt}",
        "greater_than_equal": "must be at least {ge}",
        "less_than": "must be below {lt}",
        "less_than_equal": "must be at most {le}",
        "finite_number": "is not a finite number",
        "string_too_short": "must not be empty",
        "too_short": "must not be empty",
        "value_error": "{error}",
    }
    if kind in words:
        return words[kind].format(**{name: _plain(part) for name, part in context.items()})
    reasons: dict[str, Callable[[Any, FieldInfo], str]] = {
        "float_type": _not_a_number,
        "int_type": _not_a_whole_number,
        "bool_type": _not_a_switch,
        "literal_error": _not_a_choice,
        "string_type": _not_a_text,
        "tuple_type": lambda value, field: f"is not a list; write {show(field.default)}",
    }
    return reasons[kind](value, field) if kind in reasons else f"is refused: {error['msg']}"


def _plain(part: Any) -> Any:
    """1 for 1.0: a bound as one would say it."""
    return int(part) if isinstance(part, float) and part.is_integer() else part


def _not_a_number(value: Any, field: FieldInfo) -> str:
    number = LEADING_NUMBER.match(value) if isinstance(value, str) else None
    if number:
        return f"is not a number; write {show_number(float(number.group()))}"
    return f"is not a number; write one such as {show(field.default)}"


def _not_a_whole_number(value: Any, field: FieldInfo) -> str:
    if isinstance(value, float) and value.is_integer():
        return f"is not a whole number; write {int(value)}"
    if isinstance(value, str) and re.fullmatch(r"\s*[-+]?\d{1,18}\s*", value):
        return f"is not a whole number; write {int(value)} without quotes"
    if isinstance(field.default, int):
        return f"is not a whole number; write one such as {field.default}"
    return "is not a whole number"


def _not_a_text(value: Any, field: FieldInfo) -> str:
    # What YAML read as a switch may have been no, off or yes: only the user knows which.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_short = is_number and len(show(value)) < LONGEST_SHOWN
    return f'is not text; write "{value}"' if is_short else "is not text; put it in quotes"


def _not_a_switch(value: Any, field: FieldInfo) -> str:
    return f"is neither true nor false; write {show(field.default)}"


def _not_a_choice(value: Any, field: FieldInfo) -> str:
    choices = [choice if isinstance(choice, str) else show(choice) for choice in get_args(field.annotation)]
    text = value if isinstance(value, str) else show(value)
    near = difflib.get_close_matches(text[:LONGEST_SHOWN].lower(), choices, n=1)
    return f"is not one of {', '.join(choices)}" + (f"; did you mean {near[0]}?" if near else "")
