"""Records of JSON files: read with their place, and checked with one clear error."""

import contextlib
import gzip
import json
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from rlnb.errors import ParamsError

Record = tuple[str, object]  # its place as errors name it, "FILE:LINE", and its value
Parsed = TypeVar("Parsed")
GZIP_MARK = b"\x1f\x8b"
MOST_UNPACKED_MIB = 512  # of a file packed by gzip: a small one may unpack to any size
NOT_OF_TYPE = {  # pydantic's names of errors
    "string_type": "is not text",
    "int_type": "is not a whole number",
    "float_type": "is not a number",
    "tuple_type": "is not a list",
    "model_type": "is not an object with named fields",
}


def read_records(path: Path, *, what: str = "task") -> Iterator[Record]:
    """Yield the records of a JSONL file, or of a JSON file that holds one list; either may be a gzip file.

    what: the noun for a record in messages. Raises ParamsError naming file and line.
    """
    try:
        text = read_text(path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ParamsError(f"{path}: a damaged gzip file ({error}); name a file of {what}s") from error
    except OSError as error:
        raise ParamsError(f"{path}: cannot be read: {error.strerror}; name a file of {what}s") from error
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path}: not UTF-8 text (byte {error.start}); name a file of {what}s") from error
    if text.lstrip().startswith("["):
        for index, record in enumerate(parse_json(text, str(path), what), start=1):
            yield f"{path}: record {index}", record
        return
    for line_number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{path}:{line_number}", parse_json(line, f"{path}:{line_number}", what)


def read_text(path: Path) -> str:
    """Return the text of a file, unpacked where it is a gzip file."""
    encoding = "utf-8-sig"  # some editors on Windows start files with a mark
    with path.open("rb") as file:
        if file.read(len(GZIP_MARK)) != GZIP_MARK:
            return path.read_text(encoding)
    with gzip.open(path) as packed:
        content = packed.read((MOST_UNPACKED_MIB << 20) + 1)
    if len(content) > MOST_UNPACKED_MIB << 20:
        raise ParamsError(f"{path}: unpacks to more than {MOST_UNPACKED_MIB} MiB; name an unpacked file")
    return content.decode(encoding)


def parse_json(text: str, place: str, what: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = error.msg
    except ValueError:
        reason = "a number is too long"
    except RecursionError:
        reason = "nested too deeply"
    raise ParamsError(f"{place}: not JSON ({reason}); write one {what} a line")


def check_record(
    build: Callable[[Mapping[str, object]], Parsed], place: str, record: object, *, what: str = "task"
) -> Parsed:
    """Return what `build` makes of a record, for instance a pydantic model's `model_validate`.

    A record without an "id" gets its place as one. Raises ParamsError naming the place, the field and what is
    wrong with it.
    """
    try:
        if not isinstance(record, Mapping):
            raise TypeError("a record is an object with named fields")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # doubtful escapes in the code of a record
            return build({"id": place, **record})
    except ValidationError as error:
        raise ParamsError(f"{place}: not a {what}: {first_reason(error)}") from error
    except SyntaxError as error:
        raise ParamsError(f"{place}: not a {what}: its code does not parse") from error
    except (RecursionError, MemoryError) as error:
        raise ParamsError(f"{place}: not a {what}: nested too deeply") from error
    except (TypeError, ValueError) as error:
        raise ParamsError(f"{place}: not a {what}: {error}") from error


def first_reason(error: ValidationError) -> str:
    """Return the first error of pydantic in a sentence that names the field and its value."""
    first = error.errors(include_url=False)[0]
    field = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"the field {field!r} is missing"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    value = ascii(first["input"])[:80]
    return f"{field} = {value} {NOT_OF_TYPE.get(first['type'], 'is wrong: ' + first['msg'])}"


@dataclass(frozen=True)
class LineStore:
    """A JSONL file of values by key, written as they are made; a line torn by a kill is left out."""

    path: Path

    def read(self) -> dict[str, Any]:
        """Return {key: value}, the last value of each key."""
        values = {}
        for line in self.path.read_bytes().splitlines() if self.path.exists() else []:
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                row = json.loads(line)
                values[str(row["key"])] = row["value"]
        return values

    @contextlib.contextmanager
    def appending(self) -> Iterator[Callable[[str, object], None]]:
        """Return a function of a key and its value that appends them; threads may share it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Each line is one write, so a kill leaves whole lines; an empty one follows what was torn.
        with self.path.open("ab", buffering=0) as file:
            if file.tell():
                file.write(b"\n")

            def append(key: str, value: object) -> None:
                file.write(json.dumps({"key": key, "value": value}).encode() + b"\n")

            yield append
