"""Plain data as bytes and back, for both sides of the boundary: no pickle, no class but the builtin ones.

What is read may have been written by a hostile program: it becomes values of exactly the types below, of
bounded size, or it is refused.
"""

import builtins
import itertools
import json
from typing import Any

MAX_BYTES = 2**20
MAX_ITEMS = 100_000  # of an iterator or a range, which may be endless
MAX_DEPTH = 60
MAX_OF_ONE_HASH = 200  # keys of a set or a dict
MAX_INTEGER_DIGITS = 20_000  # hexadecimal
# Types that may be passed themselves, as MBPP's task 533 does.
TYPES = (
    "bool",
    "bytes",
    "complex",
    "dict",
    "float",
    "frozenset",
    "int",
    "list",
    "object",
    "set",
    "str",
    "tuple",
)


class Reference:
    """Stands on this side for a value of the other that is no plain data; equal to nothing but itself.

    It can be passed back, and is that value again there.
    """

    def __init__(self, number: int, type_name: str) -> None:
        self.number = number
        self.type_name = type_name

    def __repr__(self) -> str:
        return f"<{self.type_name} object>"


def dumps(value: Any, kept: list[Any] | None = None) -> bytes:
    """Encode; raises ValueError for what is too large or too deep, and for what is no plain data.

    kept: where the other side may hold References, values that are no plain data are kept in this list.
    """
    try:
        data = json.dumps(_pack(value, MAX_DEPTH, kept), separators=(",", ":")).encode("ascii")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if len(data) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES} bytes")
    return data


def loads(data: bytes, kept: list[Any] | None = None) -> Any:
    """Decode; raises ValueError for anything that `dumps` would not write. kept: see there."""
    try:
        return _unpack(json.loads(data), MAX_DEPTH, kept)
    except (TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _pack(value: Any, depth: int, kept: list[Any] | None) -> Any:
    if depth < 0:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int.__index__(value)
        return number if abs(number) < 2**63 else {"int": hex(number)}
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, list):
        return [_pack(item, depth - 1, kept) for item in list.__iter__(value)]
    if isinstance(value, tuple | set | frozenset):
        name = next(kind.__name__ for kind in (tuple, set, frozenset) if isinstance(value, kind))
        return {name: [_pack(item, depth - 1, kept) for item in value]}
    if isinstance(value, dict):
        return {
            "dict": [
                [_pack(key, depth - 1, kept), _pack(item, depth - 1, kept)] for key, item in dict.items(value)
            ]
        }
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, range):
        return {"range": [_pack(part, 0, kept) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, type) and value.__name__ in TYPES and getattr(builtins, value.__name__) is value:
        return {"type": value.__name__}
    if hasattr(type(value), "__next__") or isinstance(
        value, type({}.keys()) | type({}.values()) | type({}.items())
    ):
        items = list(itertools.islice(value, MAX_ITEMS + 1))
        if len(items) > MAX_ITEMS:
            raise ValueError(f"an iterator of more than {MAX_ITEMS} items")
        return {"iterator": [_pack(item, depth - 1, kept) for item in items]}
    if isinstance(value, Reference):
        return {"reference": [value.number, value.type_name]}
    if kept is None:
        raise ValueError(f"{type(value).__name__} is no plain data")
    kept.append(value)
    return {"reference": [len(kept) - 1, str(type(value).__name__)]}


def _unpack(data: Any, depth: int, kept: list[Any] | None) -> Any:
    if depth < 0:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if data is None or type(data) in (bool, int, float, str):
        return data
    if isinstance(data, list):
        return [_unpack(item, depth - 1, kept) for item in data]
    if not isinstance(data, dict) or len(data) != 1:
        raise ValueError("is no value")
    ((name, content),) = data.items()
    if name == "int" and len(content) <= MAX_INTEGER_DIGITS:
        return int(content, 16)
    if name == "dict":
        check_hashes([_unpack(key, depth - 1, kept) for key, _ in content])
        return {_unpack(key, depth - 1, kept): _unpack(item, depth - 1, kept) for key, item in content}
    if name == "bytes":
        return bytes.fromhex(content)
    if name == "complex":
        return complex(float(content[0]), float(content[1]))
    if name == "type" and content in TYPES:
        return getattr(builtins, content)
    if name == "reference":
        number, type_name = int(content[0]), str(content[1])
        return Reference(number, type_name) if kept is None else kept[number]
    if name in ("tuple", "set", "frozenset", "range", "iterator") and isinstance(content, list):
        items = [_unpack(item, depth - 1, kept) for item in content]
        if name == "range":
            numbers = range(*items)
            if len(numbers[: MAX_ITEMS + 1]) > MAX_ITEMS:
                raise ValueError(f"a range of more than {MAX_ITEMS} items")
            return numbers
        if name in ("set", "frozenset"):
            check_hashes(items)
        return iter(items) if name == "iterator" else getattr(builtins, name)(items)
    raise ValueError("is no value")


def check_hashes(keys: list[Any]) -> None:
    """Raise ValueError for many keys of one hash: a set of them takes the square of their time."""
    counts: dict[int, int] = {}
    for key in keys:
        number = hash(key)
        counts[number] = counts.get(number, 0) + 1
        if counts[number] > MAX_OF_ONE_HASH:
            raise ValueError("too many keys of one hash")
