"""Records of JSON files, and what becomes of them: read with their place, checked with one clear error."""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rlnb.errors import ParamsError

Record = tuple[str, Any]  # where it stands, as an error names it, and what stands there
Read = TypeVar("Read")


def json_records(path: Path, *, what: str = "task") -> Iterator[Record]:
    """Records of a JSONL file, or of a JSON file that holds one list. what: one record, in messages."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors of Windows begin with a mark
    except OSError as error:
        raise ParamsError(f"{path}: cannot be read: {error.strerror}; name a file of {what}s") from error
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path}: is no UTF-8 text (byte {error.start}); name a file of {what}s") from error
    if text.lstrip().startswith("["):
        for number, record in enumerate(parsed(text, str(path), what), start=1):
            yield f"{path}: record {number}", record
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", parsed(line, f"{path}:{number}", what)


def parsed(text: str, place: str, what: str) -> Any:
    """The value of a JSON text. Raises ParamsError naming the place."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = error.msg
    except ValueError:
        reason = "a number is too long"
    except RecursionError:
        reason = "nested too deeply"
    raise ParamsError(f"{place}: not JSON ({reason}); write one {what} a line")


def checked(
    read: Callable[[Mapping[str, Any]], Read], place: str, record: Any, *, what: str = "task"
) -> Read:
    """What `read` makes of a record. Raises ParamsError naming the place and what is wrong."""
    try:
        if not isinstance(record, Mapping):
            raise TypeError("a record is an object with named fields")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of doubtful escapes in the code of a record
            return read({"id": place, **record})
    except KeyError as error:
        raise ParamsError(f"{place}: no {what}: the field {error} is missing") from error
    except SyntaxError as error:
        raise ParamsError(f"{place}: no {what}: its code does not parse") from error
    except (RecursionError, MemoryError) as error:
        raise ParamsError(f"{place}: no {what}: nested too deeply") from error
    except (TypeError, ValueError) as error:
        raise ParamsError(f"{place}: no {what}: {error}") from error


def typed(value: Any, kind: type, *, name: str) -> Any:
    """The value of a field. Raises TypeError where it is of another kind."""
    if type(value) is not kind:
        words = {str: "text", list: "list", int: "whole number", dict: "object with named fields"}
        raise TypeError(f"{name} = {value!r} is no {words[kind]}")
    return value
