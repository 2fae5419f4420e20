"""Write a run's metrics to metrics.jsonl, and the same to TensorBoard and W&B."""

import json
import math
import os
import re
import shutil
import sys
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlnb.machine import rank
from rlnb.params.loading import notebook_name
from rlnb.params.sections import NotebookParams, value_of
from rlnb.run.directory import cut_rows, parse_row
from rlnb.run.disk import write_text

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter
    from wandb import Run

STEP_AXIS: Final = "train/global_step"


class DamagedRows(UserWarning):
    """A file of rows has lines that hold none: a crash of a machine leaves zeros, a full disk half a line."""


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """Return the rows of a metrics.jsonl in the order of steps, one row per step.

    Reports of one step are merged, later values win. Damaged lines are left out with a warning, a last line
    torn by a kill without one; a missing file has no rows.
    """
    by_step: dict[int, dict[str, Any]] = {}
    content = Path(path).read_bytes() if Path(path).exists() else b""
    rows = list(map(parse_row, content.split(b"\n")[:-1]))  # lines that have an end
    if num_damaged := rows.count(None):
        warnings.warn(f"{path}: damaged lines left out: {num_damaged}", DamagedRows, stacklevel=2)
    for row in filter(None, rows):
        by_step.setdefault(row["step"], {}).update(row)
    return [by_step[step] for step in sorted(by_step)]


class Tracker:
    """Writes metrics to metrics.jsonl, TensorBoard and W&B."""

    def __init__(
        self, path: Path, *, tensorboard: "SummaryWriter | None" = None, wandb_run: "Run | None" = None
    ) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)  # a row is one write, so a kill leaves whole lines
        self._tensorboard = tensorboard
        self._wandb_run = wandb_run
        self._last_step: int | None = None

    def report(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Write the metrics of one step under exactly their names.

        NaN and infinity become None. The first report of a step carries, on a GPU, `memory/peak_gib`.
        """
        values = {name: _finite_or_none(value) for name, value in metrics.items()}
        if step != self._last_step:
            values |= peak_memory()
            self._last_step = step
        row = {"step": step, "time": time.time(), **values}
        self._write(json.dumps(row, allow_nan=False).encode() + b"\n")
        present = {name: value for name, value in values.items() if value is not None}
        if self._tensorboard is not None:
            for name, value in present.items():
                self._tensorboard.add_scalar(name, value, step)
        if self._wandb_run is not None:
            # Never pass step=: W&B drops rows whose step is smaller than its own counter.
            self._wandb_run.log({**present, STEP_AXIS: step})

    def _write(self, line: bytes) -> None:
        """Write a line. A nearly full disk takes a part of it, which a run that goes on drops."""
        while line:
            line = line[self._file.write(line) :]

    def close(self) -> None:
        """Flush and close everything; W&B uploads what is left."""
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb_run is not None:
            self._wandb_run.finish()

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_run_tracker(params: NotebookParams, *, step: int) -> Tracker:
    """Return the tracker of a run that has made `step` steps: metrics.jsonl, tensorboard/, W&B's folder.

    Rows of later steps, written by an attempt that was killed before its next checkpoint, are dropped, so
    that every step occurs once. Under torchrun only rank 0 writes.
    """
    if rank() != 0:
        return Tracker(Path(os.devnull))
    from torch.utils.tensorboard import SummaryWriter  # slow, and readers of metrics do not need it

    directory, mode = Path(params.output_dir), value_of(params, "tracking.wandb")
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "metrics.jsonl"
    cut_rows(path, after=step or -1)
    for table in directory.glob("checkpoints/completions/*.parquet"):  # TRL's, which the live plot shows
        if (name := re.fullmatch(r"completions_(\d+)", table.stem)) and int(name[1]) > step:
            table.unlink()
    # From purge_step on TensorBoard ignores what earlier files of this directory hold.
    writer = SummaryWriter(str(directory / "tensorboard"), purge_step=step + 1)
    wandb_run = None if mode == "disabled" else _open_wandb(params, directory, mode)
    if mode == "offline":
        _rewrite_offline_run(directory, wandb_run, read_metrics(path))
    return Tracker(path, tensorboard=writer, wandb_run=wandb_run)


def label_run(params: NotebookParams) -> dict[str, object]:
    """Return W&B's name, group, type and tags of a run, from its pipeline, profile, model and folder."""
    pipeline, profile = notebook_name(params), params._profile
    model = Path(value_of(params, "model.id")).name
    return {
        "name": f"{pipeline} {model} {Path(params.output_dir).name}",
        "group": pipeline,
        "job_type": profile,
        "tags": [label[:64] for label in (pipeline, profile, model)],  # W&B refuses longer ones
    }


def peak_memory() -> dict[str, float | None]:
    """Return the most GPU memory that torch has had allocated so far; nothing where it uses no GPU."""
    torch = sys.modules.get("torch")  # not imported here: readers of metrics do not need it
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {"memory/peak_gib": torch.cuda.max_memory_allocated() / 2**30}


def _finite_or_none(value: Any) -> float | None:
    """Return a number or one-element array as a Python number, None where it is missing or not finite."""
    plain: float | None = value.item() if hasattr(value, "item") else value
    return plain if plain is not None and math.isfinite(plain) else None


def _rewrite_offline_run(directory: Path, wandb_run: "Run", rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows of earlier attempts into a new offline run, and remove the folders of those attempts.

    W&B opens a new folder each time, and a folder that an attempt left when it was killed may hold steps that
    the next one repeats. Thus there is one folder for a run, and it holds each step once.
    """
    for row in rows:
        values = {name: value for name, value in row.items() if value is not None}
        step, seconds = values.pop("step"), values.pop("time")
        wandb_run.log({**values, STEP_AXIS: step, "_timestamp": seconds})
    current = Path(wandb_run.dir).parent  # of .../files
    for folder in [*(directory / "wandb").glob("offline-run-*")]:
        if folder.resolve() != current.resolve():
            shutil.rmtree(folder, ignore_errors=True)


def _open_wandb(params: NotebookParams, directory: Path, mode: str) -> "Run":
    """Return a W&B run whose id is saved in the directory, so that a resumed run continues its curve."""
    import wandb

    if mode == "offline":
        # Its messages advise `wandb sync`, in colours that a log shows as codes. Here and not for
        # the run alone: TRL asks for the run's address with each checkpoint, which is warned of.
        wandb.setup(wandb.Settings(silent=True))
    id_file = directory / "wandb_run_id.txt"
    if not id_file.exists() or not id_file.read_text().strip():  # a full disk may have left it empty
        write_text(id_file, uuid.uuid4().hex[:12])
    run = wandb.init(
        project=value_of(params, "tracking.project"),
        **label_run(params),  # type: ignore[arg-type]
        id=id_file.read_text().strip(),
        resume="allow" if mode == "online" else None,  # offline there is nothing to look up: W&B would warn
        mode=mode,  # type: ignore[arg-type]
        dir=str(directory),
        config=params.model_dump(),
        settings=wandb.Settings(console="off", quiet=True),
    )
    upload = f"offline; upload it by `wandb sync {directory}/wandb/offline-*`"
    print(f"W&B: {run.url if mode == 'online' else upload}")
    run.define_metric(STEP_AXIS)
    run.define_metric("*", step_metric=STEP_AXIS)
    return run
