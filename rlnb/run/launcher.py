"""`rlnb run --nproc N`: one notebook on several ranks of this machine, each a process with its own kernel.

Ranks get torchrun's environment (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, ...). On several machines srun
starts them: see `rlnb.run.slurm.join_tasks`.

torchrun (torch 2.13, with `--signals-to-handle` and `--shutdown-timeout`) could start the ranks too, but it
exits with 1 whatever they exited with, so SLURM and `rlnb sweep` could not tell a run that has saved from one
that has failed. It also has one time-out for two purposes: after a signal, ranks need the time of a step and
its checkpoint; after a failure the others wait in vain for the rank that is gone.

Signals go to all ranks. When one fails the others are ended, and its reason is the run's: on the terminal and
in status.json. Ranks end with the process that started them.
"""

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType

import psutil

from rlnb.errors import ParamsError, see
from rlnb.machine import Machine
from rlnb.machine.facts import count_visible_gpus
from rlnb.run import directory as runs
from rlnb.run.slurm import how_to_go_on

# For the other ranks to end by themselves after one has failed, and for rank 0 to save after a signal.
FAILURE_SECONDS, SAVE_SECONDS = 4.0, 1800.0
PR_SET_PDEATHSIG = 1
# Errors of a rank whose peer has gone: they are no reason of their own.
OF_A_LOST_PEER = re.compile(
    r"(?i)gloo|nccl|connection (closed|reset|refused)|Dist(Backend|Network)Error|broken pipe|TCPStore"
)


def check_ranks(num_ranks: int, environ: Mapping[str, str], machine: Machine) -> None:
    """Raise ParamsError for a number of ranks that cannot be started here."""
    if num_ranks < 1:
        raise ParamsError(f"--nproc {num_ranks}: write at least 1")
    if num_ranks > 1 and int(environ.get("WORLD_SIZE", "1")) > 1:
        raise ParamsError("--nproc: this process is a rank already, of torchrun, accelerate launch or srun")
    num_gpus = count_visible_gpus(environ)
    if machine.capability and num_ranks > num_gpus:
        raise ParamsError(f"--nproc {num_ranks}: each rank takes a GPU; there are {num_gpus}: write that")


@dataclass
class Rank:
    """A rank, and how it ended, as in `runs.Status`. is_killed: after another one had failed."""

    rank: int
    notebook: Path
    process: subprocess.Popen[bytes]
    state: str = "running"
    reason: str = ""
    signal_name: str = ""
    is_killed: bool = False

    def note_end(self, passed_on: list[signal.Signals]) -> None:
        """Note how it ended, by its own account where it has left one."""
        code = self.process.wait()
        status = runs.read_status(self.notebook.parent, rank=self.rank)
        if status is not None and status.pid == self.process.pid and status.exit == code:
            self.state, self.reason, self.signal_name = status.state, status.reason, status.signal
        elif code < 0:
            self.state = "preempted" if -code in passed_on else "killed"
            self.signal_name = signal.Signals(-code).name
            self.reason = f"its process ended by {self.signal_name}"
        else:
            self.state = next((state for state, value in runs.EXIT_CODES.items() if value == code), "failed")
            self.reason = f"it ended before its first cell, exit code {code}" if code else ""

    def kill(self) -> None:
        """Kill the rank, its kernel and what that has started."""
        self.is_killed = True
        with suppress(psutil.NoSuchProcess):
            for each in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        self.process.kill()


@dataclass
class Launch:
    """The ranks while they run. ended: in this order. passed_on: the signals that were sent to all."""

    running: list[Rank] = field(default_factory=list)
    ended: list[Rank] = field(default_factory=list)
    passed_on: list[signal.Signals] = field(default_factory=list)

    def start(self, rank: int, command: list[str], notebook: Path, environ: Mapping[str, str]) -> None:
        """Start a rank. Rank 0 prints on this terminal, each other one to a file next to its notebook."""
        with nullcontext() if rank == 0 else notebook.with_suffix(".log").open("wb") as output:
            # In a session of its own: Ctrl-C reaches this process alone, which passes it on once.
            process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, preexec_fn=partial(end_with_parent, signal.SIGKILL),
            )  # fmt: skip
        self.running.append(Rank(rank, notebook, process))
        for sent in self.passed_on:  # before this rank was there
            process.send_signal(sent)

    def pass_on(self, signal_number: int, _: FrameType | None) -> None:
        """Send a signal to all ranks, once; Ctrl-C again, with which they stop at once."""
        if signal_number in self.passed_on and signal_number != signal.SIGINT:
            return
        self.passed_on.append(signal.Signals(signal_number))
        for each in self.running:
            each.process.send_signal(signal_number)

    def wait(self) -> None:
        """Wait until all ranks have ended; end the others after one that did not end well."""
        deadline = float("inf")
        while self.running:
            for each in [each for each in self.running if each.process.poll() is not None]:
                self.running.remove(each)
                self.ended.append(each)
                each.note_end(self.passed_on)
                if each.state == "preempted" and not self.passed_on:
                    self.pass_on(signal.SIGTERM, None)  # the signal came to this rank alone
                if each.state != "done":
                    patience = SAVE_SECONDS if each.state == "preempted" else FAILURE_SECONDS
                    deadline = min(deadline, time.monotonic() + patience)
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(0.1)

    def kill(self) -> None:
        for each in self.running:
            each.kill()


