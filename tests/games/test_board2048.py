"""The rules of 2048 in arithmetic that fits in the head, then what holds on every board of every size."""

import random
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlnb.games import board2048
from rlnb.games.board2048 import (
    CACHED_ROWS,
    DIRECTION_OF,
    DIRECTIONS,
    KEYS,
    BoardKind,
    GameBoard,
    Slides,
    as_html,
    can_move,
    direction_of,
    moved,
    replay,
    slide,
    slides,
)

SIZES = st.integers(2, 8)
TEXT = " 2  2  2  2\n 4  . 16  4\n .  .  . 16\n .  2  .  2"  # seed 7 after LDRU five times
MOVES = st.text("UDLR", max_size=60)
SEEDS = st.integers(-(2**70), 2**70)


def boards(size: int, largest: int = 12) -> st.SearchStrategy[list[tuple[int, ...]]]:
    tile = st.integers(0, largest).map(lambda exponent: 2**exponent if exponent else 0)
    return st.lists(st.tuples(*[tile] * size), min_size=size, max_size=size)


ANY_BOARD = SIZES.flatmap(boards)


def played(size: int, target: int, seed: int, moves: str, **settings: object) -> GameBoard:
    board = GameBoard(size, target, seed, **settings)
    play_along(board, moves)
    return board


def play_along(board: GameBoard, moves: str) -> None:
    """As many of the moves as the game takes."""
    for letter in moves:
        if board.state == "ongoing":
            board.move(DIRECTION_OF[letter])


@pytest.mark.parametrize(
    ("row", "after", "gained"),
    [
        ((0, 0, 0, 0), (0, 0, 0, 0), 0),
        ((0, 0, 0, 2), (2, 0, 0, 0), 0),
        ((2, 0, 0, 2), (4, 0, 0, 0), 4),
        ((2, 2, 2, 2), (4, 4, 0, 0), 8),
        ((2, 2, 2, 0), (4, 2, 0, 0), 4),  # of three the two that arrive first
        ((4, 2, 2, 0), (4, 4, 0, 0), 4),  # the new 4 merges with nothing in the same move
        ((2, 2, 4, 0), (4, 4, 0, 0), 4),
        ((2, 4, 2, 4), (2, 4, 2, 4), 0),
        ((0, 1024, 0, 1024), (2048, 0, 0, 0), 2048),
        ((8, 8, 16, 32), (16, 16, 32, 0), 16),
    ],
)
def test_a_row_slides_and_each_tile_merges_once(row, after, gained):
    assert slide(row) == (after, gained)


def test_each_direction_pushes_to_its_own_side():
    board = [(2, 0, 2), (0, 4, 0), (2, 0, 0)]
    assert moved(board, "left") == ([(4, 0, 0), (4, 0, 0), (2, 0, 0)], 4)
    assert moved(board, "right") == ([(0, 0, 4), (0, 0, 4), (0, 0, 2)], 4)
    assert moved(board, "up") == ([(4, 4, 2), (0, 0, 0), (0, 0, 0)], 4)
    assert moved(board, "down") == ([(0, 0, 0), (0, 0, 0), (4, 4, 2)], 4)


def test_a_full_board_without_equal_neighbours_has_no_move():
    assert not can_move([(2, 4), (4, 2)])
    assert can_move([(2, 4), (2, 8)])  # a column
    assert can_move([(2, 2), (4, 8)])  # a row
    assert can_move([(2, 4), (4, 0)])
    assert not can_move([(2, 4, 8), (8, 2, 4), (4, 8, 2)])  # the end of a row is no neighbour of the next


def test_a_game_begins_with_two_tiles_of_two_or_four():
    counts = {2: 0, 4: 0}
    for seed in range(1000):
        tiles = [tile for row in GameBoard(seed=seed).rows for tile in row if tile]
        assert len(tiles) == 2
        for tile in tiles:
            counts[tile] += 1
    assert 140 <= counts[4] <= 260  # of 2000, at 10%


def test_the_probability_of_a_four_is_a_parameter():
    for probability, tile in ((0, 2), (1, 4)):
        board = GameBoard(4, 2048, 1, four_probability=probability)
        assert {t for row in board.rows for t in row} == {0, tile}


