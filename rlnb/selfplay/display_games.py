"""Played games of two in notebooks: a replay, a picture of some positions, and a table of the moves."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

import pyspiel
from IPython.display import display
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from rlnb.display.plots import spread
from rlnb.display.replay import Bar, Frame, Replay, likeliest, show_picture
from rlnb.display.tables import Table, visible_text
from rlnb.games.rendering_boards import Board
from rlnb.games.rendering_cards import CARD_NAMES, KUHN_CARDS, LeducPoker
from rlnb.games.text_games import TextGame
from rlnb.selfplay.rollouts import FinishedGame

GRIDS = ("tic_tac_toe", "connect_four")  # drawn cell by cell; other games by their words
SYMBOLS = {"x": ("X", "", "var(--rlnb-replay-accent)"), "o": ("O", "", "#d9661f"), ".": ("", "", "")}
MARK_COLOURS = {"x": "#0b3c6f", "o": "#c04a00"}
NOTHING, BAR, CHOSEN = "#f0f0f0", "#7fb2dd", "#0b3c6f"
LINE_INCHES, BAR_LINES = 0.16, 1.3  # height of a line of text, and of a bar in lines
NUM_PICTURED = {"tic_tac_toe": 10}  # positions; of other games 6
LONGEST_TABLE, LONGEST_CELL = 40, 160  # moves, characters


TurnRecord = dict[str, Any]  # an answer of the policy in a line of games.jsonl


class GameRecord(TypedDict):
    """A line of games.jsonl; see `rlnb.selfplay.rollouts.FinishedGame`."""

    game: str
    players: list[str]
    seed: int
    history: list[int]
    returns: list[float]
    forfeit: int | None
    moves: list[dict[str, object]]
    turns: list[TurnRecord]


Played = FinishedGame | GameRecord | Mapping[str, object]


def read_record(played: Played) -> GameRecord:
    return cast(GameRecord, played.as_record() if isinstance(played, FinishedGame) else played)


def make_frames(played: Played, game: TextGame) -> list[Frame]:
    """Return each position with a player to move, and the last position, rebuilt from the game's history.

    Raises ValueError for the record of another game, and for a history with an illegal action, which could
    end the process if OpenSpiel played it.
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
        turn = None if mover is None else turns.get((mover, len(frames)))
        if mover is not None:
            texts[mover] = turn["text"] if turn else ""
        cells, text = describe_position(game, state, moves)
        chosen = frames[-1].chosen if frames else None
        heading = ending_words(record, game)
        if mover is not None and action is not None:
            heading = f"{game.roles[mover]} ({record['players'][mover]}) to move"
        frames.append(
            Frame(
                len(frames),
                cells=cells,
                last=-1 if chosen is None or chosen.cell is None else chosen.cell,
                heading=heading,
                text=text,
                mover=mover,
                bars=() if mover is None else make_bars(game, state, turn, action),
                note="" if mover is None else describe_move(record, mover, len(frames), turn, action),
                answers=tuple(zip(game.roles, texts, strict=True)),
            )
        )

    for action in record["history"]:
        if state.is_terminal() or action not in state.legal_actions():
            raise ValueError(
                f"the history of this record of {record['game']} has an illegal action: {record['history']}"
            )
        if not state.is_chance_node():
            seat = state.current_player()
            add_frame(seat, action)
            moves.append(f"{game.roles[seat]}: {game.legal_words(state)[action]}")
        state.apply_action(action)
    add_frame(record["forfeit"], None)
    return frames


def describe_move(
    record: GameRecord, mover: int, num_moves: int, turn: TurnRecord | None, action: int | None
) -> str:
    """Return what is special about a move; action: None for a forfeit."""
    problem = (turn["problem"] or "").replace("_", " ") if turn else ""
    failure = f"{record['players'][mover]} answered without a legal move ({problem})"
    if action is None:
        return f"{failure} and lost the game."
    if record["moves"][num_moves]["is_opening"]:
        return "A random move of the opening."
    return f"{failure}; a random one was made instead." if problem else ""


def make_bars(
    game: TextGame, state: pyspiel.State, turn: TurnRecord | None, chosen: int | None
) -> tuple[Bar, ...]:
    words = game.legal_words(state)
    shares: dict[int, float] = {}
    if turn and turn["probabilities"]:
        shares = dict(zip(turn["legal_actions"], turn["probabilities"], strict=True))
    elif turn and len(words) == 1:
        shares = dict.fromkeys(words, 1.0)
    grid = grid_rows(game, state)
    return tuple(
        Bar(text, shares.get(action), action == chosen, marked_cell(game, grid, action))
        for action, text in words.items()
    )


