"""The points of a sweep, or any runs, as one table: what differs, how each ended, its last values.

`gather_results` returns a row a run with the columns run (its directory), the parameters in which the runs
differ, seed (NA before the run has begun), state (as `rlnb runs` prints it), step, reason (why it failed, or
what of it cannot be read), and its measures; those of comparisons as "<measure> (<split>): before" and so on.
Every value is that of the last checkpoint of a run, never of the best one. Means over runs are of finished
runs only, with Student's 95% interval over the runs.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas

from rlnb.batch.overview import RunRow, last_line, list_runs
from rlnb.display.tables import Table, as_text
from rlnb.errors import ParamsError
from rlnb.params.problems import did_you_mean
from rlnb.params.reading import read_yaml
from rlnb.results import Comparison, SavedComparison, load_saved, pool_comparisons
from rlnb.run.checkpoints import RANKS, latest_checkpoint, saved_recipe
from rlnb.run.directory import POINTS_FILE
from rlnb.run.metrics import main_measures
from rlnb.run.tracking import read_metrics
from rlnb.statistics import Estimate, student_mean

TRAINING_MINUTES = "training minutes"  # play and updates, without evaluations
PARTS_OF_A_STEP = ("time/rollout_seconds", "time/update_seconds", "step_time")


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone. label: the fields in which they differ from other groups."""

    label: str
    results: pandas.DataFrame

    @property
    def finished(self) -> pandas.DataFrame:
        return self.results[self.results["state"] == "done"]


def gather_results(directories: Sequence[Path]) -> pandas.DataFrame:
    """Return the table of the runs in folders: of sweeps, of runs, or runs themselves; each once.

    A run with the parameters and the seed of an earlier one has the state "repeat", and is in no mean. Raises
    ParamsError for a folder without runs.
    """
    told = list_runs(directories)
    if not told:
        raise ParamsError(f"{', '.join(map(str, directories))}: holds no runs; name the folder of a sweep")
    given = [{"seed": None, **_read_settings(Path(row.run))} for row in told]  # none before a run begins
    settings = pandas.DataFrame(given, dtype=object)
    settings = settings.drop(columns="output_dir", errors="ignore").map(str, na_action="ignore")
    for cell in settings.filter(regex=" cell$"):  # told apart by numbers in place of their sources
        sources = settings[cell].dropna().unique()
        settings[cell] = settings[cell].map({source: str(n) for n, source in enumerate(sources, 1)})
    frame = pandas.DataFrame([_read_run(row) for row in told])
    is_repeat = settings[frame["state"] == "done"].duplicated().reindex(frame.index, fill_value=False)
    frame.loc[is_repeat, ["state", "reason"]] = "repeat", "has the parameters and the seed of another run"
    fields = settings.loc[:, settings.nunique() > 1].drop(columns="seed", errors="ignore")
    runs = pandas.DataFrame({"run": [row.run for row in told]})
    texts = settings.get("seed", pandas.Series(pandas.NA, frame.index, dtype=object))
    seeds = pandas.to_numeric(texts.where(texts.astype(str).str.isdecimal()), errors="coerce").astype("Int64")
    return pandas.concat([runs, fields, seeds.rename("seed"), frame.astype({"step": "Int64"})], axis=1)


def fields_of(results: pandas.DataFrame) -> list[str]:
    """Return the columns of parameters."""
    return list(results.loc[:, "run":"seed"])[1:-1]


def newest_runs(outputs: Path) -> Path:
    """Return the folder under `outputs` of the sweep that was started last, else of the last trainings.

    Those are the runs of one notebook. Raises ParamsError for a folder with neither.
    """
    sweeps = list(outputs.glob(f"*/*/{POINTS_FILE}"))
    marks = sweeps or list(outputs.glob("*/*/metrics.jsonl"))
    if not marks:
        raise ParamsError(
            f"compare.directories = []: there are no runs under {outputs}; name a sweep's folder, or runs"
        )
    newest = max(marks, key=lambda path: path.stat().st_mtime)
    return newest.parents[0 if sweeps else 1]


