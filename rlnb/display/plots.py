"""The pictures that several pipelines draw."""

import io
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import matplotlib.pyplot as plt
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlnb.results import Comparison
from rlnb.statistics import Estimate

# Okabe and Ito's colours, which the colour-blind tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
OUTCOME_COLOURS = {
    "ok_with_output": "#009e73",
    "ok_without_output": "#9fdcc8",
    "no_code": "#bdbdbd",
    "syntax_error": "#f0e442",
    "runtime_error": "#e69f00",
    "timeout": "#cc79a7",
    "memory_exceeded": "#0072b2",
    "output_exceeded": "#56b4e9",
    "killed": "#d55e00",
    "sandbox_error": "#000000",
}
WINDOW = 5  # steps of a running mean
BEFORE, AFTER = "#7f7f7f", "#0072b2"
Row = Mapping[str, Any]  # of metrics.jsonl: "step" and the numbers of that step, or None
Item = TypeVar("Item")


def as_png(figure: Figure, *, stamp: str = "") -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return a figure for a notebook and its metadata: a PNG, with its titles and legends as a text instead.

    stamp: words across the picture, which the figure does not keep.
    """
    png = io.BytesIO()
    mark = figure.text(0.5, 0.5, stamp, ha="center", va="center", size=20, color="#777777", alpha=0.6)
    figure.savefig(png, bbox_inches="tight")
    mark.remove()
    parts = [axes.get_title(loc) for axes in figure.axes for loc in ("left", "center")]
    parts += [label for axes in figure.axes for label in axes.get_legend_handles_labels()[1]]
    words = "; ".join(dict.fromkeys(filter(None, [figure.get_suptitle(), *parts])))
    bundle = {"image/png": b64encode(png.getvalue()).decode(), "text/plain": f"Figure: {words}"}
    return bundle, {"image/png": {"alt": words}}


def make_panels(
    num_columns: int = 1,
    *,
    size: tuple[float, float],
    num_rows: int = 1,
    heights: Sequence[float] | None = None,
    max_steps: int | None = None,
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of `size` inches and its panels.

    heights: of the rows, next to each other's. max_steps: the panels' x axis is training's.
    """
    figure, grid = plt.subplots(
        num_rows, num_columns, figsize=size, height_ratios=heights, layout="constrained", squeeze=False
    )
    plt.close(figure)  # a notebook shows what is returned, not a second copy
    for axes in grid.flat:
        axes.grid(alpha=0.3)
        if max_steps is not None:
            axes.locator_params(axis="x", integer=True)
            axes.set(xlabel="step", xlim=(-0.02 * max(max_steps, 1), 1.02 * max(max_steps, 1)))
    return figure, list(grid.flat)


def draw_training(
    rows: Sequence[Row],
    trends: Mapping[str, tuple[str, str]],
    heldout: Mapping[str, tuple[str, str, str]],
    shares: Mapping[str, tuple[str, str]],
    *,
    max_steps: int,
    titles: tuple[str, str],
) -> Figure:
    """Draw running means of training and held-out points at the left, shares of each step at the right.

    trends, shares: {metric: (label, colour)}. heldout: {metric: (label, colour, marker)}, drawn hollow and
    only where it was measured.
    """
    figure, (left, right) = make_panels(2, size=(11, 4.4), max_steps=max_steps)
    for name, (label, colour) in trends.items():
        draw_trend(left, rows, name, label=label, color=colour)
    for name, (label, colour, marker) in heldout.items():
        style = {"fillstyle": "none", "linestyle": "none", "markersize": 6, "zorder": 3, "clip_on": False}
        draw_line(left, rows, name, label=label, color=colour, marker=marker, **style)
    left.set_title(titles[0])
    put_legend(left, 2)
    draw_shares(right, rows, shares)
    right.set(xlim=(0, max(max_steps, 1)), title=titles[1])
    right.grid(visible=False)
    return figure


def draw_trend(axes: Axes, rows: Sequence[Row], name: str, **style: Any) -> None:
    """Draw a measure of every training step as a thin line, and its running mean as a thick one."""
    steps, values = series(rows, name)
    axes.plot(steps, values, **{"alpha": 0.3, "linewidth": 1, **style, "label": None})
    means = pandas.Series(values, dtype=float).rolling(WINDOW, min_periods=1).mean()
    axes.plot(steps, means, **{"linewidth": 2, **style})


def draw_line(axes: Axes, rows: Sequence[Row], name: str, **style: Any) -> bool:
    """Draw a measure where it was taken, and return whether it ever was. A marker shows a single point."""
    steps, values = series(rows, name)
    if steps:
        axes.plot(steps, values, **{"marker": ".", "markersize": 4, **style})
    return bool(steps)


