"""PPO as its equations stand, one turn and one token after the other: what `update` is held against.

One sequence a pass, torch's own distributions, no batch. Schulman et al. 2017 (arXiv:1707.06347), equation 7;
the adaptive weight by Ziegler et al. 2019 (arXiv:1909.08593).
"""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence

from rlnb.selfplay.rollouts import Turn


class Sample(NamedTuple):
    turn: Turn
    advantage: float
    target: float
    weight: float


class Seen(NamedTuple):
    """A turn as a network sees it: among what it chose, the log-probability of what it took, its value."""

    choices: list[Categorical]
    taken: list[Tensor]
    value: Tensor


def see(network: nn.Module, head: nn.Module, turn: Turn, *, temperature: float, detached: bool) -> Seen:
    tokens = torch.tensor([turn.prompt_ids + turn.completion_ids])
    states = network.base_model(input_ids=tokens).last_hidden_state[0]
    choices, taken = [], []
    for choice in turn.choices:
        logits = network.unembed(states[choice.position - 1]) / temperature
        allowed = list(choice.allowed) or list(range(len(logits)))
        choices.append(Categorical(logits=logits[allowed]))
        taken.append(choices[-1].log_prob(torch.tensor(allowed.index(choice.token))))
    state = states[len(turn.prompt_ids) - 1]
    return Seen(choices, taken, head(state.detach() if detached else state)[0])


class Terms(NamedTuple):
    """Of a turn: its loss, its divergence from the reference, and that of the old policy from the new one."""

    loss: Tensor
    kl: float
    approx_kl: float


def terms_of(sample: Sample, now: Seen, old: Seen, reference: Seen, kl_coef: float, settings: Any) -> Terms:
    """settings: clip, entropy_coef, value_coef, value_clip, loss_tokens."""
    changes = [new - was for new, was in zip(now.taken, old.taken, strict=True)]
    approx_kl = sum(float(change.detach().exp() - 1 - change.detach()) for change in changes)
    ratio = sum(changes, start=torch.tensor(0.0)).exp()
    clipped = ratio.clip(1 - settings.clip, 1 + settings.clip)
    loss = -torch.min(ratio * sample.advantage, clipped * sample.advantage)
    kl = 0.0
    for k, choice in enumerate(now.choices):
        if sample.turn.choices[k].allowed:
            divergence = kl_divergence(choice, reference.choices[k])
            kl += float(divergence.detach())
        else:  # by the token taken: a loss with the right gradient, and the figure
            log_ratio = reference.taken[k] - now.taken[k]
            divergence = 0.5 * log_ratio**2
            kl += float((log_ratio.exp() - 1 - log_ratio).detach())
        loss = loss + kl_coef * divergence - settings.entropy_coef * choice.entropy()
    error = (now.value - sample.target) ** 2
    if settings.value_clip:
        moved = (now.value - old.value).clip(-settings.value_clip, settings.value_clip)
        error = torch.max(error, (old.value + moved - sample.target) ** 2)
    return Terms(loss / settings.loss_tokens + settings.value_coef * 0.5 * error, kl, approx_kl)


class PlainPpo:
    """A network and a value head that learn; the reference is what the network was at first.

    settings: temperature, value_learning_rate, learning_rate, adam_beta2, weight_decay, max_grad_norm,
    num_mini_batches, detach_steps, target_kl, kl_target, init_kl_coef, and what `terms_of` reads.
    """

    def __init__(self, network: nn.Module, head: nn.Module, settings: Any) -> None:
        self.network, self.head, self.settings = copy.deepcopy(network), copy.deepcopy(head), settings
        self.reference = copy.deepcopy(network)
        self.kl_coef = settings.init_kl_coef
        self.parameters = [*self.network.parameters(), *self.head.parameters()]
        options = {"betas": (0.9, settings.adam_beta2), "weight_decay": settings.weight_decay}
        self.optimizers = [
            torch.optim.AdamW(module.parameters(), **options) for module in (self.network, self.head)
        ]

    def see(self, turn: Turn, *, network: nn.Module | None = None, detached: bool = False) -> Seen:
        temperature = self.settings.temperature
        return see(network or self.network, self.head, turn, temperature=temperature, detached=detached)

    def update(
        self, samples: list[Sample], order: list[list[int]], *, step: int, learning_rate: float
    ) -> int:
        """Steps over mini-batches of numbers of samples; how many were made."""
        settings, num_steps, kl_sum, kl_weight = self.settings, 0, 0.0, 0.0
        rates = learning_rate, learning_rate * settings.value_learning_rate / settings.learning_rate
        for optimizer, rate in zip(self.optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate
        with torch.no_grad():
            old = [self.see(sample.turn) for sample in samples]
            reference = [self.see(sample.turn, network=self.reference) for sample in samples]
        for indices in order:
            loss, approx_kl, num_tokens = torch.tensor(0.0), 0.0, 0
            for k in indices:
                sample = samples[k]
                now = self.see(sample.turn, detached=step < settings.detach_steps)
                terms = terms_of(sample, now, old[k], reference[k], self.kl_coef, settings)
                loss = loss + sample.weight * terms.loss
                kl_sum += sample.weight * terms.kl
                kl_weight += sample.weight * len(now.taken)
                approx_kl += terms.approx_kl
                num_tokens += len(now.taken)
            self.descend(loss / (sum(sample.weight for sample in samples) / settings.num_mini_batches))
            num_steps += 1
            if settings.target_kl and approx_kl / num_tokens > settings.target_kl:
                break
        if settings.kl_target:
            error = min(0.2, max(-0.2, (kl_sum / kl_weight - settings.kl_target) / settings.kl_target))
            self.kl_coef *= 1 + 0.1 * error
        return num_steps

    def descend(self, loss: Tensor) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()
