"""The points of a sweep, or any runs, as one table: what differs, how each ended, its last values.

Every value is that of the last checkpoint of a run, never of the best one. Means over runs are of finished
runs only, with Student's 95% interval over the runs.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas
import yaml

from rlnb.batch.local import last_line
from rlnb.batch.overview import RunRow, list_runs
from rlnb.display.tables import Table, as_text
from rlnb.errors import ParamsError
from rlnb.params.problems import did_you_mean
from rlnb.params.reading import parse_yaml
from rlnb.results import Comparison, load_results, pool_comparisons, read_comparisons
from rlnb.run.directory import POINTS_FILE
from rlnb.run.tracking import read_metrics
from rlnb.statistics import Estimate, student_mean

# What judges a run, the most telling first; names may begin with a game.
MAIN_MEASURES = tuple(
    re.compile(pattern)
    for pattern in (
        r"(^|/)exact/(average/)?(nash_conv|loss_first|loss_second)$",
        r"^heldout/",
        r"^mbpp_eval/pass_rate$",
        r"^pass_at/\d+/value$",
        r"(^|/)arena/.*_score$",
        r"^curriculum/(stage|score)$",
        r"^reward$",
    )
)
NUM_SHOWN = 6  # measures that a table shows where none is named
TRAINING_MINUTES = "training minutes"  # play and updates, without evaluations
PARTS_OF_A_STEP = ("time/rollout_seconds", "time/update_seconds", "step_time")


@dataclass(frozen=True)
class PointResult:
    """What came of one run.

    fields: the parameters in which the runs differ, without the seed. state: as `rlnb runs` prints it.
    rows: of metrics.jsonl. values: {measure: last value}, those of comparisons under "<measure> (<split>):
    before" and so on. reason: why it failed, or what of it cannot be read.
    """

    directory: Path
    fields: Mapping[str, object]
    seed: int | None
    state: str
    step: int | None
    rows: Sequence[Mapping[str, float | None]]
    values: Mapping[str, float]
    comparisons: Sequence[Comparison]
    reason: str


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone. label: the fields in which they differ from other groups."""

    label: str
    results: tuple[PointResult, ...]

    @property
    def finished(self) -> list[PointResult]:
        return [result for result in self.results if result.state == "done"]

    def tabulate(self, measures: Sequence[str]) -> pandas.DataFrame:
        """Return the last values of the finished runs: a row a seed, a column a measure, NaN for none."""
        rows = [result.values for result in self.finished]
        seeds = [result.seed for result in self.finished]
        return pandas.DataFrame(rows, index=seeds, columns=list(measures), dtype=float)


def gather_results(directories: Sequence[Path]) -> list[PointResult]:
    """Return the runs in folders: of sweeps, of runs, or runs themselves; each once.

    Raises ParamsError for a folder without runs.
    """
    rows = {Path(row.run): row for row in list_runs(directories)}
    settings = {path: _read_settings(path) for path in rows}
    if not any(settings.values()):
        raise ParamsError(f"{', '.join(map(str, directories))}: holds no runs; name the folder of a sweep")
    seen: dict[str, set[str]] = {}
    for values in settings.values():
        for name, value in values.items():
            seen.setdefault(name, set()).add(str(value))
    differing = [name for name in seen if len(seen[name]) > 1 and name not in ("output_dir", "seed")]
    results = []
    first: dict[str, Path] = {}
    for path, values in settings.items():
        result = _read_result(path, values, differing, rows[path])
        recipe = str({name: value for name, value in values.items() if name != "output_dir"})
        if result.state == "done" and first.setdefault(recipe, path) != path:
            reason = f"has the parameters and the seed of {first[recipe]}, so it is in no mean"
            result = replace(result, state="repeat", reason=reason)
        results.append(result)
    return results


def newest_sweep(outputs: Path) -> Path:
    """Return the folder under `outputs` whose points.json was written last. Raises ParamsError for none."""
    folders = [path.parent for path in outputs.glob(f"*/*/{POINTS_FILE}")]
    if not folders:
        raise ParamsError(
            f"compare.directories = []: there is no sweep under {outputs}; name the folder of one, or of runs"
        )
    return max(folders, key=lambda folder: (folder / POINTS_FILE).stat().st_mtime)


def group_results(results: Sequence[PointResult]) -> list[Group]:
    """Return the runs that have begun as groups that agree in all fields but the seed, in their order."""
    groups: dict[str, list[PointResult]] = {}
    for result in results:
        if result.seed is None:
            continue
        label = ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in result.fields.items())
        groups.setdefault(label or "all runs", []).append(result)
    return [Group(label, tuple(members)) for label, members in groups.items()]


