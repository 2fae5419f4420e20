"""`rlnb eval --checkpoint`: a checkpoint plays as its run did, with its model, prompts and weights."""

import json
import shutil
from pathlib import Path

import pytest
import self_play_run
from ppo_run import params_of, train_run
from safetensors.torch import load_file

from rlnb import cli
from rlnb.errors import ParamsError
from rlnb.policy import load_policy
from rlnb.policy.adapters import WeightSnapshot
from rlnb.ppo.checkpoint_arena import load_average, load_run_params


@pytest.fixture(scope="module")
def checkpoint(cache_dir, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a PPO run of two updates."""
    directory = tmp_path_factory.mktemp("run")
    train_run(params_of(cache_dir, training={"max_steps": 2}), directory)
    return str(directory / "checkpoints" / "checkpoint-2")


def test_two_sets_of_weights_play_the_same_games_and_their_scores_are_kept(checkpoint, capsys):
    """MCTS would see the cards of Kuhn poker, which is played against random play instead."""
    options = ["--checkpoint", checkpoint, "--compare-with", "untrained", "--episodes", "4"]
    assert cli.main(["eval", *options, "--opponent", "mcts:2"]) == 0
    said = capsys.readouterr().out
    folder = Path(checkpoint).parents[1] / "arena-001"
    kept = json.loads((folder / "arena.json").read_text())
    assert (folder / "arena.png").read_bytes().startswith(b"\x89PNG")
    played = {(row["weights"], row["game"], row["opponent"], row["num_games"]) for row in kept["rows"]}
    games = [("kuhn_poker", "random", 2), ("nim", "mcts:2", 2)]
    assert played == {(weights, *game) for weights in (checkpoint, "untrained") for game in games}
    assert {(row["acting"], row["greedy"]) for row in kept["rows"]} == {
        ("constrained", False), ("constrained", True), ("free", False),
    }  # fmt: skip
    assert kept["params"]["model"]["id"] == "tiny" and kept["comparison"]
    assert said.count("checkpoint-2  ") >= 4 and "score (95% interval)" in said and "verdict" in said
    assert cli.main(["eval", "--checkpoint", "untrained", "--profile", "tiny", "--episodes", "2",
                     "--opponent", "random", "--out", str(folder / "other")]) == 0  # fmt: skip
    assert (folder / "other" / "arena.json").is_file()


def test_the_averaged_weights_play_as_the_runs_evaluations_judge_them(checkpoint, cache_dir):
    untrained = WeightSnapshot.take(load_policy(params_of(cache_dir).model, seed=42))
    saved = load_file(Path(checkpoint) / "average.safetensors")
    average = load_average(checkpoint, untrained)
    assert all(value.equal(saved[name]) for name, value in average.values.items())
    assert not any(value.equal(untrained.values[name]) for name, value in average.values.items())


def test_a_checkpoint_of_self_play_is_read_as_well(cache_dir, tmp_path):
    self_play_run.train_run(self_play_run.params_of(cache_dir, training={"max_steps": 1}), tmp_path)
    run = load_run_params(["untrained", str(tmp_path / "checkpoints" / "checkpoint-1")])
    assert run.game_names() == ["kuhn_poker"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ("--opponent nash", "--checkpoint"),
        ("--checkpoint nowhere", "--checkpoint"),
        ("--checkpoint {tmp_path}", "--checkpoint"),  # as a run's own directory
        ("--checkpoint untrained --opponent stockfish", "--opponent"),
        ("--checkpoint untrained --episodes 3", "--episodes"),
        ("--checkpoint untrained --set seed=1", "--set"),
    ],
)
def test_wrong_options_are_refused_before_a_model_is_loaded(
    options, field, checkpoint, tmp_path, capsys, monkeypatch
):
    shutil.copy(Path(checkpoint) / "params.yaml", tmp_path)
    monkeypatch.setattr("rlnb.ppo.checkpoint_arena.load_policy", None)
    assert cli.main(["eval", *options.format(tmp_path=tmp_path).split()]) == 2
    assert capsys.readouterr().err.startswith(f"rlnb: {field}")


def test_checkpoints_of_other_models_are_not_compared(checkpoint, cache_dir, tmp_path):
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    sections = {"model": {"lora_rank": 4, "lora_target_modules": attention}, "training": {"max_steps": 1}}
    self_play_run.train_run(self_play_run.params_of(cache_dir, **sections), tmp_path)
    other = str(tmp_path / "checkpoints" / "checkpoint-1")
    with pytest.raises(ParamsError, match=r"--compare-with .* model\.lora_rank = 0 and 4"):
        load_run_params([checkpoint, other])
