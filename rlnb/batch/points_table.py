"""The points of a sweep, or any runs, as one table: what differs, how each ended, its last values.

Every value is that of the last checkpoint of a run, never of the best one. Means over runs are of finished
runs only, with Student's 95% interval over the runs.
"""

import csv
import io
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import yaml

from rlnb.batch.local import last_line
from rlnb.batch.overview import RunRow, find_runs, list_runs
from rlnb.batch.sweeps import POINTS_FILE, Point, Sweep, read_sweep
from rlnb.display.tables import Table, as_text
from rlnb.errors import ParamsError
from rlnb.params import dump_yaml, load_params, parse_set
from rlnb.params.problems import did_you_mean
from rlnb.params.reading import parse_yaml
from rlnb.results import Comparison, load_results, pool_comparisons, read_comparisons
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
# Of a condition the measure is the first step that meets it.
LOWER_IS_BETTER = re.compile(r"(^|/)exact/(\w+[_/])?(nash_conv|loss|blunder)(_|$)|^loss$|[<>]=")
NUM_SHOWN = 6  # measures that a table shows where none is named
TRAINING_MINUTES = "training minutes"  # play and updates, without evaluations
PARTS_OF_A_STEP = ("time/rollout_seconds", "time/update_seconds", "step_time")
CONDITION = re.compile(r"\s*([^<>=]+?)\s*(>=|<=)\s*(\S+)\s*")
NOT_COMPARED = ("output_dir", "seed")


@dataclass(frozen=True)
class PointResult:
    """What came of one run.

    fields: the parameters in which the runs differ, without the seed. state: as `rlnb runs` tells it.
    rows: of metrics.jsonl. values: {measure: last value}, those of comparisons under "<measure> (<split>):
    before" and so on. lost: measures that were a number before and at last were none, as NaN is reported.
    reason: why it failed, or what of it cannot be read.
    """

    name: str
    directory: Path
    fields: Mapping[str, object]
    seed: int | None
    state: str
    step: int | None
    rows: Sequence[Mapping[str, float | None]]
    values: Mapping[str, float]
    lost: Sequence[str]
    comparisons: Sequence[Comparison]
    reason: str


@dataclass(frozen=True)
class Group:
    """Runs that agree in the fields `label` tells; finished: those that are done."""

    label: str
    results: tuple[PointResult, ...]

    @property
    def finished(self) -> list[PointResult]:
        return [result for result in self.results if result.state == "done"]

    def values(self, measures: Sequence[str]) -> list[float]:
        """Return the mean of the measures, for each finished run that has all of them."""
        return [
            fmean(result.values[name] for name in measures)
            for result in self.finished
            if all(name in result.values for name in measures)
        ]


class PlannedPoint(NamedTuple):
    """A point and the sweep that names its notebook and profile."""

    sweep: Sweep
    point: Point


def gather_results(directories: Sequence[Path], *, reach: Sequence[str] = ()) -> list[PointResult]:
    """Return the runs in folders: of sweeps, of runs, or runs themselves; each once.

    reach: conditions such as "curriculum/stage>=2", whose measure is the first step that meets them. Raises
    ParamsError for a folder without runs.
    """
    conditions = {text: _parse_conditions(text) for text in reach}
    planned: dict[Path, PlannedPoint | None] = {}
    for directory in directories:
        runs = _find_runs(directory)
        if not runs:
            raise ParamsError(f"{directory}: holds no runs; name the folder of a sweep, or of runs")
        known = set(map(os.path.realpath, planned))
        planned |= {run: each for run, each in runs.items() if os.path.realpath(run) not in known}
    settings = {directory: _read_settings(directory, each) for directory, each in planned.items()}
    overrides = [each.point.overrides for each in planned.values() if each is not None]
    listed = [*overrides, *settings.values()]  # in the order of the sweep's file
    names = dict.fromkeys(name for values in listed for name in values if name not in NOT_COMPARED)
    differing = [
        name for name in names if len({str(each[name]) for each in settings.values() if name in each}) > 1
    ]
    told = {os.path.realpath(row.run): row for row in list_runs(directories)}
    results = {
        directory: _read_result(directory, values, differing, conditions, told[os.path.realpath(directory)])
        for directory, values in settings.items()
    }
    first: dict[str, Path] = {}
    for directory, values in settings.items():
        recipe = str({name: value for name, value in values.items() if name != "output_dir"})
        if results[directory].state == "done" and first.setdefault(recipe, directory) != directory:
            reason = f"has the parameters and the seed of {first[recipe]}, so it is in no mean"
            results[directory] = replace(results[directory], state="repeat", reason=reason)
    return list(results.values())


