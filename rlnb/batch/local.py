"""The points of a sweep on this machine, some at a time, each a `rlnb run` of its own."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from rlnb.batch.overview import LOG_FILE, last_line, refuse_queued
from rlnb.batch.sweeps import Sweep, write_sweep
from rlnb.machine.facts import usable_cores
from rlnb.run import directory as runs
from rlnb.run.launcher import end_with_parent


def run_points(sweep: Sweep, *, num_jobs: int) -> int:
    """Run the checked points that are not done, and return the exit code of `rlnb sweep`.

    A failing point does not end the others. A signal is passed on to all points, which save and stop, and no
    further one is started. They do so too when this process is killed. Raises RunInUse if another process
    runs in this folder or in that of a point.
    """
    signals: list[int] = []
    running: dict[int, subprocess.Popen[bytes]] = {}
    environment, num_sent = share_cores(num_jobs), 0
    with runs.locked(sweep.directory):
        refuse_queued(sweep.directory)
        waiting = sweep.unfinished()
        for directory in filter(Path.is_dir, map(sweep.run_directory, waiting)):
            with runs.locked(directory):
                pass
        write_sweep(sweep)
        num_points, codes = len(sweep.params), [runs.EXIT_DONE] * (len(sweep.params) - len(waiting))
        print(f"{sweep.directory}: {num_points} points, {len(codes)} of them done before", flush=True)
        with runs.handling_signals(lambda signal_number, _: signals.append(signal_number)):
            while running or (waiting and not signals):
                while waiting and not signals and len(running) < num_jobs:
                    index = waiting.pop(0)
                    running[index] = _start(sweep, index, environment)
                time.sleep(0.1)
                for signal_number in signals[num_sent:]:
                    num_sent += 1
                    for process in running.values():
                        process.send_signal(signal_number)
                for index in [index for index, process in running.items() if process.poll() is not None]:
                    codes.append(running.pop(index).returncode)
                    how = _describe_end(sweep, index, codes[-1])
                    print(f"{codes.count(runs.EXIT_DONE)} of {num_points} done; {how}", flush=True)
    return _conclude(sweep, codes, was_stopped=bool(signals))


def _start(sweep: Sweep, index: int, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start a point, which saves and stops when this process is gone."""
    with (sweep.run_directory(index) / LOG_FILE).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rlnb.cli", *sweep.run_arguments(index)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches us alone, and the points once, through us
            preexec_fn=partial(end_with_parent, signal.SIGTERM),
        )


def share_cores(num_jobs: int) -> dict[str, str]:
    """Return the environment of the points: each computes with its share of the cores, unless it is set."""
    environment = dict(os.environ)
    if num_jobs > 1 and not environment.get("OMP_NUM_THREADS"):
        environment["OMP_NUM_THREADS"] = str(max(1, usable_cores(os.environ) // num_jobs))
    return environment


def _describe_end(sweep: Sweep, index: int, code: int) -> str:
    name, directory = sweep.points[index].name, sweep.run_directory(index)
    if code in (runs.EXIT_DONE, runs.EXIT_PREEMPTED):
        return name if code == runs.EXIT_DONE else f"{name} has stopped, to go on later"
    status = runs.read_status(directory)
    reason = status.reason if status and status.state not in ("done", "running") else ""
    return f"{name} FAILED (exit code {code}): {' '.join((reason or last_line(directory)).split())}"


def _conclude(sweep: Sweep, codes: Collection[int], *, was_stopped: bool) -> int:
    """Say what is left to do, and return the exit code of the sweep."""
    if was_stopped or runs.EXIT_PREEMPTED in codes:
        print("stopped: run the same command again to go on", file=sys.stderr)
        return runs.EXIT_PREEMPTED
    if num_failed := sum(code != runs.EXIT_DONE for code in codes):
        print(f"failed: {num_failed} points; the output of each is in its {LOG_FILE}", file=sys.stderr)
        return runs.EXIT_FAILED
    print("done:", shlex.join([str(runs.PROGRAM), "results", str(sweep.directory)]))
    return runs.EXIT_DONE
