"""Turns as arrays, the forward pass that reads their log-probabilities, and the terms of the loss.

Terms are sums, not means: the caller knows the batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from rlnb.selfplay.acting import (
    ActorCritic,
    allowed_logprobs,
    compute_entropies,
    pad_allowed,
    split_by_length,
)
from rlnb.selfplay.rollouts import Turn

Array = np.ndarray


@dataclass(frozen=True)
class Batch:
    """The turns of an update as the sequences passed through the model and the positions read from it.

    sequences: token sequences, each passed once. position_sequence, position_index: int (num_positions,), the
    last token before a choice. allowed: int (num_positions, width), padded with -1, or None where all tokens
    were allowed. token_position, token_turn: int (num_tokens,), of each chosen token. token_column: int
    (num_tokens,), of the chosen token in `allowed`, or its id without. turn_sequence, turn_index: int
    (num_turns,), the prompt's last token, where the value is read. advantages, targets (of the value),
    weights: float (num_turns,).
    """

    sequences: tuple[tuple[int, ...], ...]
    position_sequence: Array
    position_index: Array
    allowed: Array | None
    token_position: Array
    token_column: Array
    token_turn: Array
    turn_sequence: Array
    turn_index: Array
    advantages: Array
    targets: Array
    weights: Array

    def select(self, rows: Sequence[int]) -> "MicroBatch":
        """Return some sequences with all that belongs to them."""
        local_row = np.full(len(self.sequences), -1)
        local_row[list(rows)] = np.arange(len(rows))
        positions = np.flatnonzero(local_row[self.position_sequence] >= 0)
        turns = np.flatnonzero(local_row[self.turn_sequence] >= 0)
        local_position = np.full(len(self.position_sequence), -1)
        local_position[positions] = np.arange(len(positions))
        tokens = np.flatnonzero(local_position[self.token_position] >= 0)
        return MicroBatch(
            sequences=[self.sequences[row] for row in rows],
            positions=positions,
            tokens=tokens,
            turns=turns,
            position_sequence=local_row[self.position_sequence[positions]],
            turn_sequence=local_row[self.turn_sequence[turns]],
            token_position=local_position[self.token_position[tokens]],
        )

    def micro_batches(self, rows: Sequence[int], *, max_tokens: int) -> Iterator["MicroBatch"]:
        """Yield micro-batches of these sequences, of at most `max_tokens` with padding."""
        for chosen in split_by_length([len(self.sequences[row]) for row in rows], max_tokens=max_tokens):
            yield self.select([rows[index] for index in chosen])

    def mini_batches(self, count: int, *, generator: np.random.Generator) -> list[list[int]]:
        """Return the sequences in `count` random, equal parts; turns with equal prompts stay together."""
        order = generator.permutation(len(self.sequences))
        return [sorted(part.tolist()) for part in np.array_split(order, count)]


@dataclass(frozen=True)
class MicroBatch:
    """The sequences of one forward pass.

    positions, tokens, turns: their indices in the batch; the other indices count within the micro-batch.
    """

    sequences: list[tuple[int, ...]]
    positions: Array
    tokens: Array
    turns: Array
    position_sequence: Array
    turn_sequence: Array
    token_position: Array


def make_batch(
    turns: Sequence[Turn],
    advantages: Array,
    targets: Array,
    *,
    weights: Array | None = None,
    memo: bool = True,
) -> Batch:
    """Return the turns as arrays, with their advantages, targets of their values and weights: (num_turns,).

    memo: equal sequences are passed once, which changes neither loss nor gradient. Raises ValueError for a
    mixture of constrained and free turns.
    """
    rows: dict[tuple[object, ...], int] = {}
    sequences: list[tuple[int, ...]] = []
    positions: list[tuple[int, int]] = []
    first_position: list[int] = []  # of each sequence
    allowed: list[tuple[int, ...]] = []
    tokens: list[tuple[int, int, int]] = []
    turn_sequence = np.zeros(len(turns), dtype=np.int64)
    for index, turn in enumerate(turns):
        num_read = turn.choices[-1].position - len(turn.prompt_ids) if turn.choices else 0
        sequence = turn.prompt_ids + turn.completion_ids[:num_read]
        choice_indices = tuple(choice.position - 1 for choice in turn.choices)
        choice_tokens = tuple(choice.allowed for choice in turn.choices)
        key = (sequence, len(turn.prompt_ids), choice_indices, choice_tokens) if memo else (index,)
        row = rows.setdefault(key, len(rows))
        if row == len(sequences):
            sequences.append(sequence)
            first_position.append(len(positions))
            positions += [(row, choice_index) for choice_index in choice_indices]
            allowed += choice_tokens
        turn_sequence[index] = row
        for k, choice in enumerate(turn.choices):
            column = choice.allowed.index(choice.token) if choice.allowed else choice.token
            tokens.append((first_position[row] + k, column, index))
    is_free = {not choice_tokens for choice_tokens in allowed}
    if len(is_free) > 1:
        raise ValueError("some turns are constrained and some are free; make a batch of each")
    position_array = np.array(positions, dtype=np.int64).reshape(-1, 2)
    token_array = np.array(tokens, dtype=np.int64).reshape(-1, 3)
    return Batch(
        sequences=tuple(sequences),
        position_sequence=position_array[:, 0],
        position_index=position_array[:, 1],
        allowed=None if is_free == {True} else pad_allowed(allowed),
        token_position=token_array[:, 0],
        token_column=token_array[:, 1],
        token_turn=token_array[:, 2],
        turn_sequence=turn_sequence,
        turn_index=np.array([len(turn.prompt_ids) - 1 for turn in turns], dtype=np.int64),
        advantages=np.asarray(advantages, dtype=np.float32),
        targets=np.asarray(targets, dtype=np.float32),
        weights=np.ones(len(turns), np.float32) if weights is None else np.asarray(weights, np.float32),
    )


class Logprobs(NamedTuple):
    """The result of a forward pass over a batch or a micro-batch, float32.

    token_logprobs: (num_tokens,), nats. entropies: (num_positions,), nats. logprobs: (num_positions, width)
    of the allowed tokens, None where all were allowed. values: (num_turns,).
    """

    token_logprobs: torch.Tensor
    entropies: torch.Tensor
    logprobs: torch.Tensor | None
    values: torch.Tensor

    def select(self, part: MicroBatch) -> "Logprobs":
        """Return those of a micro-batch, from those of the whole batch."""
        tokens, positions, turns = (
            torch.as_tensor(indices, device=self.values.device)
            for indices in (part.tokens, part.positions, part.turns)
        )
        return Logprobs(
            self.token_logprobs[tokens],
            self.entropies[positions],
            None if self.logprobs is None else self.logprobs[positions],
            self.values[turns],
        )


def compute_logprobs(
    actor: ActorCritic, batch: Batch, part: MicroBatch, *, temperature: float, detach_trunk: bool = False
) -> Logprobs:
    """Pass a micro-batch through the model. detach_trunk: the gradient of the values stops at their head."""

    def tensor(array: Array) -> torch.Tensor:
        return torch.as_tensor(array, device=actor.policy.device)

    hidden = actor.hidden(part.sequences)
    logits = actor.logits(
        hidden[tensor(part.position_sequence), tensor(batch.position_index[part.positions])]
    )
    if batch.allowed is None:
        logprobs = (logits / temperature).log_softmax(-1)
    else:
        allowed = tensor(batch.allowed[part.positions])
        logprobs, _ = allowed_logprobs(logits, allowed, temperature=temperature)
    states = hidden[tensor(part.turn_sequence), tensor(batch.turn_index[part.turns])]
    return Logprobs(
        token_logprobs=logprobs[tensor(part.token_position), tensor(batch.token_column[part.tokens])],
        entropies=compute_entropies(logprobs),
        logprobs=None if batch.allowed is None else logprobs,
        values=actor.values(states.detach() if detach_trunk else states),
    )


def compute_batch_logprobs(
    actor: ActorCritic, batch: Batch, *, temperature: float, max_tokens: int
) -> Logprobs:
    """Return the log-probabilities of the whole batch by the current weights, without gradients."""
    device = actor.policy.device
    tokens = torch.zeros(len(batch.token_position), device=device)
    entropies = torch.zeros(len(batch.position_sequence), device=device)
    values = torch.zeros(len(batch.turn_sequence), device=device)
    logprobs = None if batch.allowed is None else torch.zeros(batch.allowed.shape, device=device)
    with torch.no_grad():
        for part in batch.micro_batches(range(len(batch.sequences)), max_tokens=max_tokens):
            computed = compute_logprobs(actor, batch, part, temperature=temperature)
            tokens[torch.as_tensor(part.tokens, device=device)] = computed.token_logprobs
            entropies[torch.as_tensor(part.positions, device=device)] = computed.entropies
            values[torch.as_tensor(part.turns, device=device)] = computed.values
            if logprobs is not None and computed.logprobs is not None:
                logprobs[torch.as_tensor(part.positions, device=device)] = computed.logprobs
    return Logprobs(tokens, entropies, logprobs, values)


def clipped_surrogate(
    log_ratios: torch.Tensor, advantages: torch.Tensor, *, clip: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return -min(r A, clip(r, 1 - clip, 1 + clip) A) with r = exp(log_ratios), and a mask of clipped terms.

    All of one shape. PPO, equation 7 (arXiv:1707.06347).
    """
    ratios = log_ratios.exp()
    plain, clipped = ratios * advantages, ratios.clamp(1 - clip, 1 + clip) * advantages
    return -torch.minimum(plain, clipped), clipped < plain


