"""The functions that a strategy may ask agree with the engine, and stand alone in its process."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlnb.games import queries2048 as queries
from rlnb.games.board2048 import DIRECTIONS, KEYS, moved

SIZES = st.integers(2, 8)
BOARDS = SIZES.flatmap(
    lambda size: st.lists(
        st.lists(st.sampled_from([0, 0, 2, 2, 4, 8, 1024]), min_size=size, max_size=size),
        min_size=size, max_size=size,
    )
)  # fmt: skip
ROW = [[2, 2, 4, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_two_twos_to_the_left_make_a_four():
    assert queries.moved(ROW, "a")[0] == [4, 4, 0, 0]
    assert queries.merged(ROW, "a") == 4
    assert queries.moved(ROW, "i")[0] == [0, 0, 4, 4]
    assert queries.num_empty(ROW) == 13
    assert queries.largest(ROW) == 4


def test_what_lies_at_the_top_cannot_go_up():
    assert queries.legal_moves(ROW) == ["u", "a", "i"]
    assert not queries.can_move(ROW, "é")


def test_a_key_that_is_none_is_refused():
    with pytest.raises(ValueError, match="^'x' is none of the keys é, u, a, i$"):
        queries.moved(ROW, "x")


@given(BOARDS)
def test_the_queries_agree_with_the_engine_and_leave_the_board_alone(board):
    before = [list(row) for row in board]
    for direction in DIRECTIONS:
        key = KEYS["bepo"][direction]
        rows, points = moved([tuple(row) for row in board], direction)
        assert queries.moved(board, key) == [list(row) for row in rows]
        assert queries.merged(board, key) == points
        assert queries.can_move(board, key) == (queries.moved(board, key) != board)
    assert board == before


@pytest.mark.parametrize("name", KEYS)
def test_the_source_stands_alone_with_any_keys(name):
    namespace: dict = {}
    source = queries.queries_source(KEYS[name])
    exec(compile(source, "<queries>", "exec"), namespace)
    assert not any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(ast.parse(source)))
    assert namespace["moved"](ROW, KEYS[name]["left"])[0] == [4, 4, 0, 0]
    assert set(namespace["legal_moves"](ROW)) == {KEYS[name][side] for side in ("down", "left", "right")}
    assert all(query.split("(")[0] in namespace for query in queries.QUERIES)
