"""Two ranks with half of the completions each learn by TRL what one rank learns from all of them."""

from pathlib import Path

import pytest
import torch
from grpo_ranks_run import LEARNING_RATE, LOSS_TYPES, train
from two_ranks import run_on_two_ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each of two ranks has left what it learned."""
    folder = tmp_path_factory.mktemp("ranks")
    run_on_two_ranks(Path(__file__).with_name("grpo_ranks_run.py"), folder)
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
