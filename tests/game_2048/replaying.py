"""Games from their moves, and whether one is over."""

from collections.abc import Sequence

from rlnb.game_2048.board import DIRECTION_BY_LETTER, DIRECTIONS, BoardKind, GameBoard, slide_board


def has_move(rows: Sequence[Sequence[int]]) -> bool:
    rows = list(map(tuple, rows))
    return not all(map(all, rows)) or any(slide_board(rows, side)[0] != rows for side in DIRECTIONS)


def play_along(board: GameBoard, moves: str) -> GameBoard:
    """Play as many of the moves as the game takes."""
    for letter in moves:
        if board.state == "ongoing":
            board.move(DIRECTION_BY_LETTER[letter])
    return board


def replay(kind: BoardKind, seed: int, moves: str, *, play_on: bool = False) -> GameBoard:
    return play_along(GameBoard(kind.size, kind.target, seed, play_on=play_on), moves)
