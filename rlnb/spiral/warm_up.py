"""Supervised steps before free play, so that a model that knows no games answers with a legal move."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rlnb.games.text_games import TextGame
from rlnb.policy.adapters import WeightSnapshot
from rlnb.selfplay.acting import Encoder, free_turn
from rlnb.selfplay.rollouts import (
    LEARNER,
    Request,
    Turn,
    collect_trajectories,
    collect_turns,
    play_games,
    self_play_episodes,
)
from rlnb.selfplay.update import Learner, compute_logprobs, make_batch

NUM_GAMES, LEARNING_RATE = 32, 1e-3
SEED = 2**41  # above the seeds of training and of the arena


@dataclass(frozen=True)
class RandomWriter:
    """A player that writes the id of a random legal action, boxed for full prompts, and the end token."""

    encoder: Encoder
    in_box: bool

    def answer(self, requests: Sequence[Request]) -> list[Turn]:
        turns = []
        prompts = self.encoder.prompt_ids([request.prompt for request in requests])
        for request, prompt in zip(requests, prompts, strict=True):
            action = request.random.choice(request.legal_actions)
            text = f"\\boxed{{{action}}}" if self.in_box else str(action)
            ids = (*self.encoder.tokenizer(text, add_special_tokens=False)["input_ids"], self.encoder.end)
            turns.append(free_turn(request, prompt, ids, text, action))
        return turns


def warm_up(learner: Learner, game: TextGame, encoder: Encoder, *, num_steps: int, seed: int) -> list[float]:
    """Train on random legal play, 32 games a step, and return the loss of each step in nats a token.

    Only for free play: constrained answers are legal anyway. The learner's optimizer is not touched; its
    averages start afresh from the warm weights, and the reference is the warm policy.
    """
    writer = RandomWriter(encoder, in_box=game.style == "full")
    parameters = learner.actor.parameters_to_train()
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0)
    losses = []
    for step in range(num_steps):
        episodes = self_play_episodes(game, NUM_GAMES, seed=SEED + seed * 10_000 + step)
        turns = collect_turns(collect_trajectories(play_games(episodes, {LEARNER: writer})))
        batch = make_batch(turns, np.zeros(len(turns)), np.zeros(len(turns)))
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        rows = range(len(batch.sequences))
        for part in batch.micro_batches(rows, max_tokens=learner.training.tokens_per_pass):
            computed = compute_logprobs(learner.actor, batch, part, temperature=1.0)
            loss = -computed.token_logprobs.sum() / len(batch.token_position)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(total)
    for snapshot in (learner.average, learner.magnet):
        if snapshot:
            snapshot.copy_from(learner.actor.policy)
    if learner.kl_coef:  # the untrained policy knows no moves
        learner.reference = WeightSnapshot.take(learner.actor.policy)
    return losses
