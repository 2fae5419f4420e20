"""PPO goes through its curriculum, plays failures again, goes on exactly, and says what is wrong."""

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ppo_run import params_of, parts_of
from pytest import approx
from scripted_play import X_WINS, line
from self_play_run import Killed, checkpoint_of, differing, rows_of

from rlnb.errors import ParamsError, TrainingDiverged
from rlnb.games.text_games import load_game
from rlnb.rollouts import Rules, play_games, self_play
from rlnb.training.checkpoints import latest_checkpoint, step_of
from rlnb.training.curriculum import results_of
from rlnb.training.ppo import PpoState, check_kl, lines_due, moved_too_far, turn_weights, utility
from rlnb.training.ppo import after as state_after
from rlnb.training.ppo_parts import curriculum_of, train_run

METRICS = {
    "play/completion_tokens": 1.0,
    "play/invalid_share": 0.25,
    "play/score": 0.5,
    "reward": -0.125,
    "entropy": 1.0,
    "update/approx_kl": 0.01,
}


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def whole_run(cache_dir, tmp_path_factory: pytest.TempPathFactory):
    """The directory of an uninterrupted run, and what it said."""
    said: list[str] = []
    directory = tmp_path_factory.mktemp("whole")
    torch.manual_seed(0)
    train_run(params_of(cache_dir), directory, say=said.append)
    return directory, said


def test_a_run_goes_through_its_stages_and_says_how_it_stands(whole_run):
    directory, said = whole_run
    assert "Curriculum Progression: Advanced to stage 2/2" in said
    assert [line.partition(" |")[0] for line in said if line.startswith("Step")] == [
        "Step 1", "Step 2", "Step 3", "Step 4",
    ]  # fmt: skip
    rows = rows_of(directory)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[-1]["curriculum/stage"] == 2
    assert rows[-1]["play/num_games"] == 32
    assert {"kuhn_poker/exact/nash_conv", "nim/arena/random/first_score"} <= rows[-1].keys()
    games = [json.loads(line) for line in (directory / "games.jsonl").read_text().splitlines()]
    assert Counter(game["step"] for game in games) == {1: 8, 2: 8, 3: 8, 4: 8}
    first = {(tuple(game["players"]), game["game"]) for game in games if game["step"] == 1}
    assert first == {(("policy", "random"), "kuhn_poker"), (("random", "policy"), "kuhn_poker")}
    late = {name for game in games if game["step"] > 1 for name in game["players"]}
    assert late >= {"policy", "nash", "mcts:2"}  # and random, where a failure of the first stage is replayed


@pytest.mark.parametrize("last", [2, 3], ids=["at a checkpoint", "between two"])
def test_a_killed_run_goes_on_as_if_it_had_not_been_stopped(cache_dir, whole_run, tmp_path, last):
    def say(text: str) -> None:
        if text.startswith(f"Step {last} "):
            raise Killed

    params = params_of(cache_dir)
    torch.manual_seed(0)
    with pytest.raises(Killed):
        train_run(params, tmp_path, say=say)
    assert step_of(latest_checkpoint(tmp_path)) == 2
    torch.manual_seed(999)  # another process has drawn other numbers
    train_run(params, tmp_path)
    directory, _ = whole_run
    assert rows_of(tmp_path) == rows_of(directory)
    assert (tmp_path / "games.jsonl").read_bytes() == (directory / "games.jsonl").read_bytes()
    assert differing(checkpoint_of(tmp_path, 4), checkpoint_of(directory, 4)) == []


def test_a_checkpoint_holds_curriculum_and_failures(whole_run):
    directory, _ = whole_run
    state = checkpoint_of(directory, 4)["state"]
    state.pop("global_step")
    found = PpoState.of(state)
    assert found.curriculum.stage == 1
    assert found.replay.failures
    assert json.loads(json.dumps(asdict(found))) == state
    assert PpoState.of({}) == PpoState()


def test_another_curriculum_is_another_run(cache_dir, whole_run):
    directory, _ = whole_run
    stages = [{"name": "first", "games": ["kuhn_poker"], "threshold": 0.02}]
    with pytest.raises(ParamsError, match=r"belongs to another run: curriculum\.stages was"):
        train_run(params_of(cache_dir, curriculum={"stages": stages}), directory)


