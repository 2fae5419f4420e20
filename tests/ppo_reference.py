"""PPO as its equations stand, one turn and one token after the other: what `update` is held against.

One sequence a pass, torch's own distributions, no batch. Schulman et al. 2017 (arXiv:1707.06347), equation 7;
the adaptive weight by Ziegler et al. 2019 (arXiv:1909.08593).
"""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence

from rlnb.trajectories import Turn


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


def terms_of(sample: Sample, now: Seen, old: Seen, reference: Seen, kl_coef: float, asked: Any) -> Terms:
    """asked: clip, ratio, entropy_coef, value_coef, value_clip, loss_tokens."""
    log_ratios = [one - was for one, was in zip(now.taken, old.taken, strict=True)]
    approx_kl = sum(float(one.detach().exp() - 1 - one.detach()) for one in log_ratios)
    if asked.ratio == "turn":
        log_ratios = [sum(log_ratios, start=torch.tensor(0.0))]
    loss = torch.tensor(0.0)
    for log_ratio in log_ratios:
        ratio = log_ratio.exp()
        clipped = ratio.clip(1 - asked.clip, 1 + asked.clip)
        loss = loss - torch.min(ratio * sample.advantage, clipped * sample.advantage)
    kl = 0.0
    for k, choice in enumerate(now.choices):
        if sample.turn.choices[k].allowed:
            divergence = kl_divergence(choice, reference.choices[k])
            kl += float(divergence.detach())
        else:  # by the token taken: a loss with the right gradient, and the figure
            log_ratio = reference.taken[k] - now.taken[k]
            divergence = 0.5 * log_ratio**2
            kl += float((log_ratio.exp() - 1 - log_ratio).detach())
        loss = loss + kl_coef * divergence - asked.entropy_coef * choice.entropy()
    error = (now.value - sample.target) ** 2
    if asked.value_clip:
        moved = (now.value - old.value).clip(-asked.value_clip, asked.value_clip)
        error = torch.max(error, (old.value + moved - sample.target) ** 2)
    return Terms(loss / asked.loss_tokens + asked.value_coef * 0.5 * error, kl, approx_kl)


class PlainPpo:
    """A network and a value head that learn; the reference is what the network was at first.

    asked: temperature, value_learning_rate, learning_rate, adam_beta2, weight_decay, max_grad_norm,
    num_mini_batches, detach_steps, target_kl, kl_target, init_kl_coef, and what `terms_of` reads.
    """

    def __init__(self, network: nn.Module, head: nn.Module, asked: Any) -> None:
        self.network, self.head, self.asked = copy.deepcopy(network), copy.deepcopy(head), asked
        self.reference = copy.deepcopy(network)
        self.kl_coef = asked.init_kl_coef
        self.parameters = [*self.network.parameters(), *self.head.parameters()]
        options = {"betas": (0.9, asked.adam_beta2), "weight_decay": asked.weight_decay}
        self.optimizers = [
            torch.optim.AdamW(one.parameters(), **options) for one in (self.network, self.head)
        ]

    def see(self, turn: Turn, *, network: nn.Module | None = None, detached: bool = False) -> Seen:
        temperature = self.asked.temperature
        return see(network or self.network, self.head, turn, temperature=temperature, detached=detached)

    def update(
        self, samples: list[Sample], order: list[list[int]], *, step: int, learning_rate: float
    ) -> int:
        """Steps over mini-batches of numbers of samples; how many were made."""
        asked, num_steps, kl_sum, kl_weight = self.asked, 0, 0.0, 0.0
        rates = learning_rate, learning_rate * asked.value_learning_rate / asked.learning_rate
        for optimizer, rate in zip(self.optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate
        with torch.no_grad():
            old = [self.see(one.turn) for one in samples]
            reference = [self.see(one.turn, network=self.reference) for one in samples]
        for numbers in order:
            loss, approx_kl, num_tokens = torch.tensor(0.0), 0.0, 0
            for k in numbers:
                sample = samples[k]
                now = self.see(sample.turn, detached=step < asked.detach_steps)
                found = terms_of(sample, now, old[k], reference[k], self.kl_coef, asked)
                loss = loss + sample.weight * found.loss
                kl_sum, kl_weight = (
                    kl_sum + sample.weight * found.kl,
                    kl_weight + sample.weight * len(now.taken),
                )
                approx_kl, num_tokens = approx_kl + found.approx_kl, num_tokens + len(now.taken)
            self.descend(loss / (sum(one.weight for one in samples) / asked.num_mini_batches))
            num_steps += 1
            if asked.target_kl and approx_kl / num_tokens > asked.target_kl:
                break
        if asked.kl_target:
            error = min(0.2, max(-0.2, (kl_sum / kl_weight - asked.kl_target) / asked.kl_target))
            self.kl_coef *= 1 + 0.1 * error
        return num_steps

    def descend(self, loss: Tensor) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.asked.max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()
