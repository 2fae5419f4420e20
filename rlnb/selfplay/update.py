"""The policy update of SPIRAL and PPO: turns as arrays, the terms of the loss, epochs of mini-batches.

Both use the clipped surrogate, an entropy bonus and KL(policy || reference). SPIRAL may add a magnet, PPO
uses a value head and `PpoOptions`; a term whose coefficient is 0 is not computed. Terms are sums, not means:
only `optimizer_step` knows the mini-batch.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import reduce

from rlnb.errors import TrainingDiverged, see
from rlnb.policy.adapters import WeightSnapshot, adapters_off
from rlnb.selfplay.acting import (
    ActorCritic,
    allowed_logprobs,
    compute_entropies,
    pad_allowed,
    split_by_length,
)
from rlnb.selfplay.params import UpdateParams
from rlnb.selfplay.rollouts import Turn

Array = np.ndarray
# Largest mean distance of the ratios from 1 before the first step, by the dtype that layers compute in: a
# pass rounds differently in another batch. Measured for SmolLM2-135M, 600 tokens in batches of 1, 4 and 12:
# float32 1e-6, float16 0.0005, bfloat16 0.005 (0.043 on another CPU), 4 bits 0.001.
MAX_FIRST_DEVIATION = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
MAX_FIRST_CLIP_SHARE = 0.1  # of the tokens whose ratio lies beyond the clip range then
# Adaptive KL: what is held (nats a token), the share by which the coefficient moves, and its least value as
# a share of the first.
KL_TARGET, KL_GAIN, KL_MAX_ERROR, KL_LEAST_SHARE = 0.05, 0.1, 0.2, 0.01
ADAM_BETAS = (0.9, 0.99)
VALUE_COEF = 0.5  # weight of the value head's squared error


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

    def micro_batches(self, rows: Sequence[int], *, max_tokens: int) -> Iterator["MicroBatch"]:
        """Yield these sequences with all that belongs to them, `max_tokens` at a time with padding."""
        lengths = [len(self.sequences[row]) for row in rows]
        for chosen in split_by_length(lengths, max_tokens=max_tokens):
            part = [rows[index] for index in chosen]
            local_row = np.full(len(self.sequences), -1)
            local_row[part] = np.arange(len(part))
            positions = np.flatnonzero(local_row[self.position_sequence] >= 0)
            turns = np.flatnonzero(local_row[self.turn_sequence] >= 0)
            local_position = np.full(len(self.position_sequence), -1)
            local_position[positions] = np.arange(len(positions))
            tokens = np.flatnonzero(local_position[self.token_position] >= 0)
            yield MicroBatch(
                sequences=[self.sequences[row] for row in part],
                positions=positions,
                tokens=tokens,
                turns=turns,
                position_sequence=local_row[self.position_sequence[positions]],
                turn_sequence=local_row[self.turn_sequence[turns]],
                token_position=local_position[self.token_position[tokens]],
            )

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
    turns: Sequence[Turn], advantages: Array, targets: Array, *, weights: Array | None = None
) -> Batch:
    """Return the turns as arrays, with their advantages, targets of their values and weights: (num_turns,).

    Equal sequences are passed once, which changes neither loss nor gradient. Raises ValueError for a mixture
    of constrained and free turns.
    """
    rows: dict[tuple[object, ...], tuple[int, int]] = {}  # {key: (sequence, its first position)}
    sequences: list[tuple[int, ...]] = []
    positions: list[tuple[int, int]] = []
    allowed: list[tuple[int, ...]] = []
    tokens: list[tuple[int, int, int]] = []
    turn_sequence = np.zeros(len(turns), dtype=np.int64)
    for index, turn in enumerate(turns):
        num_read = turn.choices[-1].position - len(turn.prompt_ids) if turn.choices else 0
        sequence = turn.prompt_ids + turn.completion_ids[:num_read]
        choice_indices = tuple(choice.position - 1 for choice in turn.choices)
        choice_tokens = tuple(choice.allowed for choice in turn.choices)
        key = (sequence, len(turn.prompt_ids), choice_indices, choice_tokens)
        if key not in rows:
            rows[key] = len(sequences), len(positions)
            positions += [(len(sequences), choice_index) for choice_index in choice_indices]
            sequences.append(sequence)
            allowed += choice_tokens
        turn_sequence[index], first_position = rows[key]
        for k, choice in enumerate(turn.choices):
            column = choice.allowed.index(choice.token) if choice.allowed else choice.token
            tokens.append((first_position + k, column, index))
    is_free = {not choice_tokens for choice_tokens in allowed}
    if len(is_free) > 1:
        raise ValueError("some turns are constrained and some are free; make a batch of each")
    position_sequence, position_index = np.array(positions, dtype=np.int64).reshape(-1, 2).T
    token_position, token_column, token_turn = np.array(tokens, dtype=np.int64).reshape(-1, 3).T
    return Batch(
        sequences=tuple(sequences),
        position_sequence=position_sequence,
        position_index=position_index,
        allowed=None if is_free == {True} else pad_allowed(allowed),
        token_position=token_position,
        token_column=token_column,
        token_turn=token_turn,
        turn_sequence=turn_sequence,
        turn_index=np.array([len(turn.prompt_ids) - 1 for turn in turns], dtype=np.int64),
        advantages=np.asarray(advantages, dtype=np.float32),
        targets=np.asarray(targets, dtype=np.float32),
        weights=np.ones(len(turns), np.float32) if weights is None else np.asarray(weights, np.float32),
    )


class Logprobs(NamedTuple):
    """The result of a forward pass over a batch or a micro-batch, float32.

    token_logprobs: (num_tokens,), nats. entropies: (num_positions,), nats. values: (num_turns,). logprobs:
    (num_positions, width) of the allowed tokens, None where all were allowed.
    """

    token_logprobs: torch.Tensor
    entropies: torch.Tensor
    values: torch.Tensor
    logprobs: torch.Tensor | None

    def select(self, part: MicroBatch) -> "Logprobs":
        """Return those of a micro-batch, from those of the whole batch."""
        return Logprobs(
            self.token_logprobs[part.tokens],
            self.entropies[part.positions],
            self.values[part.turns],
            None if self.logprobs is None else self.logprobs[part.positions],
        )


def compute_logprobs(
    actor: ActorCritic, batch: Batch, part: MicroBatch, *, temperature: float, detach_trunk: bool = False
) -> Logprobs:
    """Pass a micro-batch through the model. detach_trunk: the gradient of the values stops at their head."""
    hidden = actor.hidden(part.sequences)
    logits = actor.logits(hidden[part.position_sequence, batch.position_index[part.positions]])
    if batch.allowed is None:
        logprobs = (logits / temperature).log_softmax(-1)
    else:
        allowed = torch.as_tensor(batch.allowed[part.positions], device=logits.device)
        logprobs, _ = allowed_logprobs(logits, allowed, temperature=temperature)
    states = hidden[part.turn_sequence, batch.turn_index[part.turns]]
    return Logprobs(
        token_logprobs=logprobs[part.token_position, batch.token_column[part.tokens]],
        entropies=compute_entropies(logprobs),
        values=actor.values(states.detach() if detach_trunk else states),
        logprobs=None if batch.allowed is None else logprobs,
    )


def compute_batch_logprobs(
    actor: ActorCritic, batch: Batch, *, temperature: float, max_tokens: int
) -> Logprobs:
    """Return the log-probabilities of the whole batch by the current weights, without gradients."""
    shapes = [batch.token_position.shape, batch.position_sequence.shape, batch.turn_sequence.shape]
    tokens, entropies, values = (torch.zeros(shape, device=actor.policy.device) for shape in shapes)
    logprobs = None if batch.allowed is None else torch.zeros(batch.allowed.shape, device=values.device)
    with torch.no_grad():
        for part in batch.micro_batches(range(len(batch.sequences)), max_tokens=max_tokens):
            computed = compute_logprobs(actor, batch, part, temperature=temperature)
            tokens[part.tokens] = computed.token_logprobs
            entropies[part.positions] = computed.entropies
            values[part.turns] = computed.values
            if logprobs is not None and computed.logprobs is not None:
                logprobs[part.positions] = computed.logprobs
    return Logprobs(tokens, entropies, values, logprobs)


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


@dataclass(frozen=True)
class PpoOptions:
    """PPO-only options of an update. The defaults disable all of them.

    value_learning_rate: of the value head, None = the policy's; both follow the same schedule. value_clip:
    how far a value moves in an update before it is clipped, 0 = no limit. detach_steps: number of first
    updates in which the value's gradient stops at its head. target_kl: an update stops early when the policy
    has moved this far (nats a token), 0 = never. init_kl_coef: the coefficient of KL(policy || reference) at
    the start, which then moves to hold KL_TARGET; 0 = not computed.
    """

    value_learning_rate: float | None = None
    value_clip: float = 0.0
    detach_steps: int = 0
    target_kl: float = 0.0
    init_kl_coef: float = 0.0


class Coefficients(NamedTuple):
    """The scheduled values of an update. detach_trunk: the value's gradient stops at its head."""

    learning_rate: float
    entropy: float
    detach_trunk: bool = False


