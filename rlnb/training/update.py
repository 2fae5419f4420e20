"""The policy update: clipped surrogate, entropy, magnet, reference and value, over epochs of mini-batches."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import reduce

from rlnb.errors import TrainingDiverged
from rlnb.policy.actor_critic import ActorCritic
from rlnb.policy.adapters import AdapterValues, adapters_of, adapters_off
from rlnb.training.adaptive_kl import next_kl_coef
from rlnb.training.batches import Batch, Part
from rlnb.training.losses import Readings, divergence, k3, read, read_all, squared_errors, surrogate

# How far from 1 a ratio may be before the first step. The same pass in another batch rounds otherwise.
FIRST_RATIO = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.1}


@dataclass(frozen=True)
class PpoTerms:
    """What PPO with a value head asks of an update beyond what SPIRAL does; as it stands here, nothing.

    value_learning_rate: of the value head, None = that of the policy; both follow the same course.
    value_clip: how far a value moves in an update before it is clipped, 0 = freely. detach_steps: first
    updates in which the value's gradient stops at its head. target_kl: an update ends early when the policy
    has moved this far in it (nats a token), 0 = never. kl_target: the weight of KL(policy || reference)
    rises and falls to hold this KL (nats a token), 0 = it stays. first_kl_coef: that weight at the start.
    """

    value_learning_rate: float | None = None
    value_clip: float = 0.0
    detach_steps: int = 0
    target_kl: float = 0.0
    kl_target: float = 0.0
    first_kl_coef: float = 0.0


class Coefficients(NamedTuple):
    """What one update takes from the schedules. detach_trunk: the value's gradient stops at its head."""

    learning_rate: float
    entropy: float
    detach_trunk: bool = False


def scheduled(training: Any, step: int) -> Coefficients:
    """Of the update after `step` updates: learning rate linear after a linear warm-up, entropy geometric.

    Over updates, never over seconds: a resumed run goes on in them. An entropy coefficient that ends at 0
    falls linearly.
    """
    done = step / max(1, training.max_steps - 1)
    warm = min(1.0, (step + 1) / (training.warmup_steps + 1))
    rate = training.learning_rate + done * (training.final_learning_rate - training.learning_rate)
    start, end = training.entropy_coef, training.final_entropy_coef
    entropy = start * (end / start) ** done if start and end else start + done * (end - start)
    return Coefficients(warm * rate, entropy)


@dataclass
class Learner:
    """The policy with all that learning changes and a checkpoint must hold.

    training: the parameters' section. loss_tokens: what sums over an answer's tokens are divided by.
    kl_coef: weight of KL(policy || reference), which moves where `terms.kl_target` is set; 0 = not asked.
    average: an exponential average of the trained weights, which is evaluated beside them. magnet: a slower
    one that the policy is held to (magnetic mirror descent, Sokota et al. 2022, arXiv:2206.05825). reference:
    the trained weights' first values, where there are no adapters that could be switched off.
    """

    actor: ActorCritic
    training: Any
    temperature: float
    value_coef: float
    loss_tokens: int
    kl_coef: float
    terms: PpoTerms
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    average: AdapterValues
    magnet: AdapterValues | None
    reference: AdapterValues | None

    @classmethod
    def of(
        cls,
        actor: ActorCritic,
        training: Any,
        *,
        temperature: float,
        value_coef: float = 0.0,
        loss_tokens: int = 1,
        kl_coef: float = 0.0,
        terms: PpoTerms = PpoTerms(),
    ) -> "Learner":
        """A fresh optimizer and fresh averages. kl_coef: at the start."""
        policy = actor.policy
        has_adapters = hasattr(policy.model, "disable_adapter")
        return cls(
            actor=actor,
            training=training,
            temperature=temperature,
            value_coef=value_coef,
            loss_tokens=loss_tokens,
            kl_coef=kl_coef,
            terms=terms,
            optimizer=torch.optim.AdamW(
                parameter_groups(actor, terms.value_learning_rate),
                lr=training.learning_rate,
                betas=(0.9, training.adam_beta2),
                weight_decay=training.weight_decay,
            ),
            scaler=torch.amp.GradScaler(
                policy.device.type, enabled=next(policy.model.parameters()).dtype == torch.float16
            ),
            average=AdapterValues.of(policy),
            magnet=AdapterValues.of(policy) if training.magnet_coef else None,
            reference=AdapterValues.of(policy) if kl_coef and not has_adapters else None,
        )

    @contextmanager
    def reference_at_work(self) -> Iterator[None]:
        policy = self.actor.policy
        with self.reference.at_work(policy) if self.reference else adapters_off(policy):
            yield

    def set_learning_rates(self, learning_rate: float) -> None:
        """Of the policy; a value head with a rate of its own keeps its ratio to it."""
        usual = self.training.learning_rate
        policy, *heads = self.optimizer.param_groups
        policy["lr"] = learning_rate
        for head in heads:
            head["lr"] = learning_rate * (self.terms.value_learning_rate or usual) / usual

    def read_all(self, batch: Batch) -> Readings:
        return read_all(
            self.actor, batch, temperature=self.temperature, max_tokens=self.training.tokens_per_pass
        )