def test_every_empty_cell_may_get_a_tile():
    first = {tuple(map(bool, sum(GameBoard(2, seed=seed).rows, []))) for seed in range(200)}
    assert len(first) == 6  # two cells of four


def test_the_state_is_success_once_the_target_is_there():
    board = GameBoard(4, 8, seed=3)
    rng = random.Random(0)
    while board.state == "ongoing":
        assert board.largest < 8
        board.move(rng.choice(DIRECTIONS))
    assert (board.state, board.largest, board.progress) == ("success", 8, 1.0)


def test_a_game_without_moves_has_failed_and_takes_no_more():
    board = played(2, 2048, 5, "ULDR" * 100)
    assert board.state == "failed" and not can_move(board.rows) and board.legal_moves() == []
    with pytest.raises(ValueError, match=r"^the game is over: failed$"):
        board.move("left")


def test_moves_in_a_row_that_change_nothing_end_the_game_as_stuck():
    board = GameBoard(6, 2048, seed=1, patience=3)
    while board.move("left"):
        pass
    assert (board.num_idle, board.state) == (1, "ongoing")
    assert not board.move("left") and board.state == "ongoing"
    assert not board.move("left") and board.state == "stuck"


def test_a_move_that_changes_something_starts_the_patience_anew():
    board = GameBoard(6, 2048, seed=1, patience=3)
    while board.num_idle < 2:
        board.move("left")
    assert board.move("right") and board.num_idle == 0 and board.state == "ongoing"


def test_playing_on_goes_beyond_the_target_and_its_end_is_a_success():
    board = played(4, 16, 1, "ULDR" * 500, play_on=True)
    assert board.largest > 16 and board.progress > 1
    assert board.state == "success" and not can_move(board.rows)