def newest_sweep(outputs: Path) -> Path:
    """Return the folder under `outputs` whose points.json was written last. Raises ParamsError for none."""
    folders = [path.parent for path in outputs.glob(f"*/*/{POINTS_FILE}")]
    if not folders:
        raise ParamsError(
            f"compare.directories = []: there is no sweep under {outputs}; name the folder of one, or of runs"
        )
    return max(folders, key=lambda folder: (folder / POINTS_FILE).stat().st_mtime)


def group_results(results: Sequence[PointResult], *, by: Sequence[str] = ()) -> list[Group]:
    """Return the runs by the values of the fields `by`; without them by all fields, so over seeds."""
    known = list(dict.fromkeys(field for result in results for field in result.fields))
    names = [_match_field(field, known) for field in by] or known
    groups: dict[str, list[PointResult]] = {}
    for result in results:
        label = ", ".join(
            f"{name.rpartition('.')[2]}={_plain(result.fields[name])}"
            for name in names
            if name in result.fields
        )
        groups.setdefault(label or "all runs", []).append(result)
    return [Group(label, tuple(members)) for label, members in groups.items()]


def choose_measures(results: Sequence[PointResult], wanted: Sequence[str] = ()) -> list[str]:
    """Return the measures to show: those named, else the main ones that the runs have."""
    names = list(dict.fromkeys(name for result in results for name in (*result.values, *result.lost)))
    for name in wanted:
        if name not in names:
            raise ParamsError(f"measure {name!r} is in none of these runs{did_you_mean(name, names)}")
    if wanted:
        return list(wanted)
    main = [name for pattern in MAIN_MEASURES for name in names if pattern.search(name)]
    return main[:NUM_SHOWN]


def rank_groups(
    groups: Sequence[Group], measures: Sequence[str], *, lowest_first: bool = False
) -> list[Group]:
    """Return the groups by the mean of the measures, the best first; those without one last.

    The highest is the best, but for measures of LOWER_IS_BETTER, and with lowest_first.
    """
    lowest_first = lowest_first or all(LOWER_IS_BETTER.search(name) for name in measures)

    def key(group: Group) -> float:
        values = group.values(measures)
        return (fmean(values) if lowest_first else -fmean(values)) if values else math.inf

    return sorted(groups, key=key)


def mean_over_runs(values: Sequence[float]) -> Estimate | float | None:
    """Return the mean with Student's interval; without one for a single value."""
    if len(values) < 2:
        return values[0] if values else None
    return student_mean(values)


def compare_groups(
    group: Group, first: Group, measures: Sequence[str]
) -> tuple[Estimate | float | None, str]:
    """Return a group's mean minus that of `first`, over the runs that pair by seed, and what it shows.

    An interval that holds 0 decides nothing.
    """
    if group is first:
        return None, "what the others are compared with"

    def by_seed(each: Group) -> dict[int | None, list[float]]:
        values: dict[int | None, list[float]] = {}
        for result in each.finished:
            if all(name in result.values for name in measures):
                values.setdefault(result.seed, []).append(fmean(result.values[name] for name in measures))
        return values

    ours, theirs = by_seed(group), by_seed(first)
    gaps = [fmean(ours[seed]) - fmean(theirs[seed]) for seed in ours if seed in theirs]
    if len(gaps) < 2:
        return (gaps[0], "one seed shows nothing") if gaps else (None, "no seed in common")
    mean = student_mean(gaps)
    verdict = "lower" if mean.high < 0 else "higher" if mean.low > 0 else "not shown to differ"
    return mean, f"{verdict}; lower in {sum(gap < 0 for gap in gaps)} of {len(gaps)} seeds"


def show_points(results: Sequence[PointResult], measures: Sequence[str]) -> Table:
    """Return one line a run: what differs, how it ended, its last values."""
    fields = list(dict.fromkeys(field for result in results for field in result.fields))
    headers = [*(field.rpartition(".")[2] for field in fields), "seed", "state", "step", *measures]
    rows = [
        (*(_plain(result.fields.get(field)) for field in fields), result.seed, result.state, result.step)
        + tuple(result.values.get(name) for name in measures)
        for result in results
    ]
    return Table(headers, rows, "Last values of each run, never the best ones.")


def show_failures(results: Sequence[PointResult]) -> list[str]:
    """Return a line for each run that is not done, with its reason."""
    return [
        f"{name}: {result.state}" + (f": {result.reason}" if result.reason else "")
        for name, result in zip(_distinct_names(results), results, strict=True)
        if result.state != "done" or result.reason
    ]