class Before(NamedTuple):
    """The batch as it was read before the update, by the policy and by those that it is held to."""

    policy: Readings
    magnet: Readings | None
    reference: Readings | None


def update(learner: Learner, batch: Batch, *, step: int, seed: int) -> dict[str, float]:
    """One policy update on a batch of turns, several epochs of mini-batches; its metrics.

    Each term is a sum over tokens, divided by `loss_tokens` and by the mini-batch's turns on all ranks: a
    token of a long answer is worth as much as one of a short answer (Dr. GRPO, arXiv:2503.20783). After a
    mini-batch in which the policy was further than `target_kl` from where the update began (k3, mean over the
    tokens of all ranks, before the step) no further step is made; an update of one step is read once more.
    Raises TrainingDiverged where the first ratio is not 1, or a loss or gradient is no number; the weights
    are then as they were before the step that failed.
    """
    training, policy, terms = learner.training, learner.actor.policy, learner.terms
    coefficients = scheduled(training, step)._replace(detach_trunk=step < terms.detach_steps)
    learner.set_learning_rates(coefficients.learning_rate)
    before = read_before(learner, batch)
    generator = np.random.default_rng((seed, step, PartialState().process_index))
    sums: dict[str, float] = defaultdict(float)
    first_deviation: float | None = None
    for rows in mini_batches(batch, training, generator=generator):
        is_first = first_deviation is None
        found = optimizer_step(learner, batch, before, rows, coefficients, is_first=is_first)
        first_deviation = found["ratio_deviation"] if is_first else first_deviation
        add(sums, found)
        if terms.target_kl and over_ranks(learner, found, "approx_kl", "tokens", 0.0) > terms.target_kl:
            break
    if terms.target_kl and sums["steps"] == 1:  # seen before its only step, it has not moved
        gap = k3(before.policy.token_logprobs, learner.read_all(batch).token_logprobs)
        sums |= {"approx_kl": float(gap.sum()), "tokens": float(len(gap))}
    learner.average.move(policy, 1 - training.average_decay)
    if learner.magnet:
        learner.magnet.move(policy, training.magnet_rate)
    metrics = {"update/first_ratio_deviation": first_deviation or 0.0}
    metrics |= update_metrics(learner, batch, before, sums, coefficients)
    if learner.kl_coef and terms.kl_target:
        kl = over_ranks(learner, sums, "reference_kl", "token_weight", terms.kl_target)
        learner.kl_coef = next_kl_coef(learner.kl_coef, kl, target=terms.kl_target, first=terms.first_kl_coef)
    return metrics


def read_before(learner: Learner, batch: Batch) -> Before:
    policy = learner.actor.policy
    magnet = reference = None
    if learner.magnet:
        with learner.magnet.at_work(policy):
            magnet = learner.read_all(batch)
    if learner.kl_coef:
        with learner.reference_at_work():
            reference = learner.read_all(batch)
    return Before(learner.read_all(batch), magnet, reference)


def mini_batches(batch: Batch, training: Any, *, generator: np.random.Generator) -> Iterator[list[int]]:
    """Rows of one optimizer step after the other, epoch after epoch."""
    for _ in range(training.num_epochs):
        yield from batch.mini_batches(training.num_mini_batches, generator=generator)