def draw_shares(axes: Axes, rows: Sequence[Row], measures: Mapping[str, tuple[str, str]]) -> None:
    """Stack shares of each training step; those that are always zero are left out.

    measures: {metric: (label, colour)}. Rows with none of the metrics are left out.
    """
    trained = [row for row in rows if any(known(row, name) for name in measures)]
    stacks = {name: [row[name] if known(row, name) else 0.0 for row in trained] for name in measures}
    stacks = {name: values for name, values in stacks.items() if any(values)}
    if stacks:
        labels, colours = zip(*(measures[name] for name in stacks), strict=True)
        axes.stackplot([row["step"] for row in trained], *stacks.values(), labels=labels, colors=colours)
        put_legend(axes, 3)
    axes.set(ylim=(0, 1))


def put_legend(axes: Axes, num_columns: int, *, also: Axes | None = None) -> None:
    """Put the legend below the axes, where no line runs; with the lines of the twin axes `also`."""
    handles, labels = axes.get_legend_handles_labels()
    if also:
        more_handles, more_labels = also.get_legend_handles_labels()
        handles, labels = handles + more_handles, labels + more_labels
    if handles:
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 3.6}  # letters of 10 pt
        axes.legend(handles, labels, ncols=num_columns, fontsize=10, **place)


def draw_comparison(comparison: Sequence[Comparison]) -> Figure:
    """Draw each measure before and after at the left, and the difference with its interval at the right.

    Rates, which are shares, have an axis of their own below rewards and scores.
    """
    rows = [row for row in comparison if row.split != "all"]
    rates = [row for row in rows if "rate" in row.measure]
    groups = {"reward, score": [row for row in rows if row not in rates], "share of the answers": rates}
    groups = {label: group for label, group in groups.items() if group} or {"": []}
    heights = [len(group) + 1.2 for group in groups.values()]
    size = (11, 0.5 * sum(heights) + 0.9)
    figure, grid = make_panels(2, size=size, num_rows=len(groups), heights=heights)
    for (label, group), left, right in zip(groups.items(), grid[::2], grid[1::2], strict=True):
        lines, before, after = range(len(group)), [row.before for row in group], [row.after for row in group]
        left.hlines(lines, before, after, color=BEFORE, zorder=1)
        left.plot(before, lines, "o", label="before", color=BEFORE, fillstyle="none", markersize=9)
        left.plot(after, lines, "o", label="after", color=AFTER)
        draw_estimates(right, lines, [row.difference for row in group], color=AFTER)
        right.axvline(0, color=BEFORE, linewidth=1, zorder=0)
        label_lines(left, [f"{row.measure.replace('_', ' ')}, {row.split}" for row in group])
        label_lines(right, [""] * len(group))
        left.set_xlabel(label)
    grid[0].set_title("Before and after")
    grid[1].set_title("Difference with its 95% interval")
    put_legend(left, 2)
    return figure


def draw_intervals(axes: Axes, values: Mapping[str, Mapping[str, Estimate]]) -> list[str]:
    """Draw shares with their 95% intervals: a line of the picture for each label, a colour for each name.

    values: {name, such as "before": {label: estimate}}. Returns the labels from the top.
    """
    labels = list(dict.fromkeys(label for estimates in values.values() for label in estimates))
    for index, (name, estimates) in enumerate(values.items()):
        offset = 0.6 * (index + 1) / (len(values) + 1) - 0.3
        heights = [labels.index(label) + offset for label in estimates]
        colour = COLOURS[index % len(COLOURS)]
        draw_estimates(axes, heights, list(estimates.values()), color=colour, label=name)
    label_lines(axes, labels)
    axes.set_xlim(-0.02, 1.02)
    return labels


def draw_estimates(axes: Axes, heights: Sequence[float], estimates: Sequence[Estimate], **style: Any) -> None:
    lows, highs = [estimate.low for estimate in estimates], [estimate.high for estimate in estimates]
    axes.hlines(heights, lows, highs, color=style["color"], linewidth=1.5)
    axes.plot([estimate.value for estimate in estimates], heights, "o", markersize=5, **style)


def label_lines(axes: Axes, labels: Sequence[str]) -> None:
    """Write the labels at the heights 0, 1, 2, from the top; control characters in them are left out."""
    printable = ["".join(filter(str.isprintable, label)) for label in labels]
    axes.set_yticks(range(len(labels)), printable, fontsize=10, parse_math=False)
    axes.set_ylim(max(len(labels), 1) - 0.4, -0.6)


def spread(items: Sequence[Item], limit: int) -> list[Item]:
    """Return the first and the last item and evenly spaced ones between them, `limit` (2 or more) at most."""
    if len(items) <= limit:
        return list(items)
    return [items[round(index * (len(items) - 1) / (limit - 1))] for index in range(limit)]


def series(rows: Sequence[Row], name: str) -> tuple[list[int], list[float]]:
    """Return the steps at which a measure was taken, and its values."""
    points = [(row["step"], row[name]) for row in rows if known(row, name)]
    return [step for step, _ in points], [value for _, value in points]


def known(row: Row, name: str) -> bool:
    """Tell whether a row holds a finite number under this name."""
    value = row.get(name)
    return isinstance(value, int | float) and math.isfinite(value)
