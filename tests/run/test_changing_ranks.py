"""A training that began on one number of ranks goes on with another, as the notebooks are run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlnb import cli

ROOT = Path(cli.__file__).parents[1]
SELF_PLAY = ("training.games_per_step=4", "evaluation.num_games=2", "evaluation.opponents=[random]")
SMALLER = {
    "ppo_openspiel": (*SELF_PLAY, "mbpp.enabled=false"),
    "grpo_code_execution": ("mbpp.enabled=false", "evaluation.enabled=false"),
}


def train(notebook: str, out: Path, *, num_ranks: int, num_steps: int) -> None:
    """Train to this step."""
    assignments = (*SMALLER[notebook], f"training.max_steps={num_steps}")
    options = [option for assignment in assignments for option in ("--set", assignment)]
    command = [
        sys.executable, "-m", "rlnb.cli", "run", str(ROOT / "notebooks" / f"{notebook}.ipynb"),
        "--profile", "tiny", "--nproc", str(num_ranks), "--out", str(out), *options,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=out.parent, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("notebook", ["ppo_openspiel", "grpo_code_execution"])
def test_a_run_goes_on_with_another_number_of_ranks_and_says_what_differs(tmp_path, notebook):
    out = tmp_path / "out"
    for num_ranks, num_steps in ((2, 2), (1, 4), (2, 6)):
        train(notebook, out, num_ranks=num_ranks, num_steps=num_steps)
        recipe = json.loads((out / "checkpoints" / f"checkpoint-{num_steps}" / "rlnb.json").read_text())
        assert recipe["ranks"] == num_ranks
    log = (out / "train.log").read_text()
    assert (
        "changed since checkpoint-2: ranks 2 -> 1" in log
        and "changed since checkpoint-4: ranks 1 -> 2" in log
    )
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert sorted({*steps, 0}) == [0, 1, 2, 3, 4, 5, 6]
