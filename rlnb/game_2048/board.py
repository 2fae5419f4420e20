"""2048 on square boards of any size, with any target.

A board is a list of rows, top row first, of tile values; 0 is an empty cell. Gabriele Cirulli's rules: a move
slides all tiles, two equal tiles that meet become one of twice the value, each tile merges at most once a
move; then a 2, or one time in ten a 4, appears in a random empty cell. A move that changes nothing is
allowed and spawns nothing.

Internally a board is one string of bytes: the exponents of its tiles (1 for a 2, 2 for a 4, 0 for an empty
cell), row after row, with an EDGE between rows. Turning it, packing its rows and finding its empty cells is
then one call each into C, and the rows that were seen before slide by a lookup.
"""

import math
import random
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress, repeat
from operator import eq
from typing import Literal, get_args

Direction = Literal["up", "down", "left", "right"]
State = Literal["ongoing", "success", "failed", "stuck"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
# The keys that a player writes: bépo's, which are where WASD is on a QWERTY keyboard.
KEYS: Mapping[Direction, str] = {"up": "é", "down": "u", "left": "a", "right": "i"}
SMALLEST_SIZE, LARGEST_SIZE = 2, 8
FOUR_PROBABILITY = 0.1  # of a new tile
PATIENCE = 64  # moves in a row that change nothing, after which a game ends as stuck
DIRECTION_BY_LETTER: Mapping[str, Direction] = {"U": "up", "D": "down", "L": "left", "R": "right"}
LETTERS: Mapping[Direction, str] = {direction: letter for letter, direction in DIRECTION_BY_LETTER.items()}
LONGEST_KEY = 8  # characters of a reply; a longer one is not a key
CACHED_ROWS = 2**18
EMPTY, EDGE = b"\0", b"\xff"
IS_EMPTY = b"\1".ljust(256, b"\0")  # for bytes.translate: 1 where a cell is empty
TILES = (0, *(2**exponent for exponent in range(1, LARGEST_SIZE**2 + 2)))  # no board can hold a larger tile
EXPONENTS = {tile: exponent for exponent, tile in enumerate(TILES)}
# Points of all the merges that make a tile out of tiles of 2: 4 for a 4, 4 + 4 + 8 for an 8.
POINTS = tuple(tile * max(exponent - 1, 0) for exponent, tile in enumerate(TILES))


@dataclass(frozen=True)
class BoardKind:
    """The size of a square board (cells) and the tile to reach, a power of two: "6x6/2048".

    Raises ValueError for sizes outside 2 to 8 and for targets that are not a power of two of at least 8.
    """

    size: int
    target: int

    def __post_init__(self) -> None:
        if not SMALLEST_SIZE <= self.size <= LARGEST_SIZE:
            raise ValueError(f"size {self.size} is not in {SMALLEST_SIZE} to {LARGEST_SIZE}")
        if self.target < 8 or self.target & (self.target - 1):
            raise ValueError(f"target {self.target} is not a power of two of at least 8")

    @classmethod
    def parse(cls, text: str) -> "BoardKind":
        match = re.fullmatch(r"(\d+)x(\d+)/(\d+)", text.strip())
        if not match or match[1] != match[2]:
            raise ValueError(f"{text!r} is not a board; write 4x4/2048 for 4 rows of 4 and the tile 2048")
        return cls(int(match[1]), int(match[3]))

    def __str__(self) -> str:
        return f"{self.size}x{self.size}/{self.target}"

    def progress(self, largest: int) -> float:
        """Return log2 of the largest tile over log2 of the target: above 1 beyond the target."""
        return math.log2(largest) / math.log2(self.target)


def parse_key(reply: object) -> Direction | None:
    """Return the direction that a reply means, None if it is not a key.

    Only text counts, after Unicode's NFC, without surrounding blanks, in either case.
    """
    if not isinstance(reply, str) or len(reply) > LONGEST_KEY:
        return None
    key = unicodedata.normalize("NFC", reply).strip().casefold()
    return next((direction for direction, name in KEYS.items() if name == key), None)


@lru_cache(maxsize=CACHED_ROWS)
def slide(tiles: bytes, size: int) -> bytes:
    """Return a row of `size` cells after a move to the left. tiles: the row without its gaps."""
    row = bytearray()
    last = 0  # the tile that the next one may merge with
    for tile in tiles:
        if tile == last:
            row[-1] += 1
            last = 0
        else:
            row.append(tile)
            last = tile
    return bytes(row).ljust(size, EMPTY)


@lru_cache(maxsize=LARGEST_SIZE)
def turn_orders(size: int) -> Mapping[Direction, bytes]:
    """Return {direction: the order of a board's bytes that makes its move one to the left, and back}."""
    rows = [bytes(range(start, start + size)) for start in range(0, size * (size + 1), size + 1)]
    edge = bytes([size])  # the index of the first edge
    left, up = edge.join(rows), edge.join(map(bytes, zip(*rows, strict=True)))
    return {"up": up, "down": up[::-1], "left": left, "right": left[::-1]}


def turn(board: bytes, order: bytes) -> bytes:
    return order.translate(board.ljust(256))


def push_left(board: bytes, size: int) -> bytes:
    return EDGE.join(map(slide, board.translate(None, EMPTY).split(EDGE), repeat(size)))


def has_pair(board: bytes) -> bool:
    """Return whether a row of a full board holds two equal neighbours."""
    return any(map(eq, board, board[1:]))


def merge_points(board: bytes) -> int:
    """Return the points of all the merges that make these tiles out of tiles of 2."""
    return sum(map(POINTS.__getitem__, board.replace(EDGE, b"")))


def decode_rows(board: bytes) -> list[list[int]]:
    return [list(map(TILES.__getitem__, row)) for row in board.split(EDGE)]


class GameBoard:
    """One game. `state` is "ongoing", "success" (the target is there), "failed" (no move is left) or "stuck"
    (PATIENCE moves in a row changed nothing).

    seed: of `random.Random`, which draws the cells and values of new tiles; the same seed and moves give the
    same game. play_on: go on beyond the target, until no move is left; whatever ends the game after the
    target was reached is still "success". Raises ValueError as `BoardKind` does.
    """

    def __init__(self, size: int = 6, target: int = 2048, seed: int = 0, *, play_on: bool = False) -> None:
        self.kind = BoardKind(size, target)
        self.seed, self.play_on = seed, play_on
        self.state: State = "ongoing"
        self.num_idle = self._num_fours = 0
        self._has_target = False
        self._moves: list[str] = []
        self._draw = random.Random(seed).random
        self._orders = turn_orders(size)
        self._cells = range(size * (size + 1) - 1)
        self._board = EDGE.join([EMPTY * size] * size)
        self._spawn()
        self._spawn()

    @property
    def rows(self) -> list[list[int]]:
        """A fresh copy of the board: changing it does not change the game."""
        return decode_rows(self._board)

    @property
    def moves(self) -> str:
        """The moves so far, a letter of LETTERS each."""
        return "".join(self._moves)

    @property
    def largest(self) -> int:
        return TILES[max(self._board.replace(EDGE, b""))]

    @property
    def score(self) -> int:
        """The sum of all merged tiles; it follows from the tiles on the board and the number of new fours."""
        return merge_points(self._board) - 4 * self._num_fours

    def move(self, direction: Direction) -> bool:
        """Play a move and return whether it changed the board. Raises ValueError when the game is over."""
        if self.state != "ongoing":
            raise ValueError(f"the game is over: {self.state}")
        order = self._orders[direction]
        self._moves.append(LETTERS[direction])
        before = turn(self._board, order)
        after = push_left(before, self.kind.size)
        if after == before:
            self.num_idle += 1
            if self.num_idle >= PATIENCE:
                self.state = "success" if self._has_target else "stuck"
            return False
        self._board, self.num_idle = turn(after, order), 0
        self._spawn()
        return True

    def _spawn(self) -> None:
        """Add a tile and update the state. One random number draws its cell, the next its value."""
        board = self._board
        empty = list(compress(self._cells, board.translate(IS_EMPTY)))
        cell = empty[int(self._draw() * len(empty))]
        is_four = self._draw() < FOUR_PROBABILITY
        self._num_fours += is_four
        self._board = board = board[:cell] + (b"\2" if is_four else b"\1") + board[cell + 1 :]
        if not self._has_target:
            self._has_target = self.kind.target.bit_length() - 1 in board
        if self._has_target and not self.play_on:
            self.state = "success"
        elif len(empty) == 1 and not (has_pair(board) or has_pair(turn(board, self._orders["up"]))):
            self.state = "success" if self._has_target else "failed"


def slide_board(rows: Sequence[Sequence[int]], direction: Direction) -> tuple[list[tuple[int, ...]], int]:
    """Return a square board after a move, before a tile appears, and the points of its merges."""
    size, order = len(rows), turn_orders(len(rows))[direction]
    before = EDGE.join(bytes(map(EXPONENTS.__getitem__, row)) for row in rows)
    after = turn(push_left(turn(before, order), size), order)
    return [tuple(row) for row in decode_rows(after)], merge_points(after) - merge_points(before)
