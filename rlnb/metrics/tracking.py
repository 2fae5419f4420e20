"""The tracker: a run always has `metrics.jsonl`; TensorBoard and W&B get the same."""

import json
import math
import os
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rlnb.machine import rank
from rlnb.metrics.names import describe

STEP_AXIS: Final = "train/global_step"


class UnknownMetric(UserWarning):
    """A metric was reported under a name that METRICS does not have."""


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl in the order of steps, one row a step.

    Reports of one step are joined, the later wins. A last line torn by a kill is left out; a file that
    is not there yet has no rows.
    """
    by_step: dict[int, dict[str, Any]] = {}
    for row in _whole_rows(Path(path)):
        by_step.setdefault(row["step"], {}).update(row)
    return [by_step[step] for step in sorted(by_step)]


class Tracker:
    """Writes metrics to metrics.jsonl and, where there is one, to a TensorBoard writer and a W&B run.

    Made by `open_tracker`. `seconds` is the wall time that it has taken itself so far.
    """

    def __init__(self, path: Path, *, tensorboard: Any = None, wandb_run: Any = None) -> None:
        self.path = path
        self.seconds = 0.0
        self._file = path.open("ab", buffering=0)  # a row is one write, so a kill leaves whole lines
        self._tensorboard = tensorboard
        self._wandb_run = wandb_run
        self._unknown: set[str] = set()
        self._timed_step: int | None = None
        self._timed_seconds = 0.0

    def report(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write the metrics of one step under exactly their names.

        Values are numbers or None (nothing to report; NaN and infinity become None too). The first report
        of a step carries `time/tracking_seconds`. A name that METRICS does not have is written all the
        same and warned about once: a typing error must not end a run of hours, and tests turn the warning
        `UnknownMetric` into an error.
        """
        with self._timed():
            values = {name: _number(value) for name, value in metrics.items()}
            if step != self._timed_step:
                values["time/tracking_seconds"] = self.seconds - self._timed_seconds
                self._timed_step, self._timed_seconds = step, self.seconds
            self._warn_of_unknown(values)
            row = {"step": step, "time": time.time(), **values}
            self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
            present = {name: value for name, value in values.items() if value is not None}
            if self._tensorboard is not None:
                self._tensorboard.add_event(_tensorboard_event(step, present))
            if self._wandb_run is not None:
                # Never step=: W&B drops what comes with a smaller step than its own counter.
                self._wandb_run.log({**present, STEP_AXIS: step})

    def close(self) -> None:
        """Flush and close everything; W&B uploads what is left."""
        with self._timed():
            self._file.close()
            if self._tensorboard is not None:
                self._tensorboard.close()
            if self._wandb_run is not None:
                self._wandb_run.finish()

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started

    def _warn_of_unknown(self, values: Mapping[str, float | None]) -> None:
        for name in values:
            if name not in self._unknown and describe(name) is None:
                self._unknown.add(name)
                warnings.warn(
                    f"metric {name!r} is not in rlnb.metrics.METRICS; it is written, but undocumented. "
                    f"Add it to the table or correct the name.",
                    UnknownMetric,
                    stacklevel=4,
                )


def open_tracker(
    output_dir: Path | str,
    *,
    config: Mapping[str, Any],
    resume_step: int = 0,
    wandb: str = "disabled",
    project: str = "rlnb",
    run_name: str = "",
    tensorboard: bool = True,
) -> Tracker:
    """A tracker that writes to output_dir: metrics.jsonl, tensorboard/, and the W&B run's own folder.

    resume_step: the step that training goes on from, 0 at a fresh start. Rows of later steps, written
    by an attempt that was killed before its next checkpoint, are dropped, so that every step is there
    once. config: what W&B shows beside the run. wandb: "online", "offline" or "disabled", as
    `rlnb.params.resolve` has settled it. The others: the fields of `tracking` in the parameters. Under
    torchrun only rank 0 writes; the trackers of the others do nothing.
    """
    if rank() != 0:
        return Tracker(Path(os.devnull))
    directory = Path(output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "metrics.jsonl"
    _drop_rows_after(path, resume_step)
    return Tracker(
        path,
        tensorboard=_open_tensorboard(directory / "tensorboard", resume_step) if tensorboard else None,
        wandb_run=None
        if wandb == "disabled"
        else _open_wandb(directory, mode=wandb, project=project, run_name=run_name, config=config),
    )


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = value.item() if hasattr(value, "item") else value
    return number if math.isfinite(number) else None


def _whole_rows(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)


def _drop_rows_after(path: Path, step: int) -> None:
    """Rewrite the file without rows after `step`, all where that is 0, and without a torn last line."""
    if not path.exists():
        return
    kept = path.with_suffix(".jsonl.tmp")
    with kept.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in _whole_rows(path) if row["step"] <= step > 0)
    kept.replace(path)


def _open_tensorboard(directory: Path, resume_step: int) -> Any:
    """TensorBoard's own writer: torch's wrapper around it would import torch into every reader of metrics."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(directory))
    # TensorBoard forgets what earlier files of this folder hold from this step on.
    start = SessionLog(status=SessionLog.START)
    writer.add_event(Event(wall_time=time.time(), step=resume_step + 1, session_log=start))
    return writer


def _tensorboard_event(step: int, values: Mapping[str, float]) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
    return Event(wall_time=time.time(), step=step, summary=Summary(value=scalars))


def _open_wandb(directory: Path, *, mode: str, project: str, run_name: str, config: Mapping[str, Any]) -> Any:
    """A W&B run whose id is kept in the directory, so that a resumed run goes on in the same curve."""
    import wandb

    id_file = directory / "wandb_run_id.txt"
    if not id_file.exists():
        id_file.write_text(uuid.uuid4().hex[:12])
    run = wandb.init(
        project=project,
        name=run_name or None,
        id=id_file.read_text().strip(),
        resume="allow" if mode == "online" else None,  # offline there is nothing to look up: W&B would warn
        mode=mode,  # type: ignore[arg-type]
        dir=str(directory),
        config=dict(config),
        settings=wandb.Settings(console="off", quiet=True),
    )
    run.define_metric(STEP_AXIS)
    run.define_metric("*", step_metric=STEP_AXIS)
    return run
