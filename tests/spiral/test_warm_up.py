"""Before free play a model that knows no games learns to answer with a legal move."""

import copy

import pytest
import torch
from self_play_run import make_run, params_of

from rlnb.games.text_games import load_game
from rlnb.policy.adapters import WeightSnapshot
from rlnb.selfplay.checkpoints import play_metrics
from rlnb.selfplay.rollouts import (
    LEARNER,
    collect_trajectories,
    collect_turns,
    play_games,
    self_play_episodes,
)
from rlnb.spiral.warm_up import RandomWriter, warm_up


def test_legal_answers_become_common_in_free_play_and_averages_start_at_the_warm_weights(cache_dir):
    params = params_of(
        cache_dir,
        game={"acting": "free", "max_new_tokens": 3, "name": "kuhn_poker"},
        training={"magnet_coef": 0.1, "kl_coef": 0.1, "games_per_step": 64},
    )
    run = make_run(params)
    learner = run.learner
    before = WeightSnapshot.take(learner.actor.policy).values
    optimizer = copy.deepcopy(learner.optimizer.state_dict())
    assert play_metrics(run.games.play(0))["play/invalid_share"] > 0.95
    losses = warm_up(learner, run.games.game, run.arena.encoder, num_steps=40, seed=params.seed)
    assert play_metrics(run.games.play(0))["play/invalid_share"] < 0.3
    assert len(losses) == 40
    assert losses[-1] < 0.2 * losses[0]
    # Kuhn: a random move leaves two legal ones open, ln 2 nats, then the end token: 0.35 nats a token.
    assert 0.3 < sum(losses[-5:]) / 5 < 0.7
    now = WeightSnapshot.take(learner.actor.policy).values
    assert any(not torch.equal(now[name], value) for name, value in before.items())
    for snapshot in (learner.average, learner.magnet, learner.reference):
        assert all(torch.equal(snapshot.values[name], value) for name, value in now.items())
    assert learner.optimizer.state_dict() == optimizer
    assert optimizer["state"] == {}


@pytest.mark.parametrize("style, in_box", [("compact", False), ("full", True)])
def test_what_is_shown_is_a_legal_answer_and_the_end(cache_dir, style, in_box):
    arena = make_run(params_of(cache_dir)).arena
    game = load_game("tic_tac_toe", style=style)
    writer = RandomWriter(arena.encoder, in_box=in_box)
    games = play_games(self_play_episodes(game, 4, seed=5), {LEARNER: writer})
    turns = collect_turns(collect_trajectories(games))
    assert len({turn.action for turn in turns}) == 9
    state = game.new_state()
    assert game.parse(turns[0].text, state).action == turns[0].action
    for turn in turns:
        assert turn.text == (f"\\boxed{{{turn.action}}}" if in_box else str(turn.action))
        assert turn.action in turn.legal_actions
        assert turn.completion_ids[-1] == arena.encoder.end
        assert arena.encoder.tokenizer.decode(turn.completion_ids[:-1]) == turn.text
        assert [choice.token for choice in turn.choices] == list(turn.completion_ids)
        assert [choice.position for choice in turn.choices] == [
            len(turn.prompt_ids) + k for k in range(len(turn.completion_ids))
        ]
