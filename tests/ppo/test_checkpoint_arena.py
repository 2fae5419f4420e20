"""`rlnb eval --checkpoint`: a checkpoint plays as its run did, with its model, prompts and weights."""

import json
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import self_play_run
import torch
from hypothesis import given
from hypothesis import strategies as st
from ppo_run import params_of, train_run
from self_play_run import STAGES

from rlnb import cli
from rlnb.errors import OutOfMemory, ParamsError
from rlnb.games.text_games import load_game
from rlnb.ppo.checkpoint_arena import (
    describe_plan,
    find_checkpoint,
    load_run_params,
    make_folder,
    share_games,
)
from rlnb.run.disk import RECIPE_FILE
from rlnb.selfplay.arena import Arena


@pytest.fixture(scope="module")
def checkpoint(cache_dir, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a PPO run of two updates, with "mcts" for mcts:25."""
    directory = tmp_path_factory.mktemp("run")
    stages = [STAGES[0], STAGES[1] | {"opponents": ["mcts", "nash"]}]
    train_run(params_of(cache_dir, training={"max_steps": 2}, curriculum={"stages": stages}), directory)
    return str(directory / "checkpoints" / "checkpoint-2")


def test_the_averaged_weights_play_and_their_scores_are_kept(checkpoint, capsys):
    """MCTS would see the cards of Kuhn poker, and does not play it."""
    options = ["--checkpoint", checkpoint, "--episodes", "6", "--opponent", "random,mcts,mcts:025"]
    assert cli.main(["eval", *options]) == 0
    said = capsys.readouterr().out
    folder = Path(checkpoint).parents[1] / "arena-001"
    kept = json.loads((folder / "arena.json").read_text())
    assert (folder / "arena.png").read_bytes().startswith(b"\x89PNG")
    seats = {(row["game"], row["opponent"], row["seat"]): row["num_games"] for row in kept["rows"]}
    played = {("kuhn_poker", "random"): 2, ("nim", "random"): 1, ("nim", "mcts:25"): 3}
    assert seats == {(*pair, seat): num_games for pair, num_games in played.items() for seat in (0, 1)}
    assert {row["weights"] for row in kept["rows"]} == {"average"}
    assert kept["params"]["model"]["id"] == "tiny"
    plan, _, rest = said.partition("\n")
    assert plan.startswith(f"{checkpoint}: 12 games against random, mcts:25; about 0:0")
    assert "score (95% interval)" in rest
    assert "Not measured in second: kuhn_poker against nash." in rest and "Not measured in first" not in rest
    verdicts = [line.split() for line in rest.splitlines() if line.startswith(("first ", "second "))]
    assert [(words[0], words[1]) for words in verdicts] == [("first", "4"), ("second", "6")]


def test_a_run_and_final_are_its_last_checkpoint(checkpoint, tmp_path, monkeypatch):
    run = Path(checkpoint).parents[1]
    for path in (checkpoint, run, run / "final", run / "checkpoints", run / "checkpoints" / "final"):
        assert find_checkpoint(str(path)) == checkpoint
    saved = tmp_path / "outputs/ppo_openspiel/cpu-001"
    shutil.copytree(run / "checkpoints", saved / "checkpoints")
    older = tmp_path / "outputs/ppo_openspiel/cpu-002/checkpoints/checkpoint-9/average.safetensors"
    older.parent.mkdir(parents=True)
    older.write_bytes(b"")
    os.utime(older, (0, 0))
    monkeypatch.chdir(tmp_path)
    assert Path(find_checkpoint("final")).resolve() == saved / "checkpoints/checkpoint-2"
    monkeypatch.chdir(saved)
    assert Path(find_checkpoint("final")).resolve() == saved / "checkpoints/checkpoint-2"


def test_two_evaluations_at_the_same_time_have_a_folder_each(tmp_path):
    folders = [make_folder(str(tmp_path / "checkpoints/checkpoint-2")) for _ in range(2)]
    assert [folder.name for folder in folders] == ["arena-001", "arena-002"]


def test_out_of_memory_is_one_message(checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Arena, "play_match", Mock(side_effect=torch.cuda.OutOfMemoryError))
    options = ["--checkpoint", checkpoint, "--episodes", "4", "--out", str(tmp_path)]
    assert cli.main(["eval", *options]) == OutOfMemory.exit_code
    assert capsys.readouterr().err.splitlines()[-1].startswith("rlnb: the GPU's memory is used up")


@given(num_pairs=st.integers(1, 60), num_games=st.integers(1, 12))
def test_episodes_are_games_in_all_shared_evenly(num_pairs, num_games):
    games = [load_game("nim")] * num_games
    if num_pairs < num_games:
        with pytest.raises(ParamsError, match=f"write at least {2 * num_games}"):
            share_games("random", games, 2 * num_pairs)
        return
    shares = [share for _, _, share in share_games("random", games, 2 * num_pairs)]
    assert sum(shares) == 2 * num_pairs and max(shares) - min(shares) in (0, 2)
    assert all(share % 2 == 0 for share in shares)


def test_a_checkpoint_of_self_play_is_read_as_well(cache_dir, tmp_path):
    self_play_run.train_run(self_play_run.params_of(cache_dir, training={"max_steps": 1}), tmp_path)
    run = load_run_params(str(tmp_path / "checkpoints" / "checkpoint-1"))
    assert run.game_names() == ["kuhn_poker"]


def test_a_checkpoint_has_its_own_adapters_where_those_that_it_began_with_are_gone(cache_dir, tmp_path):
    params = self_play_run.params_of(cache_dir, model={"lora_rank": 4}, training={"max_steps": 1})
    self_play_run.train_run(params, tmp_path)
    checkpoint = tmp_path / "checkpoints" / "checkpoint-1"
    text = (checkpoint / "params.yaml").read_text()
    (checkpoint / "params.yaml").write_text(text.replace("adapters: ''", "adapters: gone"))
    assert load_run_params(str(checkpoint)).model.adapters == str(checkpoint)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ("--opponent nash", "--checkpoint"),
        ("--checkpoint nowhere", "--checkpoint"),
        ("--checkpoint {tmp_path}", "--checkpoint"),  # without weights
        ("--checkpoint {checkpoint} --opponent stockfish", "--opponent"),
        ("--checkpoint {checkpoint} --opponent perfect", "--opponent"),
        ("--checkpoint {checkpoint} --episodes 3", "--episodes"),
        ("--checkpoint {checkpoint} --episodes 2", "--episodes"),  # of two games
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


def test_the_time_of_a_plan_is_that_of_one_process(tmp_path):
    (checkpoint := tmp_path / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    (checkpoint / RECIPE_FILE).write_text('{"ranks": 8}')
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "time": 1, "time/rollout_seconds": 16.0}\n')
    run = Mock(training=Mock(games_per_step=128))
    plan = describe_plan([(load_game("nim"), "random", 100)], str(checkpoint), run)
    assert "about 0:01:40, at the 1 s a game" in plan  # 16 s for the 16 games of a rank
