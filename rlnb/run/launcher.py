"""`rlnb run --nproc N`: one notebook on several ranks, each a process with a kernel of its own.

Ranks get torchrun's environment (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, ...), but not its agent (torch
2.13): that dies of SIGUSR1 and leaves the ranks behind, kills them 30 s after any other signal, which is less
than a step and its checkpoint may take, and exits with 1 whatever the ranks exited with.

Signals go to all ranks. When one rank fails the others are ended, since they would wait for it for ever, and
its reason is the run's: on the terminal and in status.json. Ranks end with the process that started them.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import psutil
from yaml import YAMLError

from rlnb.errors import ParamsError, see
from rlnb.machine import Machine, installed_version
from rlnb.machine.facts import count_visible_gpus
from rlnb.params.sections import NotebookParams
from rlnb.params.training import TrainingParams
from rlnb.run import directory as runs
from rlnb.run.slurm import how_to_go_on

# After one rank has failed: the time for the others to end by themselves, then for what is left of them to
# save the notebook without its kernel. After a signal the longest save of rank 0 is waited for.
FAILURE_SECONDS, KILL_SECONDS, SAVE_SECONDS = 4.0, 4.0, 1800.0
POLL_SECONDS = 0.1
# Errors of a rank whose peer has gone: they are no reason of their own.
OF_A_LOST_PEER = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|DistBackendError|DistNetworkError|broken pipe|TCPStore",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Ranks:
    """The processes that run a notebook together, by default one.

    num_local: on each node. master: "address:port" of node 0, "" where there is one node. accelerate: a file
    of `accelerate config` whose settings the ranks get, None for none.
    """

    num_local: int = 1
    num_nodes: int = 1
    node_rank: int = 0
    master: str = ""
    accelerate: Path | None = None

    @property
    def total(self) -> int:
        return self.num_local * self.num_nodes

    @property
    def local(self) -> range:
        """The ranks on this node."""
        return range(self.node_rank * self.num_local, (self.node_rank + 1) * self.num_local)

    def check(self, environ: Mapping[str, str], machine: Machine, *, out: Path | None) -> None:
        """Raise ParamsError for ranks that cannot be started here."""
        if min(self.num_local, self.num_nodes) < 1:
            raise ParamsError("--nproc and --nnodes: are at least 1")
        if self.num_nodes == 1 and (self.node_rank or self.master):
            raise ParamsError("--node-rank and --master: are for several nodes; give --nnodes as well")
        if not 0 <= self.node_rank < self.num_nodes:
            raise ParamsError(f"--node-rank {self.node_rank}: is not in 0 to {self.num_nodes - 1}")
        if self.num_nodes > 1 and not re.fullmatch(r"\S+:[0-9]{1,5}", self.master):
            raise ParamsError(
                f"--master {self.master!r}: write ADDRESS:PORT, the address of node 0 and a port free there"
            )
        if self.num_nodes > 1 and out is None:
            raise ParamsError("--out: is missing; all nodes must be told the same directory")
        if self.total > 1 and int(environ.get("WORLD_SIZE", "1")) > 1:
            raise ParamsError("--nproc: this process is a rank already, of torchrun or accelerate launch")
        num_gpus = count_visible_gpus(environ)
        if machine.accelerator and self.num_local > num_gpus:
            raise ParamsError(
                f"--nproc {self.num_local}: each rank takes a GPU, and there are {num_gpus}; "
                f"write --nproc {num_gpus}"
            )


def accelerate_environment(path: Path, params: NotebookParams, *, num_ranks: int) -> dict[str, str]:
    """Return the variables that `accelerate launch --config_file` would set, but for the ranks' places.

    Raises ParamsError for a file that accelerate does not read, and where the weights are to be split among
    the ranks of a training that is not TRL's.
    """
    # Imported here: it imports torch, which nothing else needs in this process.
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    options = ["--config_file", str(path), "--num_processes", str(num_ranks), "--main_process_port", "0", "-"]
    try:
        arguments, config, _ = _validate_launch_command(launch_command_parser().parse_args(options))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, YAMLError) as error:
        raise ParamsError(f"--accelerate {path}: is not a file of accelerate's: {error}") from None
    if (arguments.use_fsdp or arguments.use_deepspeed) and not isinstance(
        getattr(params, "training", None), TrainingParams
    ):
        raise ParamsError(
            f"--accelerate {path}: splits the weights among the ranks, which only the trainings by TRL can "
            "do, not self-play and PPO; take params/accelerate/ddp.yaml"
        )
    if arguments.use_deepspeed and installed_version("deepspeed") is None:
        raise ParamsError(
            f"--accelerate {path}: needs deepspeed, which is not installed; pip install deepspeed"
        )
    if arguments.use_deepspeed:
        arguments.deepspeed_fields_from_accelerate_config = ",".join(config.deepspeed_config)
        _, environ = prepare_deepspeed_cmd_env(arguments)
    else:
        environ = prepare_multi_gpu_env(arguments)
    return {name: value for name, value in environ.items() if name.startswith(("ACCELERATE_", "FSDP_"))}


@dataclass(frozen=True)
class Ending:
    """How a rank ended, in the fields of `runs.Status`. is_forced: killed after another rank had failed."""

    rank: int
    state: str
    reason: str
    signal: str = ""
    is_forced: bool = False


@dataclass
class RankProcess:
    """A rank on this node, its notebook and the log of its output (None: the terminal)."""

    rank: int
    notebook: Path
    log: Path | None
    process: subprocess.Popen[bytes]
    is_forced: bool = False

    def ending(self, passed_on: list[signal.Signals]) -> Ending:
        """Return how it ended, by its own account where it has left one."""
        code = self.process.wait()
        status = runs.read_status(self.notebook.parent, rank=self.rank)
        signal_name, reason = passed_on[0].name if passed_on else "", ""
        if code < 0:
            signal_name = signal.Signals(-code).name
            state, reason = (
                "preempted" if -code in passed_on else "killed",
                f"its process ended by {signal_name}",
            )
        else:
            state = next((state for state, value in runs.EXIT_CODES.items() if value == code), "failed")
            if status is not None and status.pid == self.process.pid and status.state == state:
                signal_name, reason = status.signal, status.reason
            elif code:
                reason = f"it ended before its first cell, exit code {code}{self.last_line()}"
        return Ending(self.rank, state, reason, signal_name, self.is_forced)

    def last_line(self) -> str:
        lines = self.log.read_text(errors="replace").split("\n") if self.log and self.log.exists() else []
        return next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")

    def kill(self, *, with_process: bool) -> None:
        """Kill its kernel and what that has started, or with `with_process` the whole rank."""
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process.pid)
            family = process.children(recursive=True) + ([process] if with_process else [])
            self.is_forced |= bool(family)
            for each in family:
                with suppress(psutil.NoSuchProcess):
                    each.kill()


@dataclass
class Launch:
    """The ranks of this node while they run.

    ended: in the order in which they ended. passed_on: the signals that were sent to all.
    """

    ranks: Ranks
    running: list[RankProcess] = field(default_factory=list)
    ended: list[RankProcess] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    passed_on: list[signal.Signals] = field(default_factory=list)

    def start(self, rank: int, command: list[str], notebook: Path, environ: Mapping[str, str]) -> None:
        log = None if rank == 0 else notebook.with_suffix(".log")
        with ExitStack() as files:
            output = files.enter_context(log.open("wb")) if log else None
            # In a session of its own: Ctrl-C reaches this process alone, which passes it on once.
            process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self.running.append(RankProcess(rank, notebook, log, process))
        for sent in self.passed_on:  # before this rank was there
            process.send_signal(sent)

    def pass_on(self, signal_number: int, _: FrameType | None) -> None:
        """Send a signal to all ranks, once. After Ctrl-C they save and stop; a second one interrupts them."""
        again = signal_number in self.passed_on
        if again and signal_number != signal.SIGINT:
            return
        sent = signal.SIGTERM if signal_number == signal.SIGINT and not again else signal_number
        self.passed_on.append(signal.Signals(signal_number))
        if sent != signal_number and sent not in self.passed_on:
            self.passed_on.append(signal.Signals(sent))
        for each in self.running:
            with suppress(ProcessLookupError):
                each.process.send_signal(sent)

    def wait(self) -> None:
        """Wait until all ranks have ended; end the others after one that did not end well."""
        deadline, kernels_killed = float("inf"), False
        while self.running:
            for each in [each for each in self.running if each.process.poll() is not None]:
                self.running.remove(each)
                self.ended.append(each)
                ending = each.ending(self.passed_on)
                self.endings.append(ending)
                if ending.state == "preempted" and not self.passed_on:
                    self.pass_on(signal.SIGTERM, None)  # the signal came to this rank alone
                if ending.state != "done":
                    patience = SAVE_SECONDS if ending.state == "preempted" else FAILURE_SECONDS
                    deadline = min(deadline, time.monotonic() + patience)
            if time.monotonic() > deadline:
                for each in self.running:
                    each.kill(with_process=kernels_killed)
                deadline, kernels_killed = time.monotonic() + KILL_SECONDS, True
            if self.running:
                time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        for each in self.running:
            each.kill(with_process=True)
            each.process.wait()


def run_ranks(
    ranks: Ranks,
    notebook: Path,
    output: Path,
    *,
    parameters: Mapping[str, object],
    settings: Mapping[str, str],
) -> int:
    """Run the notebook on the ranks of this node, print how it ended, and return the exit code.

    output: the notebook of rank 0; the others' are next to it. settings: variables for every rank. The exit
    code is that of the rank that failed first, 85 after a signal.
    """
    launch, started = Launch(ranks), runs.now()
    with ExitStack() as stack:
        address, port = ranks.master.rpartition(":")[::2]
        if not address:
            address, port = "127.0.0.1", str(stack.enter_context(reserved_port()))
        stack.enter_context(runs.handling_signals(launch.pass_on))
        stack.callback(launch.kill)
        for local_rank, rank in enumerate(ranks.local):
            path = rank_notebook(output, rank)
            command = [sys.executable, "-m", "rlnb.cli", "rank", str(os.getpid()), str(notebook), str(path)]
            environ = {
                **os.environ, **settings,
                "RANK": str(rank), "WORLD_SIZE": str(ranks.total), "LOCAL_RANK": str(local_rank),
                "LOCAL_WORLD_SIZE": str(ranks.num_local), "GROUP_RANK": str(ranks.node_rank),
                "MASTER_ADDR": address, "MASTER_PORT": port,
            }  # fmt: skip
            launch.start(rank, [*command, json.dumps(parameters)], path, environ)
        launch.wait()
    for each in launch.ended:
        if each.log and not each.log.stat().st_size:
            each.log.unlink()
    deadline = time.monotonic() + FAILURE_SECONDS
    cause = find_cause(launch.endings)
    while ranks.num_nodes > 1 and OF_A_LOST_PEER.search(cause.reason) and time.monotonic() < deadline:
        cause = find_cause([*launch.endings, *_endings_elsewhere(ranks, output.parent, since=started)])
        time.sleep(POLL_SECONDS)
    if ranks.node_rank == 0:
        _correct_status(output.parent, cause, num_ranks=ranks.total)
    _print_ending(cause, output, num_ranks=ranks.total)
    return runs.EXIT_CODES[cause.state]


def rank_notebook(output: Path, rank: int) -> Path:
    """Return the notebook of a rank in the attempt of which `output` is one rank's."""
    attempt = output.name.split(".")[0]
    return output.with_name(f"{attempt}.ipynb" if rank == 0 else f"{attempt}.rank{rank}.ipynb")


