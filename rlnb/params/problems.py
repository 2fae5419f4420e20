"""Error messages about values: one line each, ending in the remedy."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import get_args

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

LEADING_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
MAX_SHOWN = 60  # characters of a value in a message
SECRET_MARKS = frozenset("@?#")  # in an address they may mark a password or a key
REASONS = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "is not a finite number",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "value_error": "{error}",
}
WRONG_TYPES = {
    "int_type": "is not a whole number; write one such as ",
    "bool_type": "is neither true nor false; write ",
    "tuple_type": "is not a list; write ",
    "string_type": "is not text; put it in quotes, as in ",
}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return '; did you mean max_steps?', or the known names where none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name[:MAX_SHOWN].lower(), names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(names)}"


def show(value: object) -> str:
    """Return a value as one would write it in YAML, texts in quotes, shortened."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return show_number(value)
    if isinstance(value, list | tuple):
        text = f"[{', '.join(map(show, value))}]"
    elif isinstance(value, Mapping):
        text = f"{{{', '.join(f'{show(key)}: {show(item)}' for key, item in value.items())}}}"
    elif isinstance(value, int) and value.bit_length() > 4 * MAX_SHOWN:
        text = hex(value)  # Python writes no integer of more than 4,300 digits in decimal
    else:
        text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 4]} ..."


def show_name(name: str) -> str:
    """Return the name of a field as it was given; quoted and shortened where it cannot be a name."""
    return name if name.isprintable() and len(name) <= MAX_SHOWN else show(name)


def show_address(value: object) -> str:
    """Return an address for a message, or '...' where it may hold a password or a key."""
    return show(value) if isinstance(value, str) and not SECRET_MARKS & set(value) else "..."


def show_number(value: float) -> str:
    """Return 1.0e-5 for 0.00001: with a dot, so that YAML 1.1 takes it for a number."""
    text = repr(value)
    if "e" not in text:
        return text
    digits, exponent = text.split("e")
    return f"{digits if '.' in digits else digits + '.0'}e{int(exponent):+d}"


def explain(error: ErrorDetails, field: FieldInfo) -> str:
    """Return the reason and remedy of one of pydantic's errors, to follow "field = value"."""
    kind, value, usual = error["type"], error["input"], show(field.default)
    if kind in REASONS:
        context = error.get("ctx", {}).items()
        # 1 for 1.0: a bound as one would say it.
        bounds = {name: int(b) if isinstance(b, float) and b.is_integer() else b for name, b in context}
        return REASONS[kind].format(**bounds)
    text = value if isinstance(value, str) else show(value)
    if kind == "float_type":
        start = LEADING_NUMBER.match(value) if isinstance(value, str) else None
        return f"is not a number; write {show_number(float(start[0])) if start else f'one such as {usual}'}"
    if kind in WRONG_TYPES:
        return f"{WRONG_TYPES[kind]}{usual}"
    if kind == "literal_error":
        allowed = get_args(field.annotation)
        choices = [choice if isinstance(choice, str) else show(choice) for choice in allowed]
        near = difflib.get_close_matches(text[:MAX_SHOWN].lower(), choices, n=1)
        return f"is not one of {', '.join(choices)}" + (f"; did you mean {near[0]}?" if near else "")
    return f"is refused: {error['msg']}"
