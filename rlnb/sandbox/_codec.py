"""Encode plain data as bytes and decode it, on both sides of the boundary: no pickle, only builtin classes.

The bytes may come from a hostile program. They become values of exactly the types below, of
bounded size and bounded cost to compare, or they are refused with a ValueError, within 50 ms.
"""

import contextlib
import gc
import itertools
import json
import operator
import re
from collections import deque
from collections.abc import Mapping
from importlib import import_module
from typing import Any

# A value of the types above, or on the program's side any object.
PlainData = Any
MAX_BYTES = 2**19
MAX_TEXT_BYTES = 2**20  # of a text that is the whole answer
MAX_ITEMS = 100_000  # of an iterator or a range, which may be endless
MAX_PAIRS = 5000  # of a dict: a program can choose integers that all look for a place in the same row
MAX_DEPTH = 60
MAX_SAME_HASH = 20  # different values of one hash in one container
MAX_DIGITS = 4300  # decimal digits of an integer: Python refuses to print longer ones
MAX_WORK = 120_000  # of decoding: 1 for each value, and CONTAINER_WORK for each that is not a JSON scalar
CONTAINER_WORK = 10
MAX_BRACKETS = MAX_WORK // CONTAINER_WORK
MAX_BRACKETS_IN_TEXT = 10  # texts with more are written in hexadecimal, so that brackets count containers
LARGEST_INTEGER = 10**MAX_DIGITS - 1
LARGEST_JSON_INTEGER = 2**63 - 1  # larger ones are written in hexadecimal
LONGEST_TYPE_NAME = 100  # characters
HEXADECIMAL = re.compile(r"-?0x[0-9a-f]{1,3572}")  # 4,300 decimal digits are 3,572 hexadecimal ones
HASH_SHARE = 4  # hashing a value takes at most a quarter of the work of decoding it
SCALARS = (str, int, float, bool, type(None))
# Types that may be passed themselves, as MBPP's task 533 does.
TYPES: Mapping[str, PlainData] = {
    kind.__name__: kind
    for kind in (bool, bytes, complex, dict, float, frozenset, int, list, object, set, str, tuple)
}
NO_PAIRS: dict[PlainData, PlainData] = {}
KEYS, VALUES, ITEMS = type(NO_PAIRS.keys()), type(NO_PAIRS.values()), type(NO_PAIRS.items())
EXACT_NUMBERS = {"Fraction": "fractions", "Decimal": "decimal"}  # by their modules, which few programs import
EXACT_NUMBER = re.compile(r"-?[0-9]{1,300}(/[1-9][0-9]{0,299}|(\.[0-9]{1,300})?(E[+-]?[0-9]{1,3})?)")


class Reference:
    """A value of the other side that is not plain data; equal only to itself.

    It can be passed back, and becomes that value again there.
    """

    def __init__(self, index: int, type_name: str) -> None:
        self.index = index
        self.type_name = type_name

    def __repr__(self) -> str:
        return f"<{self.type_name} object>"


def dumps(value: object, kept: list[object] | None = None) -> bytes:
    """Encode a value. Raise ValueError where it is not plain data, too large, or nested too deeply.

    kept: where the other side may hold References, values that are not plain data are kept in this list.
    """
    try:
        data = json.dumps(_pack(value, MAX_DEPTH, kept), separators=(",", ":")).encode("ascii")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    check_size(data)
    return data


def loads(data: bytes, kept: list[object] | None = None) -> PlainData:
    """Decode bytes. Raise ValueError for anything that `dumps` would not write. kept: see `dumps`."""
    check_size(data)
    collects_garbage = gc.isenabled()
    gc.disable()  # it would walk a large process again and again while many containers are made
    try:
        return _Decoder(kept).decode(json.loads(data), MAX_DEPTH)
    except (TypeError, RecursionError, ArithmeticError) as error:  # a key that has no hash; no Decimal
        raise ValueError(f"{type(error).__name__}: {error}") from None
    finally:
        if collects_garbage:
            gc.enable()


def check_size(data: bytes) -> None:
    """Raise ValueError for more bytes or brackets than are decoded."""
    max_bytes = MAX_TEXT_BYTES if data[:1] == b'"' else MAX_BYTES
    if len(data) > max_bytes:
        raise ValueError(f"larger than {max_bytes} bytes")
    if data.count(b"[") + data.count(b"{") > MAX_BRACKETS:
        raise ValueError("too many values")


