"""`rlnb run --nproc 2` with real ranks and kernels: signals, failures, deaths, and what is left of them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from rlnb import cli
from rlnb.errors import ParamsError
from rlnb.machine.facts import usable_cores
from rlnb.params import load_params
from rlnb.run import launcher
from rlnb.run.launcher import Ending, Launch, Ranks, find_cause, rank_notebook

PARAMETERS = 'profile: str = "auto"\noutput_dir: str = "outputs"\nseed: int = 42\n'
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
        cells = [new_code_cell(PARAMETERS), new_code_cell(BEGINS + source)]
        cells[0].metadata.tags = ["parameters"]
        nbformat.write(new_notebook(cells=cells), tmp_path / "grpo_code_execution.ipynb")
        command = [sys.executable, "-m", "rlnb.cli", "run", "grpo_code_execution.ipynb", "--profile", "tiny"]
        started.append(
            subprocess.Popen(
                [*command, *(options or ("--nproc", "2")), "--out", "out"],
                cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])},
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


def wait_for(condition, *, seconds: float = 120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


def pids(out: Path) -> list[int]:
    """The kernels of both ranks and the processes that run them."""
    return [int(pid) for rank in (0, 1) for pid in (out / f"pids{rank}").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def status(out: Path) -> dict:
    return json.loads((out / "status.json").read_text())


def test_each_rank_has_a_kernel_a_notebook_and_its_place(start, out):
    process = start("print(rank, *(os.environ[name] for name in ('WORLD_SIZE', 'LOCAL_RANK', 'GROUP_RANK')))")
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert printed.endswith("0 2 0 0\ndone: out/attempt-01.ipynb\n")
    assert "1 2 1 0" not in printed  # which is in that rank's own notebook
    assert "1 2 1 0" in (out / "attempt-01.rank1.ipynb").read_text()
    assert status(out)["state"] == "done" and status(out)["reason"] == ""
    assert not any(map(is_running, pids(out)))


@pytest.mark.parametrize(
    "sent",
    [
        "SIGUSR1",
        "SIGINT",
        pytest.param("SIGTERM", marks=pytest.mark.slow),
        pytest.param("SIGHUP", marks=pytest.mark.slow),
    ],
)
def test_a_signal_stops_all_ranks_at_the_same_step(start, out, sent):
    process = start(TRAINS_UNTIL_A_SIGNAL)
    wait_for(lambda: all((out / f"training{rank}").exists() for rank in (0, 1)))
    process.send_signal(signal.Signals[sent])
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 85, errors
    assert errors.endswith("preempted: run the same command again to go on; so far: out/attempt-01.ipynb\n")
    assert (out / "stopped0").read_text() == (out / "stopped1").read_text()
    assert status(out)["state"] == "preempted"
    assert not any(map(is_running, pids(out)))


@pytest.mark.parametrize(
    ("source", "code", "reason"),
    [
        ("if rank == 0: time.sleep(300)\nraise ValueError('no luck')", 1, "cell 3 of 3: ValueError: no luck"),
        (
            "if rank == 0: time.sleep(300)\nos.kill(os.getpid(), 9)", 138,
            "the kernel was killed by SIGKILL in cell 3 of 3, most often because memory ran out",
        ),
        ("if rank == 0: time.sleep(300)\nos.kill(os.getppid(), 9)", 138, "its process ended by SIGKILL"),
    ],
)  # fmt: skip
def test_one_rank_that_fails_ends_the_others_and_names_its_reason_once(start, out, source, code, reason):
    process = start(source)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    state = "failed" if code == 1 else "killed"
    # The launcher's is the last line: what rank 0 and its kernel print, they print before they end.
    error = errors.splitlines()[-1]
    assert error.startswith(f"{state}: rank 1 of 2: {reason}; so far: out/attempt-01.rank1.ipynb")
    assert errors.count(reason) == 1
    assert (status(out)["state"], status(out)["reason"]) == (state, f"rank 1 of 2: {reason}")
    assert "time.sleep(300)" in (out / "attempt-01.ipynb").read_text()
    wait_for(lambda: not any(map(is_running, pids(out))))


def test_no_rank_outlives_a_launcher_that_is_killed(start, out):
    process = start("time.sleep(300)")
    wait_for(
        lambda: all(
            (out / f"pids{rank}").exists() and (out / f"pids{rank}").stat().st_size for rank in (0, 1)
        )
    )
    process.kill()
    wait_for(lambda: not any(map(is_running, pids(out))))


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (["--nproc", "0"], "--nproc and --nnodes: are at least 1"),
        (["--node-rank", "1"], "--node-rank and --master: are for several nodes; give --nnodes as well"),
        (["--nnodes", "2", "--node-rank", "2"], "--node-rank 2: is not in 0 to 1"),
        (
            ["--nnodes", "2", "--master", "node7"],
            "--master 'node7': write ADDRESS:PORT, the address of node 0 and a port free there",
        ),
        (
            ["--nnodes", "2", "--master", "node7:29500"],
            "--out: is missing; all nodes must be told the same directory",
        ),
    ],
)
def test_ranks_that_cannot_be_started_are_refused(capsys, monkeypatch, options, refusal):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(Path(__file__).parents[2])
    assert cli.main(["run", "notebooks/ppo_openspiel.ipynb", "--profile", "tiny", *options]) == 2
    assert capsys.readouterr().err == f"rlnb: {refusal}\n"


def test_ranks_on_one_machine_share_its_cores():
    alone = usable_cores({})
    assert usable_cores({"LOCAL_WORLD_SIZE": str(alone)}) == 1
    assert usable_cores({"SLURM_CPUS_PER_TASK": "1", "LOCAL_WORLD_SIZE": "4"}) == 1


def test_a_signal_between_the_starts_of_two_ranks_stops_both(tmp_path):
    launch = Launch(Ranks(2))
    for rank in (0, 1):
        notebook = rank_notebook(tmp_path / "attempt-01.ipynb", rank)
        launch.start(rank, [sys.executable, "-c", "import time; time.sleep(600)"], notebook, os.environ)
        launch.pass_on(signal.SIGTERM, None)
    launch.wait()
    assert {ending.rank: ending.state for ending in launch.endings} == {0: "preempted", 1: "preempted"}


def test_a_lost_peer_is_not_the_cause_that_is_told():
    lost = Ending(0, "failed", "cell 8 of 20: RuntimeError: [gloo/pair.cc:553] Connection closed by peer")
    out_of_memory = Ending(1, "killed", "the kernel was killed by SIGKILL in cell 8 of 20")
    ended_here = Ending(2, "killed", "the kernel was killed by SIGKILL in cell 8 of 20", is_forced=True)
    assert find_cause([lost, ended_here, out_of_memory]) == out_of_memory
    assert find_cause([lost, ended_here]) == lost


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("ddp", {"ACCELERATE_MIXED_PRECISION": "no"}),
        (
            "fsdp",
            {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_CPU_RAM_EFFICIENT_LOADING": "false"},
        ),
        ("zero3", {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}),
    ],
)
def test_accelerate_reads_the_shipped_files_and_the_ranks_get_its_variables(monkeypatch, name, variables):
    monkeypatch.setattr(launcher, "installed_version", lambda _: "0.18")  # deepspeed's
    params = load_params("grpo_code_execution", profile="tiny", environ={})
    path = Path(cli.__file__).parents[1] / "params" / "accelerate" / f"{name}.yaml"
    settings = launcher.accelerate_environment(path, params, num_ranks=2)
    assert settings.items() >= variables.items()
    assert not settings.keys() & {"RANK", "WORLD_SIZE", "MASTER_PORT"}


def test_weights_are_split_for_trl_alone_and_files_of_others_are_refused(tmp_path):
    folder = Path(cli.__file__).parents[1] / "params"
    params = load_params("ppo_openspiel", profile="tiny", environ={})
    with pytest.raises(ParamsError, match="which only the trainings by TRL can do, not self-play and PPO"):
        launcher.accelerate_environment(folder / "accelerate" / "fsdp.yaml", params, num_ranks=2)
    for path in (folder / "ppo_openspiel" / "tiny.yaml", tmp_path / "missing.yaml"):
        with pytest.raises(ParamsError, match=f"^--accelerate {path}: is not a file of accelerate's: "):
            launcher.accelerate_environment(path, params, num_ranks=2)


def test_two_nodes_meet_and_both_name_the_rank_that_failed(start, out):
    source = """
import torch
torch.distributed.init_process_group("gloo")
total = torch.tensor(rank + 1)
torch.distributed.all_reduce(total)
print("ranks add up to", int(total))
if rank == 1:
    raise ValueError("no luck")
torch.distributed.barrier()
"""
    with launcher.reserved_port() as port:
        nodes = [
            start(
                source, "--nproc", "1", "--nnodes", "2", "--node-rank", node, "--master", f"127.0.0.1:{port}"
            )
            for node in ("0", "1")
        ]
        errors = [node.communicate(timeout=180)[1] for node in nodes]
    for notebook in ("attempt-01.ipynb", "attempt-01.rank1.ipynb"):
        assert "ranks add up to 3" in (out / notebook).read_text()
    for error in errors:
        assert error.splitlines()[-1].startswith(
            "failed: rank 1 of 2: cell 3 of 3: ValueError: no luck; so far: "
        )
    assert [node.returncode for node in nodes] == [1, 1]
    assert status(out)["reason"] == "rank 1 of 2: cell 3 of 3: ValueError: no luck"