def test_who_plays_on_and_gets_stuck_has_had_success():
    board = GameBoard(3, 8, 1, play_on=True, patience=2)
    while board.largest < 8:
        board.move(board.legal_moves()[0])
    while board.state == "ongoing":
        board.move("left")
    assert board.num_idle == 2 and board.state == "success"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 1}, "size 1 is not in 2 to 8"),
        ({"size": 9}, "size 9 is not in 2 to 8"),
        ({"target": 2}, "target 2 is no power of two from 8 on"),
        ({"target": 1000}, "target 1000 is no power of two from 8 on"),
        ({"four_probability": 1.5}, "four_probability 1.5 is not in 0 to 1"),
    ],
)
def test_what_is_no_game_is_refused(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        GameBoard(**arguments)


def test_what_is_no_tile_is_refused():
    for tile in (3, 1, -2):
        message = f"{tile} is no tile; a tile is a power of two from 2 on, 0 an empty cell"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            slide((0, tile))


def test_a_kind_of_board_is_written_and_read():
    assert str(BoardKind(5, 8192)) == "5x5/8192"
    assert BoardKind.parse(" 5x5/8192 ") == BoardKind(5, 8192)
    for text in ("5x4/2048", "5/2048", "5x5"):
        message = f"{text!r} is no board; write 4x4/2048 for four rows of four and the tile 2048"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            BoardKind.parse(text)


def test_keys_lie_where_wasd_lies():
    assert KEYS["bepo"] == {"up": "é", "down": "u", "left": "a", "right": "i"}
    assert KEYS["wasd"] == {"up": "w", "down": "s", "left": "a", "right": "d"}
    assert KEYS["arrows"] == {"up": "↑", "down": "↓", "left": "←", "right": "→"}


@pytest.mark.parametrize("layout", KEYS)
def test_every_key_of_every_layout_is_its_direction(layout):
    for direction, key in KEYS[layout].items():
        for reply in (key, key.upper(), f" {key}\n"):
            assert direction_of(reply, KEYS[layout]) == direction


def test_an_accent_may_come_as_a_character_of_its_own():
    assert direction_of("e\N{COMBINING ACUTE ACCENT}", KEYS["bepo"]) == "up"
    assert direction_of("E\N{COMBINING ACUTE ACCENT}", KEYS["bepo"]) == "up"


@pytest.mark.parametrize("reply", ["", "e", "éé", "up", "w", None, 1, b"u", ["u"], "u" + " " * 8])
def test_what_is_no_key_is_no_direction(reply):
    assert direction_of(reply, KEYS["bepo"]) is None


@given(ANY_BOARD, st.sampled_from(DIRECTIONS))
def test_a_move_conserves_the_sum_of_the_tiles(board, direction):
    after, gained = moved(board, direction)
    assert sum(map(sum, after)) == sum(map(sum, board))
    assert [len(row) for row in after] == [len(board)] * len(board)
    num_merges = sum(row.count(0) for row in after) - sum(row.count(0) for row in board)
    assert 0 <= 4 * num_merges <= gained


@given(ANY_BOARD, st.sampled_from(DIRECTIONS))
def test_a_move_is_that_of_a_plain_reading_of_the_rules(board, direction):
    def left(row: list[int]) -> list[int]:
        tiles, merged = [tile for tile in row if tile], []
        while tiles:
            tile = tiles.pop(0)
            merged.append(tile + tiles.pop(0) if tiles and tiles[0] == tile else tile)
        return merged + [0] * (len(row) - len(merged))

    lines = [list(line) for line in (zip(*board, strict=True) if direction in ("up", "down") else board)]
    if direction in ("left", "up"):
        lines = [left(line) for line in lines]
    else:
        lines = [left(line[::-1])[::-1] for line in lines]
    expected = zip(*lines, strict=True) if direction in ("up", "down") else lines
    assert moved(board, direction)[0] == [tuple(row) for row in expected]


@given(ANY_BOARD, st.sampled_from(DIRECTIONS))
def test_moves_commute_with_rotations_and_reflections(board, direction):
    turn = dict(zip(("up", "right", "down", "left"), ("right", "down", "left", "up"), strict=True))
    mirror = {"left": "right", "right": "left", "up": "up", "down": "down"}

    def rotated(rows):
        return list(zip(*rows[::-1], strict=True))

    def mirrored(rows):
        return [row[::-1] for row in rows]

    after, gained = moved(board, direction)
    assert moved(rotated(board), turn[direction]) == (rotated(after), gained)
    assert moved(mirrored(board), mirror[direction]) == (mirrored(after), gained)


@given(ANY_BOARD.filter(lambda board: any(map(any, board))))
def test_a_board_can_move_when_some_move_changes_it(board):
    assert can_move(board) == any(moved(board, direction)[0] != board for direction in DIRECTIONS)


@given(SIZES, SEEDS, MOVES)
def test_one_tile_comes_with_each_move_that_changes_something_and_none_with_others(size, seed, moves):
    board = GameBoard(size, 2**20, seed, patience=10**6)
    for letter in moves:
        if board.state != "ongoing":
            break
        direction = DIRECTION_OF[letter]
        pushed, gained = moved(board.rows, direction)
        before, score = board.rows, board.score
        is_legal = direction in board.legal_moves()
        assert board.move(direction) == is_legal
        assert board.score == score + gained
        new = [
            (was, tile) for old, row in zip(pushed, board.rows, strict=True)
            for was, tile in zip(old, row, strict=True) if was != tile
        ]  # fmt: skip
        assert new in ([(0, 2)], [(0, 4)]) if is_legal else board.rows == before
        assert board.largest == max(map(max, board.rows))
    assert board.state == ("ongoing" if can_move(board.rows) else "failed")


@given(SIZES, SEEDS, MOVES, st.sampled_from(DIRECTIONS), st.integers(1, 5))
def test_moves_that_change_nothing_leave_the_tiles_to_come_as_they_were(size, seed, moves, direction, idle):
    games = [played(size, 2**20, seed, moves) for _ in range(2)]
    if games[0].state == "ongoing" and direction not in games[0].legal_moves():
        for _ in range(idle):
            assert not games[1].move(direction)
    for game in games:
        play_along(game, "LURD" * 3)
    assert (games[0].rows, games[0].score) == (games[1].rows, games[1].score)


@given(SIZES, st.sampled_from([16, 64, 2048]), SEEDS, MOVES, st.booleans(), st.floats(0, 1))
def test_a_replay_of_every_beginning_of_a_game_is_exact(size, target, seed, moves, play_on, probability):
    settings = {"four_probability": probability, "patience": 5, "play_on": play_on}
    board = GameBoard(size, target, seed, **settings)
    positions = [(board.rows, board.score, board.state, board.num_idle)]
    for letter in moves:
        if board.state == "ongoing":
            board.move(DIRECTION_OF[letter])
            positions.append((board.rows, board.score, board.state, board.num_idle))
    assert board.moves == moves[: len(board.moves)]
    for length, position in enumerate(positions):
        again = replay(board.kind, seed, board.moves[:length], **settings)
        assert (again.rows, again.score, again.state, again.num_idle) == position


def test_games_are_the_same_in_every_version():
    board = played(4, 2048, 7, "LDRU" * 5)
    assert [board.moves, board.score, board.rows] == [
        "LDRU" * 5,
        88,
        [[2, 2, 2, 2], [4, 0, 16, 4], [0, 0, 0, 16], [0, 2, 0, 2]],
    ]


def test_whoever_changes_the_rows_that_it_was_given_changes_no_game():
    board = GameBoard(3, seed=2)
    before = board.rows
    board.rows[0][0] = 2048
    board.rows.clear()
    assert board.rows == before


def test_the_table_of_rows_never_grows_beyond_its_bound():
    table = Slides(8)
    rng = random.Random(0)
    sizes = []
    for _ in range(CACHED_ROWS + 100):
        row = bytes(rng.randint(1, 60) for _ in range(8))
        table[row]
        sizes.append(len(table))
    assert max(sizes) == CACHED_ROWS and sizes[-1] < CACHED_ROWS
    assert table[b"\1\1\2"] == b"\2\2" + bytes(6)  # right, also after it started anew


def test_play_fills_one_bounded_table_for_each_size(monkeypatch):
    monkeypatch.setattr(board2048, "CACHED_ROWS", 50)
    monkeypatch.setattr(board2048, "slides", {size: Slides(size) for size in range(2, 9)}.__getitem__)
    for size in (4, 6, 8):
        rng = random.Random(size)
        board = GameBoard(size, 2**20, seed=1)
        for _ in range(300):
            if board.state == "ongoing":
                board.move(rng.choice(DIRECTIONS))
                assert len(board2048.slides(size)) <= 50


def test_all_boards_of_a_size_share_a_table():
    assert slides(4) is slides(4) and slides.cache_info().maxsize == board2048.turns.cache_info().maxsize == 8


def test_the_text_of_a_board_has_its_columns_under_each_other():
    board = played(4, 2048, 7, "LDRU" * 5)
    assert str(board) == TEXT
    assert repr(board) == f"4x4/2048, seed 7, 20 moves, score {board.score}: ongoing\n{TEXT}"


class Cells(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows, self.styles, self.text = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
            self.styles.append(dict(attributes)["style"])

    def handle_data(self, data):
        if self.rows:
            self.rows[-1][-1] += data
        else:
            self.text.append(data)


def test_html_shows_every_tile_in_colours_of_its_own():
    board = played(4, 2048, 7, "LDRU" * 5)
    cells = Cells(board._repr_html_())
    assert cells.rows == [[str(tile or "") for tile in row] for row in board.rows]
    assert all("background:#" in style and ";color:#" in style for style in cells.styles)
    assert cells.text == [board.caption]


def test_html_escapes_its_caption_and_has_a_colour_for_every_tile():
    html = as_html([[2**65, 0], [2, 2048]], caption="<script>&")
    assert "<script>" not in html and "&lt;script&gt;&amp;" in html
    assert Cells(html).rows == [[str(2**65), ""], ["2", "2048"]]
    assert "<caption" not in as_html([[2]])


def test_the_largest_tile_that_a_board_can_hold_has_its_place():
    row, gained = slide((2**64, 2**64))
    assert row == (2**65, 0) and gained == 2**65