def update_metrics(
    learner: Learner, batch: Batch, before: Before, sums: Mapping[str, float], coefficients: Coefficients
) -> dict[str, float]:
    """What is reported of this rank's sums over the steps of an update."""
    steps, tokens = max(sums["steps"], 1.0), max(sums["tokens"], 1.0)
    token_weight, turn_weight = sums["token_weight"] or 1.0, sums["turn_weight"] or 1.0
    tokens_once = max(len(batch.token_point), 1)
    metrics = {
        "learning_rate": coefficients.learning_rate,
        "loss": sums["loss"] / steps,
        "grad_norm": sums["grad_norm"] / steps,
        "entropy": float(before.policy.entropies.cpu().numpy()[batch.token_point].sum()) / tokens_once,
        "update/entropy_coef": coefficients.entropy,
        "update/approx_kl": sums["approx_kl"] / tokens,
        "update/clip_share": sums["clipped"] / tokens,
        "update/num_passed_rows": float(len(batch.rows)),
    }
    if learner.magnet:
        metrics["update/magnet_kl"] = sums["magnet_kl"] / token_weight
    if learner.kl_coef:
        metrics["kl"] = sums["reference_kl"] / token_weight
        metrics["update/kl_coef"] = learner.kl_coef
    if learner.terms.target_kl:
        metrics["update/num_steps"] = sums["steps"]
    if learner.value_coef:
        errors = batch.targets - before.policy.values.cpu().numpy()
        spread = float(batch.targets.var())
        metrics["update/value_loss"] = sums["value_loss"] / turn_weight
        metrics["update/explained_variance"] = 1 - float(errors.var()) / spread if spread > 1e-12 else 0.0
    return metrics


def optimizer_step(
    learner: Learner,
    batch: Batch,
    before: Before,
    rows: list[int],
    coefficients: Coefficients,
    *,
    is_first: bool,
) -> dict[str, float]:
    """One step on some rows, gradients added up over passes and ranks; sums over its tokens and turns.

    is_first: of an update, where every ratio must still be 1.
    """
    training, device = learner.training, learner.actor.policy.device
    total = torch.tensor(float(batch.weights.sum()), device=device)
    divisor = float(across_ranks(total)) / training.num_mini_batches * learner.loss_tokens
    weight = torch.tensor(float(batch.weights[np.isin(batch.turn_row, rows)].sum()), device=device)
    if not float(across_ranks(weight)):  # no turn on any rank: a step would follow former gradients alone
        return {"ratio_deviation": 0.0}
    sums: dict[str, float] = defaultdict(float)
    deviation = 0.0
    learner.optimizer.zero_grad(set_to_none=True)
    for part in batch.passes(rows, max_tokens=training.tokens_per_pass):
        loss, found = loss_of(learner, batch, before, part, coefficients)
        learner.scaler.scale(loss / divisor).backward()
        deviation = max(deviation, found.pop("ratio_deviation"))
        add(sums, found)
        sums["loss"] += float(loss.detach()) / divisor
    parameters = trained_parameters(learner.actor)
    if is_first:
        check_first_ratio(deviation, next(learner.actor.policy.model.parameters()).dtype)
    for parameter in parameters:
        if parameter.grad is None:  # none of this rank's rows reached it
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad = across_ranks(parameter.grad)
    learner.scaler.unscale_(learner.optimizer)
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, training.max_grad_norm))
    overflowed = learner.scaler.is_enabled() and not math.isfinite(norm)  # the scaler skips, and scales less
    if not math.isfinite(sums["loss"]) or not (math.isfinite(norm) or overflowed):
        raise TrainingDiverged(
            f"the loss is {sums['loss']:.3g} and its gradient's norm {norm:.3g}; "
            "lower training.learning_rate, or the coefficient that grew"
        )
    learner.scaler.step(learner.optimizer)
    learner.scaler.update()
    return {**sums, "ratio_deviation": deviation, "steps": 1.0, "grad_norm": 0.0 if overflowed else norm}


