"""Two ranks with half of the completions each learn by TRL what one rank learns from all of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from grpo_ranks_run import LEARNING_RATE, LOSS_TYPES, train

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each of two ranks has left what it learned."""
    path = os.pathsep.join(map(str, (TESTS.parent, TESTS)))  # this checkout, wherever another is installed
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    folder = tmp_path_factory.mktemp("ranks")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
        str(TESTS / "grpo" / "grpo_ranks_run.py"), str(folder),
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_two_ranks_have_the_gradients_of_one_with_the_same_completions(ranks, loss_type, tmp_path):
    alone = train(tmp_path / "alone", loss_type, num_ranks=1)
    learned = [torch.load(ranks / f"{loss_type}{rank}.pt") for rank in (0, 1)]
    for rank in learned:
        torch.testing.assert_close(rank["weights"], alone["weights"], rtol=0, atol=1e-5 * LEARNING_RATE)
    for row, rows in zip(alone["rows"], learned[0]["rows"], strict=True):
        assert row["reward"] == pytest.approx(rows["reward"], abs=1e-7)
        assert row["grad_norm"] == pytest.approx(rows["grad_norm"], abs=1e-5) and row["grad_norm"] > 0.1
