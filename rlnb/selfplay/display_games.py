"""Played games of two in notebooks: a replay, and a picture of some positions."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyspiel

from rlnb.display.replay import Bar, Frame, Replay, show_replay
from rlnb.games.rendering_words import board_rows
from rlnb.games.text_games import TextGame
from rlnb.selfplay.rollouts import FinishedGame

GRIDS = ("tic_tac_toe", "connect_four")  # drawn cell by cell; other games by their words
SYMBOLS = {"x": ("X", "", "#2f7fd1"), "o": ("O", "", "#d9661f"), ".": ("", "", "")}

# A line of games.jsonl, as `FinishedGame.as_record` writes it, or one of its turns.
Record = Mapping[str, Any]
Played = FinishedGame | Record


def read_record(played: Played) -> Record:
    return played.as_record() if isinstance(played, FinishedGame) else played


def make_frames(played: Played, game: TextGame) -> list[Frame]:
    """Return each position with a player to move, and the last position, rebuilt from the game's history.

    Raises ValueError for the record of another game.
    """
    record = read_record(played)
    if record["game"] != game.name:
        raise ValueError(
            f"the record is of {record['game']}, the game given is {game.name}; give load_game's"
        )
    turns = {(turn["seat"], turn["ply"]): turn for turn in record["turns"]}
    state = game.new_state()
    frames: list[Frame] = []
    texts, moves = ["", ""], list[str]()

    def add_frame(mover: int | None, action: int | None) -> None:
        num_moves, heading = len(frames), ending_words(record, game)
        bars: Sequence[Bar] = ()
        note = ""
        if mover is not None:
            turn = turns.get((mover, num_moves))
            texts[mover] = turn["text"] if turn else ""
            bars = make_bars(game, state, turn, action)
            note = describe_move(record, mover, num_moves, turn, action)
            if action is not None:
                heading = f"{game.roles[mover]} ({record['players'][mover]}) to move"
        cells = "".join(grid_rows(game, state))
        text = "" if cells else describe_position(game, state, moves)
        chosen = frames[-1].chosen if frames else None
        last = -1 if chosen is None or chosen.cell is None else chosen.cell
        answers = tuple(zip(game.roles, texts, strict=True))
        frames.append(Frame(num_moves, cells, last, {}, heading, text, mover, bars, note, answers))

    for action in record["history"]:
        if not state.is_chance_node():
            seat = state.current_player()
            add_frame(seat, action)
            moves.append(f"{game.roles[seat]}: {game.legal_words(state)[action]}")
        game.apply(state, action)
    add_frame(record["forfeit"], None)
    return frames


def describe_move(record: Record, mover: int, num_moves: int, turn: Record | None, action: int | None) -> str:
    """Return what is special about a move; action: None for a forfeit."""
    problem = (turn["problem"] or "").replace("_", " ") if turn else ""
    failure = f"{record['players'][mover]} answered without a legal move ({problem})"
    if action is None:
        return f"{failure} and lost the game."
    if record["moves"][num_moves]["is_random"]:
        return "A random move, not the player's."
    return f"{failure}; a random one was made instead." if problem else ""


def make_bars(game: TextGame, state: pyspiel.State, turn: Record | None, chosen: int | None) -> list[Bar]:
    words, rows = game.legal_words(state), grid_rows(game, state)
    shares: dict[int, float] = {}
    if turn and turn["probabilities"]:
        shares = dict(zip(turn["legal_actions"], turn["probabilities"], strict=True))
    elif turn and len(words) == 1:
        shares = dict.fromkeys(words, 1.0)
    return [
        Bar(text, shares.get(action), action == chosen, marked_cell(game, rows, action))
        for action, text in words.items()
    ]


def grid_rows(game: TextGame, state: pyspiel.State) -> list[str]:
    """Return the rows of the board as "x", "o" and "."; none for a game that is shown in words."""
    return board_rows(state) if game.short_name in GRIDS else []


def marked_cell(game: TextGame, rows: Sequence[str], action: int) -> int | None:
    """Return the cell, counted row by row, that an action marks; None for games without a grid."""
    if game.short_name != "connect_four":
        return action if rows else None
    lowest = max(row for row, cells in enumerate(rows) if cells[action] == ".")
    return lowest * len(rows[0]) + action


def describe_position(game: TextGame, state: pyspiel.State, moves: Sequence[str]) -> str:
    """Return a position in words, with all hidden cards shown."""
    if not game.has_hidden_information:
        return str(state).strip("\n")
    known = [f"{role}: {game.full(state, seat)}" for seat, role in enumerate(game.roles)]
    return "\n".join([*known, "", *(moves or ["nobody has moved yet"])])


def ending_words(record: Record, game: TextGame) -> str:
    """Return who won, and how much where that varies."""
    first, second = record["returns"]
    if record["forfeit"] is not None:
        loser = record["forfeit"]
        return f"{game.roles[1 - loser]} wins: {game.roles[loser]} forfeits"
    if first == second:
        return "a draw"
    worth = "" if game.game.max_utility() == 1 else f" (+{max(first, second):g})"
    return f"{game.roles[int(second > first)]} wins{worth}"


def show_played_game(played: Played, game: TextGame) -> None:
    """Display a game's replay and, for readers of a saved notebook, a picture.

    played: a game or its line of games.jsonl. Raises ValueError as `make_frames`.
    """
    show_replay(replay_game(played, game))


def replay_game(played: Played, game: TextGame) -> Replay:
    """Return the replay of a game. Raises ValueError as `make_frames`."""
    record = read_record(played)
    seats = ", ".join(f"{role}: {player}" for role, player in zip(game.roles, record["players"], strict=True))
    rows = grid_rows(game, game.new_state())
    return Replay(
        make_frames(record, game),
        title=f"{game.name} ({seats})",
        ending=ending_words(record, game),
        columns=len(rows[0]) if rows else 0,
        symbols=SYMBOLS,
    )
