"""Results of simple strategies for 2048, with which learned ones are compared.

Each is a `Policy` for many boards at once. `make baselines` plays them all and writes BASELINES_FILE.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from batch_2048 import Boards, PlayedGames, Policy, changed, play, pushed
from numpy.typing import NDArray

from rlnb.game_2048.board import DIRECTION_BY_LETTER, DIRECTIONS, POINTS, TILES, BoardKind, Direction
from rlnb.statistics import wilson_interval

BASELINES_FILE = Path(__file__).with_suffix(".json")
ORDER: tuple[Direction, ...] = ("left", "down", "right", "up")  # the first of equally good moves is taken
INDICES = np.array([DIRECTIONS.index(direction) for direction in ORDER])
GAIN = np.array(
    POINTS[:32], np.float64
)  # of tiles by their exponents; 2**31 is beyond what can be reached here
VALUES = np.array(TILES[:32], np.float32)
SNAKE_RATIO, EMPTY_VALUE = 0.5, 0.01
SAMPLED_CELLS = 6
NEW_TILES = ((1, 0.9), (2, 0.1))  # exponent and probability, as the look-ahead takes them


@dataclass(frozen=True)
class BaselineResult:
    """The result of a baseline on a board. low, high: the 95% interval of the share of games won (Wilson)."""

    board: str
    baseline: str
    num_games: int
    won: float
    low: float
    high: float
    stuck: float
    median_largest: int
    median_moves: int


def random_keys(boards: Boards, num_moves: int, rng: np.random.Generator) -> NDArray[np.integer]:
    return rng.integers(len(DIRECTIONS), size=(boards.shape[-1],), dtype=np.uint8)


def cycle(letters: str, boards: Boards, num_moves: int, rng: np.random.Generator) -> NDArray[np.integer]:
    """Repeat the same letters, whatever the board."""
    index = DIRECTIONS.index(DIRECTION_BY_LETTER[letters[num_moves % len(letters)]])
    return np.full(boards.shape[-1], index, np.uint8)


def best(
    value: Callable[[Boards], NDArray[np.floating]], boards: Boards, num_moves: int, rng: np.random.Generator
) -> NDArray[np.integer]:
    """Return the move that changes the board and whose outcome has the highest value."""
    values = [
        np.where(changed(boards, after), value(after), -np.inf)
        for after in (pushed(boards, direction) for direction in ORDER)
    ]
    return INDICES[np.argmax(values, axis=0)]


def no_value(boards: Boards) -> NDArray[np.floating]:
    """Return equal values, so the first move of ORDER that changes the board is taken."""
    return np.zeros(boards.shape[-1])


def merged_value(boards: Boards) -> NDArray[np.floating]:
    """Return the points of all merges so far: highest after the move that gains most."""
    return np.add.reduce(GAIN[boards], axis=(0, 1))


def expectimax(boards: Boards, num_moves: int, rng: np.random.Generator) -> NDArray[np.integer]:
    """Look two moves ahead; the tile between them is tried in at most SAMPLED_CELLS empty cells."""
    afters = np.concatenate([pushed(boards, direction) for direction in ORDER], axis=2)
    legal = np.flatnonzero(changed(np.tile(boards, len(ORDER)), afters))
    values = np.full(afters.shape[-1], -np.inf)
    values[legal] = value_before_tile(np.take(afters, legal, axis=2), rng)
    return INDICES[np.argmax(values.reshape(len(ORDER), -1), axis=0)]


def value_before_tile(boards: Boards, rng: np.random.Generator) -> NDArray[np.floating]:
    """Return the mean, over sampled cells and new tiles, of the best snake value one move later."""
    size, _, num_boards = boards.shape
    is_empty = (boards == 0).reshape(size * size, num_boards)
    num_cells = min(SAMPLED_CELLS, size * size)
    keys = np.where(is_empty, rng.random(is_empty.shape, dtype=np.float32), 2)  # full cells come last
    cells = np.argsort(keys, axis=0)[:num_cells]
    columns = np.arange(num_boards)
    total, weight = np.zeros(num_boards), np.zeros(num_boards)
    for cell in cells:
        counts = is_empty[cell, columns]
        weight += counts
        for tile, probability in NEW_TILES:
            boards_then = boards.copy()
            boards_then[(*divmod(cell, size), columns)] = tile
            total += probability * counts * best_snake_value(boards_then)
    return total / np.maximum(weight, 1)


def best_snake_value(boards: Boards) -> NDArray[np.floating]:
    """Return the snake value after the best move; 0, less than any other, if there is none."""
    values = np.zeros(boards.shape[-1])
    for direction in ORDER:
        after = pushed(boards, direction)
        np.maximum(values, snake_value(after) * changed(boards, after), out=values)
    return values


@lru_cache(maxsize=8)
def snakes(size: int) -> NDArray[np.float32]:
    """Return weights of the cells, (8, size * size): from each corner along rows or columns, to and fro,
    each cell SNAKE_RATIO times the one before.
    """
    ranks = np.arange(size * size).reshape(size, size)
    ranks[1::2] = ranks[1::2, ::-1].copy()
    weights = SNAKE_RATIO ** ranks.astype(np.float32)
    turns = [np.rot90(way, turn) for way in (weights, weights.T) for turn in range(4)]
    return np.stack([way.reshape(-1) for way in turns]).astype(np.float32)


def snake_value(boards: Boards) -> NDArray[np.floating]:
    """Return how well the tiles lie along the best of the eight snakes, as a share of their sum, plus
    EMPTY_VALUE for each empty cell. Above 0 on every board that has a tile.
    """
    size = len(boards)
    cells = boards.reshape(size * size, -1)
    tiles = VALUES[cells]
    along = (snakes(size) @ tiles).max(axis=0) / tiles.sum(axis=0)
    return along + np.float32(EMPTY_VALUE) * (cells == 0).sum(axis=0, dtype=np.uint8)


POLICIES: Mapping[str, Policy] = {
    "random": random_keys,
    "cycle LDRD": partial(cycle, "LDRD"),
    "cycle LDRU": partial(cycle, "LDRU"),
    "corner": partial(best, no_value),
    "greedy merge": partial(best, merged_value),
    "1-ply snake": partial(best, snake_value),
    "2-ply expectimax": expectimax,
}


# (boards, {baseline: number of games}): the look-ahead takes a thousand times as long as random keys.
MEASURED = {
    name: {"4x4/2048": 400, "5x5/2048": 200, "6x6/2048": 100, "5x5/8192": 100}
    if name == "2-ply expectimax"
    else dict.fromkeys(("4x4/2048", "5x5/2048", "6x6/2048", "5x5/8192"), 4096)
    for name in POLICIES
}


def measure(
    kind: BoardKind,
    name: str,
    num_games: int,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> BaselineResult:
    """Play a baseline of POLICIES on new games.

    seed: public, so that anybody can repeat the figures. These policies do not look for seeds.
    """
    return summarise(kind, name, play(kind, POLICIES[name], num_games, seed, progress=progress))


def summarise(kind: BoardKind, name: str, games: PlayedGames) -> BaselineResult:
    won = float(games.won.mean())
    interval = wilson_interval(won, len(games.won))
    return BaselineResult(
        board=str(kind),
        baseline=name,
        num_games=len(games.won),
        won=round(won, 4),
        low=round(interval.low, 4),
        high=round(interval.high, 4),
        stuck=round(float(games.stuck.mean()), 4),
        median_largest=int(np.median(games.largest)),
        median_moves=int(np.median(games.moves)),
    )


def as_markdown(entries: Sequence[BaselineResult]) -> str:
    """Return a table, a line a baseline and a column a board: per cent won, and stuck if any are."""
    boards = list(dict.fromkeys(entry.board for entry in entries))
    lines = [f"| baseline | {' | '.join(boards)} |", "|---" * (len(boards) + 1) + "|"]
    for name in dict.fromkeys(entry.baseline for entry in entries):
        cells = [as_cell(entry) for entry in entries if entry.baseline == name]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def as_cell(entry: BaselineResult) -> str:
    won, low, high = (f"{100 * rate:.1f}" for rate in (entry.won, entry.low, entry.high))
    stuck = f", {100 * entry.stuck:.1f} stuck" if entry.stuck else ""
    return f"{won} [{low}, {high}]{stuck}"


def main() -> None:
    """Measure all baselines on all boards, write BASELINES_FILE and print the table."""
    entries = []
    for name, boards in MEASURED.items():
        for board, num_games in boards.items():

            def show(done: int, total: int, at: str = f"{board} {name}") -> None:
                if sys.stderr.isatty() or done == total:
                    print(f"\r{at}: {done} of {total} games ", end="", file=sys.stderr, flush=True)

            entries.append(measure(BoardKind.parse(board), name, num_games, progress=show))
            print(file=sys.stderr)
    lines = ",\n".join(json.dumps(asdict(entry)) for entry in entries)
    BASELINES_FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(as_markdown(entries))


if __name__ == "__main__":
    main()
