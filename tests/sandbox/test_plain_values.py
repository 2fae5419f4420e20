"""Plain values that programs print: equal only with equal types, at a cost that no program can drive up."""

import ast
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlnb.sandbox.plain_values import equal_to, same

SAME_HASH = 2**61 - 1  # hash(k * SAME_HASH) == 0
NAN = float("nan")

PAIRS = [
    ({True: "a"}, {1: "a"}, False),
    ({True}, {1}, False),
    ({False, 1}, {0, 1}, False),
    ({(1, (2, True))}, {(1, (2, 1))}, False),
    ({frozenset({True})}, {frozenset({1})}, False),
    ({1 + 0j}, {1}, False),
    ({"a,str 'b'"}, {"a", "b"}, False),
    ({("a", "b")}, {("a,str 'b'",)}, False),
    ({1: True}, {1: 1}, False),
    ({1}, frozenset({1}), False),
    ({0.3}, {0.30000000000000004}, False),  # in sets and keys floats have no tolerance
    ({1.0}, {1}, True),
    ({-0.0}, {0}, True),
    ({float("inf")}, {float("inf")}, True),
    ({10**5000}, {10**5000}, True),
    ({None, True, 2, "x", b"y", (3,)}, {(3,), b"y", "x", 2, True, None}, True),
    ({NAN}, {NAN}, True),  # the very object, as in Python's sets
    ({NAN}, {float("nan")}, False),
    (NAN, NAN, False),
]


@pytest.mark.parametrize(("left", "right", "expected"), PAIRS, ids=range(len(PAIRS)))
def test_types_count_in_sets_and_keys(left, right, expected):
    assert same(left, right) is same(right, left) is expected


hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner).map(tuple),
    max_leaves=6,
)


@given(st.sets(hashable), st.dictionaries(hashable, st.integers()))
def test_sets_and_dicts_equal_themselves(elements, mapping):
    assert same(elements, set(elements))
    assert same(mapping, dict(reversed(mapping.items())))


@given(st.sets(hashable), st.sets(hashable))
def test_what_python_holds_for_unequal_stays_unequal(left, right):
    if left != right:
        assert not same(left, right)


def colliding(count: int) -> str:
    return "{" + ", ".join(str(number * SAME_HASH) for number in range(count)) + "}"


COLLIDING = {  # 1.1 MB each; a set of it takes Python 9 s
    "for an integer": (colliding(45_000), 4),
    "for a set": (colliding(45_000), {1, 2, 3}),
    "for a dict": (colliding(45_000).replace(",", ": 0,").replace("}", ": 0}"), {1: 0}),
    "in a list": (f"[{colliding(45_000)}]", [{1}]),
}


@pytest.mark.parametrize("name", COLLIDING)
def test_no_set_is_made_of_more_elements_than_could_be_right(name, monkeypatch):
    text, expected = COLLIDING[name]
    monkeypatch.setattr(ast, "literal_eval", lambda _: pytest.fail("a set of that text was made"))
    assert not equal_to(text, expected)


EQUAL = [
    ("1.0", 10**400, False),
    ("[0.5]", [10**400], False),
    ("4", 4.0, True),
    ("0.30000000000000004", 0.3, True),
    ("{'a': True}", {"a": 1}, False),
    ("{'a': 1.0}", {"a": 1}, True),
    ("[1, 2]", (1, 2), False),
    ("(1, (2,))", (1, (2,)), True),
    ("set()", set(), True),
    ("{}", set(), False),
    ("1" + "0" * 400, 1.0, False),
    ("1e999", 1.0, False),
    ("1" * 5000, 1, False),
    ("[" * 5000, [], False),
    ("-" * 50_000 + "1", -1, False),
    ("__import__('os')", None, False),
    ("<generator object f at 0x7f>", [1], False),
    ("\0", "", False),
]


@pytest.mark.parametrize(("text", "expected", "same"), EQUAL, ids=lambda value: repr(value)[:24])
def test_printed_results_are_compared_as_plain_values(text, expected, same):
    assert equal_to(text, expected) is same


def test_an_assert_compares_as_python_does():
    for text, expected in (("4.000000000000051", 4), ("0.30000000000000004", 0.3), ("1", True)):
        assert equal_to(text, expected, is_assert=True) is (ast.literal_eval(text) == expected), text


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(plain, plain)
def test_a_value_equals_itself_as_printed_and_what_is_unequal_never_but_for_rounding(left, right):
    assert equal_to(repr(left), left)
    if equal_to(repr(left), right) and not isinstance(left, float | list | tuple | dict):
        assert left == right or math.isclose(left, right, abs_tol=1e-12)
