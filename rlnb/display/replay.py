"""The replay of a played game: a widget with a slider, and a picture for readers of a saved notebook."""

import io
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from IPython.display import display
from matplotlib.figure import Figure

from rlnb.display.tables import as_text, visible_text

MOST_BARS, LONGEST_TEXT = 12, 1200


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
            "answers": [[role, visible_text(as_text(text))[:LONGEST_TEXT]] for role, text in self.answers],
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

    symbols: for each character of `Frame.cells` the text, background and colour of the cell, as CSS. columns:
    of the board, 0 for a game without one. The page gets the frames by columns, since one list of all cells
    is far shorter than a dict a frame. position: index of the shown frame, synchronised in both directions.
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
        symbols: Mapping[str, tuple[str, str, str]] | None = None,
    ) -> None:
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


def show_picture(figure: Figure, text: str, *, dpi: int = 144, transparent: bool = False) -> None:
    """Display a figure as a PNG with `text` as its alternative.

    Not display(figure): what that leaves in the file depends on the notebook's matplotlib backend.
    """
    png = io.BytesIO()
    figure.savefig(png, dpi=dpi, transparent=transparent, bbox_inches="tight", pad_inches=0.05)
    bundle = {"image/png": b64encode(png.getvalue()).decode(), "text/plain": text}
    display(bundle, metadata={"image/png": {"alt": text, "width": 960}}, raw=True)