def grid_rows(game: TextGame, state: pyspiel.State) -> list[str]:
    """Return the rows of the board as "x", "o" and "."; none for a game that is shown in words."""
    if game.short_name in GRIDS and isinstance(game.rendering, Board):
        return game.rendering.rows(state, 0)
    return []


def marked_cell(game: TextGame, grid: Sequence[str], action: int) -> int | None:
    """Return the cell, counted row by row, that an action marks; None for games without a grid."""
    if not grid or game.short_name == "tic_tac_toe":
        return action if grid else None
    lowest = max(row for row, cells in enumerate(grid) if cells[action] == ".")
    return lowest * len(grid[0]) + action


def describe_position(game: TextGame, state: pyspiel.State, moves: Sequence[str]) -> tuple[str, str]:
    """Return the cells of a grid, or a position in words with all hidden cards shown."""
    grid = grid_rows(game, state)
    if grid:
        return "".join(grid), ""
    dealt = [step.action for step in state.full_history() if step.player == pyspiel.PlayerId.CHANCE]
    cards: list[str] = []
    if game.short_name == "kuhn_poker":
        cards = [CARD_NAMES[KUHN_CARDS[str(card)]] for card in dealt]
    elif isinstance(game.rendering, LeducPoker):
        cards = [game.rendering.named(str(card)) for card in dealt]
    elif game.short_name == "liars_dice":
        cards = [", ".join(state.information_state_string(seat).split()[0]) for seat in (0, 1)]
    if not cards:
        return "", str(state).strip("\n")
    owners = [*game.roles, "public card"]
    lines = [f"{owner}: {card}" for owner, card in zip(owners, cards, strict=False)]
    return "", "\n".join([*lines, "", *(moves or ["nobody has moved yet"])])


def ending_words(record: GameRecord, game: TextGame) -> str:
    """Return who won, and how much where that varies."""
    first, second = record["returns"]
    if record["forfeit"] is not None:
        loser = record["forfeit"]
        return f"{game.roles[1 - loser]} wins: {game.roles[loser]} forfeits"
    if first == second:
        return "a draw"
    worth = "" if game.game.max_utility() == 1 else f" (+{max(first, second):g})"
    return f"{game.roles[int(second > first)]} wins{worth}"


def game_title(record: GameRecord, game: TextGame) -> str:
    seats = ", ".join(f"{role}: {player}" for role, player in zip(game.roles, record["players"], strict=True))
    return f"{game.name} ({seats})"


def show_played_game(played: Played, game: TextGame) -> None:
    """Display a game's replay and, for readers of a saved notebook, a picture and a table of its moves.

    played: a game or its line of games.jsonl. Raises ValueError as `make_frames`.
    """
    display(replay_game(played, game))
    show_still(played, game)
    display(show_moves(played, game))


def replay_game(played: Played, game: TextGame) -> Replay:
    record = read_record(played)
    grid = grid_rows(game, game.new_state())
    return Replay(
        make_frames(record, game),
        title=game_title(record, game),
        ending=ending_words(record, game),
        columns=len(grid[0]) if grid else 0,
        symbols=SYMBOLS,
    )


def show_still(played: Played, game: TextGame, *, title: str = "") -> None:
    """Display a picture of a game; title: begins its title."""
    record = read_record(played)
    title = f"{title}{game_title(record, game)}: {ending_words(record, game)}"
    show_picture(draw_played_game(record, game, title=title), title, dpi=110)


def show_moves(played: Played, game: TextGame) -> Table:
    """Return a line for each move: its words and probability, the likeliest moves, what the mover wrote."""
    record = read_record(played)
    frames = [frame for frame in make_frames(record, game) if frame.mover is not None]
    rows = []
    for frame in spread(frames, LONGEST_TABLE):
        seat, chosen = frame.mover or 0, frame.chosen
        ranked = sorted(frame.bars, key=lambda bar: -(bar.probability or 0))
        likely = [f"{bar.words} {bar.probability:.0%}" for bar in ranked[:3] if bar.probability is not None]
        answer = visible_text(frame.answers[seat][1])
        shown = answer if len(answer) <= LONGEST_CELL else answer[:LONGEST_CELL] + " …"
        rows.append(
            (
                frame.num_moves + 1,
                f"{game.roles[seat]} ({record['players'][seat]})",
                chosen.words if chosen else None,
                None if chosen is None or chosen.probability is None else f"{chosen.probability:.1%}",
                "; ".join(likely) or None,
                shown or frame.note or None,
            )
        )
    headers = ["move", "player", "played", "its probability", "likeliest", "wrote, or how it was made"]
    return Table(headers, rows, f"{game_title(record, game)}: {ending_words(record, game)}.")


