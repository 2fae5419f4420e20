"""Two ranks with half of the completions each learn by TRL what one rank learns from all of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parents[1]
LEARNING_RATE = 0.1  # of plain gradient descent


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What one rank and two have learned, by their number."""
    path = os.pathsep.join(map(str, (TESTS.parent, TESTS)))  # this checkout, wherever another is installed
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    folders = {}
    for num_ranks in (1, 2):
        folders[num_ranks] = tmp_path_factory.mktemp(f"ranks{num_ranks}")
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(num_ranks),
            str(TESTS / "grpo" / "grpo_ranks_run.py"), str(folders[num_ranks]),
        ]  # fmt: skip
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
    return folders


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_two_ranks_have_the_gradients_of_one_with_the_same_completions(trained, loss_type):
    alone, *ranks = (
        torch.load(trained[num_ranks] / f"{loss_type}{rank}.pt")
        for num_ranks, rank in ((1, 0), (2, 0), (2, 1))
    )
    for rank in ranks:
        torch.testing.assert_close(rank["weights"], alone["weights"], rtol=0, atol=1e-5 * LEARNING_RATE)
    for row, rows in zip(alone["rows"], ranks[0]["rows"], strict=True):
        assert row["reward"] == pytest.approx(rows["reward"], abs=1e-7)
        assert row["grad_norm"] == pytest.approx(rows["grad_norm"], abs=1e-5) and row["grad_norm"] > 0.1
