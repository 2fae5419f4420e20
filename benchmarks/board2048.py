"""Measure how fast random keys play games of 2048 to their end, in our engine and in others.

`vs_gymnasium` and `vs_nested_lists` are how many times as many moves a second `GameBoard` plays at 6x6 as
gymnasium-2048 and as the nested lists that a notebook would use; `..._4x4` are the same at 4x4, with
OpenSpiel's 2048, which has only that size. `batch_vs_nested_lists` is that of `batch_2048.play`, many at
once. Each draws one of four keys at random, puts a new tile in and looks for the end of the game, which comes
with 2048 or when no move is left; a key that changes nothing is a move. Every engine's moves are checked.

gymnasium-2048 is a contestant only, never installed with rlnb: it is put into build/bench2048, which git
ignores, and reported as missing where that cannot be done.
"""

import functools
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyspiel
import timing
from baselines_2048 import POLICIES
from batch_2048 import play

from rlnb.game_2048.board import DIRECTIONS, BoardKind, GameBoard, slide_board

SCRATCH = Path(__file__).parents[1] / "build" / "bench2048"
PACKAGES = (
    *("gymnasium-2048==0.1.2", "gymnasium==1.3.0", "pygame==2.6.1"),
    *("cloudpickle==3.1.2", "farama-notifications==0.0.6"),
)  # all but numpy, which is ours
ROUNDS, TARGET, NUM_BATCH_GAMES = 9, 2048, 2048
NUM_GAMES = {4: 64, 6: 8}  # one turn of an engine of single boards; a quarter of it for gymnasium-2048
OTHERS_DIRECTIONS = ("up", "right", "down", "left")  # the actions 0 to 3 of gymnasium-2048 and OpenSpiel
Rows = Sequence[Sequence[int]]


class NestedLists:
    """2048 written plainly: lists of lists, row by row, with the whole board checked after each move."""

    def __init__(self, size: int, target: int, seed: int) -> None:
        self.size, self.target, self.random = size, target, random.Random(seed)
        self.board = [[0] * size for _ in range(size)]
        self.score, self.state = 0, "ongoing"
        self.add_tile()
        self.add_tile()

    def empty_cells(self) -> list[tuple[int, int]]:
        return [(y, x) for y in range(self.size) for x in range(self.size) if self.board[y][x] == 0]

    def add_tile(self) -> None:
        cells = self.empty_cells()
        if cells:
            y, x = self.random.choice(cells)
            self.board[y][x] = 4 if self.random.random() < 0.1 else 2

    def merged(self, row: list[int]) -> list[int]:
        tiles = [tile for tile in row if tile != 0]
        result, index = [], 0
        while index < len(tiles):
            if index + 1 < len(tiles) and tiles[index] == tiles[index + 1]:
                result.append(2 * tiles[index])
                self.score += 2 * tiles[index]
                index += 2
            else:
                result.append(tiles[index])
                index += 1
        return result + [0] * (self.size - len(result))

    def pushed(self, direction: str) -> list[list[int]]:
        board = self.board
        if direction in ("up", "down"):
            board = [list(column) for column in zip(*board, strict=True)]
        if direction in ("right", "down"):
            board = [self.merged(row[::-1])[::-1] for row in board]
        else:
            board = [self.merged(row) for row in board]
        if direction in ("up", "down"):
            board = [list(column) for column in zip(*board, strict=True)]
        return board

    def can_move(self) -> bool:
        if self.empty_cells():
            return True
        for y in range(self.size):
            for x in range(self.size):
                if x + 1 < self.size and self.board[y][x] == self.board[y][x + 1]:
                    return True
                if y + 1 < self.size and self.board[y][x] == self.board[y + 1][x]:
                    return True
        return False

    def move(self, direction: str) -> None:
        board = self.pushed(direction)
        if board != self.board:
            self.board = board
            self.add_tile()
        if any(tile >= self.target for row in self.board for tile in row):
            self.state = "success"
        elif not self.can_move():
            self.state = "failed"


def by_single_boards(engine: type[GameBoard] | type[NestedLists], size: int, seed: int) -> int:
    """Play a game and return its number of moves, like the other contestants."""
    board, draw, num_moves = engine(size, TARGET, seed), random.Random(-seed - 1).random, 0
    while board.state == "ongoing":
        board.move(DIRECTIONS[int(draw() * 4)])
        num_moves += 1
    return num_moves


def by_gymnasium(environment: Any, seed: int) -> int:
    environment.reset(seed=seed)
    draw, num_moves, is_over, target = random.Random(-seed - 1).random, 0, False, TARGET.bit_length() - 1
    while not is_over:
        _, _, has_failed, _, info = environment.step(int(draw() * 4))
        is_over = has_failed or info["max"] >= target
        num_moves += 1
    return num_moves


def by_pyspiel(game: Any, seed: int) -> int:
    """Count keys that change nothing, but do not apply them: OpenSpiel refuses them."""
    state, rng, num_moves = game.new_initial_state(), random.Random(seed), 0
    while not state.is_terminal():
        if state.is_chance_node():
            outcomes, weights = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(rng.choices(outcomes, weights)[0])
            continue
        action = int(rng.random() * 4)
        num_moves += 1
        if action in state.legal_actions():
            state.apply_action(action)
    return num_moves