def schedule(training: UpdateParams, step: int, *, detach_steps: int = 0) -> Coefficients:
    """Return the coefficients for the update after `step` updates.

    The learning rate warms up linearly, then decays linearly. The entropy coefficient decays geometrically,
    or linearly if it ends at 0. Schedules count updates, not seconds, so a resumed run continues them.
    """
    done = step / max(1, training.max_steps - 1)
    warm = min(1.0, (step + 1) / (training.warmup_steps + 1))
    rate = training.learning_rate + done * (training.final_learning_rate - training.learning_rate)
    start, end = training.entropy_coef, training.final_entropy_coef
    entropy = start * (end / start) ** done if start and end else start + done * (end - start)
    return Coefficients(warm * rate, entropy, step < detach_steps)


@dataclass
class Learner:
    """The policy with all that learning changes and a checkpoint must hold; it starts with a fresh optimizer.

    temperature: of play and of the loss. loss_tokens: the constant by which sums over an answer's tokens are
    divided. kl_coef: of KL(policy || reference), adapted after each update; 0 = not computed.
    average: an exponential average of the trained weights, which is evaluated as well. magnet: a faster
    average that the policy is pulled to (magnetic mirror descent, Sokota et al. 2022, arXiv:2206.05825).
    reference: the first trained weights of a model without adapters; with adapters it is the model without.
    """

    actor: ActorCritic
    training: UpdateParams
    temperature: float
    loss_tokens: int = 1
    ppo: PpoOptions = PpoOptions()

    def __post_init__(self) -> None:
        policy, training = self.actor.policy, self.training
        if training.gradient_checkpointing is True:
            policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            policy.model.train()  # a loaded model is not, and its layers then do not checkpoint
        has_adapters = hasattr(policy.model, "disable_adapter")
        self.optimizer = torch.optim.AdamW(
            parameter_groups(self.actor, self.ppo.value_learning_rate),
            lr=training.learning_rate,
            betas=ADAM_BETAS,
            weight_decay=training.weight_decay,
        )
        # Gradients of float16 underflow without scaling, with weights in 4 bits too.
        self.scaler = torch.amp.GradScaler(policy.device.type, enabled=policy.dtype == torch.float16)
        self.kl_coef = self.ppo.init_kl_coef
        self.average = WeightSnapshot.take(policy)
        self.magnet = WeightSnapshot.take(policy) if training.magnet_coef else None
        self.reference = WeightSnapshot.take(policy) if self.kl_coef and not has_adapters else None

    @property
    def has_value(self) -> bool:
        return self.actor.value_head is not None

    @property
    def snapshots(self) -> dict[str, WeightSnapshot]:
        """The weights that are kept besides the policy's own, by name."""
        named = {"average": self.average, "magnet": self.magnet, "reference": self.reference}
        return {name: snapshot for name, snapshot in named.items() if snapshot}

    def reference_applied(self) -> AbstractContextManager[None]:
        policy = self.actor.policy
        return self.reference.applied_to(policy) if self.reference else adapters_off(policy)

    def set_learning_rates(self, learning_rate: float) -> None:
        """Set the policy's rate; a value head with its own rate keeps the ratio between the two."""
        usual = self.training.learning_rate
        policy, *heads = self.optimizer.param_groups
        policy["lr"] = learning_rate
        for head in heads:
            head["lr"] = learning_rate * (self.ppo.value_learning_rate or usual) / usual

    def compute_logprobs(self, batch: Batch) -> Logprobs:
        return compute_batch_logprobs(
            self.actor, batch, temperature=self.temperature, max_tokens=self.training.tokens_per_pass
        )


