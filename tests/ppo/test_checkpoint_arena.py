"""`rlnb eval --checkpoint`: a checkpoint plays as its run did, with its model, prompts and weights."""

import json
import shutil
from pathlib import Path

import pytest
import self_play_run
from ppo_run import params_of, train_run

from rlnb import cli
from rlnb.ppo.checkpoint_arena import load_run_params


@pytest.fixture(scope="module")
def checkpoint(cache_dir, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a PPO run of two updates."""
    directory = tmp_path_factory.mktemp("run")
    train_run(params_of(cache_dir, training={"max_steps": 2}), directory)
    return str(directory / "checkpoints" / "checkpoint-2")


def test_the_averaged_weights_play_and_their_scores_are_kept(checkpoint, capsys):
    """MCTS would see the cards of Kuhn poker, which is played against random play instead."""
    assert cli.main(["eval", "--checkpoint", checkpoint, "--episodes", "4", "--opponent", "mcts:2"]) == 0
    said = capsys.readouterr().out
    folder = Path(checkpoint).parents[1] / "arena-001"
    kept = json.loads((folder / "arena.json").read_text())
    assert (folder / "arena.png").read_bytes().startswith(b"\x89PNG")
    played = {(row["weights"], row["game"], row["opponent"], row["num_games"]) for row in kept["rows"]}
    assert played == {("average", "kuhn_poker", "random", 2), ("average", "nim", "mcts:2", 2)}
    assert kept["params"]["model"]["id"] == "tiny"
    assert "score (95% interval)" in said and "verdict" in said


def test_a_checkpoint_of_self_play_is_read_as_well(cache_dir, tmp_path):
    self_play_run.train_run(self_play_run.params_of(cache_dir, training={"max_steps": 1}), tmp_path)
    run = load_run_params(str(tmp_path / "checkpoints" / "checkpoint-1"))
    assert run.game_names() == ["kuhn_poker"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ("--opponent nash", "--checkpoint"),
        ("--checkpoint nowhere", "--checkpoint"),
        ("--checkpoint {tmp_path}", "--checkpoint"),  # as a run's own directory
        ("--checkpoint {checkpoint} --opponent stockfish", "--opponent"),
        ("--checkpoint {checkpoint} --episodes 3", "--episodes"),
        ("--checkpoint {checkpoint} --set seed=1", "--set"),
    ],
)
def test_wrong_options_are_refused_before_a_model_is_loaded(
    options, field, checkpoint, tmp_path, capsys, monkeypatch
):
    shutil.copy(Path(checkpoint) / "params.yaml", tmp_path)
    monkeypatch.setattr("rlnb.ppo.checkpoint_arena.load_policy", None)
    assert cli.main(["eval", *options.format(tmp_path=tmp_path, checkpoint=checkpoint).split()]) == 2
    assert capsys.readouterr().err.startswith(f"rlnb: {field}")
