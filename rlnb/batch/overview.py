"""`rlnb runs`: the state of all runs in some folders, also of those that can no longer say it themselves."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlnb.errors import ParamsError
from rlnb.run.directory import POINT_NAME, POINTS_FILE, Status, read_last_step, read_status
from rlnb.run.disk import RECIPE_FILE
from rlnb.run.slurm import RUNNING, jobs_in_queue

JOB_FILE = "job.json"  # in the folder of a run or a sweep: {"job": ..., "points": [...]}
# What SLURM writes into a job's log, by a cgroup or by its own count.
OUT_OF_MEMORY = re.compile(r"slurmstepd\S*: error: (.*(?:oom[-_ ]?kill|memory limit).*)", re.IGNORECASE)
LOG_FILE = "run.log"  # of a point that `rlnb sweep` runs on this machine
RUN_FILES = ("status.json", "params.yaml")


@dataclass(frozen=True)
class RunRow:
    """A row of the table of runs.

    state: done, running, preempted, failed, died at step N, waiting (its job is in the queue), pending (a
    point of a sweep that has not begun), new or unreadable. started: when its last attempt did, in UTC.
    """

    run: str
    state: str
    step: int | None = None
    job: str = ""
    started: str = ""
    reason: str = ""


@dataclass(frozen=True)
class FoundRun:
    """The directory of a run, or of a point that has none yet. job: that was submitted for it last."""

    directory: Path
    is_point: bool = False
    job: str = ""


def refuse_queued(folder: Path) -> None:
    """Raise ParamsError where the job that was submitted for a folder is still in the queue."""
    job = _submitted_job(folder)
    if queue := jobs_in_queue([job]):
        state = next(iter(queue.values())).lower()
        raise ParamsError(
            f"{folder}: its job {job} is {state} already. Give another --out, scancel {job}, or let the "
            f"further job wait for it: -- --dependency=afterany:{job}"
        )


def waits_for_job(folder: Path, dependency: str) -> bool:
    """Return whether a job with this dependency of sbatch begins when the folder's last job has ended."""
    job = _submitted_job(folder)
    after = rf"\bafter(any|ok|notok|corr)[:\d]*:{job}\b"
    return bool(job) and (dependency == "singleton" or bool(re.search(after, dependency)))


def _submitted_job(folder: Path) -> str:
    return str(_read_json(folder / JOB_FILE).get("job", ""))


def list_runs(directories: Sequence[Path]) -> list[RunRow]:
    """Return a row for each run in and below directories, under the path by which it is found first.

    Raises ParamsError for a directory that is missing.
    """
    runs: dict[str, FoundRun] = {}
    for directory in directories:
        if not directory.is_dir():
            raise ParamsError(f"{directory}: is not a directory; name one that holds runs")
        for run in find_runs(directory):
            path = os.path.realpath(run.directory)
            first = runs.setdefault(path, run)
            if run.is_point:  # Only the folder of a sweep tells the job of a point.
                runs[path] = replace(run, directory=first.directory)
    jobs: set[str] = set()
    for run in runs.values():
        status = _read_json(run.directory / "status.json")
        if status.get("state") != "done":  # a command takes 128 KiB of names
            jobs |= {run.job, str(status.get("job", ""))}
    queue = jobs_in_queue(jobs)
    return [_describe(run, queue) for run in runs.values()]


def find_runs(folder: Path) -> Iterator[FoundRun]:
    """Yield the runs in and below a folder, points of sweeps that have not begun among them.

    A folder may hold a sweep and also be the directory of a run.
    """
    seen: set[str] = set()
    for path, names, files in os.walk(folder, followlinks=True):
        directory, place = Path(path), os.path.realpath(path)
        if place in seen:  # by a link
            names.clear()
            continue
        seen.add(place)
        submitted = _read_json(directory / JOB_FILE)
        job, tasks = str(submitted.get("job", "")), submitted.get("points") or []
        points = _read_points(directory / POINTS_FILE)
        for index, name in enumerate(points):
            point_job = f"{job}_{index}" if index in tasks else ""
            yield FoundRun(directory / name, is_point=True, job=point_job)
        # A checkpoint has params.yaml, too.
        is_run = RECIPE_FILE not in files and not set(files).isdisjoint(RUN_FILES)
        if is_run or (JOB_FILE in files and not points):
            yield FoundRun(directory, job="" if tasks else job)
        if is_run:  # A job alone may have been given a folder of runs.
            names.clear()
        names[:] = sorted(name for name in names if name not in points and not name.startswith("."))


def _read_points(path: Path) -> list[str]:
    """Return the names of a sweep's points, [] where one is none: it would lead out of the sweep's folder."""
    try:
        names = [str(point["name"]) for point in _read_json(path).get("points", [])]
    except (LookupError, TypeError):
        return []
    return names if all(re.fullmatch(POINT_NAME, name) for name in names) else []


def _read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, {} where it is missing or damaged."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _describe(run: FoundRun, queue: Mapping[str, str] | None) -> RunRow:
    name = str(run.directory)
    try:
        status, step = read_status(run.directory, ask=lambda _: queue), read_last_step(run.directory)
    except OSError as error:
        return RunRow(name, "unreadable", reason=f"{error.filename}: {error.strerror}")
    if status and status.state == "killed":
        status = replace(status, reason=_find_memory_end(run.directory, status.job) or status.reason)
    jobs = [job for job in (run.job, status.job if status else "") if job]
    queued = next((job for job in jobs if queue and job in queue), "")
    state = _name_state(run, status, step, queue[queued] if queue and queued else "")
    has_ended = bool(run.job) and queue is not None and not queued
    if status is None and has_ended and (reason := _last_line(_read_log(run.directory, run.job))):
        return RunRow(name, "failed", job=run.job, reason=reason)  # its job began no run
    is_told = status is not None and state not in ("waiting", "done", "running")
    return RunRow(
        name,
        state,
        step,
        job=queued or (jobs[0] if jobs else ""),
        started=status.started if status else "",
        reason=status.reason if status and is_told else "",
    )


def last_line(directory: Path) -> str:
    """Return the last line of a point's log, "" without a log."""
    log = directory / LOG_FILE
    return _last_line(log.read_text(encoding="utf-8", errors="replace") if log.is_file() else "")


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2].strip()


def _read_log(directory: Path, job: str) -> str:
    """Return what the last attempt of a job has written into its log, "" without a log."""
    logs = [log for folder in (directory, directory.parent) for log in folder.glob(f"*-{job}.log") if job]
    texts = [log.read_text(encoding="utf-8", errors="replace") for log in logs]
    return texts[0].rpartition(f" job {job} on ")[2] if texts else ""


def _find_memory_end(directory: Path, job: str) -> str:
    """Return what SLURM has written at the end of a job's log about its memory, "" for nothing."""
    match = OUT_OF_MEMORY.search(_read_log(directory, job))
    return f"memory ran out: {match[1]}" if match else ""


def _name_state(run: FoundRun, status: Status | None, step: int | None, in_queue: str) -> str:
    """Return the state of a run. in_queue: SLURM's word for its job, "" for none."""
    if status is not None and status.state in ("running", "done"):
        return status.state
    if in_queue and (status is None or in_queue not in RUNNING):
        return "waiting"
    if status is None:
        return "pending" if run.is_point else "new"
    return f"died at step {step or 0}" if status.state == "killed" else status.state
