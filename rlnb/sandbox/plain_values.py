"""Plain values that programs return as text: compare them with expected ones, types included."""

import ast
import math
import warnings
from functools import partial

from rlnb.sandbox._codec import PlainData


def equal_to(text: str, expected: object, *, is_assert: bool = False) -> bool:
    """Return whether `text` is the source of a plain value equal to `expected`.

    True is not 1, also in sets and keys; a list is not a tuple; a whole float equals its integer. is_assert:
    True is 1, but in sets and keys, and floats have no tolerance, as in Python's `assert`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about doubtful escapes in printed text
            tree = ast.parse(text.lstrip(" \t"), mode="eval")
            # Building a set of integers with equal hashes is quadratic: none is made that is larger than
            # what could be right.
            most = len(repr(expected))
            for node in ast.walk(tree):
                if len(node.elts if isinstance(node, ast.Set) else getattr(node, "keys", ())) > most:
                    return False
            value = ast.literal_eval(tree)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return False
    return same(value, expected, is_assert=is_assert)


def same(left: PlainData, right: PlainData, *, is_assert: bool = False) -> bool:
    """Equality of plain values; see `equal_to`. Elements of sets and keys of dicts get no tolerance."""
    if is_assert and isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, float) or isinstance(right, float):
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        # A tolerance would turn an integer too large for a float into an OverflowError.
        return numbers and (
            left == right or max(abs(left), abs(right)) < 1e300 and math.isclose(left, right, abs_tol=1e-12)
        )
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    if type(left) is not type(right):
        return False
    same_parts = partial(same, is_assert=is_assert)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same_parts, left, right))
    if isinstance(left, dict):
        lefts, rights = ({_key(key): value for key, value in mapping.items()} for mapping in (left, right))
        return lefts.keys() == rights.keys() and all(same_parts(lefts[key], rights[key]) for key in lefts)
    if isinstance(left, set | frozenset):
        return set(map(_key, left)) == set(map(_key, right))
    return bool(left == right)


def _key(value: object) -> str:
    """Return a text that two hashable plain values share if they are equal: 1 and 1.0, not 1 and True.

    The hash of a text cannot be foreseen by a program, that of an integer can.
    """
    if isinstance(value, tuple):
        return f"({','.join(map(_key, value))})"
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(map(_key, value)))}}}"
    if isinstance(value, float) and math.isnan(value):
        return f"nan {id(value)}"  # equal to itself alone, as in Python's sets
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"int {value:x}" if type(value) is int else f"{type(value).__name__} {value!r}"
