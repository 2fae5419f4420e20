"""The signs of life of a run: a file that a thread touches, and its pace by the rows of metrics.jsonl."""

import dataclasses
import datetime
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rlnb.run.directory import HEARTBEAT_SECONDS, Status, touch_heartbeat, write_status

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


def measure_pace(rows: list[MetricsRow], *, since: str) -> float | None:
    """Return the steps per hour by the rows written since an ISO time, None for too few."""
    recent = [row for row in rows if row.time >= datetime.datetime.fromisoformat(since).timestamp()]
    steps = recent[-1].step - recent[0].step if recent else 0
    # The first row of a step: those after it are evaluations.
    seconds = next(row.time for row in recent if row.step == recent[-1].step) - recent[0].time if steps else 0
    return round(3600 * steps / seconds, 1) if seconds > 0 else None


class Heartbeat:
    """A context in which a thread touches the run's heartbeat file every HEARTBEAT_SECONDS.

    A model that loads and an evaluation write no metrics, so their times would not do. signal: returns the
    name of the signal that has come, "" for none. It is asked every SIGNAL_SECONDS and written into `status`,
    so that a run which is killed while it saves does not hide it. A signal's handler could not wake the
    thread: it may interrupt itself, and then waits forever for the lock of an Event.
    """

    def __init__(self, directory: Path, status: Status, *, signal: Callable[[], str]) -> None:
        self.status = status
        self._directory, self._signal = directory, signal
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._is_over.wait(SIGNAL_SECONDS):
            try:
                if self._signal() != self.status.signal:
                    status = dataclasses.replace(self.status, signal=self._signal())
                    write_status(self._directory, status)
                    self.status = status
                if time.monotonic() - last >= HEARTBEAT_SECONDS:
                    touch_heartbeat(self._directory)
                    last = time.monotonic()
            except OSError as error:  # it may pass, and without this thread a run looks dead elsewhere
                print(f"{self._directory}: the heartbeat cannot be written: {error!r}", file=sys.stderr)
