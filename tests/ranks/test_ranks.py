"""Two ranks with half of the games or completions each learn what one learns from all of them."""

import json
from pathlib import Path

import grpo_runs
import pytest
import recorded_runs
import self_play_runs
import torch
from on_two_ranks import PARTS, evaluate_twice, join, measure_on_this_rank, play, resume, train_by_trl
from two_ranks import run_on_two_ranks


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with what the ranks have left, each part in a folder of its name."""
    folder = tmp_path_factory.mktemp("ranks")
    for part in PARTS:
        (folder / part.__name__).mkdir()
    run_on_two_ranks(Path(__file__).with_name("on_two_ranks.py"), folder)
    return folder


def test_the_ranks_of_a_run_on_a_cpu_know_of_each_other(left):
    """accelerate alone would call each of them the only one, and each would train by itself."""
    assert [(left / join.__name__ / f"num-seen-by-{rank}").read_text() for rank in (0, 1)] == ["2", "2"]


def test_rank_0_writes_and_decides_for_ranks_that_do_not_see_its_file(left):
    folder = left / evaluate_twice.__name__
    # Each rank evaluates in the first attempt and reads rank 0's evaluation in the second.
    assert [(folder / f"evaluated-by-{rank}").read_text() for rank in (0, 1)] == ["first", "first"]
    assert [path.parent.name for path in folder.rglob("arena_before.json")] == ["seen-by-0"]


def test_all_ranks_go_on_from_the_checkpoint_that_rank_0_sees_or_end_with_the_reason(left):
    def said(run: str) -> list[str]:
        return [(left / resume.__name__ / f"{run}-{rank}").read_text() for rank in (0, 1)]

    assert said("older-on-0") == ["older-on-0/checkpoints/checkpoint-36"] * 2
    chosen, refused = said("older-on-1")
    assert chosen == "older-on-1/checkpoints/checkpoint-40"
    assert refused.startswith(
        f"refused: {chosen}: rank 0 goes on from it, but for rank 1 rlnb.json is missing"
    )


@pytest.mark.parametrize("kind", self_play_runs.RUNS)
def test_self_play_has_the_same_games_and_the_same_gradients_on_one_rank_and_on_two(left, tmp_path, kind):
    alone = self_play_runs.train_run(kind, tmp_path)
    for rank in (0, 1):
        learned = torch.load(left / play.__name__ / f"rank{rank}.pt", weights_only=False)[kind]
        # Plain gradient descent: 1e-6 in the weights are 1e-5 in the gradient.
        assert self_play_runs.LEARNING_RATE == 0.1
        torch.testing.assert_close(learned["weights"], alone["weights"], rtol=0, atol=1e-6)
        # Baselines; the curriculum's stage, scores and failures: decisions that all ranks take alike.
        assert learned["kept"] == alone["kept"]
        assert learned["num_games"] == alone["num_games"]
    if kind == "ppo":
        assert alone["kept"]["curriculum"].stage == 1
        assert len(alone["kept"]["failures"]) > 3
        assert alone["kept"]["kl_coef"] > 0.05  # adapted


def test_self_play_on_two_ranks_is_as_recorded(left):
    recorded = json.loads(recorded_runs.RECORDED.read_text())["ranks"]
    ranks = json.loads((left / measure_on_this_rank.__name__ / "ranks.json").read_text())
    for case in recorded_runs.ON_RANKS:
        recorded_runs.assert_same(ranks[case], recorded[case])


@pytest.mark.parametrize("loss_type", grpo_runs.LOSS_TYPES)
def test_grpo_by_trl_has_the_gradients_of_one_rank_with_the_same_completions(left, loss_type, tmp_path):
    alone = grpo_runs.train(tmp_path / "alone", loss_type, num_ranks=1)
    learned = [torch.load(left / train_by_trl.__name__ / f"{loss_type}{rank}.pt") for rank in (0, 1)]
    for rank in learned:  # plain gradient descent: 1e-6 in the weights are 1e-5 in the gradient
        assert grpo_runs.LEARNING_RATE == 0.1
        torch.testing.assert_close(rank["weights"], alone["weights"], rtol=0, atol=1e-6)
    for row, rows in zip(alone["rows"], learned[0]["rows"], strict=True):
        assert row["reward"] == pytest.approx(rows["reward"], abs=1e-7)
        assert row["grad_norm"] == pytest.approx(rows["grad_norm"], abs=1e-5) and row["grad_norm"] > 0.1
