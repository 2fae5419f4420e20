"""Many boards at once move as one `GameBoard` does; what their games come to; the baselines kept."""

import random
from collections.abc import Sequence
from math import sqrt

import baselines_2048 as baselines
import batch_2048 as batch
import numpy as np
import pytest
from baselines_2048 import PLAYERS, POLICIES
from hypothesis import given
from hypothesis import strategies as st

from rlnb.game_2048.board import DIRECTIONS, BoardKind, slide_board

SEEDS = st.integers(0, 2**32)
# Per cent of games won, and half the width of the 95% interval: shared measurements of other engines.
# Nothing is known of 1-ply snake: those engines do not say how they weigh it.
DOCUMENT = {
    "4x4/2048": {"random": (0, 0), "cycle LDRD": (0, 0), "cycle LDRU": (0, 0), "corner": (0, 0),
                 "greedy merge": (0, 0), "2-ply expectimax": (52.7, 5.7)},
    "5x5/2048": {"random": (0.57, 0.23), "cycle LDRD": (50.7, 1.5), "cycle LDRU": (84.0, 1.1),
                 "corner": (1.85, 0.42), "greedy merge": (29.4, 1.4), "2-ply expectimax": (100, 0)},
    "6x6/2048": {"random": (97.82, 0.45), "cycle LDRD": (97.4, 0.5), "cycle LDRU": (100, 0),
                 "corner": (24.6, 1.3), "greedy merge": (99.85, 0.1), "2-ply expectimax": (100, 0)},
}  # fmt: skip


def random_boards(size: int, seed: int, num_boards: int = 40) -> batch.Boards:
    """From empty to full, with few kinds of tiles, so that many merge."""
    rng = np.random.default_rng(seed)
    tiles = rng.integers(1, 5, (size, size, num_boards))
    return (tiles * (rng.random(tiles.shape) < np.linspace(0, 1, num_boards))).astype(np.uint8)


def has_move(rows: Sequence[Sequence[int]]) -> bool:
    rows = list(map(tuple, rows))
    return not all(map(all, rows)) or any(slide_board(rows, side)[0] != rows for side in DIRECTIONS)


def rows_of(boards: batch.Boards, index: int) -> list[tuple[int, ...]]:
    return [tuple(2 ** int(tile) if tile else 0 for tile in row) for row in boards[..., index]]


@given(st.integers(2, 8), SEEDS)
def test_many_boards_move_as_single_ones_do(size, seed):
    boards = random_boards(size, seed)
    directions = np.random.default_rng(seed).integers(4, size=boards.shape[-1])
    after, before = batch.moved(boards, directions), boards.copy()
    changed, movable = batch.changed(boards, after), batch.can_move(boards)
    for index, direction in enumerate(directions):
        rows = rows_of(boards, index)
        expected = slide_board(rows, DIRECTIONS[direction])[0]
        assert rows_of(after, index) == expected
        assert changed[index] == (expected != rows)
        assert movable[index] == has_move(rows)
    for index, direction in enumerate(DIRECTIONS):
        alike = batch.moved(boards, np.full(boards.shape[-1], index))
        assert (batch.pushed(boards, direction) == alike).all()
    assert (boards == before).all()


@given(st.integers(2, 8), SEEDS)
def test_one_tile_comes_to_an_empty_cell_of_each_chosen_board(size, seed):
    boards = random_boards(size, seed)
    chosen = (boards == 0).any(axis=(0, 1)) & (np.arange(boards.shape[-1]) % 3 > 0)
    after = boards.copy()
    batch.spawn(after, chosen, np.random.default_rng(seed), four_probability=0.5)
    new = after != boards
    assert (new.sum(axis=(0, 1)) == chosen).all()
    assert (boards[new] == 0).all() and np.isin(after[new], (1, 2)).all()


def test_games_end_with_the_target_without_moves_or_stuck():
    kind = BoardKind(4, 128)
    games = batch.play(kind, POLICIES["cycle LDRD"], 2000, seed=0)
    assert (games.won == (games.largest >= 128)).all() and not (games.won & games.stuck).any()
    assert games.won.any() and games.stuck.any() and (~games.won & ~games.stuck).any()
    assert games.largest[games.won].max() == 128
    only_left = batch.play(kind, lambda boards, *_: np.full(boards.shape[-1], 2), 100, seed=0, patience=5)
    assert only_left.stuck.all() and only_left.moves.min() >= 5


def test_more_games_than_fit_side_by_side_are_all_played(monkeypatch):
    monkeypatch.setattr(batch, "WIDTH", 64)
    seen = []
    games = batch.play(
        BoardKind(3, 2048), POLICIES["random"], 150, seed=0, progress=lambda *done: seen.append(done)
    )
    assert games.moves.min() > 0 and games.largest.min() >= 4
    assert seen[-1] == (150, 150) and seen == sorted(seen)


@pytest.mark.parametrize("name", PLAYERS)
@given(size=st.integers(2, 8), seed=SEEDS, num_moves=st.integers(0, 9))
def test_a_player_of_one_board_chooses_as_the_policy_of_many(name, size, seed, num_moves):
    boards = random_boards(size, seed, num_boards=6)
    boards[0, 0] += boards[0, 0] == 0  # no game has a board without tiles
    chosen = POLICIES[name](boards, num_moves, np.random.default_rng(0))
    for index in range(boards.shape[-1]):
        rows = rows_of(boards, index)
        direction = PLAYERS[name](rows, num_moves, random.Random(0))
        assert direction in DIRECTIONS
        if name != "random" and has_move(rows):
            assert direction == DIRECTIONS[chosen[index]]


def test_the_look_ahead_keeps_away_from_the_move_after_which_all_is_lost():
    """Left fills the board but for one cell, whose tile ends the game; up merges two."""
    boards = np.array([[3, 1, 4], [3, 2, 5], [1, 4, 0]], np.uint8)[..., None]
    chosen = POLICIES["2-ply expectimax"](boards, 0, np.random.default_rng(0))
    assert DIRECTIONS[chosen[0]] in ("up", "down")


def test_the_kept_figures_are_those_of_all_baselines_and_agree_with_other_engines():
    kept = {(entry.board, entry.baseline): entry for entry in baselines.load_baselines()}
    measured = baselines.MEASURED.items()
    counts = {(board, name): count for name, boards in measured for board, count in boards.items()}
    assert counts == {place: entry.num_games for place, entry in kept.items()}
    for board, players in DOCUMENT.items():
        for name, (won, half) in players.items():
            entry = kept[board, name]
            assert 100 * entry.low <= won + half + 0.05 and won - half - 0.05 <= 100 * entry.high, entry


@pytest.mark.parametrize(
    ("board", "name", "num_games"), [("6x6/2048", "random", 600), ("5x5/2048", "greedy merge", 600)]
)
def test_the_kept_figures_are_measured_again(board, name, num_games):
    kept = next(e for e in baselines.load_baselines() if (e.board, e.baseline) == (board, name))
    again = baselines.measure(BoardKind.parse(board), name, num_games, seed=7)
    error = sqrt(kept.won * (1 - kept.won) * (1 / num_games + 1 / kept.num_games))
    assert abs(again.won - kept.won) < 3.5 * error, again
