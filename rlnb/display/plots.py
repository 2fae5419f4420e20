"""Live plots that leave one picture in the notebook."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.figure import Figure

from rlnb.metrics import read_metrics

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


class LiveFigure:
    """A figure of a run's metrics.jsonl, redrawn after every step.

    draw: makes it from the rows of that file and `max_steps`. Nothing is kept in here: a resumed run shows
    the steps before the interruption too.
    """

    def __init__(self, output_dir: str | Path, draw: Callable[..., Figure]) -> None:
        self.path = Path(output_dir) / "metrics.jsonl"
        self.draw = draw
        self._handle: Any = None

    def update(self, step: int, max_steps: int) -> None:
        """Redraw after a step; what `MetricsReporter` calls."""
        figure = self.draw(read_metrics(self.path), max_steps=max_steps)
        if self._handle is None:
            self._handle = display(figure, display_id=True)
        else:
            self._handle.update(figure)
        plt.close(figure)


class LiveRewards(LiveFigure):
    """Reward, pass rate and outcome shares of a run."""

    def __init__(self, output_dir: str | Path) -> None:
        super().__init__(output_dir, draw_rewards)


def draw_rewards(rows: Sequence[Mapping[str, Any]], *, max_steps: int) -> Figure:
    """Left: mean reward and pass rate a step, thin, with their running means. Right: shares by outcome."""
    evaluated, rows = rows, [row for row in rows if row.get("reward/avg_batch_reward") is not None]
    steps = [row["step"] for row in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    for name, label, colour in [
        ("reward/avg_batch_reward", "mean reward", "#1f77b4"),
        ("reward/pass_rate", "share that passes its tests", "#2a7f3f"),
    ]:
        values = [row.get(name) or 0.0 for row in rows]
        left.plot(steps, values, color=colour, alpha=0.3, linewidth=1)
        left.plot(steps, running_mean(values), color=colour, linewidth=2, label=label)
    for name, label, marker in [
        ("heldout/known/pass_rate_greedy", "held out, known families, greedy", "o"),
        ("heldout/new/pass_rate_greedy", "held out, new families, greedy", "s"),
    ]:
        points = [(row["step"], row[name]) for row in evaluated if row.get(name) is not None]
        if points:
            left.plot(*zip(*points, strict=True), marker, color="#444444", fillstyle="none", label=label)
    left.set(xlabel="step", xlim=(-0.02 * max_steps, 1.02 * max_steps), title="Reward while training")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, fontsize=8)
    left.grid(alpha=0.3)
    shares = {name: [row.get(f"status/{name}_share") or 0.0 for row in rows] for name in OUTCOME_COLOURS}
    seen = {name: values for name, values in shares.items() if any(values)}
    if seen:
        colours = [OUTCOME_COLOURS[name] for name in seen]
        right.stackplot(
            steps, list(seen.values()), labels=[n.replace("_", " ") for n in seen], colors=colours
        )
        right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, fontsize=8)
    right.set(xlabel="step", xlim=(0, max_steps), ylim=(0, 1), title="What the completions did")
    return figure


def running_mean(values: Sequence[float], window: int = WINDOW) -> list[float]:
    """Mean of each value and the ones before it, `window` at most."""
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(window, i + 1) for i in range(len(values))]


def draw_comparison(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Before and after of every measure as two dots and a line, known and new families side by side."""
    rows = [row for row in rows if row["split"] != "all"]
    figure, axes = plt.subplots(figsize=(7, 0.5 * len(rows) + 1), constrained_layout=True)
    for position, row in enumerate(reversed(rows)):
        axes.plot([row["before"], row["after"]], [position, position], color="#999999")
        axes.plot(
            row["before"],
            position,
            "o",
            color="#999999",
            fillstyle="none",
            markersize=9,
            label="before" if position == 0 else None,
        )
        axes.plot(row["after"], position, "o", color="#1f77b4", label="after" if position == 0 else None)
    axes.set_yticks(
        range(len(rows)), [f"{row['measure'].replace('_', ' ')}, {row['split']}" for row in reversed(rows)]
    )
    if rows:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    axes.grid(alpha=0.3, axis="x")
    plt.close(figure)
    return figure
