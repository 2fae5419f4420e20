"""Played games of two, move by move: each position, what its mover wrote, a probability for each move."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import pyspiel
import traitlets

from rlnb.display.code_game import visible
from rlnb.display.tables import as_text
from rlnb.games.rendering_boards import Board
from rlnb.games.rendering_cards import CARD_NAMES, KUHN_CARDS, LeducPoker
from rlnb.games.text_games import TextGame
from rlnb.trajectories import PlayedGame

GRIDS = ("tic_tac_toe", "connect_four")  # drawn cell by cell; other games by their words
MOST_BARS, LONGEST_TEXT = 12, 1200


@dataclass(frozen=True)
class Bar:
    """A legal action. probability: None where nobody knows it. cell: where it would stand on a grid."""

    words: str
    probability: float | None
    is_chosen: bool = False
    cell: int | None = None


@dataclass(frozen=True)
class Scene:
    """A position of a played game and what became of it.

    grid: rows of "x", "o" and ".", none for a game that has no grid here. described: the position in words.
    mover: None at the end. note: what there is to know of the move. texts: the last answer of each seat.
    last_cell: that was marked last.
    """

    num_moves: int
    heading: str
    grid: tuple[str, ...]
    described: str
    mover: int | None
    bars: tuple[Bar, ...]
    note: str
    texts: tuple[str, str]
    last_cell: int | None = None

    @property
    def chosen(self) -> Bar | None:
        return next((bar for bar in self.bars if bar.is_chosen), None)


def scenes(played: PlayedGame | Mapping[str, Any], game: TextGame) -> list[Scene]:
    """All positions in which somebody moved, and the last, rebuilt from `history`.

    played: a game or its line of games.jsonl. Raises ValueError where it is of another game.
    """
    record = played.as_record() if isinstance(played, PlayedGame) else played
    if record["game"] != game.name:
        raise ValueError(
            f"the record is of {record['game']}, the game given is {game.name}; give load_game's"
        )
    turns = {(turn["seat"], turn["ply"]): turn for turn in record["turns"]}
    state, found = game.new_state(), list[Scene]()
    texts, last_cell, told = ["", ""], None, list[str]()
    for action in record["history"]:
        if not state.is_chance_node():
            move, seat = record["moves"][len(found)], state.current_player()
            turn = turns.get((seat, len(found)))
            texts[seat] = turn["text"] if turn else ""
            found.append(_scene(record, game, state, told, turn, texts, last_cell, action=action))
            chosen = found[-1].chosen
            last_cell = chosen.cell if chosen else None
            told.append(f"{game.roles[seat]}: {game.legal_words(state)[move['action']]}")
        game_action_check(state, action, record)
        state.apply_action(action)
    if record["forfeit"] is not None:
        turn = turns.get((record["forfeit"], len(found)))
        texts[record["forfeit"]] = turn["text"] if turn else ""
        return [*found, _scene(record, game, state, told, turn, texts, last_cell, action=None)]
    ending = ending_words(record, game)
    grid, described = _position(game, state, told)
    return [*found, Scene(len(found), ending, grid, described, None, (), "", (texts[0], texts[1]), last_cell)]


def game_action_check(state: pyspiel.State, action: int, record: Mapping[str, Any]) -> None:
    """ValueError before OpenSpiel plays what is not legal, which may end the process."""
    if state.is_terminal() or action not in state.legal_actions():
        raise ValueError(f"the history of this record of {record['game']} is no game: {record['history']}")


def _scene(
    record: Mapping[str, Any], game: TextGame, state: pyspiel.State, told: Sequence[str],
    turn: Mapping[str, Any] | None, texts: Sequence[str], last_cell: int | None, *, action: int | None,
) -> Scene:  # fmt: skip
    """The position before `action`, which is None where the mover forfeited."""
    seat = state.current_player()
    grid, described = _position(game, state, told)
    player = record["players"][seat]
    problem = (turn["problem"] or "").replace("_", " ") if turn else ""
    if action is None:
        note = f"{player} answered without a legal move ({problem}) and lost the game."
    elif record["moves"][len(told)]["is_opening"]:
        note = "A random move of the opening."
    elif problem:
        note = f"{player} answered without a legal move ({problem}); a random one was made instead."
    else:
        note = ""
    heading = f"{game.roles[seat]} ({player}) to move"
    if action is None:
        heading = ending_words(record, game)
    bars = _bars(game, state, grid, turn, action)
    return Scene(len(told), heading, grid, described, seat, bars, note, (texts[0], texts[1]), last_cell)


def _bars(
    game: TextGame, state: pyspiel.State, grid: Sequence[str], turn: Mapping[str, Any] | None,
    action: int | None,
) -> tuple[Bar, ...]:  # fmt: skip
    words = game.legal_words(state)
    shares: dict[int, float] = {}
    if turn and turn["probabilities"]:
        shares = dict(zip(turn["legal_actions"], turn["probabilities"], strict=True))
    elif turn and len(words) == 1:
        shares = dict.fromkeys(words, 1.0)
    return tuple(
        Bar(text, shares.get(one), one == action, cell_of(game, grid, one)) for one, text in words.items()
    )


def cell_of(game: TextGame, grid: Sequence[str], action: int) -> int | None:
    """The cell, counted row by row, that an action marks; None for games without a grid."""
    if not grid:
        return None
    if game.short_name == "tic_tac_toe":
        return action
    lowest = max(row for row, cells in enumerate(grid) if cells[action] == ".")
    return lowest * len(grid[0]) + action


def _position(game: TextGame, state: pyspiel.State, told: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Rows of a grid, or the words of a position in which nothing is hidden from the reader."""
    if game.short_name in GRIDS and isinstance(game.rendering, Board):
        return tuple(game.rendering.rows(state, 0)), ""
    dealt = [step.action for step in state.full_history() if step.player == pyspiel.PlayerId.CHANCE]
    cards: list[str] = []
    if game.short_name == "kuhn_poker":
        cards = [CARD_NAMES[KUHN_CARDS[str(card)]] for card in dealt]
    elif isinstance(game.rendering, LeducPoker):
        cards = [game.rendering.named(str(card)) for card in dealt]
    elif game.short_name == "liars_dice":
        cards = [", ".join(state.information_state_string(seat).split()[0]) for seat in (0, 1)]
    if not cards:
        return (), str(state).strip("\n")
    lines = [f"{who}: {card}" for who, card in zip([*game.roles, "public card"], cards, strict=False)]
    return (), "\n".join([*lines, "", *(told or ["nobody has moved yet"])])


