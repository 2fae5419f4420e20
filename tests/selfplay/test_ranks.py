"""Two ranks with half of the games each learn what one learns from all of them."""

from pathlib import Path

import pytest
import torch
from ranks_run import LEARNING_RATE, RUNS, train_run
from two_ranks import run_on_two_ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What each of two ranks has learned."""
    folder = tmp_path_factory.mktemp("ranks")
    run_on_two_ranks(Path(__file__).with_name("ranks_run.py"), folder)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_plays_the_same_games_and_has_the_same_gradients_on_one_rank_and_on_two(ranks, tmp_path, kind):
    alone = train_run(kind, tmp_path)
    for rank in ranks:
        # Plain gradient descent: 1e-6 in the weights are 1e-5 in the gradient.
        assert LEARNING_RATE == 0.1
        torch.testing.assert_close(rank[kind]["weights"], alone["weights"], rtol=0, atol=1e-6)
        # Baselines; the curriculum's stage, scores and failures: decisions that all ranks take alike.
        assert rank[kind]["kept"] == alone["kept"]
        assert rank[kind]["num_games"] == alone["num_games"]
    if kind == "ppo":
        assert alone["kept"]["curriculum"].stage == 1
        assert len(alone["kept"]["failures"]) > 3
        assert alone["kept"]["kl_coef"] > 0.05  # adapted
