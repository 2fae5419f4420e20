"""Games from their moves."""

from rlnb.game_2048.board import DIRECTION_BY_LETTER, BoardKind, GameBoard


def play_along(board: GameBoard, moves: str) -> GameBoard:
    """Play as many of the moves as the game takes."""
    for letter in moves:
        if board.state == "ongoing":
            board.move(DIRECTION_BY_LETTER[letter])
    return board


def replay(kind: BoardKind, seed: int, moves: str, *, play_on: bool = False) -> GameBoard:
    return play_along(GameBoard(kind.size, kind.target, seed, play_on=play_on), moves)
