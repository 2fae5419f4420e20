"""A checkpoint plays again as its run did: its model, prompts and weights, against whom one likes."""

import shutil
from pathlib import Path

import pytest
import self_play_run
import torch
from ppo_run import params_of

from rlnb.errors import ParamsError
from rlnb.machine import recommend
from rlnb.params import load_params
from rlnb.training.ablation import train_run as train_self_play
from rlnb.training.checkpoint_arena import arenas_of, contenders_of, run_params, success_criteria
from rlnb.training.ppo_parts import train_run

ADVICE = recommend(self_play_run.CPU)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def checkpoint(cache_dir, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a PPO run of two updates."""
    directory = tmp_path_factory.mktemp("run")
    train_run(params_of(cache_dir, training={"max_steps": 2}), directory)
    return str(directory / "checkpoints" / "checkpoint-2")


def asked(**contest: object):
    return load_params("arena_eval", profile="tiny", overrides={"contest": contest}, environ={})


def test_a_checkpoint_knows_its_model_its_games_and_its_weights(checkpoint, cache_dir):
    params = asked(checkpoint=checkpoint, compare_with="untrained", games=[], opponents=["random", "nash"])
    run = run_params(params.contest, ADVICE)
    assert (run.model.id, run.model.cache_dir, run.game.style) == ("tiny", str(cache_dir), "compact")
    arenas = arenas_of(params, run)
    opponents = {arena.game.name: arena.params.evaluation.opponents for arena in arenas.arenas}
    assert opponents == {"kuhn_poker": ("random", "nash"), "nim": ("random",)}
    trained, untrained = contenders_of(params.contest, arenas).values()
    assert any(not torch.equal(trained.values[name], value) for name, value in untrained.values.items())
    last = contenders_of(params.contest.model_copy(update={"weights": "last"}), arenas)[checkpoint]
    assert any(not torch.equal(last.values[name], value) for name, value in trained.values.items())
    assert success_criteria(run) == {
        "first": ([("kuhn_poker", "random")], 0.5),
        "second": ([("kuhn_poker", "nash"), ("nim", "mcts:2")], 0.5),
    }


def test_beside_an_untrained_model_it_is_the_checkpoints_run_that_counts(checkpoint, cache_dir):
    params = asked(checkpoint="untrained", compare_with=checkpoint, run_profile="default")
    run = run_params(params.contest, ADVICE)
    assert (run.model.id, run.model.cache_dir) == ("tiny", str(cache_dir))
    assert list(contenders_of(params.contest, arenas_of(params, run))) == ["untrained", checkpoint]


def test_a_runs_directory_is_no_checkpoint(checkpoint):
    run = Path(checkpoint).parents[1]
    (run / "params.yaml").write_text((Path(checkpoint) / "params.yaml").read_text())
    with pytest.raises(ParamsError) as refusal:
        asked(checkpoint=str(run))
    assert str(refusal.value).endswith(
        "holds no trainer_state.json, as checkpoints of spiral_self_play and ppo_openspiel do; write a run's "
        "checkpoints/checkpoint-N, or untrained"
    )


def test_a_checkpoint_outlives_the_one_that_its_run_began_with(checkpoint, cache_dir, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(checkpoint, source)
    onwards = params_of(cache_dir, training={"max_steps": 2, "resume": str(source)})
    train_run(onwards, tmp_path / "run")
    shutil.rmtree(source)
    params = asked(checkpoint=str(tmp_path / "run" / "checkpoints" / "checkpoint-2"))
    assert run_params(params.contest, ADVICE).model.id == "tiny"


def test_games_of_ones_own_choice_are_played(checkpoint):
    params = asked(checkpoint=checkpoint, games=["tic_tac_toe"], opponents=["perfect"])
    (arena,) = arenas_of(params, run_params(params.contest, ADVICE)).arenas
    assert (arena.game.name, arena.params.evaluation.opponents) == ("tic_tac_toe", ("perfect",))
    assert arena.params.seed == params.seed


def test_a_checkpoint_of_self_play_plays_too(cache_dir, tmp_path):
    train_self_play(self_play_run.params_of(cache_dir, training={"max_steps": 1}), tmp_path)
    own = str(tmp_path / "checkpoints" / "checkpoint-1")
    params = asked(checkpoint=own, games=[], opponents=["nash"])
    run = run_params(params.contest, ADVICE)
    assert [arena.game.name for arena in arenas_of(params, run).arenas] == ["kuhn_poker"]
    assert success_criteria(run) == {}


def test_an_untrained_model_is_that_of_a_profile():
    run = run_params(asked(notebook="ppo_openspiel", run_profile="tiny").contest, ADVICE)
    assert run.model.id == "tiny"


def test_a_directory_that_is_no_checkpoint_is_refused():
    with pytest.raises(ParamsError) as caught:
        asked(checkpoint="nowhere")
    assert str(caught.value) == (
        "parameters cell: contest.checkpoint = 'nowhere' holds no params.yaml, as checkpoints of "
        "spiral_self_play and ppo_openspiel do; write a run's checkpoints/checkpoint-N, or untrained"
    )


def test_a_game_that_no_opponent_can_play_is_refused(checkpoint):
    params = asked(checkpoint=checkpoint, games=["kuhn_poker"], opponents=["mcts:5"])
    with pytest.raises(ParamsError) as caught:
        arenas_of(params, run_params(params.contest, ADVICE))
    assert str(caught.value) == (
        "contest.opponents = ['mcts:5'] holds nobody who can play kuhn_poker; add random"
    )


def test_an_opponent_that_is_none_is_named(checkpoint):
    params = asked(checkpoint=checkpoint, games=["kuhn_poker"], opponents=["stockfish"])
    with pytest.raises(ParamsError, match=r"^contest\.opponents = 'stockfish' is no opponent"):
        arenas_of(params, run_params(params.contest, ADVICE))


def test_checkpoints_of_other_models_are_not_compared(checkpoint, cache_dir, tmp_path):
    sections = {"model": {"lora_rank": 4}, "training": {"max_steps": 1}}
    train_self_play(self_play_run.params_of(cache_dir, **sections), tmp_path)
    other = str(tmp_path / "checkpoints" / "checkpoint-1")
    with pytest.raises(ParamsError) as caught:
        run_params(asked(checkpoint=checkpoint, compare_with=other).contest, ADVICE)
    assert str(caught.value) == (
        f"contest.compare_with = '{other}' is of another model: model.lora_rank = 0 and 4; "
        "evaluate each by itself"
    )