def turn(game: Callable[[int], int], num_games: int, counts: list[int]) -> list[float]:
    """Play the same games at every turn, and count their moves."""
    seconds = []
    counts.clear()
    for seed in range(num_games):
        started = time.perf_counter()
        counts.append(game(seed))
        seconds.append(time.perf_counter() - started)
    return seconds


def batch_turn(size: int, num_games: int, counts: list[int]) -> list[float]:
    started = time.perf_counter()
    games = play(BoardKind(size, TARGET), POLICIES["random"], num_games, seed=0)
    counts[:] = games.moves.tolist()
    return [(time.perf_counter() - started) / num_games] * num_games


def gymnasium_environment() -> Any:
    """Return the class, installed if it is missing; None if it cannot be installed."""
    uv = shutil.which("uv")
    if not SCRATCH.exists() and uv:
        environment = {**os.environ, "UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
        command = [uv, "pip", "install", "--python", sys.executable, "--target", str(SCRATCH), "--no-deps"]
        subprocess.run([*command, *PACKAGES], env=environment, capture_output=True)
    sys.path.append(str(SCRATCH))
    os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
    try:
        from gymnasium_2048.envs import TwentyFortyEightEnv
    except ImportError:
        return None
    return TwentyFortyEightEnv


def check(size: int, gymnasium: Any) -> None:
    """Check that all engines make the same moves: in some of our games, and OpenSpiel in some of its own."""
    for seed in range(3):
        board, rng = GameBoard(size, TARGET, seed), random.Random(seed)
        while board.state == "ongoing":
            rows = board.rows
            for direction in DIRECTIONS:
                after = [list(row) for row in slide_board(rows, direction)[0]]
                nested = NestedLists(size, TARGET, 0)
                nested.board = rows
                outcomes = {"nested lists": nested.pushed(direction)}
                if gymnasium:
                    outcomes["gymnasium-2048"] = by_actions_of(gymnasium, rows, direction)
                for name, outcome in outcomes.items():
                    if outcome != after:
                        raise SystemExit(f"{name} moves {rows} {direction} to {outcome}, not {after}")
            board.move(rng.choice(DIRECTIONS))
    state, rng = pyspiel.load_game("2048").new_initial_state(), random.Random(0)
    while size == 4 and not state.is_terminal():
        rows, action = board_of(state), rng.choice(state.legal_actions())
        is_move = not state.is_chance_node()
        state.apply_action(action)
        if not is_move:
            continue
        direction = OTHERS_DIRECTIONS[action]
        if board_of(state) != [list(row) for row in slide_board(rows, direction)[0]]:
            raise SystemExit(f"OpenSpiel moves {rows} {direction} to {board_of(state)}")


def by_actions_of(gymnasium: Any, rows: Rows, direction: str) -> list[list[int]]:
    import numpy as np

    exponents = np.array([[max(tile.bit_length() - 1, 0) for tile in row] for row in rows], np.uint8)
    after, _, _ = gymnasium.apply_action(exponents, OTHERS_DIRECTIONS.index(direction))
    return [[2 ** int(exponent) if exponent else 0 for exponent in row] for row in after]


def board_of(state: Any) -> list[list[int]]:
    return [[int(tile) for tile in line.split()] for line in str(state).strip().splitlines()]


def measure(size: int, gymnasium: Any) -> dict[str, float]:
    """Return {contestant: moves a second}, the median of interleaved rounds."""
    games: dict[str, tuple[Callable[[int], int], int]] = {
        "rlnb": (functools.partial(by_single_boards, GameBoard, size), NUM_GAMES[size]),
        "nested_lists": (functools.partial(by_single_boards, NestedLists, size), NUM_GAMES[size]),
    }
    if gymnasium:
        environment = gymnasium(size=size)
        games["gymnasium"] = functools.partial(by_gymnasium, environment), max(NUM_GAMES[size] // 4, 1)
    if size == 4:
        games["pyspiel"] = functools.partial(by_pyspiel, pyspiel.load_game("2048")), NUM_GAMES[size]
    counts: dict[str, list[int]] = {name: [] for name in (*games, "batch")}
    contestants: dict[str, timing.Contestant] = {
        name: functools.partial(turn, game, num_games, counts[name])
        for name, (game, num_games) in games.items()
    }
    contestants["batch"] = functools.partial(batch_turn, size, NUM_BATCH_GAMES, counts["batch"])
    results = timing.interleave(contestants, rounds=ROUNDS)
    return {name: result["rate"] * sum(counts[name]) / len(counts[name]) for name, result in results.items()}


def main() -> None:
    gymnasium = gymnasium_environment()
    figures: dict[str, object] = {}
    for size, suffix in ((6, ""), (4, "_4x4")):
        check(size, gymnasium)
        rates = measure(size, gymnasium)
        for name in ("gymnasium", "nested_lists", *(["pyspiel"] if size == 4 else [])):
            figures[f"vs_{name}{suffix}"] = (
                round(rates["rlnb"] / rates[name], 2) if name in rates else "missing"
            )
        figures[f"batch_vs_nested_lists{suffix}"] = round(rates["batch"] / rates["nested_lists"], 1)
        figures |= {f"{name}_moves_a_second{suffix}": round(rate) for name, rate in rates.items()}
    timing.report(figures, description=__doc__ or "")


if __name__ == "__main__":
    main()
