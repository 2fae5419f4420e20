"""2048 on square boards of any size, with any target: rules, rendering as text, exact replays.

A board is a list of rows, top row first, of tile values; 0 is an empty cell. Gabriele Cirulli's rules: a move
slides all tiles, two equal tiles that meet become one of twice the value, each tile merges at most once a
move; then a 2, or with `four_probability` a 4, appears in a random empty cell. A move that changes nothing is
allowed and spawns nothing.

Internally a board is one string of bytes: the exponents of its tiles (1 for a 2, 2 for a 4, 0 for an empty
cell), row after row, with an EDGE between rows. Turning it, packing its rows and finding its empty cells is
then one call each into C, and rows slide by a table of the rows that were seen before.
"""

import math
import random
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, compress
from operator import eq
from typing import Literal, TypedDict, Unpack, get_args

Direction = Literal["up", "down", "left", "right"]
State = Literal["ongoing", "success", "failed", "stuck"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
# The keys that a player writes. bépo's are where WASD lies on a QWERTY keyboard.
KEYS: Mapping[str, Mapping[Direction, str]] = {
    "bepo": {"up": "é", "down": "u", "left": "a", "right": "i"},
    "wasd": {"up": "w", "down": "s", "left": "a", "right": "d"},
    "arrows": {"up": "↑", "down": "↓", "left": "←", "right": "→"},
}
SMALLEST_SIZE, LARGEST_SIZE = 2, 8
DIRECTION_BY_LETTER: Mapping[str, Direction] = {"U": "up", "D": "down", "L": "left", "R": "right"}
LETTERS: Mapping[Direction, str] = {direction: letter for letter, direction in DIRECTION_BY_LETTER.items()}
LONGEST_KEY = 8  # characters of a reply; a longer one is not a key
CACHED_ROWS = 2**16  # of each size; then the table is emptied
EMPTY, EDGE = b"\0", b"\xff"
IS_EMPTY = b"\1".ljust(256, b"\0")  # for bytes.translate: 1 where a cell is empty
TILES = (0, *(2**exponent for exponent in range(1, LARGEST_SIZE**2 + 2)))  # no board can hold a larger tile
EXPONENTS = {tile: exponent for exponent, tile in enumerate(TILES)}
# Points of all the merges that make a tile out of tiles of 2: 4 for a 4, 4 + 4 + 8 for an 8.
POINTS = tuple(tile * max(exponent - 1, 0) for exponent, tile in enumerate(TILES))
# Backgrounds of the tiles 2, 4, 8 and so on, up to 2048 Cirulli's; tiles beyond 131072 have the last one.
TILE_COLOURS = (
    "#eee4da", "#ede0c8", "#f2b179", "#f59563", "#f67c5f", "#f65e3b", "#edcf72", "#edcc61", "#edc850",
    "#edc53f", "#edc22e", "#8ab661", "#4f9d69", "#3d8b8b", "#3a6ea5", "#5b4b9a", "#3c3a32",
)  # fmt: skip


class GameOptions(TypedDict, total=False):
    """The options of `GameBoard` besides its kind and seed."""

    four_probability: float
    patience: int
    play_on: bool


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


def parse_key(reply: object, keys: Mapping[Direction, str]) -> Direction | None:
    """Return the direction that a reply means, None if it is not a key.

    Only text counts, after Unicode's NFC, without surrounding blanks, in either case.
    """
    if not isinstance(reply, str) or len(reply) > LONGEST_KEY:
        return None
    key = unicodedata.normalize("NFC", reply).strip().casefold()
    return next((direction for direction, name in keys.items() if name == key), None)


class SlideTable(dict[bytes, bytes]):
    """{tiles of a row without its gaps: the row after a move to the left}, computed on first use."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def __missing__(self, tiles: bytes) -> bytes:
        row = bytearray()
        last = 0  # the tile that the next one may merge with
        for tile in tiles:
            if tile == last:
                row[-1] += 1
                last = 0
            else:
                row.append(tile)
                last = tile
        if len(self) >= CACHED_ROWS:
            self.clear()
        self[tiles] = slid = bytes(row).ljust(self.size, EMPTY)
        return slid


slide_table = lru_cache(maxsize=LARGEST_SIZE)(SlideTable)  # all boards of a size share a table


@lru_cache(maxsize=LARGEST_SIZE)
def turn_orders(size: int) -> Mapping[Direction, bytes]:
    """Return {direction: the order of a board's bytes that makes its move one to the left, and back}."""
    rows = [bytes(range(start, start + size)) for start in range(0, size * (size + 1), size + 1)]
    edge = bytes([size])  # the index of the first edge
    left, up = edge.join(rows), edge.join(map(bytes, zip(*rows, strict=True)))
    return {"up": up, "down": up[::-1], "left": left, "right": left[::-1]}


def turn(board: bytes, order: bytes) -> bytes:
    return order.translate(board.ljust(256))


def push_left(board: bytes, table: SlideTable) -> bytes:
    return EDGE.join(map(table.__getitem__, board.translate(None, EMPTY).split(EDGE)))


def has_pair(board: bytes) -> bool:
    """Return whether a row of a full board holds two equal neighbours."""
    return any(map(eq, board, board[1:]))


def merge_points(board: bytes) -> int:
    """Return the points of all the merges that make these tiles out of tiles of 2."""
    return sum(map(POINTS.__getitem__, board.replace(EDGE, b"")))


def encode_rows(rows: Sequence[Sequence[int]]) -> bytes:
    """Return a board of tile values as bytes. Raises ValueError for values that are not tiles."""
    for tile in chain.from_iterable(rows):
        if tile not in EXPONENTS:
            raise ValueError(f"{tile!r} is not a tile; a tile is a power of two from 2 on, 0 an empty cell")
    return EDGE.join(bytes(map(EXPONENTS.__getitem__, row)) for row in rows)


def decode_rows(board: bytes) -> list[list[int]]:
    return [list(map(TILES.__getitem__, row)) for row in board.split(EDGE)]


class GameBoard:
    """One game. `state` is "ongoing", "success" (the target is there), "failed" (no move is left) or "stuck"
    (`patience` moves in a row changed nothing).

    seed: of `random.Random`, which draws the cells and values of new tiles; the same seed and moves give the
    same game. play_on: go on beyond the target, until no move is left; whatever ends the game after the
    target was reached is still "success". Raises ValueError as `BoardKind` does, and for a probability
    outside 0 to 1.
    """

    def __init__(
        self,
        size: int = 6,
        target: int = 2048,
        seed: int = 0,
        *,
        four_probability: float = 0.1,
        patience: int = 64,
        play_on: bool = False,
    ) -> None:
        self.kind = BoardKind(size, target)
        if not 0 <= four_probability <= 1:
            raise ValueError(f"four_probability {four_probability} is not in 0 to 1")
        self.seed, self.four_probability = seed, four_probability
        self.patience, self.play_on = patience, play_on
        self.state: State = "ongoing"
        self.num_idle = self._num_fours = 0
        self._has_target = False
        self._moves: list[str] = []
        self._draw = random.Random(seed).random
        self._orders, self._table = turn_orders(size), slide_table(size)
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

    @property
    def progress(self) -> float:
        """log2 of the largest tile over log2 of the target: 1 when the target is reached, above 1 beyond."""
        return math.log2(self.largest) / math.log2(self.kind.target)

    def move(self, direction: Direction) -> bool:
        """Play a move and return whether it changed the board. Raises ValueError when the game is over."""
        if self.state != "ongoing":
            raise ValueError(f"the game is over: {self.state}")
        order = self._orders[direction]
        self._moves.append(LETTERS[direction])
        before = turn(self._board, order)
        after = push_left(before, self._table)
        if after == before:
            self.num_idle += 1
            if self.num_idle >= self.patience:
                self.state = "success" if self._has_target else "stuck"
            return False
        self._board, self.num_idle = turn(after, order), 0
        self._spawn()
        return True

    def legal_moves(self) -> list[Direction]:
        """Return the directions that change the board."""
        lines = {direction: turn(self._board, order) for direction, order in self._orders.items()}
        return [d for d, before in lines.items() if push_left(before, self._table) != before]

    def _spawn(self) -> None:
        """Add a tile and update the state. One random number draws its cell, the next its value."""
        board = self._board
        empty = list(compress(self._cells, board.translate(IS_EMPTY)))
        cell = empty[int(self._draw() * len(empty))]
        is_four = self._draw() < self.four_probability
        self._num_fours += is_four
        self._board = board = board[:cell] + (b"\2" if is_four else b"\1") + board[cell + 1 :]
        if not self._has_target:
            self._has_target = self.kind.target.bit_length() - 1 in board
        if self._has_target and not self.play_on:
            self.state = "success"
        elif len(empty) == 1 and not (has_pair(board) or has_pair(turn(board, self._orders["up"]))):
            self.state = "success" if self._has_target else "failed"

    def __str__(self) -> str:
        width = len(str(self.largest))
        return "\n".join(" ".join(str(tile or ".").rjust(width) for tile in row) for row in self.rows)

    def __repr__(self) -> str:
        played = f"{self.kind}, seed {self.seed}, {len(self._moves)} moves"
        return f"{played}, score {self.score}: {self.state}\n{self}"


def slide_board(rows: Sequence[Sequence[int]], direction: Direction) -> tuple[list[tuple[int, ...]], int]:
    """Return a square board after a move, before a tile appears, and the points of its merges."""
    size, before = len(rows), encode_rows(rows)
    order = turn_orders(size)[direction]
    after = turn(push_left(turn(before, order), slide_table(size)), order)
    return [tuple(row) for row in decode_rows(after)], merge_points(after) - merge_points(before)


def tile_colours(tile: int) -> tuple[str, str]:
    """Return the background of a tile and the ink that contrasts with it, for any theme of a notebook."""
    background = TILE_COLOURS[min(tile.bit_length() - 1, len(TILE_COLOURS)) - 1]
    red, green, blue = bytes.fromhex(background[1:])
    return background, "#33302b" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 * 255 else "#ffffff"


def replay(kind: BoardKind, seed: int, moves: str, **options: Unpack[GameOptions]) -> GameBoard:
    """Return the position after `moves` (letters of LETTERS) of the game with this seed and these options."""
    board = GameBoard(kind.size, kind.target, seed, **options)
    for letter in moves:
        board.move(DIRECTION_BY_LETTER[letter])
    return board