def squared_value_errors(
    values: torch.Tensor, old_values: torch.Tensor, targets: torch.Tensor, *, clip: float
) -> torch.Tensor:
    """Return max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2); (V - R)^2 where c = clip is 0.

    All of one shape, in units of the reward; the loss is half of it. As in PPO2 of OpenAI's baselines and in
    CleanRL: a value that has moved by `clip` towards its target learns nothing more.
    """
    plain = (values - targets) ** 2
    if not clip:
        return plain
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(plain, (clipped - targets) ** 2)


def estimate_kl(logprobs: torch.Tensor, other_logprobs: torch.Tensor) -> torch.Tensor:
    """Return k3, the estimate r - 1 - log r of KL(policy || other) with r = other / policy.

    On samples of the policy it is never negative, and unbiased. Schulman 2020, http://joschu.net/blog/kl-approx.html.
    """
    log_ratios = other_logprobs - logprobs
    return log_ratios.expm1() - log_ratios


def kl_loss(
    now: Logprobs, other: Logprobs, token_weights: torch.Tensor, position_weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weighted sum over tokens of KL(policy || other): as a loss, and as a figure to report.

    Over allowed tokens both are exact. Where all tokens were allowed, the loss is half the squared difference
    of log-probabilities: on samples of the policy its gradient is that of KL(policy || other), whereas the
    gradient of k3, which is the figure, is that of KL(other || policy). token_weights: (num_tokens,).
    position_weights: (num_positions,), the sum over the tokens chosen at each position.
    """
    if now.logprobs is None or other.logprobs is None:
        gaps = now.token_logprobs - other.token_logprobs
        figure = estimate_kl(now.token_logprobs.detach(), other.token_logprobs)
        return (0.5 * gaps**2 * token_weights).sum(), (figure * token_weights).sum()
    padding = now.logprobs == -torch.inf
    gaps = now.logprobs.masked_fill(padding, 0.0) - other.logprobs.masked_fill(padding, 0.0)
    exact = ((now.logprobs.exp() * gaps).sum(-1) * position_weights).sum()
    return exact, exact.detach()
