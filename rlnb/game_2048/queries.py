"""The six functions about a 2048 board that the prompt preset "api" offers to strategies.

QUERIES_SOURCE, the source of these functions, is put in front of a strategy, in the strategy's process. So
they import nothing, and read the names of the keys from KEY_OF, which that source binds.
"""

import inspect

from rlnb.game_2048.board import KEYS

KEY_OF = KEYS


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
    """Return the board after a key, and the points of its merges. Raises ValueError for other keys."""
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


FUNCTIONS = (legal_moves, can_move, moved, merged, num_empty, largest)
QUERIES = tuple(f"{function.__name__}{inspect.signature(function)}" for function in FUNCTIONS)  # for prompts
SOURCES = [inspect.getsource(function) for function in (*FUNCTIONS, _slid)]
QUERIES_SOURCE = "\n\n".join([f"KEY_OF = {KEYS!r}", *SOURCES])
