"""Records of JSON files: read with their place, and checked with one clear error."""

import gzip
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from rlnb.errors import ParamsError

Record = tuple[str, object]  # its place as errors name it, "FILE:LINE", and its value
Parsed = TypeVar("Parsed")


def read_text(path: Path, *, what: str) -> str:
    """Return the text of a file, which may be a gzip file; what: as in `read_records`."""
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ParamsError(f"{path}: cannot be read: {error}; name a file of {what}s") from error


def read_records(path: Path, *, what: str = "task") -> Iterator[Record]:
    """Yield the records of a JSONL file, or of a JSON file that holds one list or one indented object.

    what: the noun for a record in messages. Raises ParamsError naming file and line.
    """
    text = read_text(path, what=what)
    is_list = text.lstrip().startswith("[")
    is_whole = is_list or re.match(r"\s*\{\s*\n", text) is not None
    for line_number, part in enumerate([text] if is_whole else text.split("\n"), start=1):
        place = str(path) if is_whole else f"{path}:{line_number}"
        try:
            value: Any = from_json(part) if part.strip() else None
        except ValueError as error:
            raise ParamsError(f"{place}: not JSON ({error}); write one {what} a line") from error
        if is_list:
            yield from ((f"{path}: record {index}", item) for index, item in enumerate(value, start=1))
        elif part.strip():
            yield place, value


def check_record(
    build: Callable[[Mapping[str, object]], Parsed], place: str, record: object, *, what: str = "task"
) -> Parsed:
    """Return what `build` makes of a record, for instance a pydantic model's `model_validate`.

    A record without an "id" gets its place as one. Raises ParamsError naming place, field and problem.
    """
    try:
        if not isinstance(record, Mapping):
            raise TypeError("a record is an object with named fields")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # doubtful escapes in the code of a record
            return build({"id": place, **record})
    except ValidationError as error:
        first = error.errors()[0]
        field, value = ".".join(map(str, first["loc"])), ascii(first["input"])[:80]
        is_missing = first["type"] == "missing"
        reason = f"the field {field!r} is missing" if is_missing else f"{field} = {value}: {first['msg']}"
    except SyntaxError:
        reason = "its code does not parse"
    except (TypeError, ValueError, RecursionError, MemoryError) as error:
        reason = str(error) or "nested too deeply"
    raise ParamsError(f"{place}: not a {what}: {reason}")
