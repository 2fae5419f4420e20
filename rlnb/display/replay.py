"""The replay of a played game: a widget with a slider, and a picture for readers of a saved notebook."""

import io
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Any

import anywidget
import traitlets
from IPython.display import display
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from rlnb.display.plots import spread
from rlnb.display.tables import as_text

MOST_BARS, LONGEST_TEXT = 12, 1200
EMPTY, CHOSEN = "#f0f0f0", "#0b3c6f"
WIDTH, LINE = 11, 0.19  # inches: of the picture, and of a line of text
LONGEST_WORDS = 40  # characters of a line, or of an action, that a panel has place for
Symbols = Mapping[str, tuple[str, str, str]]  # {character of `Frame.cells`: its text, background and colour}


@dataclass(frozen=True)
class Bar:
    """A legal action with its probability, None where it is unknown. cell: index of the cell it marks."""

    words: str
    probability: float | None
    is_chosen: bool = False
    cell: int | None = None


@dataclass(frozen=True)
class Frame:
    """A position of a played game, as the page shows it.

    num_moves: how many moves led here. cells: the board, one character a cell, row by row. last: index of the
    cell that changed last, -1 for none. facts: names and values. heading, note: a line above and below the
    bars. text: the position in words, for games without a board. mover: the seat to move, None at the end.
    bars: its legal actions. answers: pairs of a role and what it wrote last.
    """

    num_moves: int
    cells: str = ""
    last: int = -1
    facts: Mapping[str, str] = field(default_factory=dict)
    heading: str = ""
    text: str = ""
    mover: int | None = None
    bars: Sequence[Bar] = ()
    note: str = ""
    answers: Sequence[tuple[str, str]] = ()

    @property
    def chosen(self) -> Bar | None:
        """The action that was played."""
        return next((bar for bar in self.bars if bar.is_chosen), None)

    def details(self) -> dict[str, object]:
        """Return what only games with probabilities and words have, escaped where a model wrote it."""
        shades = {bar.cell: bar.probability for bar in self.bars if bar.cell is not None}
        return {
            "heading": as_text(self.heading),
            "chosen": self.chosen.cell if self.chosen else None,
            "shades": [shades.get(cell) for cell in range(len(self.cells))],
            "text": as_text(self.text),
            "bars": [[as_text(bar.words), bar.probability, bar.is_chosen] for bar in likeliest(self.bars)],
            "note": as_text(self.note),
            "answers": [[role, as_text(text)[:LONGEST_TEXT]] for role, text in self.answers],
        }


def likeliest(bars: Sequence[Bar], *, most: int = MOST_BARS) -> list[Bar]:
    """Return all bars, or the chosen and the likeliest ones in their order and one for the sum of the others.

    Where no probability is known, only the chosen one.
    """
    if all(bar.probability is None for bar in bars):
        return [bar for bar in bars if bar.is_chosen]
    if len(bars) <= most:
        return list(bars)
    ranks = sorted(range(len(bars)), key=lambda at: (not bars[at].is_chosen, -(bars[at].probability or 0)))
    shown, others = sorted(ranks[: most - 1]), [bars[at] for at in ranks[most - 1 :]]
    rest = Bar(f"{len(others)} others", sum(bar.probability or 0 for bar in others))
    return [*(bars[at] for at in shown), rest]


class Replay(anywidget.AnyWidget):
    """A slider through the frames of a played game, with buttons to step and to play.

    columns: of the board, 0 for a game without one. The page gets the frames by columns, since one list of
    all cells is far shorter than a dict a frame. position: index of the shown frame, synchronised in both
    directions.
    """

    _esm = Path(__file__).with_suffix(".js")
    _css = Path(__file__).with_suffix(".css")
    title = traitlets.Unicode().tag(sync=True)
    ending = traitlets.Unicode().tag(sync=True)
    columns = traitlets.Int().tag(sync=True)
    symbols = traitlets.Dict().tag(sync=True)
    moves = traitlets.List(traitlets.Int()).tag(sync=True)
    cells = traitlets.List(traitlets.Unicode()).tag(sync=True)
    last = traitlets.List(traitlets.Int()).tag(sync=True)
    facts = traitlets.Dict().tag(sync=True)
    details: Any = traitlets.List(traitlets.Dict()).tag(sync=True)
    position = traitlets.Int(0).tag(sync=True)

    def __init__(
        self,
        frames: Sequence[Frame],
        *,
        title: str,
        ending: str,
        columns: int = 0,
        symbols: Symbols | None = None,
    ) -> None:
        self.frames = frames
        super().__init__(
            title=as_text(title),
            ending=as_text(ending),
            columns=columns,
            symbols={character: list(look) for character, look in (symbols or {}).items()},
            moves=[frame.num_moves for frame in frames],
            cells=[frame.cells for frame in frames],
            last=[frame.last for frame in frames],
            facts={name: [as_text(frame.facts[name]) for frame in frames] for name in frames[0].facts},
            details=[frame.details() for frame in frames if frame.heading],  # all frames have one or none
        )

    def __repr__(self) -> str:
        """Return what a saved notebook shows where no widget can run."""
        return f"{self.title}: {self.ending}"


