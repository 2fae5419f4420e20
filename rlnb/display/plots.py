"""Live plots that leave one picture in the notebook, and the pictures that several pipelines draw."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import matplotlib.pyplot as plt
from IPython.display import DisplayHandle, display
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlnb.display.progress import progress_bar
from rlnb.results import Comparison
from rlnb.run.tracking import read_metrics

OUTCOME_COLOURS = {
    "ok_with_output": "#2a7f3f",
    "ok_without_output": "#8fce9b",
    "no_code": "#bdbdbd",
    "syntax_error": "#f2b134",
    "runtime_error": "#e8743b",
    "timeout": "#8e5ea2",
    "memory_exceeded": "#c45ab3",
    "output_exceeded": "#3cba9f",
    "killed": "#7f2a2a",
    "sandbox_error": "#000000",
}
WINDOW = 5
BEFORE, AFTER = "#7f7f7f", "#1f77b4"
Row = Mapping[str, Any]  # of metrics.jsonl: "step" and the numbers of that step, or None
Item = TypeVar("Item")


class LiveFigure:
    """A progress bar with time left, and a figure of a run's metrics.jsonl, redrawn after every step.

    draw: called with the rows of that file and `max_steps`; returns the figure. The rows are read from the
    file each time, so a resumed run also shows the steps before the interruption.
    """

    def __init__(self, output_dir: str | Path, draw: Callable[..., Figure]) -> None:
        self.path = Path(output_dir) / "metrics.jsonl"
        self.draw = draw
        self._show_progress: Callable[[int, int], None] | None = None
        self._handle: DisplayHandle | None = None

    def update(self, step: int, max_steps: int) -> None:
        """Redraw both after a step."""
        if self._show_progress is None:
            self._show_progress = progress_bar("training step")
        self._show_progress(step, max_steps)
        figure = self.draw(read_metrics(self.path), max_steps=max_steps)
        if self._handle is None:
            self._handle = display(figure, display_id=True)
        else:
            self._handle.update(figure)
        plt.close(figure)


def draw_trend(axes: Axes, rows: Sequence[Row], name: str, **style: object) -> None:
    """Draw a measure of every training step as a thin line, and its running mean as a thick one."""
    steps, values = series(rows, name)
    thin = {key: value for key, value in style.items() if key != "label"}
    axes.plot(steps, values, **{"alpha": 0.3, "linewidth": 1, **thin})  # type: ignore[arg-type]
    axes.plot(steps, running_mean(values), **{"linewidth": 2, **style})  # type: ignore[arg-type]


def draw_heldout(axes: Axes, rows: Sequence[Row], name: str, marker: str, **style: object) -> None:
    """Draw a measure that is taken now and then as hollow markers, and nothing where it never was."""
    steps, values = series(rows, name)
    if steps:
        axes.plot(steps, values, marker, fillstyle="none", **style)  # type: ignore[arg-type]


def draw_shares(
    axes: Axes, rows: Sequence[Row], measures: Mapping[str, tuple[str, str]], *, max_steps: int, title: str
) -> None:
    """Stack shares of each training step; those that are always zero are left out.

    measures: {metric: (label, colour)}. Rows with none of the metrics are no training steps.
    """
    trained = [row for row in rows if any(known(row, name) for name in measures)]
    stacks = {name: [row[name] if known(row, name) else 0.0 for row in trained] for name in measures}
    stacks = {name: values for name, values in stacks.items() if any(values)}
    if stacks:
        axes.stackplot(
            [row["step"] for row in trained],
            list(stacks.values()),
            labels=[measures[name][0] for name in stacks],
            colors=[measures[name][1] for name in stacks],
        )
        put_legend(axes, 3)
    axes.set(xlabel="step", xlim=(0, max_steps), ylim=(0, 1), title=title)


def put_legend(axes: Axes, num_columns: int, *, also: Axes | None = None) -> None:
    """Put the legend below the axes, where no line runs; with the lines of the twin axes `also`."""
    handles, labels = axes.get_legend_handles_labels()
    if also:
        more_handles, more_labels = also.get_legend_handles_labels()
        handles, labels = handles + more_handles, labels + more_labels
    if handles:
        axes.legend(
            handles, labels, ncols=num_columns, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15)
        )


def draw_comparison(comparison: Sequence[Comparison]) -> Figure:
    """Draw each measure before and after at the left, and the difference with its interval at the right."""
    rows = [row for row in reversed(comparison) if row.split != "all"]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 0.5 * len(rows) + 1.3), sharey=True, constrained_layout=True
    )
    positions = range(len(rows))
    left.hlines(positions, [row.before for row in rows], [row.after for row in rows], color=BEFORE, zorder=1)
    hollow = {"color": BEFORE, "fillstyle": "none", "markersize": 9}
    left.plot([row.before for row in rows], positions, "o", label="before", **hollow)
    left.plot([row.after for row in rows], positions, "o", label="after", color=AFTER)
    left.set(title="Before and after")
    left.set_yticks(
        positions, [f"{row.measure.replace('_', ' ')}, {row.split}" for row in rows], parse_math=False
    )
    left.set_ylim(-0.5, max(len(rows), 1) - 0.5)
    put_legend(left, 2)
    differences = [row.difference for row in rows]
    widths = [
        [max(0.0, value.value - value.low) for value in differences],
        [max(0.0, value.high - value.value) for value in differences],
    ]
    values = [value.value for value in differences]
    right.errorbar(values, positions, xerr=widths, fmt="o", color=AFTER, capsize=3)
    right.axvline(0, color=BEFORE, linewidth=1, zorder=0)
    right.set(title="Difference with its 95% interval")
    for axes in (left, right):
        axes.grid(alpha=0.3, axis="x")
    plt.close(figure)  # the notebook shows what is returned, not a second copy
    return figure


def running_mean(values: Sequence[float], window: int = WINDOW) -> list[float]:
    """Return the mean of each value and the ones before it, `window` at most."""
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(window, i + 1) for i in range(len(values))]


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
