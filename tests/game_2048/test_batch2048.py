"""Many boards at once move as one `GameBoard` does; what their games come to; the baselines kept."""

from collections.abc import Sequence

import baselines_2048 as baselines
import batch_2048 as batch
import numpy as np
from baselines_2048 import POLICIES
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


def test_games_end_with_the_target_without_moves_or_stuck():
    kind = BoardKind(4, 128)
    games = batch.play(kind, POLICIES["cycle LDRD"], 2000, seed=0)
    assert (games.won == (games.largest >= 128)).all() and not (games.won & games.stuck).any()
    assert games.won.any() and games.stuck.any() and (~games.won & ~games.stuck).any()
    assert games.largest[games.won].max() == 128
    only_left = batch.play(kind, lambda boards, *_: np.full(boards.shape[-1], 2), 100, seed=0, patience=5)
    assert only_left.stuck.all() and only_left.moves.min() >= 5


def test_the_kept_figures_are_those_of_all_baselines_and_agree_with_other_engines():
    kept = {(entry.board, entry.baseline): entry for entry in baselines.load_baselines()}
    measured = baselines.MEASURED.items()
    counts = {(board, name): count for name, boards in measured for board, count in boards.items()}
    assert counts == {place: entry.num_games for place, entry in kept.items()}
    for board, players in DOCUMENT.items():
        for name, (won, half) in players.items():
            entry = kept[board, name]
            assert 100 * entry.low <= won + half + 0.05 and won - half - 0.05 <= 100 * entry.high, entry