def group_results(results: pandas.DataFrame) -> list[Group]:
    """Return the runs that have begun as groups that agree in all fields but the seed, in their order."""
    begun = results[results["seed"].notna()]
    labels = [
        ", ".join(f"{name.rpartition('.')[2]}={row[name]}" for name in row if not pandas.isna(row[name]))
        for row in begun[fields_of(results)].to_dict("records")
    ]
    groups = begun.groupby(pandas.Series(labels, begun.index, dtype=str), sort=False)
    return [Group(label or "all runs", members) for label, members in groups]


def choose_measures(results: pandas.DataFrame, wanted: Sequence[str] = ()) -> list[str]:
    """Return the measures to show: those named, else the main ones that the runs have."""
    names = list(results.loc[:, "reason":])[1:]
    for name in wanted:
        if name not in names:
            raise ParamsError(f"measure {name!r} is in none of these runs{did_you_mean(name, names)}")
    return list(dict.fromkeys(wanted)) or main_measures(names)


def show_points(results: pandas.DataFrame, measures: Sequence[str]) -> Table:
    """Return one line a run: what differs, how it ended, its last values.

    The run's name is in front where parameters and seed are those of another run, too.
    """
    columns = [*fields_of(results), "seed", "state", "step", *measures]
    if results[columns[: columns.index("state")]].duplicated().any():
        columns.insert(0, "run")
    frame = results[columns].astype(object).assign(run=[Path(run).name for run in results["run"]])[columns]
    headers = [name if name in measures else name.rpartition(".")[2] for name in columns]
    rows = frame.where(frame.notna(), None).itertuples(index=False, name=None)
    return Table(headers, rows, "Last values of each run, never the best ones.")


def show_failures(results: pandas.DataFrame) -> list[str]:
    """Return a line for each run that is not done, with its reason."""
    return [
        f"{run}: {state}" + (f": {reason}" if reason else "")
        for run, state, reason in results[["run", "state", "reason"]].itertuples(index=False)
        if state != "done" or reason
    ]


def show_groups(groups: Sequence[Group], measures: Sequence[str]) -> Table:
    """Return one line a group with the means over its runs, then the differences from the first group.

    A difference is over the seeds that both groups have finished.
    """
    tables = [group.finished.set_index("seed")[list(measures)] for group in groups]
    rows: list[list[object]] = [
        [group.label, len(table), *(mean_over_runs(table[name].dropna()) for name in measures)]
        for group, table in zip(groups, tables, strict=True)
    ]
    by_seed = [table.groupby(level=0).mean() for table in tables]
    for group, values in zip(groups[1:], by_seed[1:], strict=True):
        gaps = (values - by_seed[0]).dropna(how="all")
        means = [as_text(mean_over_runs(gaps[name].dropna()), signed=True) for name in measures]
        rows.append([f"{group.label} minus {groups[0].label}", len(gaps), *means])
    caption = (
        "Means over finished runs, with Student's 95% interval over them; differences over paired seeds."
    )
    return Table(["group", "runs", *measures], rows, caption)


def mean_over_runs(values: Iterable[float]) -> Estimate | float | None:
    """Return the mean with Student's interval; without one for a single value."""
    sample = list(values)
    if len(sample) < 2:
        return sample[0] if sample else None
    return student_mean(sample)


def show_gains(group: Group) -> Table:
    """Return before, after and difference of what was measured before and after, as means over the runs."""
    pooled = pool_comparisons([_read_results(Path(run))[0].comparison for run in group.finished["run"]])
    headers = ["measure", "split", "runs", "items", "before", "after", "difference", "95% over items"]
    return Table(
        [*headers, "95% over runs", "95% over both"],
        [
            (row.measure.replace("_", " "), row.split, row.num_runs, row.num_items, row.before, row.after)
            + (f"{row.difference:+.3f}",)
            + tuple(map(_interval, (row.over_items, row.over_runs, row.over_both)))
            for row in pooled
        ],
        group.label,
        empty=f"{group.label}: nothing was measured both before and after.",
    )