def parameter_groups(actor: ActorCritic, value_learning_rate: float | None) -> list[dict[str, object]]:
    """Return AdamW's groups: one, or the policy and then a value head with a learning rate of its own."""
    parameters = actor.parameters_to_train()
    if value_learning_rate is None or actor.value_head is None:
        return [{"params": parameters}]
    num_policy = len(parameters) - len(list(actor.value_head.parameters()))
    head = {"params": parameters[num_policy:], "lr": value_learning_rate}
    return [{"params": parameters[:num_policy]}, head]


class LogprobsBefore(NamedTuple):
    """Log-probabilities of the batch before the update."""

    policy: Logprobs
    magnet: Logprobs | None
    reference: Logprobs | None


def compute_logprobs_before(learner: Learner, batch: Batch) -> LogprobsBefore:
    magnet = reference = None
    if learner.magnet:
        with learner.magnet.applied_to(learner.actor.policy):
            magnet = learner.compute_logprobs(batch)
    if learner.kl_coef:
        with learner.reference_applied():
            reference = learner.compute_logprobs(batch)
    return LogprobsBefore(learner.compute_logprobs(batch), magnet, reference)


def update(learner: Learner, batch: Batch, *, step: int, seed: int) -> dict[str, float]:
    """Update the policy on a batch of turns, in several epochs of mini-batches, and return metrics.

    Each term is a sum over tokens, divided by `loss_tokens` and by the mini-batch's turns on all ranks: a
    token of a long answer counts as much as one of a short answer (Dr. GRPO, arXiv:2503.20783). With
    `target_kl` no step is made after a mini-batch in which the policy, before its step, had moved further
    than that from the start of the update (k3, mean over the tokens of all ranks); an update of one step is
    measured after it. Raises TrainingDiverged where the first ratios are not 1, or a loss or gradient is not
    finite; the weights are then as before the failed step.
    """
    training, policy, target_kl = learner.training, learner.actor.policy, learner.ppo.target_kl
    coefficients = schedule(training, step, detach_steps=learner.ppo.detach_steps)
    learner.set_learning_rates(coefficients.learning_rate)
    before = compute_logprobs_before(learner, batch)
    generator = np.random.default_rng((seed, step, PartialState().process_index))
    sums: dict[str, float] = defaultdict(float)
    first: dict[str, float] = {}
    epochs = range(training.num_epochs)
    parts = (batch.mini_batches(training.num_mini_batches, generator=generator) for _ in epochs)
    for rows in itertools.chain.from_iterable(parts):
        step_sums = optimizer_step(learner, batch, before, rows, coefficients, is_first=not first)
        first = first or step_sums
        add_to(sums, step_sums)
        if target_kl and ratio_over_ranks(learner, step_sums, "approx_kl", "tokens", 0.0) > target_kl:
            break
    if target_kl and sums["steps"] == 1:  # measured before the only step, the KL is 0
        kl = estimate_kl(before.policy.token_logprobs, learner.compute_logprobs(batch).token_logprobs)
        sums |= {"approx_kl": float(kl.sum()), "tokens": float(len(kl))}
    learner.average.move_towards(policy, 1 - training.average_decay)
    if learner.magnet:
        learner.magnet.move_towards(policy, training.magnet_rate)
    deviation, _ = first_ratio(first)
    metrics = {"update/first_ratio_deviation": deviation}
    metrics |= compute_update_metrics(learner, batch, before.policy, sums, coefficients)
    if learner.kl_coef:
        kl_mean = ratio_over_ranks(learner, sums, "reference_kl", "token_weight", KL_TARGET)
        learner.kl_coef = adapt_kl_coef(learner.kl_coef, kl_mean, first=learner.ppo.init_kl_coef)
    return metrics