def _pack(value: PlainData, depth: int, kept: list[object] | None) -> object:
    if depth < 0:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        text = str.__str__(value)
        if text.count("[") + text.count("{") > MAX_BRACKETS_IN_TEXT:
            return {"str": text.encode("utf-8", "surrogatepass").hex()}
        return text
    if isinstance(value, int):
        integer = int.__index__(value)
        if abs(integer) <= LARGEST_JSON_INTEGER:
            return integer
        if abs(integer) > LARGEST_INTEGER:
            raise ValueError(f"an integer of more than {MAX_DIGITS} digits")
        return {"int": hex(integer)}
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, list):
        return [_pack(item, depth - 1, kept) for item in list.__iter__(value)]
    if isinstance(value, tuple | set | frozenset):
        name = next(kind.__name__ for kind in (tuple, set, frozenset) if isinstance(value, kind))
        return {name: [_pack(item, depth - 1, kept) for item in value]}
    if isinstance(value, dict | ITEMS):
        if len(value) > MAX_PAIRS:
            raise ValueError(f"a dict of more than {MAX_PAIRS} pairs")
        name, pairs = ("dict", dict.items(value)) if isinstance(value, dict) else ("items", value)
        return {name: [[_pack(part, depth - 1, kept) for part in pair] for pair in pairs]}
    if isinstance(value, deque | KEYS):
        name = "deque" if isinstance(value, deque) else "keys"
        return {name: [_pack(item, depth - 1, kept) for item in value]}
    if (name := type(value).__name__) in EXACT_NUMBERS and EXACT_NUMBER.fullmatch(text := str(value)):
        return {name: text}
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, range):
        return {"range": [_pack(part, 0, kept) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, type) and value.__name__ in TYPES and TYPES[value.__name__] is value:
        return {"type": value.__name__}
    if hasattr(type(value), "__next__") or isinstance(value, VALUES):
        items = list(itertools.islice(value, MAX_ITEMS + 1))
        if len(items) > MAX_ITEMS:
            raise ValueError(f"an iterator of more than {MAX_ITEMS} items")
        return {"iterator": [_pack(item, depth - 1, kept) for item in items]}
    if isinstance(value, Reference):
        return {"reference": [value.index, value.type_name]}
    if kept is None:
        raise ValueError(f"{type(value).__name__} is not plain data")
    kept.append(value)
    return {"reference": [len(kept) - 1, str(type(value).__name__)[:LONGEST_TYPE_NAME]]}


class _Decoder:
    """Turns what JSON holds into values, each part once, and counts the work."""

    def __init__(self, kept: list[object] | None) -> None:
        self.kept = kept
        self.work_left = MAX_WORK

    def decode(self, data: PlainData, depth: int) -> PlainData:
        """Return the value. Raise ValueError or TypeError for anything that `dumps` would not write."""
        if type(data) in SCALARS:
            return data
        if depth < 0:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        if type(data) is list:
            return self.decode_items(data, depth)
        if len(data) != 1:
            raise ValueError("not a value")
        self.spend(CONTAINER_WORK)
        ((name, content),) = data.items()
        if type(content) is list:
            return self.decode_tagged_list(name, content, depth)
        if type(content) is str:
            if name == "int" and HEXADECIMAL.fullmatch(content):
                integer = int(content, 16)
                if abs(integer) <= LARGEST_INTEGER:
                    return integer
            if name == "bytes":
                return bytes.fromhex(content)
            if name == "str":
                return bytes.fromhex(content).decode("utf-8", "surrogatepass")
            if name == "type" and content in TYPES:
                return TYPES[content]
            if name in EXACT_NUMBERS and EXACT_NUMBER.fullmatch(content):
                return getattr(import_module(EXACT_NUMBERS[name]), name)(content)
        raise ValueError("not a value")

    def decode_tagged_list(self, name: str, content: list[PlainData], depth: int) -> PlainData:
        if name in ("tuple", "set", "frozenset"):
            return TYPES[name](self.decode_items(content, depth))
        if name == "iterator" and len(content) <= MAX_ITEMS:
            return iter(self.decode_items(content, depth))
        if name == "deque":
            return deque(self.decode_items(content, depth))
        if name in ("dict", "items", "keys") and len(content) > MAX_PAIRS:
            raise ValueError(f"a dict of more than {MAX_PAIRS} pairs")
        if name == "keys":
            return dict.fromkeys(self.decode_items(content, depth)).keys()
        if name in ("dict", "items") and all(type(pair) is list and len(pair) == 2 for pair in content):
            keys = self.decode_items([key for key, _ in content], depth)
            pairs = dict(zip(keys, self.decode_items([item for _, item in content], depth), strict=True))
            return pairs if name == "dict" else pairs.items()
        if name == "complex" and [type(part) for part in content] == [float, float]:
            return complex(*content)
        if name == "range" and len(content) == 3:
            numbers = range(*self.decode_items(content, 1))
            if len(numbers[: MAX_ITEMS + 1]) <= MAX_ITEMS:
                return numbers
        if name == "reference" and [type(part) for part in content] == [int, str]:
            index, type_name = content
            if self.kept is None:
                return Reference(index, type_name[:LONGEST_TYPE_NAME])
            if 0 <= index < len(self.kept):
                return self.kept[index]
        raise ValueError("not a value")

    def decode_items(self, data: list[PlainData], depth: int) -> list[PlainData]:
        """Decode a list of values. Raise ValueError where it would be slow to compare, too."""
        before = self.work_left
        self.spend(CONTAINER_WORK + len(data))
        items = [item if type(item) in SCALARS else self.decode(item, depth - 1) for item in data]
        hashed = [tuple(item) if type(item) is list else item for item in items if may_collide(item)]
        if len(hashed) > MAX_SAME_HASH:
            self.spend((before - self.work_left) // HASH_SHARE)
            check_hashes(hashed)
        return items

    def spend(self, work: int) -> None:
        """Count work. Raise ValueError above MAX_WORK."""
        self.work_left -= work
        if self.work_left < 0:
            raise ValueError("too many values")


def may_collide(value: object) -> bool:
    """Return whether a program can make many values like this one that differ and have the same hash.

    A list counts, since a test may make a set of the tuples of a list of lists.
    """
    if type(value) is int:
        return abs(value) > LARGEST_JSON_INTEGER
    return type(value) in (tuple, list, frozenset, complex) or type(value).__name__ in EXACT_NUMBERS


def check_hashes(values: list[PlainData]) -> None:
    """Raise ValueError for many different values of one hash: a set of them takes quadratic time."""
    hashed: list[tuple[int, int]] = []
    for position, value in enumerate(values):
        with contextlib.suppress(TypeError):  # it holds a list, a set or a dict
            hashed.append((hash(value), position))
    for _, group in itertools.groupby(sorted(hashed), key=operator.itemgetter(0)):  # no dict: see MAX_PAIRS
        different: list[PlainData] = []
        for _, position in group:
            if values[position] not in different:
                different.append(values[position])
            if len(different) > MAX_SAME_HASH:
                raise ValueError("too many values of one hash")