def loss_of(
    learner: Learner, batch: Batch, before: Before, part: Part, coefficients: Coefficients
) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss of a part as a sum, and sums of what is reported."""
    training, device = learner.training, learner.actor.policy.device

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=device)

    now = read(
        learner.actor, batch, part, temperature=learner.temperature, detach_trunk=coefficients.detach_trunk
    )
    old = before.policy.of(part)
    turns = tensor(np.searchsorted(part.turns, batch.token_turn[part.tokens]))  # of the part
    advantages, weights = tensor(batch.advantages[part.turns]), tensor(batch.weights[part.turns])
    token_weights = weights[turns]
    point_weights = torch.zeros_like(now.entropies).index_add(0, tensor(part.token_point), token_weights)
    log_ratios = now.token_logprobs - old.token_logprobs
    if training.ratio == "turn":  # one for all tokens of an answer
        log_ratios = torch.zeros_like(weights).index_add(0, turns, log_ratios)
        each, is_clipped = surrogate(log_ratios, advantages, clip=training.clip)
        is_clipped = is_clipped[turns]
        loss = (each * weights).sum()
    else:
        each, is_clipped = surrogate(log_ratios, advantages[turns], clip=training.clip)
        loss = (each * token_weights).sum()
    loss = loss - coefficients.entropy * (now.entropies * point_weights).sum()
    found = {"tokens": float(len(turns)), "token_weight": float(token_weights.sum())}
    for name, coef, other in (
        ("magnet_kl", training.magnet_coef, before.magnet),
        ("reference_kl", learner.kl_coef, before.reference),
    ):
        if other is not None:
            held, figure = divergence(now, other.of(part), token_weights, point_weights)
            loss, found[name] = loss + coef * held, float(figure)
    if learner.value_coef:
        targets, value_clip = tensor(batch.targets[part.turns]), learner.terms.value_clip
        value_loss = (squared_errors(now.values, old.values, targets, clip=value_clip) * weights).sum()
        # A value is a turn's: what divides sums over tokens is not for it.
        loss = loss + 0.5 * learner.value_coef * learner.loss_tokens * value_loss
        found |= {"value_loss": float(value_loss.detach()), "turn_weight": float(weights.sum())}
    with torch.no_grad():
        found["approx_kl"] = float(k3(old.token_logprobs, now.token_logprobs).sum())
        found["clipped"] = float(is_clipped.sum())
        gaps = torch.expm1(now.token_logprobs - old.token_logprobs).abs()
        found["ratio_deviation"] = float(gaps.max()) if len(gaps) else 0.0
    return loss, found


def check_first_ratio(deviation: float, dtype: torch.dtype) -> None:
    """Raise TrainingDiverged where the policy before its first step is not the one that was read."""
    if not deviation <= FIRST_RATIO[dtype]:
        raise TrainingDiverged(
            f"before the first step of an update a ratio is {deviation:.3g} away from 1: the model reads the "
            "same turns otherwise than a moment ago; set model.lora_dropout = 0, or another model.attention"
        )


def trained_parameters(actor: ActorCritic) -> list[torch.nn.Parameter]:
    """Those of the policy, then those of the value head."""
    head = [] if actor.value_head is None else list(actor.value_head.parameters())
    return [*(parameter for _, parameter in adapters_of(actor.policy)), *head]


def parameter_groups(actor: ActorCritic, value_learning_rate: float | None) -> list[Any]:
    """What AdamW is given: one group, or the policy and then a value head with a learning rate of its own."""
    everything = trained_parameters(actor)
    if value_learning_rate is None or actor.value_head is None:
        return everything
    head = list(actor.value_head.parameters())
    return [{"params": everything[: -len(head)]}, {"params": head, "lr": value_learning_rate}]


def over_ranks(learner: Learner, sums: Mapping[str, float], name: str, count: str, nothing: float) -> float:
    """A sum over the count that goes with it, both of all ranks; `nothing` where that is 0."""
    both = torch.tensor([sums.get(name, 0.0), sums.get(count, 0.0)], device=learner.actor.policy.device)
    total, number = across_ranks(both).tolist()
    return float(total / number) if number else nothing


def across_ranks(tensor: torch.Tensor) -> torch.Tensor:
    """The sum over all ranks."""
    summed: torch.Tensor = reduce(tensor, reduction="sum")
    return summed


def add(sums: MutableMapping[str, float], found: Mapping[str, float]) -> None:
    for name, value in found.items():
        sums[name] = sums.get(name, 0.0) + value