def adapt_kl_coef(kl_coef: float, kl: float, *, first: float) -> float:
    """Return the coefficient for the next update: beta * (1 + 0.1 * clip(KL / KL_TARGET - 1, -0.2, 0.2)).

    kl: of this update, nats a token. Ziegler et al. 2019 (arXiv:1909.08593), section
    2.2, with their constants: at most 2% an update, so a factor of 10 takes some 115 updates. Their code
    writes the gain as batch_size / horizon. Unlike theirs it stays above a hundredth of `first`, its value at
    the start: thousands of updates below the target would otherwise take as many to undo.
    """
    error = kl / KL_TARGET - 1
    moved = kl_coef * (1 + KL_GAIN * max(-KL_MAX_ERROR, min(KL_MAX_ERROR, error)))
    return max(moved, KL_LEAST_SHARE * first)


def optimizer_step(
    learner: Learner,
    batch: Batch,
    before: LogprobsBefore,
    rows: list[int],
    coefficients: Coefficients,
    *,
    is_first: bool,
) -> dict[str, float]:
    """Make a step on some sequences and return sums over it. is_first: the ratios must still be 1."""
    training, actor = learner.training, learner.actor
    device = actor.policy.device
    total = sum_over_ranks(torch.tensor(float(batch.weights.sum()), device=device))
    divisor = float(total) / training.num_mini_batches * learner.loss_tokens
    weight = torch.tensor(float(batch.weights[np.isin(batch.turn_sequence, rows)].sum()), device=device)
    if not float(sum_over_ranks(weight)):  # no turn on any rank: a step would follow old moments alone
        return {}
    sums: dict[str, float] = defaultdict(float)
    learner.optimizer.zero_grad(set_to_none=True)
    for part in batch.micro_batches(rows, max_tokens=training.tokens_per_pass):
        loss, part_sums = compute_loss(learner, batch, before, part, coefficients)
        learner.scaler.scale(loss / divisor).backward()
        add_to(sums, part_sums)
        sums["loss"] += float(loss.detach()) / divisor
    if is_first:
        check_first_ratio(sums, actor.policy.dtype)
    parameters = actor.parameters_to_train()
    for parameter in parameters:
        if parameter.grad is None:  # none of this rank's sequences reached it
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad = sum_over_ranks(parameter.grad)
    learner.scaler.unscale_(learner.optimizer)
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, training.max_grad_norm))
    # After an overflow of float16 the scaler skips the step and lowers its scale.
    has_overflowed = learner.scaler.is_enabled() and not math.isfinite(norm)
    if not math.isfinite(sums["loss"]) or not (math.isfinite(norm) or has_overflowed):
        raise TrainingDiverged(
            f"the loss is {sums['loss']:.3g} and its gradient's norm {norm:.3g}; "
            f"lower training.learning_rate, or the coefficient that grew{see('nan')}"
        )
    learner.scaler.step(learner.optimizer)
    learner.scaler.update()
    return {**sums, "steps": 1.0, "grad_norm": 0.0 if has_overflowed else norm}