def show_groups(
    groups: Sequence[Group],
    measures: Sequence[str],
    *,
    judged_by: Sequence[str] = (),
    first: Group | None = None,
) -> Table:
    """Return one line a group: means over its runs, and the paired difference from the group `first`.

    judged_by: the measures whose mean is compared; without them there is no such column.
    """
    headers = ["group", "runs", *measures]
    caption = "Means over finished runs, with Student's 95% interval over them."
    rows: list[list[object]] = [
        [group.label, len(group.finished), *(mean_over_runs(group.values([name])) for name in measures)]
        for group in groups
    ]
    if judged_by and first is not None and len(groups) > 1:
        headers += ["difference", "so it is"]
        caption += f" Difference: {' and '.join(judged_by)}, minus {first.label}, over paired seeds."
        for row, group in zip(rows, groups, strict=True):
            difference, verdict = compare_groups(group, first, judged_by)
            row += [as_text(difference, signed=True), verdict]
    return Table(headers, rows, caption)


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


def points_csv(results: Sequence[PointResult]) -> str:
    """Return all runs with all of their last values as CSV."""
    fields = list(dict.fromkeys(field for result in results for field in result.fields))
    measures = list(dict.fromkeys(name for result in results for name in result.values))
    rows: list[list[object]] = [
        [point, *(_plain(result.fields.get(field)) for field in fields), result.seed, result.state]
        + [result.step, result.reason, *(result.values.get(name) for name in measures)]
        for point, result in zip(_distinct_names(results), results, strict=True)
    ]
    return _as_csv(["point", *fields, "seed", "state", "step", "reason", *measures], rows)


def groups_csv(groups: Sequence[Group]) -> str:
    """Return the means of all measures over the runs of each group as CSV, a line a group and measure."""
    rows: list[list[object]] = []
    for group in groups:
        for name in dict.fromkeys(name for result in group.finished for name in result.values):
            values = group.values([name])
            mean = mean_over_runs(values)
            ends = [mean.low, mean.high] if isinstance(mean, Estimate) else [None, None]
            rows.append([group.label, name, len(values), fmean(values), *ends])
    return _as_csv(["group", "measure", "runs", "mean", "low", "high"], rows)


def _distinct_names(results: Sequence[PointResult]) -> list[str]:
    """Return the names of the runs, with their folders where a name is that of several runs."""
    names = [result.name for result in results]
    return names if len(set(names)) == len(names) else [str(result.directory) for result in results]


