"""The heartbeat of a run: a thread that keeps status.json up to date with the step that has been reached."""

import dataclasses
import datetime
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rlnb.run.directory import HEARTBEAT_SECONDS, Status, now, write_status

TAIL_BYTES = 1 << 18  # of metrics.jsonl, some hundred steps
SIGNAL_SECONDS = 1.0  # by which a signal is in status.json: SLURM may kill the run before the next heartbeat


class MetricsRow(NamedTuple):
    """A row of metrics.jsonl; time: seconds since the epoch."""

    step: int
    time: float
    reward: float | None


def read_last_rows(directory: Path) -> list[MetricsRow]:
    """Return the last rows of a run's metrics.jsonl; damaged lines are left out."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read().splitlines()
    return [row for line in lines if (row := _parse_row(line)) is not None]


def _parse_row(line: bytes) -> MetricsRow | None:
    try:
        row = json.loads(line)
        reward = row.get("reward", row.get("play/score"))
        return MetricsRow(int(row["step"]), float(row["time"]), None if reward is None else float(reward))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def measure_pace(rows: list[MetricsRow], *, since: datetime.datetime) -> tuple[int | None, float | None]:
    """Return the last step and the steps per hour; of rows written since then alone, None for too few."""
    step = rows[-1].step if rows else None
    recent = [row for row in rows if row.time >= since.timestamp()]
    steps = recent[-1].step - recent[0].step if recent else 0
    # The first row of a step: those after it are evaluations.
    seconds = next(row.time for row in recent if row.step == recent[-1].step) - recent[0].time if steps else 0
    return step, round(3600 * steps / seconds, 1) if seconds > 0 else None


class Heartbeat:
    """A context in which a thread writes a run's status every HEARTBEAT_SECONDS; `status` is the latest.

    signal: returns the name of the signal that has come, "" for none. It is asked every SIGNAL_SECONDS, so
    that a run which is killed while it saves does not hide it. A signal's handler could not wake the thread:
    it may interrupt itself, and then waits forever for the lock of an Event.
    """

    def __init__(
        self,
        directory: Path,
        status: Status,
        *,
        signal: Callable[[], str],
        seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self.status = status
        self._directory, self._signal, self._seconds = directory, signal, seconds
        self._is_over = threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.update()

    def update(self) -> None:
        """Bring `status` up to date by metrics.jsonl."""
        since = datetime.datetime.fromisoformat(self.status.started)
        step, pace = measure_pace(read_last_rows(self._directory), since=since)
        self.status = dataclasses.replace(
            self.status, heartbeat=now(), step=step, steps_per_hour=pace, signal=self._signal()
        )

    def _beat(self) -> None:
        written, time_of_it = self.status, time.monotonic()
        while not self._is_over.wait(min(self._seconds, SIGNAL_SECONDS)):
            try:
                if time.monotonic() - time_of_it < self._seconds and self._signal() == written.signal:
                    continue
                self.update()
                write_status(self._directory, self.status)
                written, time_of_it = self.status, time.monotonic()
                self._has_failed = False
            except Exception as error:  # it may pass, and without this thread a run looks dead
                if not self._has_failed:
                    print(f"status.json: cannot be written: {error!r}", file=sys.stderr, flush=True)
                self._has_failed = True