def first_ratio(sums: Mapping[str, float]) -> tuple[float, float]:
    """Return the mean distance of the ratios from 1, and the share of them beyond the clip range."""
    tokens = sums.get("tokens") or 1.0
    return sums.get("ratio_gap", 0.0) / tokens, sums.get("beyond_clip", 0.0) / tokens


def check_first_ratio(sums: Mapping[str, float], dtype: torch.dtype) -> None:
    """Raise TrainingDiverged where ratios before the first step are further from 1 than `dtype` rounds.

    The mean is judged, not the maximum, which grows with the number of tokens.
    """
    deviation, share = first_ratio(sums)
    if deviation <= MAX_FIRST_DEVIATION[dtype] and share <= MAX_FIRST_CLIP_SHARE:
        return
    name = str(dtype).removeprefix("torch.")
    remedy = (
        "another model.attention"
        if dtype == torch.float32
        else "model.dtype = float32, or a larger training.clip"
    )
    raise TrainingDiverged(
        f"before the first step of an update the ratios are {deviation:.3g} away from 1 in the mean, and "
        f"{share:.1%} of them beyond training.clip: two passes in {name} over the same turns gave different "
        f"log-probabilities; write {remedy}"
    )


def compute_loss(
    learner: Learner, batch: Batch, before: LogprobsBefore, part: MicroBatch, coefficients: Coefficients
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the loss of a micro-batch as a sum, and sums to report."""
    training, device = learner.training, learner.actor.policy.device

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=device)

    now = compute_logprobs(
        learner.actor, batch, part, temperature=learner.temperature, detach_trunk=coefficients.detach_trunk
    )
    old = before.policy.select(part)
    token_turns = tensor(np.searchsorted(part.turns, batch.token_turn[part.tokens]))  # within the part
    advantages, weights = tensor(batch.advantages[part.turns]), tensor(batch.weights[part.turns])
    token_weights = weights[token_turns]
    position_weights = torch.zeros_like(now.entropies).index_add(
        0, tensor(part.token_position), token_weights
    )
    sums = {"tokens": float(len(token_turns)), "token_weight": float(token_weights.sum())}

    # The clipped surrogate, with a ratio per token or per turn (one for all tokens of an answer).
    log_ratios = now.token_logprobs - old.token_logprobs
    if training.ratio == "turn":
        log_ratios = torch.zeros_like(weights).index_add(0, token_turns, log_ratios)
        terms, is_clipped = clipped_surrogate(log_ratios, advantages, clip=training.clip)
        is_clipped = is_clipped[token_turns]
        loss = (terms * weights).sum()
    else:
        terms, is_clipped = clipped_surrogate(log_ratios, advantages[token_turns], clip=training.clip)
        loss = (terms * token_weights).sum()
    loss = loss - coefficients.entropy * (now.entropies * position_weights).sum()

    # SPIRAL's magnet, a moving average of the policy, and the fixed reference: KL(policy || each).
    if before.magnet is not None:
        kl, kl_sum = kl_loss(now, before.magnet.select(part), token_weights, position_weights)
        loss, sums["magnet_kl"] = loss + training.magnet_coef * kl, float(kl_sum)
    if before.reference is not None:
        kl, kl_sum = kl_loss(now, before.reference.select(part), token_weights, position_weights)
        loss, sums["reference_kl"] = loss + learner.kl_coef * kl, float(kl_sum)

    # The value head's error. A value belongs to a turn, so the divisor of sums over tokens is undone.
    if learner.has_value:
        errors = squared_value_errors(
            now.values, old.values, tensor(batch.targets[part.turns]), clip=learner.ppo.value_clip
        )
        value_loss = (errors * weights).sum()
        loss = loss + 0.5 * VALUE_COEF * learner.loss_tokens * value_loss
        sums |= {"value_loss": float(value_loss.detach()), "turn_weight": float(weights.sum())}
    with torch.no_grad():
        sums["approx_kl"] = float(estimate_kl(old.token_logprobs, now.token_logprobs).sum())
        sums["clipped"] = float(is_clipped.sum())
        gaps = torch.expm1(now.token_logprobs - old.token_logprobs).abs()
        sums["ratio_gap"] = float(gaps.sum())
        sums["beyond_clip"] = float((gaps > training.clip).sum())
    return loss, sums


def compute_update_metrics(
    learner: Learner, batch: Batch, before: Logprobs, sums: Mapping[str, float], coefficients: Coefficients
) -> dict[str, float]:
    """Return the metrics of an update from this rank's sums over its steps."""
    steps, tokens = max(sums["steps"], 1.0), max(sums["tokens"], 1.0)
    token_weight, turn_weight = sums["token_weight"] or 1.0, sums["turn_weight"] or 1.0
    entropies = before.entropies.cpu().numpy()[batch.token_position]
    metrics = {
        "learning_rate": coefficients.learning_rate,
        "loss": PartialState().num_processes * sums["loss"] / steps,  # of which this rank has a share
        "grad_norm": sums["grad_norm"] / steps,
        "entropy": float(entropies.sum()) / max(len(batch.token_position), 1),
        "update/entropy_coef": coefficients.entropy,
        "update/approx_kl": sums["approx_kl"] / tokens,
        "update/clip_share": sums["clipped"] / tokens,
        "update/num_passed_rows": float(len(batch.sequences)),
    }
    if learner.magnet:
        metrics["update/magnet_kl"] = sums["magnet_kl"] / token_weight
    if learner.kl_coef:
        metrics["kl"] = sums["reference_kl"] / token_weight
        metrics["update/kl_coef"] = learner.kl_coef
    if learner.ppo.target_kl:
        metrics["update/num_steps"] = sums["steps"]
    if learner.has_value:
        errors = batch.targets - before.values.cpu().numpy()
        spread = float(batch.targets.var())
        metrics["update/value_loss"] = sums["value_loss"] / turn_weight
        metrics["update/explained_variance"] = 1 - float(errors.var()) / spread if spread > 1e-12 else 0.0
    return metrics


def ratio_over_ranks(
    learner: Learner, sums: Mapping[str, float], name: str, count: str, default: float
) -> float:
    """Return a sum over its count, both of all ranks; `default` where the count is 0."""
    both = torch.tensor([sums.get(name, 0.0), sums.get(count, 0.0)], device=learner.actor.policy.device)
    total, total_count = sum_over_ranks(both).tolist()
    return float(total / total_count) if total_count else default


def sum_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
    summed: torch.Tensor = reduce(tensor, reduction="sum")
    return summed


def add_to(sums: dict[str, float], terms: Mapping[str, float]) -> None:
    for name, value in terms.items():
        sums[name] = sums.get(name, 0.0) + value
