"""PPO goes through its curriculum, plays failures again, goes on exactly, and says what is wrong."""

import json
import re
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from ppo_run import make_run, params_of, train_run
from pytest import approx
from scripted_play import X_WINS, line
from self_play_run import Killed, checkpoint_of, differing, kill_after, rows_of

from rlnb.advantages.gae import gae, turn_columns
from rlnb.errors import ParamsError
from rlnb.games.text_games import load_game
from rlnb.ppo.training import PpoState, load_playable_curriculum, make_ppo_batch, next_state, weigh_turns
from rlnb.run.checkpoints import checkpoint_step, latest_checkpoint
from rlnb.selfplay.rollouts import collect_trajectories, play_games, self_play_episodes

METRICS = {
    "play/completion_tokens": 1.0,
    "play/invalid_share": 0.25,
    "play/score": 0.5,
    "reward": -0.125,
    "entropy": 1.0,
    "update/approx_kl": 0.01,
}


@pytest.fixture(scope="module")
def whole_run(cache_dir, tmp_path_factory: pytest.TempPathFactory):
    """The directory of an uninterrupted run, and what it printed."""
    said: list[str] = []
    directory = tmp_path_factory.mktemp("whole")
    torch.manual_seed(0)
    train_run(params_of(cache_dir), directory, say=said.append)
    return directory, said


def test_a_run_goes_through_its_stages_and_logs_each_update(whole_run):
    directory, said = whole_run
    assert "Curriculum Progression: Advanced to stage 2/2" in said
    log = (directory / "train.log").read_text()
    assert re.findall(r"Step (\d) \| Reward: .*Success: ", log) == ["1", "2", "3", "4"]
    assert "Curriculum Progression: Advanced to stage 2/2" in log
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


def test_a_killed_run_goes_on_as_if_it_had_not_been_stopped(cache_dir, whole_run, tmp_path):
    """It was killed between two checkpoints, and what it holds is its own."""
    params = params_of(cache_dir)
    torch.manual_seed(0)
    with pytest.raises(Killed):
        train_run(params, tmp_path, show=kill_after(3))
    assert checkpoint_step(latest_checkpoint(tmp_path)) == 2
    torch.manual_seed(999)  # another process has drawn other numbers
    train_run(params, tmp_path)
    directory, _ = whole_run
    assert rows_of(tmp_path) == rows_of(directory)
    assert (tmp_path / "games.jsonl").read_bytes() == (directory / "games.jsonl").read_bytes()
    assert differing(checkpoint_of(tmp_path, 4), checkpoint_of(directory, 4)) == []


def test_a_run_continues_the_whole_state_of_another_run_that_is_named_by_its_directory(
    cache_dir, whole_run, tmp_path, capsys
):
    """Step, optimizer, curriculum and failures."""
    whole, other, own = whole_run[0], tmp_path / "other", tmp_path / "own"
    shutil.copytree(whole / "checkpoints/checkpoint-2", other / "checkpoints/checkpoint-2")
    torch.manual_seed(999)
    train_run(params_of(cache_dir, training={"resume": str(other)}), own)
    assert f"taking the whole state of {other}/checkpoints/checkpoint-2: step 2" in capsys.readouterr().out
    assert [row["step"] for row in rows_of(own)][-2:] == [3, 4]
    assert rows_of(own)[-2:] == rows_of(whole)[-2:]
    assert differing(checkpoint_of(own, 4), checkpoint_of(whole, 4)) == []


def test_a_share_of_an_updates_games_plays_failures_again_from_the_same_seat(cache_dir):
    params = params_of(cache_dir, training={"games_per_step": 20}, replay={"share": 0.5})
    run = make_run(params)
    fresh = run.assign_games(PpoState())
    assert len(fresh) == 20
    assert all(assignment.is_fresh for assignment in fresh)
    run.play(0)
    lost = [result._replace(score=0.0) for result in run.results]
    state, _ = next_state(PpoState(), lost, METRICS, params)
    assert len(state.replay.failures) == 20
    counts = []
    for step in range(20):
        assigned = run.assign_games(replace(state, step=step))
        again = [assignment for assignment in assigned if not assignment.is_fresh]
        seats = Counter(assignment.task.seat for assignment in assigned if assignment.is_fresh)
        assert len(assigned) == 20
        assert {replay.task for replay in again} <= {failure.task for failure in state.replay.failures}
        assert seats[0] == (20 - len(again)) / 2
        counts.append(len(again))
    assert np.mean(counts) == approx(10, abs=1)
    replay = again[0].episode
    twin = next(assignment for assignment in fresh if assignment.task == again[0].task).episode
    assert replay.seed != twin.seed  # its policy draws anew
    assert replace(replay, group=twin.group, seed=twin.seed) == twin


def test_games_weigh_the_same_whatever_their_length():
    games = play_games(self_play_episodes(load_game("tic_tac_toe"), 1, seed=0), {"policy": line(X_WINS)})
    trajectories = games[0].trajectories  # of four and of three turns
    assert weigh_turns(trajectories, weigh="turns", mean_length=3.5).tolist() == [1.0] * 7
    weights = weigh_turns(trajectories, weigh="games", mean_length=3.5)
    assert weights.tolist() == approx([3.5 / 4] * 4 + [3.5 / 3] * 3)
    assert weights.mean() == approx(1.0)


def test_the_loss_reads_the_policy_at_the_temperature_of_play(cache_dir):
    run = make_run(params_of(cache_dir, game={"temperature": 0.3}))
    assert run.learner.temperature == 0.3
    games = run.play(0)
    trajectories = collect_trajectories(games)
    batch = make_ppo_batch(trajectories, gae(*turn_columns(trajectories), lam=0.95), run.learner)
    sampled = [logprob for game in games for turn in game.trajectories[0].turns for logprob in turn.logprobs]
    logprobs = run.learner.compute_logprobs(batch).logprobs_bt[batch.mask_bt]
    assert sorted(logprobs.tolist()) == approx(sorted(sampled), abs=1e-4)


def test_the_prompts_of_all_stages_have_to_fit(cache_dir):
    """Kuhn poker's compact prompts have 6 to 8 bytes, the later stage's nim has more."""
    load_playable_curriculum(params_of(cache_dir, game={"max_prompt_tokens": 40}))
    with pytest.raises(ParamsError, match=r"game\.max_prompt_tokens = 9 "):
        load_playable_curriculum(params_of(cache_dir, game={"max_prompt_tokens": 9}))
