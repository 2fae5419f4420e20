"""2048 on square boards of any size, with any target: rules, text and HTML, exact replays.

A board is a list of rows, top row first, of tile values; 0 is an empty cell. Gabriele Cirulli's rules: a move
slides all tiles, two equal ones that meet become one of twice the value, each tile at most once a move; then
a 2, or with `four_probability` a 4, appears in a random empty cell. A move that changes nothing is allowed
and spawns nothing.

Inside, a board is one string of bytes: the exponents of its tiles (1 for a 2, 2 for a 4, 0 for an empty
cell), row after row, an EDGE between rows. Turning it, packing its rows and finding its empty cells is then
one call each into C, and rows slide by a table of those that were seen before.
"""

import math
import random
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from itertools import chain, compress
from operator import eq
from typing import Literal, get_args

Direction = Literal["up", "down", "left", "right"]
State = Literal["ongoing", "success", "failed", "stuck"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
# The keys that a player writes. bépo's are where WASD lies on a QWERTY keyboard.
KEYS: Mapping[str, Mapping[Direction, str]] = {
    "bepo": {"up": "é", "down": "u", "left": "a", "right": "i"},
    "wasd": {"up": "w", "down": "s", "left": "a", "right": "d"},
    "arrows": {"up": "↑", "down": "↓", "left": "←", "right": "→"},
}
SMALLEST, LARGEST = 2, 8
LETTERS: Mapping[Direction, str] = {"up": "U", "down": "D", "left": "L", "right": "R"}  # of replays
DIRECTION_OF: Mapping[str, Direction] = {letter: direction for direction, letter in LETTERS.items()}
LONGEST_KEY = 8  # characters of a reply that are looked at
CACHED_ROWS = 2**16  # of each size; beyond, the table starts anew
EMPTY, EDGE = b"\0", b"\xff"
IS_EMPTY = b"\1".ljust(256, b"\0")  # for bytes.translate: 1 where a cell is empty
TILES = (0, *(2**exponent for exponent in range(1, LARGEST**2 + 2)))  # no board can hold a larger one
EXPONENTS = {tile: exponent for exponent, tile in enumerate(TILES)}
# What the merges gained that made a tile, out of tiles of 2: 4 for a 4, 4 + 4 + 8 for an 8.
GAINS = tuple(tile * max(exponent - 1, 0) for exponent, tile in enumerate(TILES))
# Background and ink of tiles, the empty cell first: both, so that no theme of a notebook changes one alone.
COLOURS = (
    *(("#cdc1b4", "#3c3a32"), ("#eee4da", "#3c3a32"), ("#ede0c8", "#3c3a32"), ("#f2b179", "#3c3a32")),
    *(("#f59563", "#3c3a32"), ("#e8674a", "#ffffff"), ("#d8431f", "#ffffff"), ("#edcf72", "#3c3a32")),
    *(("#edcc61", "#3c3a32"), ("#edc850", "#3c3a32"), ("#edc53f", "#3c3a32"), ("#edc22e", "#3c3a32")),
    ("#3c3a32", "#ffffff"),
)
TABLE = "border-collapse:separate;border-spacing:3px;background:#bbada0;border:0;border-radius:4px"
CELL = "min-width:2.6em;height:2.4em;padding:0 .3em;text-align:center;font-weight:bold;border-radius:3px"


@dataclass(frozen=True)
class BoardKind:
    """The size of a square board (cells) and the tile to be reached, a power of two: "6x6/2048".

    Raises ValueError for sizes outside 2 to 8 and for targets that are no power of two from 8 on.
    """

    size: int
    target: int

    def __post_init__(self) -> None:
        if not SMALLEST <= self.size <= LARGEST:
            raise ValueError(f"size {self.size} is not in {SMALLEST} to {LARGEST}")
        if self.target < 8 or self.target & (self.target - 1):
            raise ValueError(f"target {self.target} is no power of two from 8 on")

    @classmethod
    def parse(cls, text: str) -> "BoardKind":
        """The kind that `str` writes."""
        match = re.fullmatch(r"(\d+)x(\d+)/(\d+)", text.strip())
        if not match or match[1] != match[2]:
            raise ValueError(f"{text!r} is no board; write 4x4/2048 for four rows of four and the tile 2048")
        return cls(int(match[1]), int(match[3]))

    def __str__(self) -> str:
        return f"{self.size}x{self.size}/{self.target}"


def direction_of(reply: object, keys: Mapping[Direction, str]) -> Direction | None:
    """The direction that a reply means, None for what is no key.

    Text only, after Unicode's NFC, without blanks around it, in either case.
    """
    if not isinstance(reply, str) or len(reply) > LONGEST_KEY:
        return None
    key = unicodedata.normalize("NFC", reply).strip().casefold()
    return next((direction for direction, name in keys.items() if name == key), None)


class Slides(dict[bytes, bytes]):
    """{tiles of a row without its gaps: the row after a move to the left}, found when first asked for."""

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


@lru_cache(maxsize=LARGEST)
def slides(size: int) -> Slides:
    """The table of this size, one for all boards."""
    return Slides(size)


@lru_cache(maxsize=LARGEST)
def turns(size: int) -> Mapping[Direction, bytes]:
    """For each direction the order of a board's bytes that makes its move one to the left, and back."""
    rows = [bytes(range(start, start + size)) for start in range(0, size * (size + 1), size + 1)]
    edge = bytes([size])  # where the first one is
    left, up = edge.join(rows), edge.join(map(bytes, zip(*rows, strict=True)))
    return {"up": up, "down": up[::-1], "left": left, "right": left[::-1]}


def turned(board: bytes, order: bytes) -> bytes:
    return order.translate(board.ljust(256))


def pushed(board: bytes, table: Slides) -> bytes:
    """A board after a move to the left."""
    return EDGE.join(map(table.__getitem__, board.translate(None, EMPTY).split(EDGE)))


def has_pair(board: bytes) -> bool:
    """Whether equal tiles lie side by side on a board without empty cells."""
    return any(map(eq, board, board[1:]))


def worth(board: bytes) -> int:
    """What the merges gained that made these tiles out of tiles of 2."""
    return sum(map(GAINS.__getitem__, board.replace(EDGE, b"")))


def as_bytes(rows: Sequence[Sequence[int]]) -> bytes:
    """A board of tile values as bytes; raises ValueError for what is no tile."""
    for tile in chain.from_iterable(rows):
        if tile not in EXPONENTS:
            raise ValueError(f"{tile!r} is no tile; a tile is a power of two from 2 on, 0 an empty cell")
    return EDGE.join(bytes(map(EXPONENTS.__getitem__, row)) for row in rows)


def as_rows(board: bytes) -> list[list[int]]:
    return [list(map(TILES.__getitem__, row)) for row in board.split(EDGE)]


class GameBoard:
    """One game. `state` is "ongoing", "success" (the target is there), "failed" (no move is left) or "stuck"
    (`patience` moves in a row changed nothing).

    seed: of `random.Random`, which draws the cells and values of new tiles; the same seed and moves give the
    same game. play_on: go on beyond the target, until no move is left; what ends the game after the target
    was there is still "success". Raises ValueError as `BoardKind` does, and for a probability outside 0 to 1.
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
        self.seed, self.four_probability, self.patience = seed, four_probability, patience
        self.play_on = play_on
        self.state: State = "ongoing"
        self.num_idle = self._num_fours = 0
        self._has_target = False
        self._moves: list[str] = []
        self._draw = random.Random(seed).random
        self._turns, self._slides = turns(size), slides(size)
        self._cells = range(size * (size + 1) - 1)
        self._board = EDGE.join([EMPTY * size] * size)
        self._spawn()
        self._spawn()

    @property
    def rows(self) -> list[list[int]]:
        """The board, a fresh copy: changing it changes nothing here."""
        return as_rows(self._board)

    @property
    def moves(self) -> str:
        """What was played so far, a letter of LETTERS each."""
        return "".join(self._moves)

    @property
    def largest(self) -> int:
        """The largest tile."""
        return TILES[max(self._board.replace(EDGE, b""))]

    @property
    def score(self) -> int:
        """The sum of all merged tiles; the tiles on the board and the number of fours that came tell it."""
        return worth(self._board) - 4 * self._num_fours

    @property
    def progress(self) -> float:
        """log2 of the largest tile over log2 of the target: 1 where the target is there, above 1 beyond."""
        return math.log2(self.largest) / math.log2(self.kind.target)

    def move(self, direction: Direction) -> bool:
        """Play a move; whether it changed the board. Raises ValueError when the game is over."""
        if self.state != "ongoing":
            raise ValueError(f"the game is over: {self.state}")
        order = self._turns[direction]
        self._moves.append(LETTERS[direction])
        before = turned(self._board, order)
        after = pushed(before, self._slides)
        if after == before:
            self.num_idle += 1
            if self.num_idle >= self.patience:
                self.state = "success" if self._has_target else "stuck"
            return False
        self._board, self.num_idle = turned(after, order), 0
        self._spawn()
        return True

    def legal_moves(self) -> list[Direction]:
        """The directions that change the board."""
        lines = {direction: turned(self._board, order) for direction, order in self._turns.items()}
        return [d for d, before in lines.items() if pushed(before, self._slides) != before]

    def _spawn(self) -> None:
        """A new tile, and what it means for the game. One number draws its cell, the next its value."""
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
        elif len(empty) == 1 and not (has_pair(board) or has_pair(turned(board, self._turns["up"]))):
            self.state = "success" if self._has_target else "failed"

    @property
    def caption(self) -> str:
        return f"{self.kind}, seed {self.seed}, {len(self._moves)} moves, score {self.score}: {self.state}"

    def __str__(self) -> str:
        width = len(str(self.largest))
        return "\n".join(" ".join(str(tile or ".").rjust(width) for tile in row) for row in self.rows)

    def __repr__(self) -> str:
        return f"{self.caption}\n{self}"

    def _repr_html_(self) -> str:
        return as_html(self.rows, caption=self.caption)


def slide(row: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """A row after a move to the left, and what its merges gained."""
    before = as_bytes([row])
    after = slides(len(row))[before.replace(EMPTY, b"")]
    return tuple(as_rows(after)[0]), worth(after) - worth(before)


def moved(rows: Sequence[Sequence[int]], direction: Direction) -> tuple[list[tuple[int, ...]], int]:
    """A square board after a move, before a tile appears, and what its merges gained."""
    size, before = len(rows), as_bytes(rows)
    order = turns(size)[direction]
    after = turned(pushed(turned(before, order), slides(size)), order)
    return [tuple(row) for row in as_rows(after)], worth(after) - worth(before)


def can_move(rows: Sequence[Sequence[int]]) -> bool:
    """Whether a move is left: an empty cell, or two equal tiles side by side."""
    board = as_bytes(rows)
    return EMPTY in board or has_pair(board) or has_pair(turned(board, turns(len(rows))["up"]))


def as_html(rows: Sequence[Sequence[int]], *, caption: str = "") -> str:
    """A board as a table that brings its own colours: the same in every theme and in a saved notebook."""
    lines = []
    for row in rows:
        cells = []
        for tile in row:
            background, ink = COLOURS[min(max(tile.bit_length() - 1, 0), len(COLOURS) - 1)]
            style = f"background:{background};color:{ink};{CELL}"
            cells.append(f"<td style='{style}'>{tile or ''}</td>")
        lines.append(f"<tr style='background:#bbada0'>{''.join(cells)}</tr>")
    title = f"<caption style='text-align:left;caption-side:top'>{escape(caption)}</caption>"
    return f"<table style='{TABLE}'>{title if caption else ''}<tbody>{''.join(lines)}</tbody></table>"


def replay(
    kind: BoardKind,
    seed: int,
    moves: str,
    *,
    four_probability: float = 0.1,
    patience: int = 64,
    play_on: bool = False,
) -> GameBoard:
    """The position after `moves` (letters of LETTERS) of the game with this seed: exactly that game's."""
    board = GameBoard(
        kind.size, kind.target, seed, four_probability=four_probability, patience=patience, play_on=play_on
    )
    for letter in moves:
        board.move(DIRECTION_OF[letter])
    return board
