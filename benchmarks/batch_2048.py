"""2048 on many boards at once, with NumPy, for baselines.

Boards are one array, uint8 (size, size, num_boards), of exponents: 1 for a 2, 2 for a 4, 0 for an empty cell.
Every step of the rules is a handful of operations on all boards at once.
The rules are those of `GameBoard`; the random numbers differ, so a seed gives other games.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlnb.game_2048.board import DIRECTIONS, FOUR_PROBABILITY, PATIENCE, BoardKind, Direction

Boards = NDArray[np.uint8]
# (boards, number of moves played so far, randomness) -> for each board an index into DIRECTIONS.
Policy = Callable[[Boards, int, np.random.Generator], NDArray[np.integer]]
WIDTH = 2**12  # boards played at once; more would not fit into the processor's caches
IS_FLAT = np.array([255 * (direction in ("left", "right")) for direction in DIRECTIONS], np.uint8)
IS_REVERSED = np.array([255 * (direction in ("down", "right")) for direction in DIRECTIONS], np.uint8)
SWEEP_STEPS = 16  # steps between removals of the boards whose game is over


@dataclass(frozen=True)
class PlayedGames:
    """How games ended, an entry each. largest: the largest tile. won: the target was reached. stuck: the game
    ended because `patience` moves in a row changed nothing, and was not won. moves: including idle ones.
    """

    largest: NDArray[np.int64]
    won: NDArray[np.bool_]
    stuck: NDArray[np.bool_]
    moves: NDArray[np.int64]


def pushed(boards: Boards, direction: Direction) -> Boards:
    """Return all boards after the same move, before a tile appears."""
    after = boards.copy()
    lines = after if direction in ("up", "down") else after.swapaxes(0, 1)
    push(lines if direction in ("up", "left") else lines[::-1])
    return after


def moved(boards: Boards, directions: NDArray[np.integer]) -> Boards:
    """Return each board after its own move, before a tile appears. directions: indices into DIRECTIONS."""
    is_flat, is_reversed = IS_FLAT[directions], IS_REVERSED[directions]
    after = transposed(boards, is_flat)
    after = flipped(after, is_reversed)
    push(after)
    return transposed(flipped(after, is_reversed), is_flat)


def transposed(boards: Boards, where: NDArray[np.uint8]) -> Boards:
    """Transpose the boards of `where` (255 or 0). Bit by bit: selecting boards would take longer."""
    return boards ^ ((boards ^ boards.swapaxes(0, 1)) & where)


def flipped(boards: Boards, where: NDArray[np.uint8]) -> Boards:
    """Turn the boards of `where` (255 or 0) upside down."""
    return boards ^ ((boards ^ boards[::-1]) & where)


def push(lines: Boards) -> None:
    """Slide all tiles to the beginning of the first axis, equal ones that meet merging once, in place."""
    size = len(lines)
    close_gaps(lines, rounds=size)
    for first, second in zip(lines, lines[1:], strict=False):
        merges = np.minimum(np.equal(first, second).view(np.uint8), first)  # two gaps are not a pair
        first += merges
        second &= merges - np.uint8(1)  # 255 keeps, 0 clears
    close_gaps(lines, rounds=size - 1)


def close_gaps(lines: Boards, *, rounds: int) -> None:
    """Move tiles to the beginning of the first axis, in place.

    A sorting network: in each round neighbours are swapped if the first is a gap.
    """
    for start in range(rounds):
        firsts, seconds = lines[start % 2 : -1 : 2], lines[start % 2 + 1 :: 2]
        moving = seconds * np.equal(firsts, 0).view(np.uint8)
        firsts += moving
        seconds -= moving


def changed(before: Boards, after: Boards) -> NDArray[np.bool_]:
    """Return which boards a move changed."""
    return np.logical_or.reduce(before != after, axis=(0, 1))


def spawn(boards: Boards, where: NDArray[np.bool_], rng: np.random.Generator) -> None:
    """Put a tile into a random empty cell of each board of `where`, in place."""
    size, _, num_boards = boards.shape
    counts = np.equal(boards, 0).reshape(size * size, num_boards).view(np.uint8)
    for previous, current in zip(counts, counts[1:], strict=False):
        current += previous
    picked = (rng.random(num_boards, dtype=np.float32) * counts[-1]).astype(np.uint8)
    cell = np.less_equal(counts, picked).view(np.uint8).sum(axis=0, dtype=np.uint8)
    tiles = np.where(rng.random(num_boards, dtype=np.float32) < FOUR_PROBABILITY, 2, 1).astype(np.uint8)
    columns = np.flatnonzero(where)
    boards[(*divmod(cell[columns], np.uint8(size)), columns)] = tiles[columns]


def can_move(boards: Boards) -> NDArray[np.bool_]:
    """Return which boards have an empty cell, or two equal neighbours."""
    free: NDArray[np.bool_] = np.logical_or.reduce(boards == 0, axis=(0, 1))
    full = np.flatnonzero(~free)
    if len(full):
        tiles = boards[..., full]
        free[full] = (tiles[1:] == tiles[:-1]).any(axis=(0, 1)) | (tiles[:, 1:] == tiles[:, :-1]).any(
            axis=(0, 1)
        )
    return free


def play(
    kind: BoardKind,
    policy: Policy,
    num_games: int,
    seed: int,
    *,
    patience: int = PATIENCE,
    progress: Callable[[int, int], None] | None = None,
) -> PlayedGames:
    """Play games to their end, WIDTH at once. progress: called with (games over, all) now and then."""
    rng = np.random.default_rng(seed)
    games = PlayedGames(
        largest=np.zeros(num_games, np.int64),
        won=np.zeros(num_games, np.bool_),
        stuck=np.zeros(num_games, np.bool_),
        moves=np.zeros(num_games, np.int64),
    )
    for start in range(0, num_games, WIDTH):
        ids = np.arange(start, min(start + WIDTH, num_games))
        boards = np.zeros((kind.size, kind.size, len(ids)), np.uint8)
        everywhere = np.ones(len(ids), np.bool_)
        for _ in range(2):
            spawn(boards, everywhere, rng)
        num_idle, is_over, num_moves = np.zeros(len(ids), np.int64), ~everywhere, 0
        while True:
            largest = boards.max(axis=(0, 1))
            has_target = largest >= kind.target.bit_length() - 1
            is_stuck = num_idle >= patience
            ends = ~is_over & (is_stuck | ~can_move(boards) | has_target)
            ended = ids[ends]
            games.largest[ended] = 2 ** largest[ends].astype(np.int64)
            games.won[ended], games.stuck[ended] = has_target[ends], (is_stuck & ~has_target)[ends]
            games.moves[ended] = num_moves
            is_over |= ends
            if num_moves % SWEEP_STEPS == 0 or is_over.all():
                keeps = ~is_over
                boards = np.compress(
                    keeps, boards, axis=2
                )  # boards[..., keeps] would turn the memory's order
                ids, num_idle, is_over = ids[keeps], num_idle[keeps], is_over[keeps]
                if progress:
                    progress(min(start + WIDTH, num_games) - len(ids), num_games)
                if not len(ids):
                    break
            after = moved(boards, policy(boards, num_moves, rng))
            num_moves += 1
            is_changed = changed(boards, after)
            num_idle = np.where(is_changed, 0, num_idle + 1)
            spawn(after, is_changed, rng)
            boards = after
    return games
