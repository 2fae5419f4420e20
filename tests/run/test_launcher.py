"""`rlnb run --nproc 2` with real kernels: signals, failures, deaths, what is left."""

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from notebook_files import write_notebook
from waiting import is_running, status_of, wait_for

from rlnb import cli
from rlnb.run import directory as runs
from rlnb.run.launcher import Launch, Rank, find_cause, name_cause
from rlnb.run.slurm import join_tasks

ROOT = Path(cli.__file__).parents[1]
OUT = ("--out", "out")
TWO = ("--nproc", "2", *OUT)
BEGINS = """
import os, pathlib, time
rank = int(os.environ.get("RANK", "0"))
pathlib.Path(output_dir, f"pids{rank}").write_text(f"{os.getpid()} {os.getppid()}")
"""
TRAINS_UNTIL_A_SIGNAL = """
from accelerate import PartialState
from rlnb.run.stop_signal import StopSignal
PartialState(cpu=True)
with StopSignal() as stop:
    for step in range(10**6):
        if step == 3:
            pathlib.Path(output_dir, f"training{rank}").touch()
        if stop.after_step(is_last=False):
            pathlib.Path(output_dir, f"stopped{rank}").write_text(str(step))
            break
"""

NEVER_ENDS_A_STEP = """
from rlnb.run.stop_signal import StopSignal
with StopSignal() as stop:
    pathlib.Path(output_dir, f"training{rank}").touch()
    while not stop.received:
        time.sleep(0.02)
    pathlib.Path(output_dir, f"told{rank}").touch()
    time.sleep(300)
pathlib.Path(output_dir, f"ended{rank}").touch()
"""
ADDS_RANKS = """
import torch
torch.distributed.init_process_group("gloo")
total = torch.tensor(rank + 1)
torch.distributed.all_reduce(total)
pathlib.Path(output_dir, f"sum{rank}").write_text(str(total.item()))
torch.distributed.barrier()
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A function that starts a notebook of one cell on two ranks; what is left of it is killed."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    started = []

    def start(source: str, *options: str, launcher: Sequence[str] = (), **environ: str) -> subprocess.Popen:
        notebook = tmp_path / "grpo_code_execution.ipynb"
        if not started:
            write_notebook(notebook, BEGINS + source)
        command = [sys.executable, *launcher, "-m", "rlnb.cli", "run", notebook.name, "--profile", "tiny"]
        started.append(
            subprocess.Popen(
                [*command, *options],
                cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
            )
        )  # fmt: skip
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


def pids(out: Path) -> list[int]:
    """The kernels of both ranks and the processes that run them."""
    return [int(pid) for rank in (0, 1) for pid in (out / f"pids{rank}").read_text().split()]


def test_each_rank_has_a_kernel_a_notebook_and_its_place(start, out):
    process = start("print(rank, *(os.environ[name] for name in ('WORLD_SIZE', 'LOCAL_RANK')))", *TWO)
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert printed.endswith("0 2 0\ndone: out/attempt-01.ipynb\n")
    assert "1 2 1" not in printed  # which is in that rank's own notebook
    assert "1 2 1" in (out / "attempt-01.rank1.ipynb").read_text()
    assert status_of(out)["state"] == "done" and status_of(out)["reason"] == ""
    assert not any(map(is_running, pids(out)))


@pytest.mark.parametrize("options", [OUT, TWO])
def test_a_second_ctrl_c_stops_at_once(start, out, options):
    process = start(NEVER_ENDS_A_STEP, *options)
    ranks = (0, 1) if options == TWO else (0,)
    wait_for(lambda: all((out / f"training{rank}").exists() for rank in ranks))
    process.send_signal(signal.SIGINT)
    wait_for(lambda: all((out / f"told{rank}").exists() for rank in ranks))
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 85, errors
    assert (status_of(out)["state"], status_of(out)["signal"]) == ("preempted", "SIGINT")
    assert not any((out / f"ended{rank}").exists() for rank in ranks)


@pytest.mark.parametrize("sent", ["SIGUSR1", "SIGINT"])
def test_a_signal_stops_all_ranks_at_the_same_step(start, out, sent):
    process = start(TRAINS_UNTIL_A_SIGNAL, *TWO)
    wait_for(lambda: all((out / f"training{rank}").exists() for rank in (0, 1)))
    process.send_signal(signal.Signals[sent])
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 85, errors
    assert errors.splitlines()[-1].startswith("preempted: ")
    assert (out / "stopped0").read_text() == (out / "stopped1").read_text()
    assert status_of(out)["state"] == "preempted"
    assert not any(map(is_running, pids(out)))


@pytest.mark.parametrize(
    ("source", "code", "reason"),
    [
        ("raise ValueError('no luck')", 1, "cell 3 of 3: ValueError: no luck"),
        ("os.kill(os.getppid(), 9)", 138, "its process ended by SIGKILL"),
    ],
)
def test_one_rank_that_fails_ends_the_others_and_names_its_reason_once(start, out, source, code, reason):
    waits = "while not pathlib.Path(output_dir, 'pids0').exists(): time.sleep(0.02)"
    process = start(f"if rank == 0: time.sleep(300)\n{waits}\n{source}", *TWO)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    state = "failed" if code == 1 else "killed"
    assert errors.splitlines()[-1].startswith(f"{state}: rank 1 of 2: {reason}")
    assert errors.count(reason) == 1
    assert (status_of(out)["state"], status_of(out)["reason"]) == (state, f"rank 1 of 2: {reason}")
    assert "time.sleep(300)" in (out / "attempt-01.ipynb").read_text()
    wait_for(lambda: not any(map(is_running, pids(out))))


def test_under_torchrun_too_the_run_has_the_reason_of_the_rank_that_was_killed(start, out):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    dies = "if rank == 1: os.kill(os.getpid(), 9)\ntorch.distributed.all_reduce(total)"
    process = start(ADDS_RANKS + dies, *OUT, launcher=launcher)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1, errors
    reason = "rank 1 of 2: the kernel was killed by SIGKILL in cell 3 of 3"
    told = status_of(out)
    assert (told["state"], told["exit"], told["signal"]) == ("killed", 138, "SIGKILL")
    assert told["reason"].startswith(reason)


def test_no_rank_outlives_a_launcher_that_is_killed(start, out):
    process = start('pathlib.Path(output_dir, f"waits{rank}").touch()\ntime.sleep(300)', *TWO)
    wait_for(lambda: len([*out.glob("waits*")]) == 2)
    process.kill()
    wait_for(lambda: not any(map(is_running, pids(out))))


STARTED_BY_ANOTHER = {"RANK": "0", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("notebook", "options", "environ", "refusal"),
    [
        ("ppo_openspiel", "--nproc 0", {}, "--nproc 0:"),
        ("ppo_openspiel", "--nproc 2 --out /tmp/none", STARTED_BY_ANOTHER, "--nproc:"),
        ("ppo_openspiel", "--nproc 1", STARTED_BY_ANOTHER, "--out:"),
        ("mbpp_eval", "--out /tmp/none", STARTED_BY_ANOTHER, "mbpp_eval.ipynb trains nothing"),
    ],
)
def test_ranks_that_cannot_be_started_are_refused(capsys, monkeypatch, notebook, options, environ, refusal):
    monkeypatch.chdir(ROOT)
    for name, value in {"CUDA_VISIBLE_DEVICES": "", **environ}.items():
        monkeypatch.setenv(name, value)
    command = f"run notebooks/{notebook}.ipynb --profile tiny {options}"
    assert cli.main(command.split()) == 2
    assert capsys.readouterr().err.startswith(f"rlnb: {refusal}")


def test_a_signal_between_the_starts_of_two_ranks_stops_both(tmp_path):
    launch = Launch()
    for rank in (0, 1):
        notebook = tmp_path / f"attempt-01.rank{rank}.ipynb"
        launch.start(rank, [sys.executable, "-c", "import time; time.sleep(600)"], notebook, os.environ)
        launch.pass_on(signal.SIGTERM, None)
    launch.wait()
    assert {each.rank: each.state for each in launch.ended} == {0: "preempted", 1: "preempted"}


def test_a_lost_peer_is_not_the_cause_that_is_told():
    notebook, process = Path(), None
    gloo = "cell 8 of 20: RuntimeError: [gloo/pair.cc:553] Connection closed by peer"
    lost = Rank(0, notebook, process, "failed", gloo)
    out_of_memory = Rank(1, notebook, process, "killed", "the kernel was killed by SIGKILL in cell 8 of 20")
    ended_here = Rank(2, notebook, process, "killed", "its process ended by SIGKILL", is_killed=True)
    assert find_cause([lost, ended_here, out_of_memory]) == out_of_memory
    assert find_cause([lost, ended_here]) == lost


def free_port(ports: range) -> int:
    for port in ports:
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


def test_two_tasks_of_srun_are_two_ranks_of_one_run_also_without_a_directory(start, tmp_path):
    port = free_port(range(20000 + os.getpid() % 10000, 40000))
    step = {"SLURM_JOB_ID": str(port), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    step["SLURM_STEP_NODELIST"] = "localhost"
    tasks = [start(ADDS_RANKS, **step, SLURM_PROCID=rank, SLURM_LOCALID=rank) for rank in "01"]
    for task in tasks:
        _, errors = task.communicate(timeout=120)
        assert task.returncode == 0, errors
    (out,) = (tmp_path / "outputs/grpo_code_execution").iterdir()
    assert [(out / f"sum{rank}").read_text() for rank in (0, 1)] == ["3", "3"]
    assert {path.name for path in out.glob("*.ipynb")} == {"attempt-01.ipynb", "attempt-01.rank1.ipynb"}


LOST = {"state": "failed", "reason": "cell 3 of 3: RuntimeError: [gloo] Connection closed by peer"}
TOLD_TO_END = {"state": "preempted", "signal": "SIGTERM", "reason": "stopped by SIGTERM in cell 3 of 3"}
KILLED = {"state": "killed", "signal": "SIGKILL", "reason": "the kernel was killed by SIGKILL in cell 3 of 3"}
RAISED = {"state": "failed", "reason": "cell 3 of 3: ValueError: no luck"}


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        ((LOST, LOST, KILLED), f"rank 2 of 3: {KILLED['reason']}"),
        ((TOLD_TO_END, LOST, KILLED), f"rank 2 of 3: {KILLED['reason']}"),
        ((RAISED, LOST, KILLED), RAISED["reason"]),
        ((TOLD_TO_END, TOLD_TO_END, TOLD_TO_END), TOLD_TO_END["reason"]),
        ((LOST, LOST, LOST), LOST["reason"]),
    ],
)
def test_whichever_rank_ends_last_the_status_names_the_cause(tmp_path, monkeypatch, ends, reason):
    for order in itertools.permutations(range(3)):
        directory = tmp_path / "-".join(map(str, order))
        directory.mkdir()
        started = {}
        for rank in range(3):
            monkeypatch.setenv("RANK", str(rank))
            started[rank] = runs.start_attempt(directory, notebook="")
        for rank in order:
            monkeypatch.setenv("RANK", str(rank))
            runs.end_attempt(directory, started[rank], **ends[rank])
            name_cause(directory, num_ranks=3)
        assert status_of(directory)["reason"] == reason


def test_the_cause_is_named_although_a_launcher_ends_all_ranks_meanwhile(tmp_path, monkeypatch):
    for rank, end in (("1", KILLED), ("0", LOST)):
        monkeypatch.setenv("RANK", rank)
        runs.end_attempt(tmp_path, runs.start_attempt(tmp_path, notebook=""), **end)
    write = runs.write_status

    def write_and_be_told(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        write(*arguments)

    monkeypatch.setattr(runs, "write_status", write_and_be_told)
    with runs.stopping_early():
        name_cause(tmp_path, num_ranks=2)
    assert status_of(tmp_path)["reason"] == f"rank 1 of 2: {KILLED['reason']}"


def test_a_failure_of_an_earlier_attempt_is_not_the_cause(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(runs, "now", lambda: "2026-01-01T00:00:00+00:00")
    runs.end_attempt(tmp_path, runs.start_attempt(tmp_path, notebook=""), **KILLED)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(runs, "now", lambda: "2026-01-01T00:01:00+00:00")
    runs.end_attempt(tmp_path, runs.start_attempt(tmp_path, notebook=""), **LOST)
    name_cause(tmp_path, num_ranks=2)
    assert status_of(tmp_path)["reason"] == LOST["reason"]


@pytest.mark.parametrize(
    ("nodes", "first"), [("n1", "n1"), ("gpu[01-04,07]", "gpu01"), ("node7,node[8-9]", "node7")]
)
def test_a_task_of_srun_is_a_rank_that_finds_the_first_node(nodes, first):
    environ = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
    environ |= {"SLURM_STEP_NODELIST": nodes, "SLURM_JOB_ID": "41007"}
    join_tasks(environ)
    assert [environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")] == ["3", "1", "4"]
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == (first, "21007")
    alone, under_torchrun = {"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_NUM_TASKS": "2", "RANK": "0"}
    in_a_shell = {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PTY_PORT": "40001"}  # srun -n 8 --pty bash
    for unchanged in ({}, alone, under_torchrun, in_a_shell):
        before = dict(unchanged)
        join_tasks(unchanged)
        assert unchanged == before


def test_two_steps_of_a_job_meet_at_two_ports():
    task = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "41007"}
    steps = [task | {"SLURM_STEP_NODELIST": "n1", "SLURM_STEP_ID": step} for step in "01"]
    for environ in steps:
        join_tasks(environ)
    assert steps[0]["MASTER_PORT"] == "21007" != steps[1]["MASTER_PORT"]
