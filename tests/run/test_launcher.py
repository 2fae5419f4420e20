"""`rlnb run --nproc 2` with real kernels: signals, failures, deaths, what is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from notebook_files import write_notebook
from waiting import is_running, status_of, wait_for

from rlnb import cli
from rlnb.run.launcher import Launch, Rank, find_cause
from rlnb.run.slurm import join_tasks

ROOT = Path(cli.__file__).parents[1]
TWO = ("--nproc", "2")
BEGINS = """
import os, pathlib, time
rank = int(os.environ["RANK"])
pathlib.Path(output_dir, f"pids{rank}").write_text(f"{os.getpid()} {os.getppid()}")
"""
TRAINS_UNTIL_A_SIGNAL = """
import torch
from rlnb.run.stop_signal import StopSignal
torch.distributed.init_process_group("gloo")
with StopSignal() as stop:
    for step in range(10**6):
        if step == 3:
            pathlib.Path(output_dir, f"training{rank}").touch()
        if stop.after_step(is_last=False):
            pathlib.Path(output_dir, f"stopped{rank}").write_text(str(step))
            break
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A function that starts a notebook of one cell on two ranks; what is left of it is killed."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    started = []

    def start(source: str, *options: str) -> subprocess.Popen:
        write_notebook(tmp_path / "grpo_code_execution.ipynb", BEGINS + source)
        command = [sys.executable, "-m", "rlnb.cli", "run", "grpo_code_execution.ipynb", "--profile", "tiny"]
        started.append(
            subprocess.Popen(
                [*command, *options, "--out", "out"],
                cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
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
    process = start(f"if rank == 0: time.sleep(300)\n{source}", *TWO)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    state = "failed" if code == 1 else "killed"
    assert errors.splitlines()[-1].startswith(f"{state}: rank 1 of 2: {reason}")
    assert errors.count(reason) == 1
    assert (status_of(out)["state"], status_of(out)["reason"]) == (state, f"rank 1 of 2: {reason}")
    assert "time.sleep(300)" in (out / "attempt-01.ipynb").read_text()
    wait_for(lambda: not any(map(is_running, pids(out))))


def test_no_rank_outlives_a_launcher_that_is_killed(start, out):
    process = start('pathlib.Path(output_dir, f"waits{rank}").touch()\ntime.sleep(300)', *TWO)
    wait_for(lambda: len([*out.glob("waits*")]) == 2)
    process.kill()
    wait_for(lambda: not any(map(is_running, pids(out))))


@pytest.mark.parametrize(
    ("num_ranks", "environ", "refusal"),
    [
        ("0", {}, "--nproc 0"),
        ("2", {"RANK": "0", "WORLD_SIZE": "2"}, "--nproc"),
        ("1", {"RANK": "0", "WORLD_SIZE": "2"}, "--out"),
    ],
)
def test_ranks_that_cannot_be_started_are_refused(capsys, monkeypatch, num_ranks, environ, refusal):
    monkeypatch.chdir(ROOT)
    for name, value in {"CUDA_VISIBLE_DEVICES": "", **environ}.items():
        monkeypatch.setenv(name, value)
    arguments = ["run", "notebooks/ppo_openspiel.ipynb", "--profile", "tiny", "--nproc", num_ranks]
    arguments += ["--out", "/tmp/none"] if num_ranks == "2" else []
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"rlnb: {refusal}:")


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
    for unchanged in ({}, alone, under_torchrun):
        before = dict(unchanged)
        join_tasks(unchanged)
        assert unchanged == before
