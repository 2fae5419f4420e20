"""The rules of 2048 in arithmetic that fits in the head, then what holds on every board of every size."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replaying import has_move, play_along

from rlnb.game_2048.board import (
    DIRECTION_BY_LETTER,
    DIRECTIONS,
    KEYS,
    PATIENCE,
    BoardKind,
    Direction,
    GameBoard,
    parse_key,
    slide_board,
)

SIZES = st.integers(2, 8)
MOVES = st.text("UDLR", max_size=60)
SEEDS = st.integers(-(2**70), 2**70)


def boards(size: int, largest: int = 12) -> st.SearchStrategy[list[tuple[int, ...]]]:
    tile = st.integers(0, largest).map(lambda exponent: 2**exponent if exponent else 0)
    return st.lists(st.tuples(*[tile] * size), min_size=size, max_size=size)


def changes(board: GameBoard, direction: Direction) -> bool:
    return slide_board(board.rows, direction)[0] != list(map(tuple, board.rows))


ANY_BOARD = SIZES.flatmap(boards)


@pytest.mark.parametrize(
    ("row", "after", "gained"),
    [
        ((2, 0, 0, 2), (4, 0, 0, 0), 4),
        ((2, 2, 2, 2), (4, 4, 0, 0), 8),
        ((2, 2, 2, 0), (4, 2, 0, 0), 4),  # of three the two that arrive first
        ((4, 2, 2, 0), (4, 4, 0, 0), 4),  # the new 4 merges with nothing in the same move
        ((2, 4, 2, 4), (2, 4, 2, 4), 0),
        ((8, 8, 16, 32), (16, 16, 32, 0), 16),
        ((2**64, 2**64), (2**65, 0), 2**65),  # the largest that a board can hold
    ],
)
def test_a_row_slides_and_each_tile_merges_once(row, after, gained):
    rows, points = slide_board([row] + [(0,) * len(row)] * (len(row) - 1), "left")
    assert (rows[0], points) == (after, gained)


def test_a_game_begins_with_two_tiles_of_two_or_four():
    boards = [sum(GameBoard(2, seed=seed).rows, []) for seed in range(1000)]
    tiles = [tile for board in boards for tile in board if tile]
    assert len(tiles) == 2000 and set(tiles) == {2, 4} and 140 <= tiles.count(4) <= 260  # at 10%
    assert len({tuple(map(bool, board)) for board in boards}) == 6  # two cells of four


def test_the_state_is_success_once_the_target_is_there():
    board = GameBoard(4, 8, seed=3)
    rng = random.Random(0)
    while board.state == "ongoing":
        assert board.largest < 8
        board.move(rng.choice(DIRECTIONS))
    assert (board.state, board.largest, board.kind.progress(8)) == ("success", 8, 1.0)


def test_a_cycle_of_keys_wins_the_published_board_of_6x6():
    board = play_along(GameBoard(6, 2048, seed=1), "LDRU" * 500)
    assert (board.state, board.largest, len(board.rows)) == ("success", 2048, 6)
    assert 931 < len(board.moves) < 2000  # a tile of 2048 takes that many at least


def test_moves_in_a_row_that_change_nothing_end_the_game_as_stuck():
    board = GameBoard(6, 2048, seed=1)
    while board.num_idle < PATIENCE - 1:
        board.move("left")
    assert board.move("right") and board.num_idle == 0 and board.state == "ongoing"
    while board.num_idle < PATIENCE - 1:
        board.move("left")
    assert board.state == "ongoing"
    assert not board.move("left") and board.state == "stuck"
    with pytest.raises(ValueError, match="over"):
        board.move("left")


def test_playing_on_goes_beyond_the_target_and_its_end_is_a_success():
    board = play_along(GameBoard(4, 16, 1, play_on=True), "ULDR" * 500)
    assert board.largest > 16 and board.kind.progress(board.largest) > 1
    assert board.state == "success" and not has_move(board.rows)


def test_a_kind_of_board_is_written_and_read_or_impossible():
    assert BoardKind.parse(f" {BoardKind(5, 8192)} ") == BoardKind(5, 8192)
    for text in ("1x1/2048", "9x9/2048", "4x4/2", "4x4/1000", "5x4/2048", "5x5"):
        with pytest.raises(ValueError, match="is not "):
            BoardKind.parse(text)


def test_replies_are_keys_in_either_case_with_blanks_and_accents_of_either_form():
    assert KEYS == {"up": "é", "down": "u", "left": "a", "right": "i"}
    for direction, key in KEYS.items():
        for reply in (key, key.upper(), f" {key}\n"):
            assert parse_key(reply) == direction
    assert parse_key("e\N{COMBINING ACUTE ACCENT}") == "up"
    for reply in ("", "e", "éé", "up", None, 1, b"u", ["u"], "u" + " " * 8):
        assert parse_key(reply) is None, reply


def test_games_are_the_same_in_every_version():
    board = play_along(GameBoard(4, 2048, 7), "LDRU" * 5)
    assert (board.moves, board.score) == ("LDRU" * 5, 88)
    board.rows.clear()  # a copy
    assert board.rows == [[2, 2, 2, 2], [4, 0, 16, 4], [0, 0, 0, 16], [0, 2, 0, 2]]


@given(ANY_BOARD, st.sampled_from(DIRECTIONS))
def test_a_move_conserves_the_sum_of_the_tiles(board, direction):
    after, gained = slide_board(board, direction)
    assert sum(map(sum, after)) == sum(map(sum, board))
    assert [len(row) for row in after] == [len(board)] * len(board)
    num_merges = sum(row.count(0) for row in after) - sum(row.count(0) for row in board)
    assert 0 <= 4 * num_merges <= gained


@given(ANY_BOARD, st.sampled_from(DIRECTIONS))
def test_moves_commute_with_rotations(board, direction):
    turned = {"up": "right", "right": "down", "down": "left", "left": "up"}[direction]
    after, gained = slide_board(board, direction)
    rotated, rotated_after = (list(zip(*rows[::-1], strict=True)) for rows in (board, after))
    assert slide_board(rotated, turned) == (rotated_after, gained)


@given(SIZES, SEEDS, MOVES)
def test_one_tile_comes_with_each_move_that_changes_something_and_none_with_others(size, seed, moves):
    board = GameBoard(size, 2**20, seed)
    for letter in moves:
        if board.state != "ongoing":
            break
        direction = DIRECTION_BY_LETTER[letter]
        pushed, gained = slide_board(board.rows, direction)
        before, score = board.rows, board.score
        is_legal = changes(board, direction)
        assert board.move(direction) == is_legal
        assert board.score == score + gained
        new = [
            (was, tile) for old, row in zip(pushed, board.rows, strict=True)
            for was, tile in zip(old, row, strict=True) if was != tile
        ]  # fmt: skip
        assert new in ([(0, 2)], [(0, 4)]) if is_legal else board.rows == before
        assert board.largest == max(map(max, board.rows))
    assert board.state == ("ongoing" if has_move(board.rows) else "failed")
