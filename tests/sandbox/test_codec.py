"""Plain data goes over and comes back the same; what is none is refused, and nothing else ever comes back."""

import itertools
import json
from collections import deque
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlnb.sandbox import _codec

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.sampled_from([int, str, list, dict, range(3, 9, 2)])
    | st.fractions() | st.decimals(-(10**9), 10**9)
)  # fmt: skip
HASHABLE = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
PLAIN = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(HASHABLE, inner) | st.builds(tuple, st.lists(inner))
    | st.sets(HASHABLE) | st.frozensets(HASHABLE) | st.builds(deque, st.lists(inner)),
    max_leaves=20,
)  # fmt: skip


def same(left, right):
    """Equal, and of the same types throughout: True is not 1."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple | deque):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    return left == right


@given(PLAIN)
def test_plain_data_comes_back_the_same(value):
    """Types count throughout: True is not 1, and shown they differ."""
    back = _codec.loads(_codec.dumps(value))
    assert same(back, value)


KINDS = (
    type(None), bool, int, float, str, bytes, complex, list, tuple, set, frozenset, dict, range, type,
    type(iter([])), _codec.Reference, deque, Fraction, Decimal, _codec.KEYS, _codec.ITEMS,
)  # fmt: skip
TAGS = st.sampled_from([*(kind.__name__ for kind in KINDS), "iterator", "reference", "keys", "items"])
HEXADECIMAL = st.integers(-(2**20000), 2**20000).map(hex)
FORGED = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text() | HEXADECIMAL,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | TAGS, inner)
    | st.builds(lambda tag, content: {tag: content}, TAGS, st.lists(inner))
    | st.builds(lambda pairs: {"dict": pairs}, st.lists(st.tuples(inner, inner).map(list))),
)  # fmt: skip


def decode(data):
    """The value, or None where it was refused."""
    try:
        return _codec.loads(data)
    except ValueError:
        return None


@given(FORGED)
def test_whatever_a_program_sends_is_refused_or_plain(data):
    value = decode(json.dumps(data).encode())
    assert isinstance(value, KINDS)
    assert isinstance(str(value), str)  # what cannot be printed is refused


PIECES = (b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"1", b"e9", b'"set":', b'"int":', b'{"dict":[[')


@given(st.binary() | st.lists(st.sampled_from(PIECES)).map(b"".join))
def test_any_bytes_are_refused_or_plain(data):
    assert isinstance(decode(data), KINDS)


def many(item, count):
    """A list of JSON texts, cut at the largest answer."""
    return b"[" + b",".join([item] * min(count, (_codec.MAX_BYTES - 2) // (len(item) + 1))) + b"]"


def nested(begin, end, depth):
    return begin * depth + b"1" + end * depth


PRIME = 2**61 - 1  # the hash of its multiples is 0
MINUS = [b",".join(b"-1" if number >> bit & 1 else b"-2" for bit in range(16)) for number in range(5000)]
TUPLES = [b'{"tuple":[%b]}' % items for items in MINUS]
LARGE = {  # refused where it would take long to decode, or to make a set of
    "keys within keys": (nested(b'{"dict":[[{"iterator":[', b"]},1]]}", 29), False),
    "small integers": (many(b"1", 10**6), True),
    "as many as may be": (many(b"1", 100_000), False),
    "empty lists": (many(b"[]", 10**6), True),
    "pairs": (many(b'{"tuple":[1,2]}', 10**6), True),
    "a large dictionary": (b'{"dict":' + many(b"[1,1]", 80_000) + b"}", True),
    "integers of one hash": (
        b"[" + b",".join(b'{"int":"%#x"}' % (PRIME * n) for n in range(9000)) + b"]", True),
    "fractions of one hash": (
        b"[" + b",".join(b'{"Fraction":"%d"}' % (PRIME * n) for n in range(9000)) + b"]", True),
    "the longest fractions": (
        many(b'{"Fraction":"%s/%s"}' % (b"7" * 300, b"3" * 300), 10**6), False),
    "tuples of one hash": (b"[" + b",".join(TUPLES) + b"]", True),
    "lists of one hash": (b"[" + b",".join(b"[%b]" % items for items in MINUS) + b"]", True),
    "few tuples of one hash, many times": (b"[" + b",".join(TUPLES[:20] * 100) + b"]", False),
    "a large tuple that is hashed at each depth": (
        (b'{"tuple":[' + b'{"tuple":[]},' * 21) * 58 + b'{"tuple":' + many(b"1.5", 90_000)
        + b"}" + b"]}" * 58, True),
    "brackets": (b"[" * _codec.MAX_BYTES, True),
    "nested objects": (nested(b'{"a":', b"}", 80_000), True),
    "one long key": (b'{"' + b"a" * 500_000 + b'":1}', True),
    "many keys": (b"{" + b",".join(b'"%d":1' % number for number in range(40_000)) + b"}", True),
    "escaped letters": (b'"' + b"\\u00e9" * 80_000 + b'"', False),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_what_would_take_long_is_refused(name):
    data, is_refused = LARGE[name]
    assert len(data) <= _codec.MAX_BYTES
    assert (decode(data) is None) == is_refused


@given(st.text(alphabet="[]{}ab\ud800é", min_size=20))
def test_a_text_full_of_brackets_comes_back_the_same(text):
    assert _codec.loads(_codec.dumps([text, {text: text}])) == [text, {text: text}]
    assert len(str(_codec.loads(_codec.dumps(10**4300 - 1)))) == 4300  # the longest one that can be printed


@pytest.mark.parametrize(
    "value",
    [
        "x" * 2**20, ["x" * 2**19], [()] * 10_000, 10**4300, itertools.count(), eval("[" * 80 + "]" * 80),
        [object()],
    ],
    ids=range(7),
)  # fmt: skip
def test_what_is_too_much_or_no_plain_data_is_refused(value):
    with pytest.raises(ValueError):
        _codec.dumps(value)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"\xff", b'{"range": [0, 1000000000000000000, 1]}', b'{"int": "' + b"f" * 30_000 + b'"}',
        b'{"type": "eval"}', b'{"type": "__import__"}', b'{"set": [[1]]}', b'{"dict": [1]}', b"{}",
        b'{"int": "0x1", "str": "x"}', b"[" * 100_000, b"1" * 10_000, b'{"reference": [1e999, "x"]}',
        b'{"Fraction": "1/0"}', b'{"Decimal": "1/2"}', b'{"Decimal": "1e999999999"}', b'{"keys": [[1]]}',
        b'{"items": [[[1], 2]]}',
        b'{"complex": [1' + b"0" * 400 + b', 1.0]}', b'{"int": "0x' + b"f" * 3573 + b'"}',
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


def test_what_is_no_plain_data_may_be_kept_and_comes_back_itself():
    kept = []
    thing = object()
    reference = _codec.loads(_codec.dumps([thing], kept))[0]
    assert repr(reference) == "<object object>"
    assert reference != _codec.loads(_codec.dumps([thing], kept))[0]
    assert _codec.loads(_codec.dumps((1, reference)), kept) == (1, thing)


def test_iterators_arrive_as_iterators_and_views_as_views():
    assert list(_codec.loads(_codec.dumps(x * x for x in range(3)))) == [0, 1, 4]
    assert list(_codec.loads(_codec.dumps({1: 2}.values()))) == [2]
    keys, items = _codec.loads(_codec.dumps([{3: 2, 1: 2}.keys(), {3: [2]}.items()]))
    assert keys == {1, 3} and list(keys) == [3, 1]
    assert items == {3: [2]}.items()
