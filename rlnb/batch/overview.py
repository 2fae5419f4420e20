"""`rlnb runs`: the state of all runs in some folders, also of those that can no longer say it themselves."""

import csv
import datetime
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

from rlnb.errors import ParamsError
from rlnb.run.directory import POINTS_FILE, Status, read_status
from rlnb.run.heartbeat import measure_pace, read_last_rows
from rlnb.run.slurm import RUNNING, jobs_in_queue

JOB_FILE = "job.json"  # in the folder of a run or a sweep: {"job": ..., "points": [...], "log": ...}
RUN_FILES = ("status.json", "params.yaml")
# Lines of params.yaml, as `dump_yaml` writes them: this also reads a file that is cut off.
MAX_STEPS = re.compile(r"^training:\n(?: .*\n)*?  max_steps: (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class RunRow:
    """A row of the table of runs.

    state: done, running, preempted, failed, died at step N, waiting (its job is in the queue), pending (a
    point of a sweep that has not begun), new or unreadable. eta: hours:minutes until the last step.
    """

    run: str
    state: str
    step: int | None = None
    max_steps: int | None = None
    steps_per_hour: float | None = None
    eta: str = ""
    reward: float | None = None
    attempts: int = 0
    ended: str = ""
    job: str = ""
    host: str = ""
    reason: str = ""


@dataclass(frozen=True)
class FoundRun:
    """The directory of a run, or of a point that has none yet. job: that was submitted for it last."""

    directory: Path
    is_point: bool = False
    job: str = ""


def refuse_queued(folder: Path) -> None:
    """Raise ParamsError where the job that was submitted for a folder is still in the queue."""
    job = str(_read_json(folder / JOB_FILE).get("job", ""))
    if queue := jobs_in_queue([job]):
        state = next(iter(queue.values())).lower()
        raise ParamsError(
            f"{folder}: its job {job} is {state} already. Give another --out, or scancel {job}."
        )


def list_runs(directories: Sequence[Path]) -> list[RunRow]:
    """Return a row for each run in and below directories, under the path by which it is found first.

    Raises ParamsError for a directory that is missing.
    """
    for directory in directories:
        if not directory.is_dir():
            raise ParamsError(f"{directory}: is not a directory; name one that holds runs")
    runs: dict[str, FoundRun] = {}
    for run in (run for directory in directories for run in find_runs(directory)):
        path = os.path.realpath(run.directory)
        first = runs.setdefault(path, run)
        if run.is_point:  # Only the folder of a sweep tells the job of a point.
            runs[path] = replace(run, directory=first.directory)
    jobs = {run.job for run in runs.values()} | {_read_job(run.directory) for run in runs.values()}
    queue = jobs_in_queue(jobs)
    return [_describe(run, queue) for run in runs.values()]


def find_runs(folder: Path) -> Iterator[FoundRun]:
    """Yield the runs in and below a folder, points of sweeps that have not begun among them.

    A folder may hold a sweep and also be the directory of a run.
    """
    for path, names, files in os.walk(folder):
        directory = Path(path)
        is_sweep, is_run = POINTS_FILE in files, not set(files).isdisjoint(RUN_FILES)
        if is_sweep:
            points = dict(_find_points(directory))
            yield from points.values()
            names[:] = [name for name in names if directory / name not in points]
        if is_run or (JOB_FILE in files and not is_sweep):
            submitted = _read_json(directory / JOB_FILE)
            is_array = is_sweep and submitted.get("points")
            yield FoundRun(directory, job="" if is_array else str(submitted.get("job", "")))
        if is_run:  # A job alone may have been given a folder of runs.
            names.clear()
        names[:] = sorted(name for name in names if not name.startswith("."))


def _find_points(folder: Path) -> Iterator[tuple[Path, FoundRun]]:
    submitted = _read_json(folder / JOB_FILE)
    array, selected = str(submitted.get("job", "")), submitted.get("points", [])
    points = _read_json(folder / POINTS_FILE).get("points", [])
    for index, point in enumerate(points if isinstance(points, list) else []):
        if isinstance(point, dict) and point.get("name"):
            is_submitted = array and isinstance(selected, list) and index in selected
            directory = folder / str(point["name"])
            yield (
                directory,
                FoundRun(directory, is_point=True, job=f"{array}_{index}" if is_submitted else ""),
            )


def _read_json(path: Path) -> dict[str, object]:
    """Return the object in a JSON file, {} where it is missing or damaged."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _read_job(directory: Path) -> str:
    """Return the job of status.json as it stands there, "" where it says none."""
    return str(_read_json(directory / "status.json").get("job", ""))


def _describe(run: FoundRun, queue: Mapping[str, str] | None) -> RunRow:
    name = str(run.directory)
    try:
        status, rows = read_status(run.directory, jobs=queue), read_last_rows(run.directory)
        path = run.directory / "params.yaml"
        match = (
            MAX_STEPS.search(path.read_text(encoding="utf-8", errors="replace")) if path.exists() else None
        )
    except OSError as error:
        return RunRow(name, "unreadable", reason=f"{error.filename}: {error.strerror}")
    step, max_steps = rows[-1].step if rows else None, int(match[1]) if match else None
    rewards = [row.reward for row in rows if row.reward is not None]
    jobs = [job for job in (run.job, status.job if status else "") if job]
    queued = next((job for job in jobs if queue and job in queue), "")
    state = _name_state(run, status, step, queue[queued] if queue and queued else "")
    pace = measure_pace(rows, since=status.started) if status and status.started else None
    is_told = status is not None and state not in ("waiting", "done", "running")
    return RunRow(
        name,
        state,
        step,
        max_steps,
        pace,
        _time_left(step, max_steps, pace) if state == "running" else "",
        rewards[-1] if rewards else None,
        attempts=status.attempt if status else 0,
        ended=status.ended if status and state != "running" else "",
        job=queued or (jobs[0] if jobs else ""),
        host=status.host if status else "",
        reason=status.reason if status and is_told else "",
    )


def _name_state(run: FoundRun, status: Status | None, step: int | None, in_queue: str) -> str:
    """Return the state of a run. in_queue: SLURM's word for its job, "" for none."""
    if status is not None and status.state in ("running", "done"):
        return status.state
    if in_queue and (status is None or in_queue not in RUNNING):
        return "waiting"
    if status is None:
        return "pending" if run.is_point else "new"
    return f"died at step {step or 0}" if status.state == "killed" else status.state


def _time_left(step: int | None, max_steps: int | None, pace: float | None) -> str:
    if step is None or max_steps is None or not pace:
        return ""
    minutes = round(60 * max(0, max_steps - step) / pace)
    return f"{minutes // 60}:{minutes % 60:02d}"


def runs_csv(rows: Sequence[RunRow]) -> str:
    """Return the rows as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(RunRow)])
    writer.writerows(map(astuple, rows))
    return text.getvalue()


def runs_text(rows: Sequence[RunRow]) -> str:
    """Return the rows as a table for a terminal, and a line that counts their states."""
    from rlnb.display.tables import Table  # pandas, which CSV does without

    headers = ["run", "state", "step", "steps/h", "ETA", "reward", "attempts", "ended", "job", "reason"]
    paths = [Path(row.run) for row in rows]
    if len({path.is_absolute() for path in paths}) > 1:
        paths = [path.absolute() for path in paths]
    above = Path(os.path.commonpath([path.parent for path in paths])) if rows else Path()
    cells = []
    for path, row in zip(paths, rows, strict=True):
        step = row.step if row.max_steps is None else f"{row.step or 0}/{row.max_steps}"
        values = [row.state, step, row.steps_per_hour and f"{row.steps_per_hour:g}", row.eta, row.reward]
        values += [row.attempts or None, _local_time(row.ended), row.job, row.reason]
        shown = ("" if value is None else value for value in values)
        cells.append([str(path.relative_to(above)), *shown])
    states = [row.state.split(" at ")[0] for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    table = Table(headers, cells, f"in {above}:")
    return f"{table!r}\n{len(rows)} runs: {counts}" if rows else "no runs"


def _local_time(text: str) -> str:
    try:
        return datetime.datetime.fromisoformat(text).astimezone().strftime("%m-%d %H:%M")
    except ValueError:
        return text