def _as_csv(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([headers, *rows])
    return text.getvalue()


def _interval(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"[{estimate.low:+.3f}, {estimate.high:+.3f}]"


def _plain(value: object) -> str:
    return "–" if value is None else str(value)


def _match_field(field: str, known: Sequence[str]) -> str:
    """Return the field that is meant by its name or its last part. Raises ParamsError."""
    matching = [name for name in known if field in (name, name.rpartition(".")[2])]
    if len(matching) != 1:
        hint = f"; did you mean {' or '.join(matching)}?" if matching else did_you_mean(field, known)
        raise ParamsError(f"--by {field}: the runs do not differ in it{hint}")
    return matching[0]


def _find_runs(directory: Path) -> dict[Path, PlannedPoint | None]:
    """Return {directory of a run: its point, None for a run of no sweep}, in the order of points.json."""
    if not directory.is_dir():
        raise ParamsError(f"{directory}: is not a folder in {Path.cwd()}; name that of a sweep, or of runs")
    runs = [
        run.directory
        for run in find_runs(directory)
        if run.is_point or (run.directory / "params.yaml").is_file()
    ]
    sweeps = [
        folder for folder in {directory, *(run.parent for run in runs)} if (folder / POINTS_FILE).is_file()
    ]
    planned = {
        folder / point.name: PlannedPoint(sweep, point)
        for folder in sweeps
        for sweep in [read_sweep(folder)]
        for point in sweep.points
    }
    return {run: planned.get(run) for run in runs}


def _read_settings(directory: Path, planned: PlannedPoint | None) -> dict[str, object]:
    """Return the parameters of a run as {"section.field": value}; before it starts, those it will have."""
    path = directory / "params.yaml"
    try:
        content = parse_yaml(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        content = None  # damaged; the run itself says so when it goes on
    if isinstance(content, dict):
        return _flatten(content)
    return {} if planned is None else _plan_settings(planned)


def _plan_settings(planned: PlannedPoint) -> dict[str, object]:
    """Return the parameters that a point will write when it starts; its overrides where they are refused."""
    sweep, point = planned
    try:
        overrides = parse_set(*point.assignments())
        params = load_params(sweep.notebook.stem, profile=sweep.profile, overrides=overrides)
    except ParamsError:
        return dict(point.overrides)
    content = parse_yaml(dump_yaml(params))  # as texts, numbers and lists are read back from params.yaml
    return _flatten(content) if isinstance(content, dict) else {}


def _flatten(content: Mapping[object, object]) -> dict[str, object]:
    settings: dict[str, object] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            settings |= {f"{name}.{field}": inner for field, inner in value.items()}
        else:
            settings[str(name)] = value
    return settings


def _read_result(
    directory: Path,
    settings: Mapping[str, object],
    differing: Sequence[str],
    conditions: Mapping[str, Callable[[Mapping[str, float | None]], bool]],
    told: RunRow,
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
    lost = _lost_values(rows)
    if lost:
        listed = ", ".join(lost[:NUM_SHOWN]) + (", ..." if len(lost) > NUM_SHOWN else "")
        problems.append(f"the last value is not a number, and in no mean: {listed}")
    seed = settings.get("seed")
    return PointResult(
        name=directory.name,
        directory=directory,
        fields={name: settings[name] for name in differing if name in settings},
        seed=int(str(seed)) if str(seed).isdigit() else None,
        state=told.state,
        step=int(rows[-1]["step"] or 0) if rows else None,
        rows=rows,
        values={
            **_last_values(rows, conditions),
            **_summary_values(results),
            **_comparison_values(comparisons),
        },
        lost=lost,
        comparisons=comparisons,
        reason="; ".join(problems),
    )


def _last_values(
    rows: Sequence[Mapping[str, float | None]],
    conditions: Mapping[str, Callable[[Mapping[str, float | None]], bool]],
) -> dict[str, float]:
    """Return the last value of each metric, the time of all steps, and the first step of each condition."""
    values: dict[str, float] = {}
    for row in rows:
        values |= {name: value for name, value in row.items() if isinstance(value, int | float)}
    for name in ("time", *_lost_values(rows)):
        values.pop(name, None)
    seconds = [row.get(name) or 0.0 for row in rows for name in PARTS_OF_A_STEP]
    if any(seconds):
        values[TRAINING_MINUTES] = sum(seconds) / 60
    for text, is_met in conditions.items():
        if steps := [row["step"] or 0 for row in rows if is_met(row)]:
            values[text] = steps[0]
    values.pop("step", None)
    return values


def _lost_values(rows: Sequence[Mapping[str, float | None]]) -> list[str]:
    """Return the metrics that were a number before and None at last; what is first in the tables is first."""
    last: dict[str, float | None] = {}
    for row in rows:
        last |= row
    numbers = {name for row in rows for name, value in row.items() if value is not None}
    lost = [name for name, value in last.items() if value is None and name in numbers]
    return sorted(lost, key=lambda name: not any(pattern.search(name) for pattern in MAIN_MEASURES))


def _summary_values(results: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers of a summary, as mbpp_eval and gpt_oss_2048 write it: {"pass_at/1/value": 0.04}."""

    def numbers(name: str, value: object) -> Iterator[tuple[str, float]]:
        if isinstance(value, Mapping):
            for inner, each in value.items():
                yield from numbers(f"{name}/{inner}" if name else str(inner), each)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value

    return {**dict(numbers("", results.get("summary"))), **dict(numbers("figures", results.get("figures")))}


def _comparison_values(comparisons: Sequence[Comparison]) -> dict[str, float]:
    values: dict[str, float] = {}
    for row in comparisons:
        ends = {"low": row.difference.low, "high": row.difference.high}
        parts = {"before": row.before, "after": row.after, "difference": row.difference.value, **ends}
        values |= {f"{row.measure} ({row.split}): {part}": value for part, value in parts.items()}
    return values


def _parse_conditions(text: str) -> Callable[[Mapping[str, float | None]], bool]:
    """Return a test of a row of metrics: "curriculum/stage>=2,curriculum/score>=0.75"."""
    parts: list[tuple[str, float, float]] = []
    for part in text.split(","):
        match = CONDITION.fullmatch(part)
        try:
            name, sign, limit = match.groups() if match else ("", "", "none")
            if math.isnan(float(limit)):
                raise ValueError("no value meets it")
            parts.append((name, 1.0 if sign == ">=" else -1.0, float(limit)))
        except ValueError:
            raise ParamsError(f"--reach {text}: {part!r} is not a condition; write MEASURE>=0.75") from None

    def is_met(row: Mapping[str, float | None]) -> bool:
        values = [row.get(name) for name, _, _ in parts]
        return all(
            value is not None and sign * value >= sign * limit
            for value, (_, sign, limit) in zip(values, parts, strict=True)
        )

    return is_met
