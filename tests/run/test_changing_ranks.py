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


def train(notebook: str, out: Path, *, num_ranks: int, num_steps: int) -> str:
    """Train to this step and return what was printed."""
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
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("notebook", ["ppo_openspiel", "grpo_code_execution"])
def test_a_run_goes_on_with_another_number_of_ranks_and_says_what_differs(tmp_path, notebook, before, after):
    out = tmp_path / "out"
    train(notebook, out, num_ranks=before, num_steps=2)
    train(notebook, out, num_ranks=after, num_steps=4)
    recipe = json.loads((out / "checkpoints" / "checkpoint-4" / "rlnb.json").read_text())
    said = f"checkpoint-2 was saved by {before} rank(s), and {after} go on"
    assert said in (out / "train.log").read_text()
    assert recipe["ranks"] == after
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert sorted(set(steps)) == [0, 1, 2, 3, 4] or sorted(set(steps)) == [1, 2, 3, 4]
    assert (out / "attempt-02.rank1.ipynb").exists() == (after == 2)
