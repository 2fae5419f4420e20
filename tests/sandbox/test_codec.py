"""Plain data goes over and comes back the same; what is none is refused, and nothing else ever comes back."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlnb.sandbox import _codec

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.sampled_from([int, str, list, dict, range(3, 9, 2)])
)  # fmt: skip
HASHABLE = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
PLAIN = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(HASHABLE, inner) | st.builds(tuple, st.lists(inner))
    | st.sets(HASHABLE) | st.frozensets(HASHABLE),
    max_leaves=20,
)  # fmt: skip


def same(left, right):
    """Equal, and of the same types throughout: True is not 1."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    return left == right


@given(PLAIN)
def test_plain_data_comes_back_the_same(value):
    assert same(_codec.loads(_codec.dumps(value)), value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.text()
                | st.sampled_from(
                    ["int", "dict", "tuple", "set", "range", "iterator", "type", "complex", "bytes"]
                ),
                inner,
            )
        ),
    )
)
def test_whatever_a_program_sends_is_refused_or_plain(data):
    try:
        value = _codec.loads(json.dumps(data).encode())
    except ValueError:
        return
    kinds = (
        type(None),
        bool,
        int,
        float,
        str,
        bytes,
        complex,
        list,
        tuple,
        set,
        frozenset,
        dict,
        range,
        type,
    )
    assert isinstance(value, (*kinds, _codec.Reference)) or hasattr(value, "__next__")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("x" * 2**20, "larger than 1048576 bytes"),
        (itertools.count(), "an iterator of more than 100000 items"),
        (eval("[" * 80 + "]" * 80), "nested more than 60 deep"),
    ],
)
def test_what_is_too_much_is_refused(value, reason):
    with pytest.raises(ValueError) as raised:
        _codec.dumps(value)
    assert str(raised.value) == reason


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"\xff", b'{"range": [0, 1000000000000000000, 1]}', b'{"int": "' + b"f" * 30_000 + b'"}',
        b'{"type": "eval"}', b'{"type": "__import__"}', b'{"set": [[1]]}', b'{"dict": [1]}', b"{}",
        b'{"int": "0x1", "str": "x"}', b"[" * 100_000, b"1" * 10_000,
    ],
)  # fmt: skip
def test_what_no_honest_side_writes_is_refused(data):
    with pytest.raises(ValueError):
        _codec.loads(data)


def test_a_value_with_an_opinion_of_its_own_becomes_the_plain_one():
    class Agreeable(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    decoded = _codec.loads(_codec.dumps(Agreeable(3)))
    assert type(decoded) is int and decoded != 4


def test_what_is_no_plain_data_is_refused():
    with pytest.raises(ValueError, match="^object is no plain data$"):
        _codec.dumps([object()])


def test_what_is_no_plain_data_may_be_kept_and_comes_back_itself():
    kept = []
    thing = object()
    reference = _codec.loads(_codec.dumps([thing], kept))[0]
    assert repr(reference) == "<object object>"
    assert reference != _codec.loads(_codec.dumps([thing], kept))[0]
    assert _codec.loads(_codec.dumps((1, reference)), kept) == (1, thing)


def test_iterators_and_views_arrive_as_iterators():
    assert list(_codec.loads(_codec.dumps(x * x for x in range(3)))) == [0, 1, 4]
    assert list(_codec.loads(_codec.dumps({1: 2}.keys()))) == [1]