def draw_played_game(played: Played, game: TextGame, *, title: str = "") -> Figure:
    """Draw positions side by side, shaded or with bars by the mover's probabilities."""
    frames = spread(make_frames(played, game), NUM_PICTURED.get(game.short_name, 6))
    is_small = game.short_name == "tic_tac_toe"
    most = 5 if is_small else 3
    num_columns = min(most, len(frames))
    num_rows = -(-len(frames) // num_columns)
    num_lines = max(map(count_lines, frames))
    grid = grid_rows(game, game.new_state())
    height = (2.6 if is_small else 3.4) if grid else LINE_INCHES * num_lines
    size = (max(11 * num_columns / most, 6), height * num_rows + 0.5)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    panels = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    for axes in panels:
        axes.set_axis_off()
    for axes, frame in zip(panels, frames, strict=False):
        if grid:
            draw_grid(axes, frame, num_columns=len(grid[0]))
        else:
            draw_words(axes, frame, num_lines=num_lines)
    figure.suptitle(title, fontsize=11, parse_math=False)
    return figure


def count_lines(frame: Frame) -> float:
    """Return the height of what `draw_words` draws, in lines of text."""
    return 4 + frame.text.count("\n") + BAR_LINES * len(likeliest(frame.bars))


def draw_grid(axes: Axes, frame: Frame, *, num_columns: int) -> None:
    """Draw the marks and the probability of each legal cell; the chosen one has a frame."""
    num_rows = len(frame.cells) // num_columns
    axes.set(xlim=(-0.05, num_columns + 0.05), ylim=(num_rows + 0.05, -0.05), aspect="equal")
    bars = {bar.cell: bar for bar in frame.bars}
    size = 30 if num_columns == 3 else 15
    for cell, mark in enumerate(frame.cells):
        y, x = divmod(cell, num_columns)
        bar = bars.get(cell)
        share = bar.probability if bar else None
        colour = NOTHING if share is None else colormaps["Blues"](0.65 * share)
        axes.add_patch(Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, facecolor=colour))
        if bar and bar.is_chosen:
            edge = MARK_COLOURS["xo"[frame.mover or 0]]
            axes.add_patch(
                Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, fill=False, edgecolor=edge, linewidth=2)
            )
        label = axes.text(x + 0.5, y + 0.5, mark.upper(), ha="center", va="center")
        if mark == ".":
            label.set(text="" if share is None else f"{share:.0%}", fontsize=min(11, size / 2 + 1))
        else:
            label.set(color=MARK_COLOURS[mark], fontsize=size, weight="bold")
    axes.set_title(f"{frame.num_moves}: {frame.heading}", fontsize=9, parse_math=False)


def draw_words(axes: Axes, frame: Frame, *, num_lines: float) -> None:
    """Draw the position in words above a bar for each legal action; the chosen one is dark."""
    axes.set(xlim=(-0.8, 1.25), ylim=(num_lines, 0))
    text = f"{frame.num_moves}: {frame.heading}\n\n{frame.text}"
    axes.text(-0.8, 0, text, family="monospace", va="top", fontsize=8, parse_math=False)
    for index, bar in enumerate(likeliest(frame.bars)):
        y = frame.text.count("\n") + 4 + BAR_LINES * index
        share = bar.probability or 0
        axes.barh(y, share, height=0.8 * BAR_LINES, color=CHOSEN if bar.is_chosen else BAR)
        label = bar.words if len(bar.words) <= 22 else bar.words[:21] + "…"
        weight = "bold" if bar.is_chosen else "normal"
        axes.text(-0.03, y, label, ha="right", va="center", weight=weight, fontsize=8, parse_math=False)
        percent = "played" if bar.probability is None else f"{share:.0%}"
        axes.text(share + 0.02, y, percent, va="center", fontsize=8)