def ending_words(record: Mapping[str, Any], game: TextGame) -> str:
    """Who won, with what it was worth where that varies."""
    first, second = record["returns"]
    if record["forfeit"] is not None:
        loser = record["forfeit"]
        return f"{game.roles[1 - loser]} wins: {game.roles[loser]} forfeits"
    if first == second:
        return "a draw"
    winner = int(second > first)
    worth = "" if game.game.max_utility() == 1 else f" (+{max(first, second):g})"
    return f"{game.roles[winner]} wins{worth}"


class GameReplay(anywidget.AnyWidget):
    """A slider through the positions of a game of two; `replay_widget` makes it.

    frames: a dict a position, as `frame` makes it. position: the index of what is shown, in both directions.
    """

    _esm = Path(__file__).with_name("self_play.js")
    _css = Path(__file__).with_name("self_play.css")
    columns = traitlets.Int(0).tag(sync=True)
    frames: Any = traitlets.List(traitlets.Dict()).tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)
    ending = traitlets.Unicode().tag(sync=True)
    position = traitlets.Int(0).tag(sync=True)

    def __repr__(self) -> str:
        """What stands in a saved notebook where no widget can be shown."""
        return f"{self.title}: {self.ending}"


def replay_widget(played: PlayedGame | Mapping[str, Any], game: TextGame) -> GameReplay:
    """The widget of a played game. Raises ValueError as `scenes`."""
    record = played.as_record() if isinstance(played, PlayedGame) else played
    found = scenes(record, game)
    return GameReplay(
        columns=len(found[0].grid[0]) if found[0].grid else 0,
        frames=[frame(scene, game) for scene in found],
        title=title_of(record, game),
        ending=ending_words(record, game),
    )


def title_of(record: Mapping[str, Any], game: TextGame) -> str:
    seats = ", ".join(f"{role}: {player}" for role, player in zip(game.roles, record["players"], strict=True))
    return as_text(f"{game.name} ({seats})")


def frame(scene: Scene, game: TextGame) -> dict[str, Any]:
    """What the page shows of a position; probabilities from 0 to 1, None where unknown, -1 for no cell."""
    shades: list[float | None] = [None] * sum(map(len, scene.grid))
    for bar in scene.bars:
        if bar.cell is not None:
            shades[bar.cell] = bar.probability
    chosen = scene.chosen
    return {
        "heading": as_text(scene.heading),
        "marks": "".join(scene.grid),
        "shades": shades,
        "chosen": chosen.cell if chosen and chosen.cell is not None else -1,
        "last": -1 if scene.last_cell is None else scene.last_cell,
        "text": as_text(scene.described),
        "bars": [[as_text(bar.words), bar.probability, bar.is_chosen] for bar in likeliest(scene.bars)],
        "note": as_text(scene.note),
        "answers": [
            [role, visible(as_text(text))[:LONGEST_TEXT]]
            for role, text in zip(game.roles, scene.texts, strict=True)
        ],
    }


def likeliest(bars: Sequence[Bar], *, most: int = MOST_BARS) -> list[Bar]:
    """All bars, or the chosen and the likeliest in their order, and one for the others together.

    Where no probability is known, the chosen alone.
    """
    if all(bar.probability is None for bar in bars):
        return [bar for bar in bars if bar.is_chosen]
    if len(bars) <= most:
        return list(bars)
    order = sorted(range(len(bars)), key=lambda at: (not bars[at].is_chosen, -(bars[at].probability or 0)))
    kept, others = sorted(order[: most - 1]), [bars[at] for at in order[most - 1 :]]
    rest = Bar(f"{len(others)} others", sum(bar.probability or 0 for bar in others))
    return [*(bars[at] for at in kept), rest]


def bars_html(bars: Sequence[Bar]) -> str:
    """A small list of bars for an HTML widget."""
    rows = []
    for bar in likeliest(bars):
        share = bar.probability or 0.0
        colour = "#2f7fd1" if bar.is_chosen else "rgba(128,128,128,0.55)"
        known = "–" if bar.probability is None else f"{bar.probability:.1%}"
        strip = f"<div style='width:{100 * share:.1f}%;height:0.8em;background:{colour}'></div>"
        words = f"<b>{escape(bar.words)}</b>" if bar.is_chosen else escape(bar.words)
        rows.append(
            f"<tr><td style='text-align:left;padding-right:0.6em'>{words}</td>"
            f"<td style='width:10em'>{strip}</td><td style='text-align:right'>{known}</td></tr>"
        )
    return f"<table style='line-height:1.2'>{''.join(rows)}</table>"