def show_replay(replay: Replay) -> None:
    """Display the widget and, for readers of a saved notebook, a picture of some positions.

    A PNG, not the figure: what display(figure) leaves in the file depends on the notebook's backend.
    """
    display(replay)
    png = io.BytesIO()
    draw_replay(replay).savefig(png, dpi=110, bbox_inches="tight", pad_inches=0.05)
    bundle = {"image/png": b64encode(png.getvalue()).decode(), "text/plain": repr(replay)}
    display(bundle, metadata={"image/png": {"alt": repr(replay), "width": 960}}, raw=True)


def draw_replay(replay: Replay) -> Figure:
    """Draw six positions side by side, or ten of a board with nine cells.

    A cell has its tile's colour, or is shaded by its probability; a game without a board has words.
    """
    is_small = len(replay.cells[0]) == 9
    frames = spread(replay.frames, 10 if is_small else 6)
    per_row = min(len(frames), 5 if is_small else 3)
    num_rows = -(-len(frames) // per_row)
    words = [] if replay.columns else [write_position(frame) for frame in frames]
    width = max(WIDTH * per_row / (5 if is_small else 3), 6) / per_row
    height = LINE * max(3 + text.count("\n") for text in words) if words else width * 0.95
    size = (width * per_row, height * num_rows + 0.5)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    panels = figure.subplots(num_rows, per_row, squeeze=False).ravel()
    for axes in panels:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    for index, (axes, frame) in enumerate(zip(panels, frames, strict=False)):
        if words:
            axes.text(0, 1, words[index], family="monospace", fontsize=10, va="top", parse_math=False)
        else:
            draw_board(axes, frame, replay.columns, replay.symbols, cell_points=72 * width / replay.columns)
        heading = f"{frame.num_moves}: {frame.heading}" if frame.heading else f"move {frame.num_moves}"
        axes.set_title(heading, fontsize=10, loc="left" if words else "center", parse_math=False)
    figure.suptitle(repr(replay), fontsize=11, parse_math=False)
    return figure


def write_position(frame: Frame) -> str:
    """Return a position in words, and a line for each action; ">" marks the one that was played."""
    bars = likeliest(frame.bars)
    width = min(max((len(bar.words) for bar in bars), default=0), LONGEST_WORDS)
    lines = [
        f"{'>' if bar.is_chosen else ' '} {bar.words[:width].ljust(width)}"
        + ("" if bar.probability is None else f" {bar.probability:4.0%}")
        for bar in bars
    ]
    text = [fill(line, LONGEST_WORDS, subsequent_indent="  ") for line in frame.text.splitlines()]
    return "\n".join([*text, "", *lines])


def draw_board(axes: Axes, frame: Frame, columns: int, symbols: Symbols, *, cell_points: float) -> None:
    """Draw the cells of a position; the chosen one has an edge. cell_points: width of a cell on paper."""
    axes.set(xlim=(-0.05, columns + 0.05), ylim=(len(frame.cells) // columns + 0.05, -0.05), aspect="equal")
    bars = {bar.cell: bar for bar in frame.bars}
    for cell, character in enumerate(frame.cells):
        y, x = divmod(cell, columns)
        text, background, colour = symbols[character]
        bar = bars.get(cell, Bar("", None))
        shade = EMPTY if bar.probability is None else colormaps["Blues"](0.65 * bar.probability)
        face, edge = background or shade, 2 * bar.is_chosen
        square = Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, fc=face, edgecolor=CHOSEN, linewidth=edge)
        axes.add_patch(square)
        if text or bar.probability is None:
            size, weight = min(0.5, 1.3 / max(1, len(text))), "bold"
        else:
            text, size, weight = f"{bar.probability:.0%}", 0.28, "normal"
        label = axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=cell_points * size)
        label.set(color=colour or "black", weight=weight)
