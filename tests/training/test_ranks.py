"""Two processes with half of the games each learn what one process learns from all of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pytest import approx
from ranks_run import trained_on_own_games
from tiny_actor import tiny_policy

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What each of two ranks has learned, and what one process alone has."""
    folder = tmp_path_factory.mktemp("ranks")
    tiny_policy(folder)  # builds it, so that the ranks find it
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
        str(TESTS / "training" / "ranks_run.py"), str(folder), str(folder),
    ]  # fmt: skip
    path = os.pathsep.join(map(str, (TESTS.parent, TESTS)))  # this checkout, wherever another is installed
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]
    return [*found, trained_on_own_games(folder, rank=0, num_ranks=1)]


def test_each_rank_had_turns_of_its_own(ranks):
    first, second, alone = (one["num_turns"] for one in ranks)
    assert first + second == alone and min(first, second) > 0


def test_the_weights_of_both_ranks_are_equal(ranks):
    first, second, _ = ranks
    assert all(torch.equal(*pair) for pair in zip(first["weights"], second["weights"], strict=True))
    assert all(torch.equal(first["average"][name], second["average"][name]) for name in first["average"])


def test_the_weights_are_those_of_one_process_with_all_games(ranks):
    first, _, alone = ranks
    for one, other in zip(first["weights"], alone["weights"], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert first["grad_norm"] == approx(alone["grad_norm"], rel=1e-4)
    assert alone["grad_norm"] > 0.1


def test_the_baselines_are_those_of_all_games_on_both_ranks(ranks):
    first, second, alone = (one["baselines"] for one in ranks)
    assert first == second
    assert first == approx(alone)
    assert set(first) == {"kuhn_poker/first player", "kuhn_poker/second player"}
    assert first["kuhn_poker/first player"] != 0
