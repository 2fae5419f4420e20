"""How messages show values, and what they suggest instead of a wrong name."""

import difflib
from collections.abc import Iterable, Mapping

MAX_SHOWN = 60  # characters of a value in a message


def did_you_mean(name: str, known: Iterable[str], *, listed: Iterable[str] | None = None) -> str:
    """Return '; did you mean max_steps?', or the known names where none is near.

    listed: those to list, if known are too many.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name[:MAX_SHOWN].lower(), names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(listed or names))}"


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


def show_number(value: float) -> str:
    """Return 1.0e-5 for 0.00001: with a dot, so that YAML 1.1 takes it for a number."""
    digits, e, exponent = repr(value).partition("e")
    return f"{digits if '.' in digits else digits + '.0'}e{int(exponent):+d}" if e else digits
