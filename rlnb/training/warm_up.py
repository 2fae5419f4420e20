"""Before free play: a model that has never seen a game learns to answer with a legal move, any of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rlnb.policy.acting import Encoder
from rlnb.policy.adapters import AdapterValues
from rlnb.rollouts import LEARNER, play_games, self_play
from rlnb.training.batches import make_batch
from rlnb.training.losses import read
from rlnb.training.spiral import SelfPlay
from rlnb.training.update import Learner, trained_parameters
from rlnb.trajectories import Choice, Request, Turn


@dataclass(frozen=True)
class RandomWriter:
    """Writes the id of a random legal action, in a box where prompts ask for one, and the end token."""

    encoder: Encoder
    in_box: bool

    def answer(self, requests: Sequence[Request]) -> list[Turn]:
        turns = []
        for request in requests:
            action = request.random.choice(request.legal_actions)
            text = f"\\boxed{{{action}}}" if self.in_box else str(action)
            prompt = self.encoder.prompt_ids(request.prompt)
            ids = (*self.encoder.tokenizer(text, add_special_tokens=False)["input_ids"], self.encoder.end)
            choices = tuple(Choice(len(prompt) + k, token) for k, token in enumerate(ids))
            turns.append(
                Turn(prompt, ids, choices, (), action, request.legal_actions, request.ply, text=text)
            )
        return turns


def warm_up(
    learner: Learner, table: SelfPlay, encoder: Encoder, *, num_steps: int, learning_rate: float = 1e-3
) -> list[float]:
    """Supervised steps on random legal play, 32 games each; the loss of each, nats a token.

    Only for free play: constrained answers are legal anyway. The learner's optimizer is not touched; its
    averages begin anew from the warm weights.
    """
    writer = RandomWriter(encoder, in_box=table.game.style == "full")
    parameters = trained_parameters(learner.actor)
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
    losses = []
    for step in range(num_steps):
        games = play_games(
            self_play(table.game, 32, seed=2**41 + table.params.seed * 10_000 + step), {LEARNER: writer}
        )
        turns = [turn for game in games for one in game.trajectories for turn in one.turns]
        batch = make_batch(turns, np.zeros(len(turns)), np.zeros(len(turns)))
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for part in batch.passes(range(len(batch.rows)), max_tokens=learner.training.tokens_per_pass):
            found = read(learner.actor, batch, part, temperature=1.0)
            loss = -found.token_logprobs.sum() / len(batch.token_point)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(total)
    for values in (learner.average, learner.magnet):
        if values:
            values.take(learner.actor.policy)
    if learner.kl_coef:  # to the warm policy: the cold one knows no moves
        learner.reference = AdapterValues.of(learner.actor.policy)
    return losses
