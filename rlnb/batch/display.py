"""Curves of several runs in one picture, grouped, with intervals over seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas
from matplotlib.figure import Figure

from rlnb.batch.points_table import Group
from rlnb.display.plots import COLOURS, known, make_panels, put_legend
from rlnb.run.tracking import read_metrics
from rlnb.statistics import student_mean

LINES = ("-", "--", "-.", ":")


def tabulate_curves(group: Group, metric: str) -> pandas.DataFrame:
    """Return the values of a metric, a row a step and a column a run, unfinished ones too.

    Columns are called by the directories of the runs: in several sweeps the names are the same.
    """
    columns = {}
    for run in group.results["run"]:
        rows = [row for row in read_metrics(Path(run, "metrics.jsonl")) if known(row, metric)]
        if rows:
            columns[run] = pandas.Series([row[metric] for row in rows], [row["step"] for row in rows])
    return pandas.DataFrame(columns).sort_index()


def draw_curves(groups: Sequence[Group], metric: str) -> Figure:
    """Draw a metric of each run as a thin line, and the mean of each group as a thick one.

    The mean is over the finished runs, at the steps that all of them measured; its band is Student's 95%
    interval over three or more. Dots at the right are their last values: what they are judged by.
    """
    figure, (axes,) = make_panels(size=(8, 4.6))
    tables = {group.label: tabulate_curves(group, metric) for group in groups}
    last = max((table.index.max() for table in tables.values() if len(table)), default=1)
    for index, group in enumerate(groups):
        table = tables[group.label]
        colour, line = COLOURS[index % len(COLOURS)], LINES[index // len(COLOURS) % len(LINES)]
        for _, column in table.items():
            axes.plot(column.dropna(), line, color=colour, linewidth=0.8, alpha=0.35)
        finished = table[[run for run in group.finished["run"] if run in table]]
        shared, num_runs = finished.dropna(), len(finished.columns)
        if len(shared):
            means = shared.mean(axis=1)
            axes.plot(means, line, color=colour, linewidth=2, label=f"{group.label} ({num_runs})")
            if num_runs > 2:  # two seeds leave an interval far wider than the picture
                bands = [student_mean(values) for values in shared.to_numpy()]
                low, high = [band.low for band in bands], [band.high for band in bands]
                axes.fill_between(shared.index, low, high, color=colour, alpha=0.15, linewidth=0)
        ends = [column.dropna().iloc[-1] for _, column in finished.items()]
        place = last * (1.03 + 0.02 * index)
        axes.plot([place] * len(ends), ends, "o", color=colour, markersize=4, alpha=0.75)
    axes.locator_params(axis="x", integer=True)
    axes.set(xlabel="step", ylabel=metric, title=metric, ylim=value_range(tables))
    put_legend(axes, 3)
    return figure


def value_range(tables: Mapping[str, pandas.DataFrame]) -> tuple[float | None, float | None]:
    """Return the limits that show all curves: the interval over two seeds may be far wider than they are."""
    values = [float(value) for table in tables.values() for value in table.stack().dropna()]
    if not values:
        return None, None
    margin = 0.25 * (max(values) - min(values)) or 0.1
    return min(values) - margin, max(values) + margin
