"""A real SLURM of one node, started and stopped for the tests of this folder, and a folder to submit from."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from rlnb.run.directory import Status, read_last_step, read_status

ROOT = Path(__file__).parents[2]
CLUSTER = Path(__file__).with_name("cluster.sh")
RLNB = Path(sys.executable).with_name("rlnb")
# Seconds a step, nothing but training, every step saved.
QUICK = {
    "evaluation.enabled": "false", "training.save_steps": "1", "training.max_steps": "6",
    "training.learning_rate": "1e-4", "training.final_learning_rate": "1e-5", "training.target_kl": "0",
}  # fmt: skip
PATIENCE = 600  # seconds; other programs may keep the machine busy


def call(*command: str | Path, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s\n{call('squeue')}"
        time.sleep(0.5)


@dataclass
class Job:
    """A job that was submitted, and the directory of its run."""

    number: str
    directory: Path

    def facts(self) -> dict[str, str]:
        """What SLURM says of it: JobState, Restarts, ExitCode, ..."""
        words = call("scontrol", "show", "job", "--oneliner", self.number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    @property
    def state(self) -> str:
        return self.facts()["JobState"]

    @property
    def status(self) -> Status:
        status = read_status(self.directory)
        assert status is not None
        return status

    @property
    def saved(self) -> int:
        """The newest step that is saved."""
        paths = self.directory.glob("checkpoints/checkpoint-*/rlnb.json")
        return max((int(path.parent.name.split("-")[1]) for path in paths), default=0)

    @property
    def step(self) -> int | None:
        """The last step of its metrics."""
        return read_last_step(self.directory)

    @property
    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.directory.glob(f"*-{self.number}.log")))

    def wait_saved(self, step: int) -> None:
        wait_for(lambda: self.saved >= step or not self.is_alive(), f"step {step}")
        assert self.saved >= step, self.log

    def wait_step_of(self, *, attempt: int) -> None:
        """Wait until this attempt has saved a step of its own."""

        def has_saved() -> bool:
            status = read_status(self.directory)
            return status is not None and status.attempt == attempt and self.saved > status.first_step

        wait_for(lambda: has_saved() or not self.is_alive(), f"a step of attempt {attempt}")
        assert has_saved(), self.log

    def wait_end(self, state: str = "COMPLETED") -> None:
        wait_for(lambda: not self.is_alive(), "the end")
        assert self.state == state, self.log

    def is_alive(self) -> bool:
        """Whether it runs or may go back into the queue: TIMEOUT is said between the two."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "OUT_OF_MEMORY")
        return self.state not in over

    def wait_restarts(self, count: int) -> None:
        wait_for(lambda: int(self.facts()["Restarts"]) >= count or not self.is_alive(), f"{count} restarts")
        assert int(self.facts()["Restarts"]) >= count, self.log

    def limit(self, minutes: int) -> None:
        """Let it run for so many minutes in all, from its start on."""
        call("scontrol", "update", f"jobid={self.number}", f"timelimit={minutes}")

    def limit_soon(self) -> None:
        hours, minutes, _ = map(int, self.facts()["RunTime"].split(":"))
        self.limit(60 * hours + minutes + 2)

    def run_process(self) -> psutil.Process:
        """The process of `rlnb run`."""
        return psutil.Process(self.status.pid)

    def kernel(self) -> psutil.Process:
        return next(each for each in self.run_process().children() if "ipykernel" in " ".join(each.cmdline()))


@pytest.fixture(scope="session")
def slurm() -> Iterator[None]:
    """SLURM itself."""
    done = subprocess.run([CLUSTER, "up"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no SLURM here: {done.stderr.strip().splitlines()[-1] if done.stderr else done.stdout}")
    yield
    call(CLUSTER, "down")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


class Submitter:
    """Submits runs of the PPO notebook from a folder of their own."""

    def __init__(self, folder: Path, models: Path) -> None:
        self.folder, self.models = folder, models
        self.jobs: list[str] = []

    def __call__(self, *arguments: str, sbatch: str = "", **settings: str) -> Job:
        """Submit with these arguments and settings ("section__field"), and return the job."""
        printed = self.rlnb("submit", *arguments, sbatch=sbatch, **settings)
        first = next(line for line in printed.splitlines() if line.startswith("submitted job"))
        number, directory = first.split()[2].rstrip(",:"), first.rpartition(": ")[2]
        self.jobs.append(number)
        return Job(number, self.folder / directory)

    def rlnb(self, command: str, *arguments: str, sbatch: str = "", **settings: str) -> str:
        values = QUICK | {"model.cache_dir": str(self.models)}
        values |= {name.replace("__", "."): value for name, value in settings.items()}
        assignments = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
        notebook = ROOT / "notebooks" / "ppo_openspiel.ipynb"
        options = ["--profile", "tiny", *assignments, *arguments]
        return call(
            RLNB, command, notebook, *options, "--", "--time=60", "--cpus-per-task=1", *sbatch.split()
        )

    def runs(self) -> dict[str, str]:
        """{directory: state} by `rlnb runs`."""
        lines = call(RLNB, "runs", "--csv", self.folder / "outputs").splitlines()[1:]
        return dict(line.split(",")[:2] for line in lines)


@pytest.fixture
def submit(slurm: None, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Submitter]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    submitter = Submitter(tmp_path, models)
    yield submitter
    for number in submitter.jobs:
        call("scancel", number, check=False)
    shutil.rmtree(tmp_path / "outputs", ignore_errors=True)


def adapters(directory: Path) -> dict[str, bytes]:
    """The final adapters, file by file."""
    return {
        path.name: path.read_bytes() for path in (directory / "adapters").iterdir() if path.suffix != ".md"
    }


def steps(directory: Path) -> list[int]:
    """The steps of metrics.jsonl, each once."""
    path = directory / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted({json.loads(line)["step"] for line in lines if line.endswith("}")} - {0})
