"""Many boards at once move as one `GameBoard` does, and what their games come to."""

import batch_2048 as batch
import numpy as np
from baselines_2048 import POLICIES
from hypothesis import given
from hypothesis import strategies as st
from replaying import has_move

from rlnb.game_2048.board import DIRECTIONS, BoardKind, slide_board

SEEDS = st.integers(0, 2**32)


def random_boards(size: int, seed: int, num_boards: int = 40) -> batch.Boards:
    """From empty to full, with few kinds of tiles, so that many merge."""
    rng = np.random.default_rng(seed)
    tiles = rng.integers(1, 5, (size, size, num_boards))
    return (tiles * (rng.random(tiles.shape) < np.linspace(0, 1, num_boards))).astype(np.uint8)


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


def test_games_end_with_the_target_without_moves_or_stuck():
    kind = BoardKind(4, 128)
    games = batch.play(kind, POLICIES["cycle LDRD"], 2000, seed=0)
    assert (games.won == (games.largest >= 128)).all() and not (games.won & games.stuck).any()
    assert games.won.any() and games.stuck.any() and (~games.won & ~games.stuck).any()
    assert games.largest[games.won].max() == 128