def _interval(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"[{estimate.low:+.3f}, {estimate.high:+.3f}]"


def _read_settings(directory: Path) -> dict[str, object]:
    """Return the parameters of a run as {"section.field": value}, {} before it starts.

    Also {"reward cell": source} and so on, and of GRPO "ranks", that its newest checkpoint was trained with.
    """
    path = directory / "params.yaml"
    try:
        given = read_yaml(path, str(path))[0] if os.path.isfile(path) else []
    except ParamsError:
        given = []  # damaged; the run itself says so when it goes on
    try:
        checkpoint = latest_checkpoint(directory)
        recipe = saved_recipe(checkpoint) if checkpoint else {}
    except OSError:
        recipe = {}  # perhaps of somebody else, who may read it; the other runs are still compared
    names = {name for name in recipe if name.endswith(" cell")}
    if any(entry.field == "training.num_generations" for entry in given):  # GRPO's batch grows with the ranks
        names.add(RANKS)
    recipe = {name: value for name, value in recipe.items() if name in names}
    # null is a value of its own: only what a run has not set is missing
    return {entry.field: "null" if entry.value is None else entry.value for entry in given} | recipe


def _read_results(directory: Path) -> tuple[SavedComparison, str]:
    """Return the results of a run, none before its end, and why they cannot be read."""
    path = directory / "results.json"
    if not os.path.isfile(path):  # unlike Path.is_file, False also in a folder that is somebody else's
        return SavedComparison(), ""
    try:
        return load_saved(path, SavedComparison, what="of a run"), ""
    except ParamsError as error:
        return SavedComparison(), str(error)


def _read_run(told: RunRow) -> dict[str, object]:
    """Return the state, the step, the reason and the last values of a run."""
    directory = Path(told.run)
    results, problem = _read_results(directory)
    rows = read_metrics(directory / "metrics.jsonl") if told.state != "unreadable" else []
    values, lost = _last_values(rows)
    reasons = [told.reason, problem]
    if told.state == "pending":  # perhaps refused before it began
        reasons.append(last_line(directory))
    if lost:
        reasons.append(f"the last value is not a number, and in no mean: {', '.join(lost)}")
    return {
        "state": told.state,
        "step": rows[-1]["step"] if rows else None,
        "reason": "; ".join(filter(None, reasons)),
        **values,
        **_summary_values(results.model_extra or {}),
        **_comparison_values(results.comparison),
    }


def _last_values(rows: Sequence[Mapping[str, float | None]]) -> tuple[dict[str, float], list[str]]:
    """Return the last value of each metric with the time of all steps, and the names of lost metrics.

    A metric is lost that was a number before and at last was none, as NaN is reported.
    """
    last: dict[str, float | None] = {}
    for row in rows:
        last |= row
    numbers = {name for row in rows for name, value in row.items() if value is not None}
    lost = [name for name, value in last.items() if value is None and name in numbers]
    values = {name: value for name, value in last.items() if value is not None}
    values.pop("time", None)
    values.pop("step", None)
    seconds = [row.get(name) or 0.0 for row in rows for name in PARTS_OF_A_STEP]
    if any(seconds):
        values[TRAINING_MINUTES] = sum(seconds) / 60
    return values, lost


def _summary_values(results: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers of a summary, as mbpp_eval and gpt_oss_2048 write it: {"pass_at/1/value": 0.04}."""
    values: dict[str, float] = {}
    for name, prefix in (("summary", ""), ("figures", "figures/")):
        if isinstance(summary := results.get(name), dict) and summary:
            numbers = pandas.json_normalize(summary, sep="/").iloc[0].to_dict()
            values |= {
                f"{prefix}{inner}": float(value)
                for inner, value in numbers.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            }
    return values


def _comparison_values(comparisons: Sequence[Comparison]) -> dict[str, float]:
    values: dict[str, float] = {}
    for row in comparisons:
        ends = {"low": row.difference.low, "high": row.difference.high}
        parts = {"before": row.before, "after": row.after, "difference": row.difference.value, **ends}
        values |= {f"{row.measure} ({row.split}): {part}": value for part, value in parts.items()}
    return values
