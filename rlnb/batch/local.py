"""The points of a sweep on this machine, some at a time, each a `rlnb run` of its own."""

import os
import subprocess
import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import FrameType

from rlnb.batch.overview import refuse_queued
from rlnb.batch.sweeps import Sweep, write_sweep
from rlnb.machine.facts import usable_cores
from rlnb.run import directory as runs
from rlnb.run.headless import is_finished

LOG_FILE = "run.log"


def run_points(sweep: Sweep, *, num_jobs: int) -> int:
    """Run the checked points that are not done, and return the exit code of `rlnb sweep`.

    A failing point does not end the others. A signal is passed on to all points, which save and stop, and no
    further one is started. Raises RunInUse if another `rlnb sweep` runs in this folder.
    """
    signals: list[int] = []
    processes: list[subprocess.Popen[bytes]] = []
    environment = share_cores(num_jobs)

    def stop(signal_number: int, frame: FrameType | None) -> None:
        signals.append(signal_number)
        for process in processes:
            process.send_signal(signal_number)

    def run(index: int) -> int:
        if signals:
            return runs.EXIT_PREEMPTED
        directory = sweep.run_directory(index)
        directory.mkdir(exist_ok=True)
        with (directory / LOG_FILE).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "rlnb.cli", *sweep.run_arguments(index)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches us alone, and the points once, through us
            )
        processes.append(process)
        if signals:  # it came while the process was being started
            process.send_signal(signals[-1])
        return process.wait()

    with runs.locked(sweep.directory):
        refuse_queued(sweep.directory)
        waiting = [
            index
            for index, params in sweep.params.items()
            if not is_finished(sweep.run_directory(index), params)
        ]
        write_sweep(sweep)
        num_points, codes = len(sweep.params), [runs.EXIT_DONE] * (len(sweep.params) - len(waiting))
        print(f"{sweep.directory}: {num_points} points, {len(codes)} of them done before", flush=True)
        with runs.handling_signals(stop), ThreadPoolExecutor(num_jobs) as pool:
            indices = {pool.submit(run, index): index for index in waiting}
            for future in as_completed(indices):
                codes.append(future.result())
                how = _describe_end(sweep, indices[future], codes[-1])
                print(f"{codes.count(runs.EXIT_DONE)} of {num_points} done; {how}", flush=True)
    return _conclude(sweep, codes, was_stopped=bool(signals))


def share_cores(num_jobs: int) -> dict[str, str]:
    """Return the environment of the points: each computes with its share of the cores, unless it is set."""
    environment = dict(os.environ)
    if num_jobs > 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores(os.environ) // num_jobs)))
    return environment


def _describe_end(sweep: Sweep, index: int, code: int) -> str:
    name, directory = sweep.points[index].name, sweep.run_directory(index)
    if code in (runs.EXIT_DONE, runs.EXIT_PREEMPTED):
        return name if code == runs.EXIT_DONE else f"{name} has stopped, to go on later"
    status = runs.read_status(directory)
    reason = status.reason if status and status.state not in ("done", "running") else ""
    return f"{name} FAILED (exit code {code}): {' '.join((reason or last_line(directory)).split())}"


def last_line(directory: Path) -> str:
    """Return the last line of a point's log, "" without a log."""
    log = directory / LOG_FILE
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    return text.rstrip().rpartition("\n")[2].strip()


def _conclude(sweep: Sweep, codes: Collection[int], *, was_stopped: bool) -> int:
    """Say what is left to do, and return the exit code of the sweep."""
    if was_stopped or runs.EXIT_PREEMPTED in codes:
        print("stopped: run the same command again to go on", file=sys.stderr)
        return runs.EXIT_PREEMPTED
    if num_failed := sum(code != runs.EXIT_DONE for code in codes):
        print(f"failed: {num_failed} points; the output of each is in its {LOG_FILE}", file=sys.stderr)
        return runs.EXIT_FAILED
    print(f"done: rlnb results {sweep.directory}")
    return runs.EXIT_DONE
