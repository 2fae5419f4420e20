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
from scripted_play import X_WINS, Scripted, any_legal, line
from self_play_run import Killed, checkpoint_of, differing, rows_of

from rlnb.errors import ParamsError, TrainingDiverged
from rlnb.games.text_games import load_game
from rlnb.metrics import open_tracker
from rlnb.policy import load_policy
from rlnb.rollouts import Rules, play_games, self_play
from rlnb.training.checkpoints import latest_checkpoint, step_of
from rlnb.training.credit import turn_estimates
from rlnb.training.curriculum import CurriculumState, results_of
from rlnb.training.ppo import PpoState, batch_of, check_kl, lines_due, train, turn_weights, utility
from rlnb.training.ppo import after as state_after
from rlnb.training.ppo_parts import curriculum_of, longest_prompt, train_run
from rlnb.training.self_play_parts import encoder_of

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
    assert turn_weights(trajectories, weigh="turns", mean_length=3.5).tolist() == [1.0] * 7
    weights = turn_weights(trajectories, weigh="games", mean_length=3.5)
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


def test_a_policy_that_moves_too_far_stops_the_run(cache_dir):
    params = params_of(cache_dir, training={"target_kl": 0.02}, alarms={"kl_factor": 10.0})
    check_kl(METRICS | {"update/approx_kl": 0.2}, params)
    with pytest.raises(TrainingDiverged) as caught:
        check_kl(METRICS | {"update/approx_kl": 0.21}, params)
    assert str(caught.value) == (
        "in one update the policy moved by 0.21 nats a token, more than alarms.kl_factor = 10.0 times "
        "training.target_kl = 0.02; lower training.learning_rate = 0.001, or training.num_epochs = 4"
    )
    check_kl(METRICS | {"update/approx_kl": 9.0}, params_of(cache_dir, training={"target_kl": 0.0}))


def test_no_checkpoint_is_written_while_an_alarm_rings(cache_dir, tmp_path):
    """The ones that are there are the last good ones; what is due is written as soon as nothing rings."""
    calm = params_of(cache_dir, training={"save_steps": 1, "max_steps": 2})
    rings = params_of(
        cache_dir, training={"save_steps": 1, "max_steps": 6}, alarms={"entropy": 9.0, "patience": 3}
    )
    _, learner, practice = parts_of(calm)
    saved: list[int] = []
    with open_tracker(tmp_path, config={}, wandb="disabled", tensorboard=False) as tracker:
        options = {"tracker": tracker, "output_dir": tmp_path, "evaluate": dict, "say": lambda _: None}
        options["save"] = lambda state: saved.append(state.step)
        state = train(learner, practice, PpoState(), **options)
        with pytest.raises(TrainingDiverged):
            train(learner, replace(practice, params=rings), state, **options)
    assert (rows_of(tmp_path)[-1]["step"], saved) == (4, [1, 2])


def test_a_checkpoint_that_was_put_off_is_written_when_nothing_rings_any_more(cache_dir, tmp_path):
    params = params_of(
        cache_dir, training={"save_steps": 2, "max_steps": 4}, alarms={"entropy": 9.0, "patience": 9}
    )
    _, learner, practice = parts_of(params)
    saved: list[int] = []

    def say(line: str) -> None:
        if line.startswith("Step 2 "):  # from the third update on it does not ring
            params.alarms.__dict__["entropy"] = 0.0

    with open_tracker(tmp_path, config={}, wandb="disabled", tensorboard=False) as tracker:
        train(
            learner, practice, PpoState(), tracker=tracker, output_dir=tmp_path, evaluate=dict, say=say,
            save=lambda state: saved.append(state.step),
        )  # fmt: skip
    assert saved == [3, 4]


def test_the_console_line_and_the_advice_where_little_is_won(cache_dir):
    params = params_of(cache_dir, training={"max_steps": 1000}, alarms={"advice_steps": 40})
    metrics = METRICS | {"play/success_share": 0.25}
    line_of_step = "Step 40 | Reward: -0.1250 | Score: 0.5000 | Success: 25.00%"

    def said(step: int, *scores: float) -> list[str]:
        return lines_due(PpoState(step=step, curriculum=CurriculumState(scores=scores)), metrics, params)

    assert said(41, 0.0) == []
    assert said(40) == said(40, 1.0, 0.0, 0.5) == said(40, *[0.0] * 7, *[0.5] * 3) == [line_of_step]
    assert said(40, 0.0, 0.0, 0.0, 0.5) == [
        line_of_step,
        "Success in the stage's last 4 games is 25%, below 30%. What helps, in this order: a higher "
        "game.temperature (0.7), a higher replay.share (0.3), easier games or a lower threshold in "
        "curriculum.stages; see that play/invalid_share is near 0 (0.25)",
    ]


