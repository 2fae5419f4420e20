"""A checkpoint plays again as its run did: its model, prompts and weights, against whom one likes."""

import re
import shutil
from pathlib import Path

import pytest
import self_play_run
import torch
from ppo_run import params_of, train_run

from rlnb.errors import ParamsError
from rlnb.machine import recommend
from rlnb.params import load_params
from rlnb.ppo.checkpoint_arena import load_arena, load_run_params, load_snapshots, load_stages

ADVICE = recommend(self_play_run.CPU)
BAD_MCTS = ("mcts:0", "mcts:1", "mcts:x", "mcts:")


@pytest.fixture(scope="module")
def checkpoint(cache_dir, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a PPO run of two updates."""
    directory = tmp_path_factory.mktemp("run")
    train_run(params_of(cache_dir, training={"max_steps": 2}), directory)
    return str(directory / "checkpoints" / "checkpoint-2")


def make_params(**contest: object):
    return load_params("arena_eval", profile="tiny", overrides={"contest": contest}, environ={})


def test_a_checkpoint_knows_its_model_its_games_and_its_weights(checkpoint, cache_dir):
    params = make_params(
        checkpoint=checkpoint, compare_with="untrained", games=[], opponents=["random", "nash"]
    )
    run = load_run_params(params.contest, ADVICE)
    assert (run.model.id, run.model.cache_dir, run.game.style) == ("tiny", str(cache_dir), "compact")
    arena = load_arena(params, run)
    opponents = {game.name: names for game, names in arena.opponents}
    assert opponents == {"kuhn_poker": ("random", "nash"), "nim": ("random",)}
    trained, untrained = load_snapshots(params.contest, arena).values()
    assert any(not torch.equal(trained.values[name], value) for name, value in untrained.values.items())
    last = load_snapshots(params.contest.model_copy(update={"weights": "last"}), arena)[checkpoint]
    assert any(not torch.equal(last.values[name], value) for name, value in trained.values.items())
    stages = load_stages(run)
    assert [[opponent for _, opponent in pairings] for pairings in stages.pairings] == [
        ["random"], ["nash", "mcts:2"],
    ]  # fmt: skip
    untrained_run = load_run_params(make_params(notebook="ppo_openspiel", run_profile="tiny").contest, ADVICE)
    assert untrained_run.model.id == "tiny"


def test_beside_an_untrained_model_it_is_the_checkpoints_run_that_counts(checkpoint, cache_dir):
    params = make_params(checkpoint="untrained", compare_with=checkpoint, run_profile="default")
    run = load_run_params(params.contest, ADVICE)
    assert (run.model.id, run.model.cache_dir) == ("tiny", str(cache_dir))
    assert list(load_snapshots(params.contest, load_arena(params, run))) == ["untrained", checkpoint]


def test_a_runs_directory_is_no_checkpoint(checkpoint):
    run = Path(checkpoint).parents[1]
    (run / "params.yaml").write_text((Path(checkpoint) / "params.yaml").read_text())
    with pytest.raises(ParamsError) as refusal:
        make_params(checkpoint=str(run))
    assert str(refusal.value).endswith(
        "holds no trainer_state.json, as checkpoints of spiral_self_play and ppo_openspiel do; write a run's "
        "checkpoints/checkpoint-N, or untrained"
    )
    with pytest.raises(ParamsError, match="'nowhere' holds no params.yaml, as checkpoints of "):
        make_params(checkpoint="nowhere")


def test_a_checkpoint_outlives_the_one_that_its_run_began_with(checkpoint, cache_dir, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(checkpoint, source)
    onwards = params_of(cache_dir, training={"max_steps": 2, "resume": str(source)})
    train_run(onwards, tmp_path / "run")
    shutil.rmtree(source)
    params = make_params(checkpoint=str(tmp_path / "run" / "checkpoints" / "checkpoint-2"))
    assert load_run_params(params.contest, ADVICE).model.id == "tiny"


def test_games_of_ones_own_choice_are_played(checkpoint):
    params = make_params(checkpoint=checkpoint, games=["tic_tac_toe"], opponents=["perfect"])
    arena = load_arena(params, load_run_params(params.contest, ADVICE))
    assert [(game.name, names) for game, names in arena.opponents] == [("tic_tac_toe", ("perfect",))]
    assert arena.seed == params.seed


def test_a_checkpoint_is_an_opponent_by_its_folder(checkpoint):
    assert make_params(opponents=["random", checkpoint]).contest.opponents == ("random", checkpoint)


def test_a_game_that_no_asked_opponent_can_play_is_played_against_its_equilibrium(checkpoint, capsys):
    params = make_params(checkpoint=checkpoint, games=["kuhn_poker"], opponents=["mcts:5"])
    arena = load_arena(params, load_run_params(params.contest, ADVICE))
    assert [(game.name, names) for game, names in arena.opponents] == [("kuhn_poker", ("nash",))]
    assert "kuhn_poker is played against nash, not mcts:5: MCTS sees the other player's card" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stockfish", "is not an opponent; write random, mcts:25, perfect or nash, or a checkpoint's folder"),
        *((name, "names no number of simulations from 2 to 1,000,000; write 'mcts:10'") for name in BAD_MCTS),
        (".", "holds no checkpoint (weights.safetensors or adapter_model.safetensors); write a run's "),
    ],
)
def test_a_wrong_opponent_is_refused_when_the_parameters_are_read(name, said):
    with pytest.raises(ParamsError, match=re.escape(f"opponents = ['{name}'] holds '{name}', which {said}")):
        make_params(opponents=[name])


def test_a_checkpoint_of_self_play_plays_too(cache_dir, tmp_path):
    self_play_run.train_run(self_play_run.params_of(cache_dir, training={"max_steps": 1}), tmp_path)
    checkpoint = str(tmp_path / "checkpoints" / "checkpoint-1")
    params = make_params(checkpoint=checkpoint, games=[], opponents=["nash"])
    run = load_run_params(params.contest, ADVICE)
    assert [game.name for game, _ in load_arena(params, run).opponents] == ["kuhn_poker"]
    assert load_stages(run) is None


def test_checkpoints_of_other_models_are_not_compared(checkpoint, cache_dir, tmp_path):
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    sections = {"model": {"lora_rank": 4, "lora_target_modules": attention}, "training": {"max_steps": 1}}
    self_play_run.train_run(self_play_run.params_of(cache_dir, **sections), tmp_path)
    other = str(tmp_path / "checkpoints" / "checkpoint-1")
    with pytest.raises(ParamsError) as caught:
        load_run_params(make_params(checkpoint=checkpoint, compare_with=other).contest, ADVICE)
    assert str(caught.value) == (
        f"contest.compare_with = '{other}' is of another model: model.lora_rank = 0 and 4; "
        "evaluate each by itself"
    )
