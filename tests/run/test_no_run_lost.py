"""Whatever lies on a run's disk: it ends as if nothing had happened, to the bit, or says why it cannot."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from waiting import small_disk

from rlnb.run import directory as runs
from rlnb.run.tracking import read_metrics

ROOT = Path(__file__).parents[2]
SIZES = ("training.max_steps=8", "training.save_steps=1", "training.save_total_limit=8", "mbpp.enabled=false")
# With gradients from the first step on.
GRPO = ("tasks.prompt=prefilled", "training.max_completion_length=4", "training.num_generations=8")
NOTEBOOKS = {
    "ppo_openspiel": (SIZES, "weights.safetensors", "value.safetensors"),
    "grpo_code_execution": (
        (*SIZES, *GRPO, "training.per_device_train_batch_size=8", "training.learning_rate=1.0e-3"),
        "adapter_model.safetensors",
        "scheduler.pt",
    ),
}


def run(notebook: str, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    assignments = [part for field in (*NOTEBOOKS[notebook][0], *more) for part in ("--set", field)]
    command = [sys.executable, "-m", "rlnb.cli", "run", f"notebooks/{notebook}.ipynb", "--out", str(out)]
    profile = [] if (out / "params.yaml").exists() else ["--profile", "tiny"]
    return subprocess.run([*command, *profile, *assignments], cwd=ROOT, capture_output=True, text=True)


def learned(out: Path) -> dict[str, dict[str, bytes]]:
    """The bytes of all that was trained, by file and name."""
    checkpoint = out / "checkpoints" / "checkpoint-8"
    return {
        path.name: {name: values.tobytes() for name, values in load_file(path).items()}
        for path in sorted(checkpoint.glob("*.safetensors"))
    }


def steps(out: Path) -> list[int]:
    return [row["step"] for row in read_metrics(out / "metrics.jsonl")]


@pytest.fixture(scope="module", params=NOTEBOOKS)
def whole(request, tmp_path_factory) -> tuple[str, Path]:
    """A notebook and the directory of its run of eight steps, which nothing has disturbed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    ended = run(request.param, out)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    first, last = (out / "checkpoints" / f"checkpoint-{step}" for step in (1, 8))
    weights = NOTEBOOKS[request.param][1]
    assert (first / weights).read_bytes() != (last / weights).read_bytes()
    return request.param, out


@pytest.mark.slow
def test_a_run_goes_on_from_the_newest_checkpoint_that_no_crash_has_damaged(whole, tmp_path):
    notebook, undisturbed = whole
    _, weights, other = NOTEBOOKS[notebook]
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    runs.end_attempt(out, runs.read_status(out), state="killed")
    checkpoint = {step: out / "checkpoints" / f"checkpoint-{step}" for step in range(1, 9)}
    os.truncate(checkpoint[8] / weights, 1000)
    (checkpoint[7] / "optimizer.pt").write_bytes(b"")
    (checkpoint[6] / other).unlink()
    (checkpoint[5] / "rlnb.json").write_bytes(b"")
    (checkpoint[4] / "trainer_state.json").write_bytes(b"")
    shutil.copytree(checkpoint[1], out / "checkpoints" / ".checkpoint-9")
    for name in ("metrics.jsonl", "games.jsonl"):
        if (out / name).exists():
            with (out / name).open("r+b") as file:
                line = file.readline()
                rest = file.read()
                file.seek(len(line))
                file.write(bytes(50) + b"\n" + rest)
    ended = run(notebook, out)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    log = (out / "train.log").read_text()
    for step in (4, 5, 6, 7, 8):
        (line,) = [line for line in ended.stdout.splitlines() if line.startswith(f"{checkpoint[step]}: ")]
        assert str(checkpoint[3]) in line and line in log
    assert ".checkpoint-9" in log and "metrics.jsonl.damaged" in ended.stdout
    assert learned(out) == learned(undisturbed)
    assert steps(out) == steps(undisturbed)
    if (out / "games.jsonl").exists():
        assert (out / "games.jsonl").read_bytes() == (undisturbed / "games.jsonl").read_bytes()
    names = {path.name for path in (out / "checkpoints").glob("*checkpoint-*")}
    assert names == {f"checkpoint-{step}" for step in range(1, 9)}


@pytest.fixture
def disk(whole, tmp_path):
    """A file system with room for a run and little more."""
    checkpoints = sum(path.stat().st_size for path in (whole[1] / "checkpoints").rglob("*"))
    others = sum(path.stat().st_size for path in whole[1].rglob("*")) - checkpoints
    with small_disk(tmp_path / "small", 5 * checkpoints // 4 + 2 * others + 2**22):
        yield tmp_path / "small"


@pytest.mark.slow
def test_a_full_disk_ends_a_run_with_one_sentence_and_with_room_it_goes_on(whole, disk):
    notebook, undisturbed = whole
    out, filling = disk / "run", disk / "filling"
    stop = threading.Event()

    def fill_disk() -> None:
        """Leave no room for another checkpoint once there are two, nor for much else."""
        while not stop.wait(0.05):
            if (out / "checkpoints" / "checkpoint-2" / "rlnb.json").exists():
                free = shutil.disk_usage(disk).free
                filling.write_bytes(bytes(max(0, free - 100_000)))
                return

    filler = threading.Thread(target=fill_disk)
    filler.start()
    ended = run(notebook, out)
    stop.set()
    filler.join()
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert str(disk) in ended.stderr.strip().splitlines()[-1] and "Traceback" not in ended.stderr
    status = runs.read_status(out)
    assert (status.state, status.exit) == ("failed", 1) and str(disk) in status.reason
    assert not list((out / "checkpoints").glob(".checkpoint-*"))
    assert not list(out.glob(".*.json.*"))
    again = run(notebook, out)
    assert again.returncode in (1, 2) and str(disk) in again.stderr and "Traceback" not in again.stderr
    filling.unlink()
    ended = run(notebook, out)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert learned(out) == learned(undisturbed)
    assert steps(out) == steps(undisturbed)
    assert all((path / "rlnb.json").exists() for path in (out / "checkpoints").glob("*checkpoint-*"))
