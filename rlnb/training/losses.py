"""The terms of the policy's loss as functions of tensors. Sums, not means: the caller knows the batch."""

from typing import NamedTuple

import torch

from rlnb.policy.actor_critic import ActorCritic, allowed_logprobs, entropies_of
from rlnb.training.batches import Batch, Part


class Readings(NamedTuple):
    """What a pass reads of a batch or of a part of it, float32.

    token_logprobs: (num_tokens,), nats. entropies: (num_points,), nats. logprobs: (num_points, width) of the
    allowed tokens, None where all were allowed. values: (num_turns,).
    """

    token_logprobs: torch.Tensor
    entropies: torch.Tensor
    logprobs: torch.Tensor | None
    values: torch.Tensor

    def of(self, part: Part) -> "Readings":
        """Those of a part, where these are of the whole batch."""
        tokens, points, turns = (
            torch.as_tensor(one, device=self.values.device) for one in (part.tokens, part.points, part.turns)
        )
        return Readings(
            self.token_logprobs[tokens],
            self.entropies[points],
            None if self.logprobs is None else self.logprobs[points],
            self.values[turns],
        )


def read(
    actor: ActorCritic, batch: Batch, part: Part, *, temperature: float, detach_trunk: bool = False
) -> Readings:
    """One pass over the rows of a part. detach_trunk: the gradient of the values stops at their head."""

    def tensor(array: object) -> torch.Tensor:
        return torch.as_tensor(array, device=actor.policy.device)

    hidden = actor.hidden(part.rows)
    logits = actor.logits(hidden[tensor(part.point_row), tensor(batch.point_position[part.points])])
    if batch.allowed is None:
        logprobs = (logits / temperature).log_softmax(-1)
    else:
        allowed = tensor(batch.allowed[part.points])
        logprobs, _ = allowed_logprobs(logits, allowed, temperature=temperature)
    states = hidden[tensor(part.turn_row), tensor(batch.turn_position[part.turns])]
    return Readings(
        token_logprobs=logprobs[tensor(part.token_point), tensor(batch.token_column[part.tokens])],
        entropies=entropies_of(logprobs),
        logprobs=None if batch.allowed is None else logprobs,
        values=actor.values(states.detach() if detach_trunk else states),
    )


def read_all(actor: ActorCritic, batch: Batch, *, temperature: float, max_tokens: int) -> Readings:
    """The whole batch without gradients, by the weights as they are now."""
    device = actor.policy.device
    tokens = torch.zeros(len(batch.token_point), device=device)
    points = torch.zeros(len(batch.point_row), device=device)
    turns = torch.zeros(len(batch.turn_row), device=device)
    logprobs = None if batch.allowed is None else torch.zeros(batch.allowed.shape, device=device)
    with torch.no_grad():
        for part in batch.passes(range(len(batch.rows)), max_tokens=max_tokens):
            found = read(actor, batch, part, temperature=temperature)
            tokens[torch.as_tensor(part.tokens, device=device)] = found.token_logprobs
            points[torch.as_tensor(part.points, device=device)] = found.entropies
            turns[torch.as_tensor(part.turns, device=device)] = found.values
            if logprobs is not None and found.logprobs is not None:
                logprobs[torch.as_tensor(part.points, device=device)] = found.logprobs
    return Readings(tokens, points, logprobs, turns)


def surrogate(
    log_ratios: torch.Tensor, advantages: torch.Tensor, *, clip: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """-min(r A, clip(r, 1 - clip, 1 + clip) A) with r = exp(log_ratios), and where the clipped one decided.

    All of one shape. PPO, equation 7 (arXiv:1707.06347).
    """
    ratios = log_ratios.exp()
    plain, clipped = ratios * advantages, ratios.clamp(1 - clip, 1 + clip) * advantages
    return -torch.minimum(plain, clipped), clipped < plain


def squared_errors(
    values: torch.Tensor, old_values: torch.Tensor, targets: torch.Tensor, *, clip: float
) -> torch.Tensor:
    """max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2); (V - R)^2 where c = clip is 0.

    All of one shape, in units of the reward; the loss is half of it. PPO2 of OpenAI's baselines, CleanRL: a
    value learns nothing more once it has gone `clip` towards its target.
    """
    plain = (values - targets) ** 2
    if not clip:
        return plain
    held = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(plain, (held - targets) ** 2)


def k3(logprobs: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """KL(policy || other) estimated from samples of the policy: r - 1 - log r with r = other / policy.

    Never negative and without bias. Schulman 2020, http://joschu.net/blog/kl-approx.html.
    """
    log_ratios = others - logprobs
    return log_ratios.expm1() - log_ratios


def divergence(
    now: Readings, other: Readings, token_weights: torch.Tensor, point_weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted sum over tokens of KL(policy || other), as a loss and as a figure.

    Over allowed tokens both are exact. Where all were allowed the loss is half the squared gap of log-
    probabilities: on samples of the policy its gradient is that of KL(policy || other), while that of `k3`,
    which is the figure, is the one of KL(other || policy). token_weights: (num_tokens,). point_weights:
    (num_points,), the sums of those of each point's tokens.
    """
    if now.logprobs is None or other.logprobs is None:
        gaps = now.token_logprobs - other.token_logprobs
        figure = k3(now.token_logprobs.detach(), other.token_logprobs)
        return (0.5 * gaps**2 * token_weights).sum(), (figure * token_weights).sum()
    nowhere = now.logprobs == -torch.inf
    gaps = now.logprobs.masked_fill(nowhere, 0.0) - other.logprobs.masked_fill(nowhere, 0.0)
    exact = ((now.logprobs.exp() * gaps).sum(-1) * point_weights).sum()
    return exact, exact.detach()