def choose_measures(results: Sequence[PointResult], wanted: Sequence[str] = ()) -> list[str]:
    """Return the measures to show: those named, else the main ones that the runs have."""
    names = list(dict.fromkeys(name for result in results for name in result.values))
    for name in wanted:
        if name not in names:
            raise ParamsError(f"measure {name!r} is in none of these runs{did_you_mean(name, names)}")
    main = [name for pattern in MAIN_MEASURES for name in names if pattern.search(name)]
    return list(wanted) or main[:NUM_SHOWN]


def tabulate_points(results: Sequence[PointResult]) -> pandas.DataFrame:
    """Return a row a run: the fields in which the runs differ, how it ended, and all of its last values."""
    rows = [
        {"run": str(result.directory), **result.fields, "seed": result.seed, "state": result.state}
        | {"step": result.step, "reason": result.reason, **result.values}
        for result in results
    ]
    fields = dict.fromkeys(name for result in results for name in result.fields)
    measures = dict.fromkeys(name for result in results for name in result.values)
    columns = ["run", *fields, "seed", "state", "step", "reason", *measures]
    frame = pandas.DataFrame(rows, columns=columns)
    return frame.astype({"seed": "Int64", "step": "Int64", **dict.fromkeys(measures, float)})


def show_points(results: Sequence[PointResult], measures: Sequence[str]) -> Table:
    """Return one line a run: what differs, how it ended, its last values."""
    frame = tabulate_points(results).astype(object)
    fields = dict.fromkeys(name for result in results for name in result.fields)
    columns = [*fields, "seed", "state", "step", *measures]
    headers = [*(field.rpartition(".")[2] for field in fields), "seed", "state", "step", *measures]
    for field in fields:  # written out, since a learning rate has more than three decimals
        frame[field] = frame[field].map(str, na_action="ignore")
    rows = frame.where(frame.notna(), None)[columns].itertuples(index=False, name=None)
    return Table(headers, rows, "Last values of each run, never the best ones.")


def show_failures(results: Sequence[PointResult]) -> list[str]:
    """Return a line for each run that is not done, with its reason."""
    return [
        f"{result.directory}: {result.state}" + (f": {result.reason}" if result.reason else "")
        for result in results
        if result.state != "done" or result.reason
    ]


def show_groups(groups: Sequence[Group], measures: Sequence[str]) -> Table:
    """Return one line a group with the means over its runs, then the differences from the first group.

    A difference is over the seeds that both groups have finished.
    """
    tables = [group.tabulate(measures) for group in groups]
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
    pooled = pool_comparisons([result.comparisons for result in group.finished])
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
    """Return the parameters of a run as {"section.field": value}, {} before it starts."""
    path = directory / "params.yaml"
    try:
        content = parse_yaml(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        content = None  # damaged; the run itself says so when it goes on
    flat: dict[str, object] = {}
    for name, value in content.items() if isinstance(content, dict) else ():
        fields = value.items() if isinstance(value, dict) else ()
        flat |= {f"{name}.{field}": inner for field, inner in fields} or {name: value}
    return flat


def _read_result(
    directory: Path, settings: Mapping[str, object], differing: Sequence[str], told: RunRow
) -> PointResult:
    problems = [told.reason] if told.reason else []
    rows: list[dict[str, float | None]] = []
    results: dict[str, object] = {}
    comparisons: list[Comparison] = []
    try:
        rows = read_metrics(directory / "metrics.jsonl")
        if (directory / "results.json").is_file():
            results = load_results(directory / "results.json")
            comparisons = read_comparisons(directory / "results.json")
    except (ParamsError, OSError, ValueError) as error:
        problems.append(str(error))
    if told.state == "pending" and (line := last_line(directory)):  # refused before it began
        problems.append(line)
    values, lost = _last_values(rows)
    if lost:
        problems.append(f"the last value is not a number, and in no mean: {', '.join(lost)}")
    seed = str(settings.get("seed"))
    return PointResult(
        directory=directory,
        fields={name: settings[name] for name in differing if name in settings},
        seed=int(seed) if seed.isdigit() else None,
        state=told.state,
        step=int(rows[-1]["step"] or 0) if rows else None,
        rows=rows,
        values={**values, **_summary_values(results), **_comparison_values(comparisons)},
        comparisons=comparisons,
        reason="; ".join(problems),
    )


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
