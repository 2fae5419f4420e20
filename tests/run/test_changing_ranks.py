"""A training that began on one number of ranks goes on with another, as the notebooks are run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlnb import cli

ROOT = Path(cli.__file__).parents[1]
QUICK = ("--set", "mbpp.enabled=false", "--set", "evaluation.enabled=false", "--profile", "tiny")


@pytest.mark.slow
@pytest.mark.parametrize("notebook", ["ppo_openspiel", "grpo_code_execution"])
def test_a_run_goes_on_with_another_number_of_ranks_and_says_what_differs(tmp_path, notebook):
    out = tmp_path / "out"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "rlnb.cli", "run", f"{ROOT}/notebooks/{notebook}.ipynb", *QUICK]
    command += ["--out", str(out)]
    for num_ranks, num_steps in ((2, 2), (1, 4), (2, 6)):
        options = ["--nproc", str(num_ranks), "--set", f"training.max_steps={num_steps}"]
        done = subprocess.run(
            command + options, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
        recipe = json.loads((out / "checkpoints" / f"checkpoint-{num_steps}" / "rlnb.json").read_text())
        assert recipe["ranks"] == num_ranks
    log = (out / "train.log").read_text()
    assert "changed since checkpoint-2: ranks 2 -> 1" in log
    assert "changed since checkpoint-4: ranks 1 -> 2" in log
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert sorted({*steps, 0}) == [0, 1, 2, 3, 4, 5, 6]