def run_ranks(num_ranks: int, notebook: Path, output: Path, *, parameters: Mapping[str, object]) -> int:
    """Run the notebook on this many ranks, print how it ended, and return the exit code.

    output: the notebook of rank 0; the others' are next to it. The exit code is that of the rank that failed
    first, 85 after a signal.
    """
    launch = Launch()
    with socket.socket() as reserved, runs.handling_signals(launch.pass_on):
        # Bound: no other program is given the port, and torch may listen on it, for it sets SO_REUSEADDR.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        places = {"WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks, "MASTER_ADDR": "127.0.0.1"}
        try:
            for rank in range(num_ranks):
                places |= {"RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": reserved.getsockname()[1]}
                environ = os.environ | {name: str(value) for name, value in places.items()}
                path = output if rank == 0 else output.with_suffix(f".rank{rank}.ipynb")
                command = [sys.executable, "-m", "rlnb.cli", "rank", str(notebook), str(path)]
                launch.start(rank, [*command, json.dumps(parameters)], path, environ)
            launch.wait()
        finally:
            launch.kill()
    return conclude(find_cause(launch.ended), output, num_ranks=num_ranks)


def find_cause(ended: list[Rank]) -> Rank:
    """Return the first rank that ended badly; those that lost a peer, or were killed here, come last."""
    bad = [each for each in ended if each.state != "done"]
    return min(
        bad, key=lambda each: (each.is_killed, bool(OF_A_LOST_PEER.search(each.reason))), default=ended[0]
    )


def conclude(cause: Rank, output: Path, *, num_ranks: int) -> int:
    """Print how the run ended, write it into status.json unless rank 0 has, and return the exit code."""
    if cause.state == "done":
        print(f"done: {output}")
        return runs.EXIT_DONE
    reason = f"rank {cause.rank} of {num_ranks}: {cause.reason}"
    status = runs.read_status(output.parent)
    if status is None or status.exit is None or cause.rank:
        status = status or runs.start_attempt(output.parent, notebook="")
        runs.end_attempt(output.parent, status, state=cause.state, signal=cause.signal_name, reason=reason)
    text = f"{cause.state}: {reason}; so far: {cause.notebook}"
    if cause.state == "preempted":
        text = f"{cause.reason}\npreempted: {how_to_go_on()}; so far: {output}"
    print(text + see("out-of-memory") if cause.state == "killed" else text, file=sys.stderr)
    return runs.EXIT_CODES[cause.state]


@runs.handling_signals(lambda *_: None)
def name_cause(directory: Path, *, num_ranks: int) -> None:
    """Write into status.json whose failure ended rank 0, where that is another rank's.

    For ranks that torchrun or srun has started: each calls this at its end, and the last one sees them all.
    A launcher that ends it because another rank has ended does not keep it from this.
    """
    first = runs.read_status(directory)
    if first is None or first.exit is None or not _is_of_another(first):
        return
    for rank in range(1, num_ranks):
        status = runs.read_status(directory, rank=rank)
        if status is None or status.state not in ("failed", "killed") or _is_of_another(status):
            continue
        if status.exit is None or status.ended >= first.started:  # else it is of an earlier attempt
            reason, code = f"rank {rank} of {num_ranks}: {status.reason}", runs.EXIT_CODES[status.state]
            told = replace(first, state=status.state, exit=code, signal=status.signal, reason=reason)
            runs.write_status(directory, told)
            return


def _is_of_another(status: runs.Status) -> bool:
    """Return whether a rank may have ended because of another one: told to end, or left without its peer."""
    return status.state == "preempted" or bool(OF_A_LOST_PEER.search(status.reason))


def end_with_parent(how: signal.Signals) -> None:
    """Let the system send this process a signal when its parent is gone; a kernel then ends by itself."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how)
