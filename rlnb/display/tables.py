"""Tables for notebooks: plain HTML that survives in a saved file, with a text form for terminals."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from rlnb.results import Comparison
from rlnb.statistics import Estimate

LEFT = "text-align:left"
# JupyterLab's own rules for code give it a white ground and break it in the middle of a word.
CODE = "margin:0;background:none;word-break:normal;overflow-wrap:anywhere"
# Characters: of a code's line that other columns leave whole, of a completion's code.
UNBROKEN_CODE, LONGEST_CODE = 40, 1000


class Table:
    """Rows under headers. Jupyter shows it as HTML, a terminal and nbconvert as text.

    Cells are formatted by `as_text`; one with a newline in it is shown as code. empty: the caption of a table
    without rows, of which the caption alone is shown.
    """

    def __init__(
        self,
        headers: Sequence[str],
        rows: Iterable[Sequence[object]],
        caption: str = "",
        *,
        empty: str | None = None,
    ) -> None:
        self.headers = list(headers)
        self.rows = [[as_text(cell) for cell in row] for row in rows]
        self.caption = caption if self.rows or empty is None else empty

    def side_by_side(self, *names: str) -> "Table":
        """Return the table on its side: its rows are columns under these names, its headers the first one."""
        return Table(["", *names], zip(self.headers, *self.rows, strict=True), self.caption)

    def _repr_html_(self) -> str:
        if self.caption and not self.rows:
            return f"<p>{escape(self.caption)}</p>"
        names = [escape(header).replace("/", "/<wbr>") for header in self.headers]  # where a line may end
        head = "".join(f"<th style='{LEFT}'>{name}</th>" for name in names)
        body = "".join(f"<tr>{''.join(map(format_cell, row))}</tr>" for row in self.rows)
        caption = f"<caption style='{LEFT}'>{escape(self.caption)}</caption>" if self.caption else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def __repr__(self) -> str:
        if self.caption and not self.rows:
            return self.caption
        flat = [[_in_line(cell) for cell in row] for row in [self.headers, *self.rows]]
        widths = [max(map(len, column)) for column in zip(*flat, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in flat]
        return "\n".join([self.caption, *lines] if self.caption else lines)


def _in_line(text: str) -> str:
    """Return a cell for a terminal: whole, or the beginning of a text of several lines, such as a program."""
    return text.replace("\n", " ⏎ ")[:60] if "\n" in text else text


def format_cell(text: str) -> str:
    inner = escape(text)
    if "\n" in text:
        width = min(max(map(len, text.splitlines())), UNBROKEN_CODE)
        inner = f"<pre style='{CODE};min-width:{width}ch'>{inner}</pre>"
    return f"<td style='{LEFT};vertical-align:top'>{inner}</td>"


class Folded:
    """Tables or texts that a reader opens with a click on the summary, for what only some readers need."""

    def __init__(self, summary: str, *contents: object) -> None:
        self.summary, self.contents = as_text(summary), contents

    def _repr_html_(self) -> str:
        shown = "".join(
            content._repr_html_()
            if isinstance(content, Table | Folded)
            else f"<pre>{escape(as_text(content))}</pre>"
            for content in self.contents
        )
        return f"<details><summary>{escape(self.summary)}</summary>{shown}</details>"

    def __repr__(self) -> str:
        return "\n".join([self.summary, *map(str, self.contents)])


fold = Folded


def show_facts(facts: Mapping[str, object], *, caption: str = "") -> Table:
    """Return a table of names and values, for instance of a dataclass (`vars` or `dataclasses.asdict`)."""
    return Table(["", ""], facts.items(), caption)


def show_comparison(comparison: Iterable[Comparison]) -> Table:
    """Return before and after of each measure, and the difference with its 95% interval."""
    return Table(
        ["measure", "split", "items", "before", "after", "difference (95% interval)"],
        [
            (row.measure.replace("_", " "), row.split, row.num_items, row.before, row.after)
            + (as_text(row.difference, signed=True),)
            for row in comparison
        ],
        "Means over items; 95% intervals by a paired bootstrap.",
        empty="Nothing was measured both before and after.",
    )


def as_text(value: object, *, signed: bool = False) -> str:
    """Return the text of a table's cell, with control characters escaped by `visible_text`.

    A float has three decimals and an estimate its interval; None and NaN are a dash.
    """
    sign = "+" if signed else ""
    if isinstance(value, Estimate):
        return f"{value.value:{sign}.3f} ({value.low:{sign}.3f} to {value.high:{sign}.3f})"
    if value is None or isinstance(value, float) and math.isnan(value):
        return "–"
    return visible_text(f"{value:{sign}.3f}" if signed or isinstance(value, float) else str(value))


def as_percent(share: float | None) -> str:
    """Return a share as a percentage with one decimal, or a dash if it is unknown."""
    return "–" if share is None or math.isnan(share) else f"{share:.1%}"


def as_code(text: str | None, *, longest: int = LONGEST_CODE) -> str:
    """Return text that a table shows as code, with its blanks, cut where it is longer than `longest`."""
    text = "(no code)" if text is None else text
    cut = text if len(text) <= longest else text[:longest] + " …"
    return cut.rstrip("\n") + "\n" if cut else ""


def visible_text(text: str) -> str:
    """Return text whose control and direction characters are escaped, so that it cannot alter the page.

    Lone surrogates are escaped too: they would end the notebook.
    """
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1] for letter in text
    )
