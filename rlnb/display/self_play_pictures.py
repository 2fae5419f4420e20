"""Played games of two for a saved notebook's readers: a picture and a table beside the replay."""

import io
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from IPython.display import display
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from rlnb.display.board2048 import spread
from rlnb.display.code_game import visible
from rlnb.display.self_play_boards import Scene, ending_words, likeliest, replay_widget, scenes, title_of
from rlnb.display.tables import Table
from rlnb.games.text_games import TextGame
from rlnb.trajectories import PlayedGame

MARK_COLOURS = {"x": "#0b3c6f", "o": "#c04a00"}
NOTHING, BAR, CHOSEN = "#f0f0f0", "#7fb2dd", "#0b3c6f"
LINE_INCHES, BAR_LINES = 0.16, 1.3  # height of a line of text, and of a bar in lines
NUM_PICTURED = {"tic_tac_toe": 10, "connect_four": 6}
PER_ROW = {"tic_tac_toe": 5}
LONGEST_TABLE = 40  # moves
LONGEST_CELL = 160


def show_game(played: PlayedGame | Mapping[str, Any], game: TextGame) -> None:
    """Display a game's replay and, for a saved notebook's readers, a picture and a table of its moves.

    played: a game or its line of games.jsonl. Raises ValueError as `scenes`.
    """
    record = played.as_record() if isinstance(played, PlayedGame) else played
    display(replay_widget(record, game))
    show_still(record, game)
    display(show_moves(record, game))


def show_still(record: Mapping[str, Any], game: TextGame, *, title: str = "") -> None:
    """Display a picture of a game."""
    title = f"{title}{title_of(record, game)}: {ending_words(record, game)}"
    png = io.BytesIO()
    draw_game(record, game, title=title).savefig(png, format="png", dpi=110)
    # Not display(figure): what that leaves depends on the notebook's matplotlib backend.
    bundle = {"image/png": b64encode(png.getvalue()).decode(), "text/plain": title}
    display(bundle, metadata={"image/png": {"alt": title, "width": 960}}, raw=True)


def show_moves(played: PlayedGame | Mapping[str, Any], game: TextGame) -> Table:
    """A line a move: its words, the probability it had, the likeliest moves, and what the mover wrote."""
    record = played.as_record() if isinstance(played, PlayedGame) else played
    found = [scene for scene in scenes(record, game) if scene.mover is not None]
    rows = []
    for scene in spread(found, LONGEST_TABLE):
        ranked = sorted(scene.bars, key=lambda bar: -(bar.probability or 0))
        likely = [f"{bar.words} {bar.probability:.0%}" for bar in ranked[:3] if bar.probability is not None]
        answer = visible(scene.texts[scene.mover])
        cut = answer if len(answer) <= LONGEST_CELL else answer[:LONGEST_CELL] + " …"
        made = scene.chosen
        rows.append(
            (
                scene.num_moves + 1,
                f"{game.roles[scene.mover]} ({record['players'][scene.mover]})",
                made.words if made else None,
                None if made is None or made.probability is None else f"{made.probability:.1%}",
                "; ".join(likely) or None,
                cut or scene.note or None,
            )
        )
    headers = ["move", "player", "played", "its probability", "likeliest", "wrote, or how it was made"]
    return Table(headers, rows, caption=f"{title_of(record, game)}: {ending_words(record, game)}.")


def draw_game(played: PlayedGame | Mapping[str, Any], game: TextGame, *, title: str = "") -> Figure:
    """Positions side by side, shaded or with bars by the mover's probabilities."""
    shown = spread(scenes(played, game), NUM_PICTURED.get(game.short_name, 6))
    most = PER_ROW.get(game.short_name, 3)
    num_columns = min(most, len(shown))
    num_rows = -(-len(shown) // num_columns)
    num_lines = max(map(lines_of, shown))
    height = 2.6 if game.short_name == "tic_tac_toe" else 3.4
    height = height if shown[0].grid else LINE_INCHES * num_lines
    size = (max(11 * num_columns / most, 6), height * num_rows + 0.5)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    panels = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    for axes in panels:
        axes.set_axis_off()
    for axes, scene in zip(panels, shown, strict=False):
        if scene.grid:
            draw_grid(axes, scene)
        else:
            draw_words(axes, scene, num_lines=num_lines)
    figure.suptitle(title, fontsize=11, parse_math=False)
    return figure


def lines_of(scene: Scene) -> float:
    """The height of what `draw_words` draws, in lines of text."""
    return 4 + scene.described.count("\n") + BAR_LINES * len(likeliest(scene.bars))


def draw_grid(axes: Axes, scene: Scene) -> None:
    """Marks, and the probability of each legal cell as a shade and in percent; the chosen one is framed."""
    num_columns, num_rows = len(scene.grid[0]), len(scene.grid)
    axes.set(xlim=(-0.05, num_columns + 0.05), ylim=(num_rows + 0.05, -0.05), aspect="equal")
    shares = {bar.cell: bar for bar in scene.bars}
    size = 30 if num_columns == 3 else 15
    for cell, mark in enumerate("".join(scene.grid)):
        y, x = divmod(cell, num_columns)
        bar = shares.get(cell)
        known = bar.probability if bar else None
        colour = NOTHING if known is None else colormaps["Blues"](0.65 * known)
        axes.add_patch(Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, facecolor=colour))
        if bar and bar.is_chosen:
            style: dict[str, Any] = {
                "fill": False,
                "edgecolor": MARK_COLOURS["xo"[scene.mover or 0]],
                "linewidth": 2,
            }
            axes.add_patch(Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, **style))
        middle: dict[str, Any] = {"ha": "center", "va": "center"}
        if mark != ".":
            axes.text(
                x + 0.5, y + 0.5, mark.upper(), color=MARK_COLOURS[mark], size=size, weight="bold", **middle
            )  # fmt: skip
        elif known is not None:
            axes.text(
                x + 0.5, y + 0.5, f"{known:.0%}", color="#111111", fontsize=min(11, size / 2 + 1), **middle
            )
    axes.set_title(f"{scene.num_moves}: {scene.heading}", fontsize=9, parse_math=False)


def draw_words(axes: Axes, scene: Scene, *, num_lines: float) -> None:
    """The position in words above a bar for each legal action; the chosen one is dark."""
    axes.set(xlim=(-0.8, 1.25), ylim=(num_lines, 0))
    text = f"{scene.num_moves}: {scene.heading}\n\n{scene.described}"
    style: dict[str, Any] = {"fontsize": 8, "parse_math": False}
    axes.text(-0.8, 0, text, family="monospace", va="top", **style)
    for at, bar in enumerate(likeliest(scene.bars)):
        y = scene.described.count("\n") + 4 + BAR_LINES * at
        share = bar.probability
        axes.barh(y, share or 0, height=0.8 * BAR_LINES, color=CHOSEN if bar.is_chosen else BAR)
        label = bar.words if len(bar.words) <= 22 else bar.words[:21] + "…"
        weight = "bold" if bar.is_chosen else "normal"
        axes.text(-0.03, y, label, ha="right", va="center", weight=weight, **style)
        percent = "played" if share is None else f"{share:.0%}"
        axes.text((share or 0) + 0.02, y, percent, va="center", fontsize=8)