def find_cause(endings: list[Ending]) -> Ending:
    """Return the ending that explains those of the other ranks. endings: in their order in time.

    A rank that lost its peer, or was ended after another, comes after one with a reason of its own.
    """
    bad = [ending for ending in endings if ending.state != "done"]
    return min(
        bad, key=lambda each: (each.is_forced, bool(OF_A_LOST_PEER.search(each.reason))), default=endings[0]
    )


def _endings_elsewhere(ranks: Ranks, directory: Path, *, since: str) -> list[Ending]:
    """Return how ranks on other nodes ended, where the shared directory says so by now."""
    others = [rank for rank in range(ranks.total) if rank not in ranks.local]
    statuses = [(rank, runs.read_status(directory, rank=rank)) for rank in others]
    return [
        Ending(rank, status.state, status.reason, status.signal)
        for rank, status in statuses
        if status is not None and status.ended >= since and status.state in runs.EXIT_CODES
    ]


def _correct_status(directory: Path, cause: Ending, *, num_ranks: int) -> None:
    """Write the cause into status.json where rank 0 knows another one or none."""
    status = runs.read_status(directory)
    is_known = cause.rank == 0 and status is not None and status.exit is not None
    if cause.state == "done" or is_known:
        return
    if status is None:
        status = runs.start_attempt(directory, notebook="")
    reason = f"rank {cause.rank} of {num_ranks}: {cause.reason}"
    runs.end_attempt(directory, status, state=cause.state, signal=cause.signal, reason=reason)


def _print_ending(cause: Ending, output: Path, *, num_ranks: int) -> None:
    if cause.state == "done":
        print(f"done: {output}")
        return
    if cause.state == "preempted":
        text = f"{cause.reason}\npreempted: {how_to_go_on()}; so far: {output}"
    else:
        notebook = rank_notebook(output, cause.rank)
        hint = see("out-of-memory") if cause.state == "killed" else ""
        text = f"{cause.state}: rank {cause.rank} of {num_ranks}: {cause.reason}; so far: {notebook}{hint}"
    print(text, file=sys.stderr)


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a TCP port of this machine that no other program is given while rank 0 has yet to listen on it.

    A socket that is bound and does not listen leaves the port to another with SO_REUSEADDR, as torch's has.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def run_as_rank(parent: int, notebook: Path, output: Path, *, parameters: dict[str, object]) -> int:
    """Run the notebook as one rank; the launcher says how it ended. parent: the launcher's process id."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    from rlnb.run.papermill_engine.execution import execute

    return execute(notebook, output, parameters=parameters, says_how_it_ended=False)


def _end_with(parent: int) -> None:
    """End this process when its parent is gone; its kernel then ends by itself."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