def test_a_batch_has_the_advantages_and_weights_that_are_asked_for(cache_dir):
    games = play_games(self_play(load_game("tic_tac_toe"), 3, seed=0), {"policy": Scripted(any_legal)})
    trajectories = [one for game in games for one in game.trajectories]
    raw, _ = turn_estimates(trajectories, gamma=1.0, lam=0.95)
    mean = float(np.mean([len(one.turns) for one in trajectories]))
    for weigh in ("turns", "games"):
        weights = turn_weights(trajectories, weigh=weigh, mean_length=mean)
        for normalize in (True, False):
            asked = params_of(
                cache_dir, training={"weigh": weigh, "normalize_advantages": normalize}
            ).training
            batch, spread = batch_of(games, asked)
            assert batch.weights.tolist() == approx(weights.tolist())
            own = np.average(raw, weights=weights) if normalize else 0.0
            width = np.sqrt(np.average((raw - own) ** 2, weights=weights)) if normalize else 1.0
            assert batch.advantages.tolist() == approx(((raw - own) / width).tolist(), abs=1e-4)
            assert spread == approx(float(raw.std()))


def test_the_loss_reads_the_policy_at_the_temperature_of_play(cache_dir):
    arenas, learner, practice = parts_of(params_of(cache_dir, game={"temperature": 0.3}))
    assert learner.temperature == practice.player().temperature == 0.3
    games = practice.play(practice.assignments(PpoState()))
    batch, _ = batch_of(games, practice.params.training)
    sampled = [one for game in games for turn in game.trajectories[0].turns for one in turn.logprobs]
    assert sorted(learner.read_all(batch).token_logprobs.tolist()) == approx(sorted(sampled), abs=1e-4)


@pytest.mark.parametrize("steps", [{"num_epochs": 1, "num_mini_batches": 1}, {"num_epochs": 4}])
def test_an_update_that_moves_too_far_ends_the_training(cache_dir, tmp_path, steps):
    training = {"learning_rate": 0.3, "final_learning_rate": 0.3, "target_kl": 0.001, **steps}
    params = params_of(cache_dir, training=training)
    with pytest.raises(TrainingDiverged, match="^in one update the policy moved by "):
        train_run(params, tmp_path)


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
    assert "tokens that a prompt of nim may have" in message
    assert message.endswith("or game.style = compact, or take nim out of curriculum.stages")


def test_a_prompt_that_asks_again_has_to_fit_too(cache_dir):
    stages = {"stages": [{"name": "one", "games": ["kuhn_poker"], "threshold": 0.5}]}
    free = {"acting": "free", "max_prompt_tokens": 60, "max_new_tokens": 8}
    curriculum_of(params_of(cache_dir, game={**free, "invalid": "random"}, curriculum=stages))
    with pytest.raises(ParamsError) as caught:
        curriculum_of(params_of(cache_dir, game={**free, "invalid": "retry"}, curriculum=stages))
    assert str(caught.value).endswith("or take kuhn_poker out of curriculum.stages")
    assert "game.style" not in str(caught.value)  # it is compact already


def test_the_longest_bidding_is_among_the_prompts_that_are_tried(cache_dir):
    params = params_of(cache_dir, game={"style": "full"})
    encoder = encoder_of(params, load_policy(params.model))
    game = load_game("liars_dice")
    state = game.new_state()
    lengths = []
    while not state.is_terminal():
        if not state.is_chance_node():
            lengths.append(len(encoder.prompt_ids(game.prompt(state))))
        state.apply_action(state.legal_actions()[0])
    assert longest_prompt(game, encoder, params) >= max(lengths)


def test_arena_opponents_are_looked_for_before_a_model_is_loaded(cache_dir):
    with pytest.raises(ParamsError, match="^evaluation.opponents"):
        curriculum_of(params_of(cache_dir, evaluation={"opponents": ["bogus"]}))
