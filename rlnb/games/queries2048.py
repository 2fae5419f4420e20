"""What a strategy may ask about a 2048 board, where its prompt offers it: six functions of plain lists.

`queries_source` puts this file's functions in front of a strategy, in the strategy's own process. So they
stand alone: nothing imported, and the keys by name in KEY_OF, which the source in front of them binds.
"""

import inspect
from collections.abc import Mapping

from rlnb.games.board2048 import Direction

KEY_OF = {"up": "é", "down": "u", "left": "a", "right": "i"}
QUERIES = (  # as prompts name them
    "legal_moves(board)",
    "can_move(board, key)",
    "moved(board, key)",
    "merged(board, key)",
    "num_empty(board)",
    "largest(board)",
)


def legal_moves(board):  # type: ignore[no-untyped-def]
    return [key for key in KEY_OF.values() if can_move(board, key)]


def can_move(board, key):  # type: ignore[no-untyped-def]
    return moved(board, key) != [list(row) for row in board]


def moved(board, key):  # type: ignore[no-untyped-def]
    return _slid(board, key)[0]


def merged(board, key):  # type: ignore[no-untyped-def]
    return _slid(board, key)[1]


def num_empty(board):  # type: ignore[no-untyped-def]
    return sum(row.count(0) for row in board)


def largest(board):  # type: ignore[no-untyped-def]
    return max(map(max, board))


def _slid(board, key):  # type: ignore[no-untyped-def]
    """The board after a key, and the points of its merges. Raises ValueError for what is no key."""
    if key not in KEY_OF.values():
        raise ValueError(f"{key!r} is none of the keys {', '.join(KEY_OF.values())}")
    is_column = key in (KEY_OF["up"], KEY_OF["down"])
    is_reversed = key in (KEY_OF["right"], KEY_OF["down"])
    points, lines = 0, []
    for line in zip(*board) if is_column else board:  # noqa: B905
        tiles = [tile for tile in (reversed(line) if is_reversed else line) if tile]
        done = []
        while tiles:
            tile = tiles.pop(0)
            if tiles and tiles[0] == tile:
                tile += tiles.pop(0)
                points += tile
            done.append(tile)
        done += [0] * (len(board) - len(done))
        lines.append(done[::-1] if is_reversed else done)
    return [list(row) for row in zip(*lines)] if is_column else lines, points  # noqa: B905


def queries_source(keys: Mapping[Direction, str]) -> str:
    """The functions' source for a program in which `keys` names the four directions."""
    functions = (legal_moves, can_move, moved, merged, num_empty, largest, _slid)
    sources = [inspect.getsource(function) for function in functions]
    return "\n\n".join([f"KEY_OF = {dict(keys)!r}", *sources])
