"""Before free play a model that knows no games learns to answer with a legal move."""

import copy
from pathlib import Path

import pytest
import torch
from self_play_run import params_of, parts_of

from rlnb.games.text_games import load_game
from rlnb.policy.adapters import AdapterValues
from rlnb.rollouts import LEARNER, play_games, self_play
from rlnb.training.play_metrics import play_metrics
from rlnb.training.warm_up import RandomWriter, warm_up


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def warmed(cache_dir):
    """(parts, invalid share before, after, the values before, losses) of a warm-up of 40 steps."""
    params = params_of(
        cache_dir,
        game={"acting": "free", "max_new_tokens": 3, "name": "kuhn_poker"},
        training={"magnet_coef": 0.1, "kl_coef": 0.1, "games_per_step": 64},
    )
    arena, learner, table = parts_of(params)
    before = AdapterValues.of(arena.actor.policy)
    optimizer = copy.deepcopy(learner.optimizer.state_dict())
    untrained = play_metrics(table.play(0))
    losses = warm_up(learner, table, arena.encoder, num_steps=40)
    return arena, learner, untrained, play_metrics(table.play(0)), before, optimizer, losses


def test_legal_answers_become_common_in_free_play(warmed):
    _, _, untrained, warm, _, _, losses = warmed
    assert untrained["play/invalid_share"] > 0.95
    assert warm["play/invalid_share"] < 0.3
    assert len(losses) == 40
    assert losses[-1] < 0.2 * losses[0]


def test_the_loss_ends_near_what_a_random_move_leaves_open(warmed):
    """Kuhn: two legal moves, ln 2 nats, then the end token: 0.35 nats a token."""
    assert 0.3 < sum(warmed[-1][-5:]) / 5 < 0.7


def test_averages_begin_anew_at_the_warm_weights(warmed):
    arena, learner, _, _, before, _, _ = warmed
    now = AdapterValues.of(arena.actor.policy).values
    assert any(not torch.equal(now[name], one) for name, one in before.values.items())
    for values in (learner.average, learner.magnet, learner.reference):
        assert all(torch.equal(values.values[name], one) for name, one in now.items())


def test_the_learners_optimizer_is_not_touched(warmed):
    _, learner, _, _, _, optimizer, _ = warmed
    assert learner.optimizer.state_dict() == optimizer
    assert optimizer["state"] == {}


def test_the_same_seed_warms_up_the_same(cache_dir):
    found = []
    for seed in (1, 1, 2):
        params = params_of(cache_dir, seed=seed, game={"acting": "free"})
        arena, learner, table = parts_of(params)
        losses = warm_up(learner, table, arena.encoder, num_steps=2)
        found.append((losses, [one.tolist() for one in AdapterValues.of(arena.actor.policy).values.values()]))
    assert found[0] == found[1]
    assert found[0] != found[2]


@pytest.mark.parametrize("style, in_box", [("compact", False), ("full", True)])
def test_what_is_shown_is_a_legal_answer_and_the_end(cache_dir, style, in_box):
    arena, _, _ = parts_of(params_of(cache_dir))
    game = load_game("tic_tac_toe", style=style)
    writer = RandomWriter(arena.encoder, in_box=in_box)
    turns = [
        turn
        for played in play_games(self_play(game, 4, seed=5), {LEARNER: writer})
        for one in played.trajectories
        for turn in one.turns
    ]
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