def test_a_share_of_an_updates_games_plays_failures_again_from_the_same_seat(cache_dir):
    params = params_of(cache_dir, training={"games_per_step": 20}, replay={"share": 0.5})
    _, _, practice = parts_of(params)
    fresh = practice.assignments(PpoState())
    assert len(fresh) == 20
    assert all(one.is_fresh for one in fresh)
    results = [one._replace(score=0.0) for one in results_of(fresh, practice.play(fresh))]
    state, _ = state_after(PpoState(), results, METRICS, params)
    assert len(state.replay.failures) == 20
    numbers = []
    for step in range(20):
        assigned = practice.assignments(replace(state, step=step))
        again = [one for one in assigned if not one.is_fresh]
        assert len(assigned) == 20
        assert {one.task for one in again} <= {one.task for one in state.replay.failures}
        assert Counter(one.task.seat for one in assigned if one.is_fresh)[0] == (20 - len(again)) / 2
        numbers.append(len(again))
    assert np.mean(numbers) == approx(10, abs=1)
    one = again[0]
    twin = next(other for other in fresh if other.task == one.task)
    same = {"group": twin.episode.group, "seed": twin.episode.seed}  # its policy draws anew
    assert one.episode.seed != twin.episode.seed
    assert replace(one.episode, **same) == twin.episode


def test_games_weigh_the_same_whatever_their_length():
    games = play_games(self_play(load_game("tic_tac_toe"), 1, seed=0), {"policy": line(X_WINS)})
    trajectories = games[0].trajectories  # of four and of three turns
    assert turn_weights(trajectories, weigh="turns").tolist() == [1.0] * 7
    weights = turn_weights(trajectories, weigh="games")
    assert weights.tolist() == approx([3.5 / 4] * 4 + [3.5 / 3] * 3)
    assert weights.mean() == approx(1.0)


def test_a_utility_is_the_share_of_what_could_be_won():
    known = {"tic_tac_toe": load_game("tic_tac_toe")}
    won = play_games(self_play(known["tic_tac_toe"], 1, seed=0), {"policy": line(X_WINS)})
    assert utility(won, known) == approx((1.0 + 0.0) / 2)
    cut = play_games(
        self_play(known["tic_tac_toe"], 1, seed=0), {"policy": line(X_WINS)}, rules=Rules(max_turns=1)
    )
    assert utility(cut, known) == 0.5


def test_a_policy_that_moves_too_far_again_and_again_stops_the_run(cache_dir):
    params = params_of(cache_dir, training={"target_kl": 0.02}, alarms={"patience": 2, "kl_factor": 10.0})
    far = METRICS | {"update/approx_kl": 0.21}
    assert not moved_too_far(METRICS | {"update/approx_kl": 0.2}, params)
    once, _ = state_after(PpoState(), [], far, params)
    check_kl(once.alarms, far, params)
    calm, _ = state_after(once, [], METRICS, params)
    assert calm.alarms == {}
    twice, _ = state_after(once, [], far, params)
    with pytest.raises(TrainingDiverged) as caught:
        check_kl(twice.alarms, far, params)
    assert str(caught.value) == (
        "for 2 updates in a row the policy moved by more than alarms.kl_factor = 10.0 times "
        "training.target_kl = 0.02 in one (now 0.21 nats a token); lower training.learning_rate = 0.001, or "
        "training.num_epochs = 4"
    )


def test_the_console_line_and_the_advice_where_little_is_won(cache_dir):
    params = params_of(cache_dir, training={"max_steps": 1000}, alarms={"advice_steps": 40})
    low = METRICS | {"play/success_share": 0.25}
    line_of_step = "Step 40 | Reward: -0.1250 | Score: 0.5000 | Success: 25.00%"
    assert lines_due(PpoState(step=40), METRICS | {"play/success_share": 0.3}, params) == [
        line_of_step.replace("25.00%", "30.00%")
    ]
    assert lines_due(PpoState(step=41), low, params) == []
    assert lines_due(PpoState(step=40), low, params) == [
        line_of_step,
        "Success is below 30%. What helps, in this order: a higher game.temperature (0.7), a higher "
        "replay.share (0.3), easier games or a lower threshold in curriculum.stages; see that "
        "play/invalid_share is near 0 (0.25)",
    ]


def test_prompts_that_do_not_fit_are_refused_before_a_model_is_loaded(cache_dir):
    params = params_of(
        cache_dir,
        game={"style": "full", "max_prompt_tokens": 64},
        curriculum={"stages": [{"name": "one", "games": ["nim"], "threshold": 0.5}]},
    )
    with pytest.raises(ParamsError) as caught:
        curriculum_of(params)
    message = str(caught.value)
    assert message.startswith("game.max_prompt_tokens = 64 is less than the ")
    assert message.endswith("or game.style = compact, or take nim out of curriculum.stages")
