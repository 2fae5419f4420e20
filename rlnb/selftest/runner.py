"""Runs the rows of the self-test, each in a process of its own, and reports them. Imports no torch.

A process that crashes, hangs or uses up the memory ends its row alone.
"""

import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

import rlnb
from rlnb.errors import ParamsError, RlnbError, see
from rlnb.machine import Machine, installed_version, probe
from rlnb.run.directory import EXIT_PREEMPTED, StoppedEarly, stopping_early
from rlnb.selftest.rows import ROWS, Row

State = Literal["ok", "FAILED", "skipped"]
REPORT = "selftest.json"
PACKAGES = (
    "torch", "triton", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes", "unsloth",
    "unsloth-zoo", "vllm", "open-spiel",
)  # fmt: skip
NUM_LAST_LINES = 40  # of a failed row's output, kept in the report


@dataclass(frozen=True)
class RowResult:
    """A row after its run. headline: what it measured, with its unit. fault: the reason of FAILED or skipped.

    peak_memory_gib: of the GPU where there is one, else of the process; None for a process that died. output:
    the last lines of a failed row.
    """

    row: str
    state: State
    seconds: float
    peak_memory_gib: float | None = None
    headline: str = ""
    fault: str = ""
    measured: dict[str, JsonValue] = dataclasses.field(default_factory=dict)
    output: tuple[str, ...] = ()

    def line(self) -> str:
        memory = "-" if self.peak_memory_gib is None else f"{self.peak_memory_gib:.2f}"
        seconds = "-" if self.state == "skipped" else f"{self.seconds:.1f}"
        text = "; ".join(part for part in (self.headline, self.fault) if part)
        return f"{self.row:9} {self.state:8} {seconds:>7} {memory:>7}  {text}"


HEADER = f"{'row':9} {'state':8} {'seconds':>7} {'GiB':>7}  number; fault"


class ReportNotWritable(RlnbError):
    """The file for the numbers cannot be written."""


def main(names: Sequence[str] = (), *, as_json: bool = False) -> int:
    """Run the named rows, or all, with a line each; return 1 if any failed. Writes selftest.json."""
    known = [row.name for row in ROWS]
    if unknown := [name for name in names if name not in known]:
        raise ParamsError(f"--selftest: has no row {unknown[0]!r}; its rows are {', '.join(known)}")
    chosen = [row for row in ROWS if not names or row.name in names]
    return run_all(chosen, probe(ask_hub=False), as_json=as_json)


def run_all(rows: Sequence[Row], machine: Machine, *, as_json: bool = False) -> int:
    """Run these rows on this machine, as `main` does. Raises ReportNotWritable before the first one.

    A signal, such as Ctrl-C, ends the row that runs; the rows before it are reported and 85 is returned.
    """
    report: dict[str, JsonValue] = describe_machine(machine)
    results: list[RowResult] = []
    started, path = time.monotonic(), Path(REPORT).absolute()

    def write() -> None:
        report["seconds"] = round(time.monotonic() - started, 1)
        report["rows"] = [dataclasses.asdict(result) for result in results]
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    try:
        write()
    except OSError as error:
        raise ReportNotWritable(
            f"{path}: cannot be written ({error.strerror}); call from another directory"
        ) from None
    print(f"{machine.accelerator or 'no GPU'}, {machine.cpu_count} cores, no network is used\n{HEADER}")
    stopped_by = ""
    try:
        with stopping_early(), tempfile.TemporaryDirectory(prefix="rlnb-selftest-") as folder:
            for row in rows:
                results.append(run_row(row, machine, Path(folder)))
                print(results[-1].line(), flush=True)
                write()  # after each row, so that a killed self-test leaves what it found
    except StoppedEarly as stop:  # the row's process has been ended
        stopped_by = stop.signal
    num_failed = sum(result.state == "FAILED" for result in results)
    advice = f"{num_failed} failed{see('the-self-test')}" if num_failed else "none failed"
    if stopped_by:
        unfinished = [row.name for row in rows[len(results) :]]
        advice += f", stopped by {stopped_by} before {', '.join(unfinished) or 'its end'}"
    print(f"{len(results)} rows in {report['seconds']} s, {advice}. The numbers are in {path}")
    if as_json:
        print(json.dumps(report))
    return EXIT_PREEMPTED if stopped_by else int(num_failed > 0)


def describe_machine(machine: Machine) -> dict[str, JsonValue]:
    """Return the machine and the versions on it, without names of users or hosts."""
    versions: dict[str, JsonValue] = {name: installed_version(name) for name in PACKAGES}
    return {
        "rlnb": rlnb.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "machine": dataclasses.asdict(machine),
        "versions": versions,
    }


def run_row(row: Row, machine: Machine, folder: Path) -> RowResult:
    """Run a row in a process of its own, and end that process and its children with it."""
    if reason := row.missing(machine):
        return RowResult(row.name, "skipped", 0.0, fault=reason)
    row_folder, models = folder / row.name, folder / "models"
    for directory in (row_folder, models):
        directory.mkdir(exist_ok=True)
    result, log = row_folder / "result.json", row_folder / "output.txt"
    command = [
        sys.executable,
        "-m",
        "rlnb.selftest.child",
        row.function,
        *map(str, (row_folder, models, result)),
    ]
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env=environment(row_folder), start_new_session=True,
        )  # fmt: skip
        try:
            fault = describe_end(process.wait(row.limit_seconds))
        except subprocess.TimeoutExpired:
            fault = f"did not end within {row.limit_seconds:g} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seconds = round(time.monotonic() - started, 1)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    report = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {"fault": fault}
    if not report["fault"]:
        return RowResult(row.name, "ok", seconds, **report)
    return RowResult(row.name, "FAILED", seconds, output=tuple(lines[-NUM_LAST_LINES:]), **report)


def environment(folder: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of a row's process: no network, no tracker, caches that vanish with the folder."""
    offline = {"RLNB_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    return {**environ, **offline, "UNSLOTH_COMPILE_LOCATION": str(folder / "unsloth_cache")}


def describe_end(code: int) -> str:
    """Return how a process ended that left no result."""
    if code >= 0:
        return f"ended with exit code {code} and no result"
    name = signal.Signals(-code).name
    return f"killed by {name}" + (", most often because the memory is used up" if name == "SIGKILL" else "")
