"""The turns of an update as padded tensors, the forward pass over them, and the steps that learn from them.

Suffixes name the axes: b turns, u distinct sequences, t choices of a turn, s tokens of a sequence, w allowed
tokens, v the vocabulary, d the width of the model, n the choices of all sequences without padding.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import reduce

from rlnb.errors import TrainingDiverged, see
from rlnb.policy.adapters import WeightSnapshot, adapters_off
from rlnb.selfplay.acting import (
    NOT_ALLOWED,
    ActorCritic,
    allowed_logprobs,
    compute_entropies,
    pad_rows,
    split_by_length,
)
from rlnb.selfplay.params import UpdateParams
from rlnb.selfplay.rollouts import Turn

# Largest mean distance of the ratios from 1 before the first step, by the dtype that layers compute in: a
# pass rounds differently in another batch. Measured for SmolLM2-135M, 600 tokens in batches of 1, 4 and 12:
# float32 1e-6, float16 0.0005, bfloat16 0.005 (0.043 on another CPU), 4 bits 0.001.
MAX_FIRST_DEVIATION = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
NO_CHOICE = -1  # pads positions
ADAM_BETAS = (0.9, 0.99)
sum_over_ranks = partial(reduce, reduction="sum")


@dataclass(frozen=True)
class Batch:
    """Turns, and the distinct sequences that they are read from: equal ones pass through the model once.

    A tensor's suffix names its axes, of which the first is u or b; `select` cuts it along that.
    ids_us: int64, a prompt and the answer up to its last choice, padded on the right. lengths_u: int64.
    prompt_ends_u: int64, the index of the prompt's last token, where the value is read. positions_ut: int64,
    the index of the token before each choice; mask_ut: bool, which choices there are. allowed_utw: int64, the
    tokens chosen from, padded with NOT_ALLOWED; None where all tokens were allowed. sequences_b: int64, the
    row in u of each turn. tokens_bt: int64, the chosen token's index in allowed_utw, or its id.
    advantages_b, weights_b: float. targets_b: float, of the values, None without a value head. indices_u,
    indices_b: int64, the rows of these sequences and turns in the batch of the whole update.
    """

    ids_us: torch.Tensor
    lengths_u: torch.Tensor
    prompt_ends_u: torch.Tensor
    positions_ut: torch.Tensor
    mask_ut: torch.Tensor
    allowed_utw: torch.Tensor | None
    indices_u: torch.Tensor
    sequences_b: torch.Tensor
    tokens_bt: torch.Tensor
    advantages_b: torch.Tensor
    targets_b: torch.Tensor | None
    weights_b: torch.Tensor
    indices_b: torch.Tensor

    @property
    def mask_bt(self) -> torch.Tensor:
        return self.mask_ut[self.sequences_b]

    def select(self, rows: Sequence[int]) -> "Batch":
        """Return some sequences with their turns."""
        rows_u = torch.tensor(rows, dtype=torch.int64, device=self.ids_us.device)
        places_u = torch.full_like(self.lengths_u, -1)
        places_u[rows_u] = torch.arange(len(rows_u), device=rows_u.device)
        turns_b = (places_u[self.sequences_b] >= 0).nonzero()[:, 0]
        kept = {"u": rows_u, "b": turns_b}
        part = Batch(
            **{
                name: tensor if tensor is None else tensor[kept[name.rpartition("_")[2][0]]]
                for name, tensor in vars(self).items()
            }
        )
        longest = int(part.lengths_u.max()) if len(rows_u) else 0
        return replace(part, sequences_b=places_u[part.sequences_b], ids_us=part.ids_us[:, :longest])

    def micro_batches(self, *, max_tokens: int) -> Iterator["Batch"]:
        """Yield batches of at most `max_tokens` with padding, each for one pass."""
        for rows in split_by_length(self.lengths_u.tolist(), max_tokens=max_tokens):
            yield self.select(rows)

    def mini_batches(self, count: int, *, generator: np.random.Generator) -> list["Batch"]:
        """Return `count` random, equal parts of the sequences; turns with equal prompts stay together."""
        order = generator.permutation(len(self.lengths_u))
        return [self.select(sorted(part.tolist())) for part in np.array_split(order, count)]


def make_batch(
    turns: Sequence[Turn],
    advantages: np.ndarray,
    targets: np.ndarray | None,
    *,
    weights: np.ndarray | None = None,
    device: torch.device | str = "cpu",
) -> Batch:
    """Return the batch of an update. advantages, targets of the values, weights (1 by default): (num_turns,).

    Raises ValueError for a mixture of constrained and free turns.
    """
    rows: dict[tuple[tuple[int, ...], int, tuple[int, ...], tuple[tuple[int, ...], ...]], int] = {}
    sequences, tokens = [], []
    for turn in turns:
        num_read = turn.choices[-1].position - len(turn.prompt_ids) if turn.choices else 0
        sequence = turn.prompt_ids + turn.completion_ids[:num_read]
        positions = tuple(choice.position - 1 for choice in turn.choices)
        allowed = tuple(choice.allowed for choice in turn.choices)
        row = (sequence, len(turn.prompt_ids) - 1, positions, allowed)
        sequences.append(rows.setdefault(row, len(rows)))
        tokens.append([choice.column for choice in turn.choices])
    choices = [allowed for *_, row_allowed in rows for allowed in row_allowed]
    is_free = {not allowed for allowed in choices}
    if len(is_free) > 1:
        raise ValueError("some turns are constrained and some are free; make a batch of each")
    positions_ut = pad_rows([positions for _, _, positions, _ in rows], pad=NO_CHOICE)
    mask_ut = positions_ut != NO_CHOICE
    allowed_utw = None
    if is_free != {True}:
        allowed_nw = pad_rows(choices, pad=NOT_ALLOWED)
        allowed_utw = torch.full((*mask_ut.shape, allowed_nw.shape[1]), NOT_ALLOWED)
        allowed_utw[mask_ut] = allowed_nw
    dtype = torch.get_default_dtype()
    batch = Batch(
        ids_us=pad_rows([sequence for sequence, *_ in rows], pad=0),
        lengths_u=torch.tensor([len(sequence) for sequence, *_ in rows], dtype=torch.int64),
        prompt_ends_u=torch.tensor([end for _, end, *_ in rows], dtype=torch.int64),
        positions_ut=positions_ut,
        mask_ut=mask_ut,
        allowed_utw=allowed_utw,
        indices_u=torch.arange(len(rows)),
        sequences_b=torch.tensor(sequences, dtype=torch.int64),
        tokens_bt=pad_rows(tokens, pad=0, width=mask_ut.shape[1]),
        advantages_b=torch.tensor(advantages, dtype=dtype),
        targets_b=None if targets is None else torch.tensor(targets, dtype=dtype),
        weights_b=torch.ones(len(turns)) if weights is None else torch.tensor(weights, dtype=dtype),
        indices_b=torch.arange(len(turns)),
    )
    moved = {name: tensor if tensor is None else tensor.to(device) for name, tensor in vars(batch).items()}
    return Batch(**moved)


def add(sums: dict[str, float], terms: Mapping[str, float]) -> None:
    for name, value in terms.items():
        sums[name] += value


class Logprobs(NamedTuple):
    """What a policy says of a batch; 0 where a turn has no choice.

    logprobs_bt: nats, of the chosen tokens. entropies_bt: nats. values_b: in units of the reward.
    logprobs_utw: of the allowed tokens, -inf at their padding; None where all were allowed.
    """

    logprobs_bt: torch.Tensor
    entropies_bt: torch.Tensor
    values_b: torch.Tensor
    logprobs_utw: torch.Tensor | None

    def select(self, part: Batch) -> "Logprobs":
        """Return those of a part, from those of the whole update."""
        logprobs_utw = None if self.logprobs_utw is None else self.logprobs_utw[part.indices_u]
        rows = part.indices_b
        return Logprobs(self.logprobs_bt[rows], self.entropies_bt[rows], self.values_b[rows], logprobs_utw)


LossAndSums = tuple[torch.Tensor, dict[str, float]]  # over the turns of a part of a mini-batch
Loss = Callable[[Logprobs, Logprobs, Logprobs | None, Batch], LossAndSums]  # now, old, anchor, the part


def compute_logprobs(
    actor: ActorCritic, batch: Batch, *, temperature: float, detach_trunk: bool = False
) -> Logprobs:
    """Pass a batch through the model. detach_trunk: the gradient of the values stops at their head."""
    mask_ut, mask_bt = batch.mask_ut, batch.mask_bt
    hidden_usd = actor.hidden(batch.ids_us)
    logits_nv = actor.logits(hidden_usd[mask_ut.nonzero()[:, 0], batch.positions_ut[mask_ut]])
    if batch.allowed_utw is None:
        logprobs_nw, logprobs_utw = (logits_nv / temperature).log_softmax(-1), None
    else:
        logprobs_nw, _ = allowed_logprobs(logits_nv, batch.allowed_utw[mask_ut], temperature=temperature)
        logprobs_utw = unpack(logprobs_nw, mask_ut[..., None].expand_as(batch.allowed_utw))
    places_ut = (mask_ut.flatten().cumsum(0) - 1).view_as(mask_ut)  # the row in n of each choice
    chosen = logprobs_nw[places_ut[batch.sequences_b][mask_bt], batch.tokens_bt[mask_bt]]
    entropies_ut = unpack(compute_entropies(logprobs_nw), mask_ut)
    ends_ud = hidden_usd[torch.arange(len(hidden_usd), device=hidden_usd.device), batch.prompt_ends_u]
    values_u = actor.values(ends_ud.detach() if detach_trunk else ends_ud)
    return Logprobs(
        unpack(chosen, mask_bt), entropies_ut[batch.sequences_b], values_u[batch.sequences_b], logprobs_utw
    )


def unpack(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the mask's shape with these values where it is true, and else 0."""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)


def estimate_kl(logprobs: torch.Tensor, other_logprobs: torch.Tensor) -> torch.Tensor:
    """Return k3, the estimate r - 1 - log r of KL(policy || other) with r = other / policy.

    On samples of the policy it is never negative, and unbiased. Schulman 2020, http://joschu.net/blog/kl-approx.html.
    """
    log_ratios = other_logprobs - logprobs
    return log_ratios.expm1() - log_ratios


def kl_terms(now: Logprobs, other: Logprobs, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return KL(policy || other) at each choice, (b, t): as a loss, and as a figure to report.

    Over allowed tokens both are exact. Where all tokens were allowed, the loss is half the squared difference
    of log-probabilities: on samples of the policy its gradient is that of KL(policy || other), whereas the
    gradient of k3, which is the figure, is that of KL(other || policy).
    """
    if now.logprobs_utw is None or other.logprobs_utw is None:
        gaps_bt = now.logprobs_bt - other.logprobs_bt
        return 0.5 * gaps_bt**2, estimate_kl(now.logprobs_bt.detach(), other.logprobs_bt)
    padding = now.logprobs_utw == -torch.inf
    gaps_utw = now.logprobs_utw.masked_fill(padding, 0.0) - other.logprobs_utw.masked_fill(padding, 0.0)
    exact_bt = ((now.logprobs_utw.exp() * gaps_utw).sum(-1) * batch.mask_ut)[batch.sequences_b]
    return exact_bt, exact_bt.detach()


def ratio_figures(
    now: Logprobs, old: Logprobs, is_clipped_bt: torch.Tensor, batch: Batch
) -> dict[str, float]:
    """Return sums over tokens that tell how far the policy has moved from the old one."""
    mask_bt = batch.mask_bt
    with torch.no_grad():
        gaps_bt = torch.expm1(now.logprobs_bt - old.logprobs_bt).abs()
        return {
            "tokens": float(mask_bt.sum()),
            "approx_kl": float(estimate_kl(old.logprobs_bt, now.logprobs_bt).sum()),
            "clipped": float((is_clipped_bt & mask_bt).sum()),
            "ratio_gap": float(gaps_bt.sum()),
            "token_weight": float((batch.weights_b[:, None] * mask_bt).sum()),
            "turn_weight": float(batch.weights_b.sum()),
        }


@dataclass
class Learner:
    """The policy with all that learning changes and a checkpoint must hold; it starts with a fresh optimizer.

    temperature: of play and of the loss. value_learning_rate: of the value head, None = the policy's; both
    follow the same schedule. has_reference: the policy as it is now is kept: the model without its adapters,
    or a copy of all weights. average: an exponential average of the trained weights, which is evaluated as
    well. magnet: a faster average that the policy is pulled to (magnetic mirror descent, Sokota et al. 2022,
    arXiv:2206.05825).
    """

    actor: ActorCritic
    training: UpdateParams
    temperature: float
    value_learning_rate: float | None = None
    has_reference: bool = False

    def __post_init__(self) -> None:
        policy, training = self.actor.policy, self.training
        if training.gradient_checkpointing is True:
            policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            policy.model.train()  # a loaded model is not, and its layers then do not checkpoint
        has_adapters = hasattr(policy.model, "disable_adapter")
        self.optimizer = torch.optim.AdamW(
            parameter_groups(self.actor, self.value_learning_rate),
            lr=training.learning_rate,
            betas=ADAM_BETAS,
            weight_decay=training.weight_decay,
        )
        # Gradients of float16 underflow without scaling, with weights in 4 bits too.
        self.scaler = torch.amp.GradScaler(policy.device.type, enabled=policy.dtype == torch.float16)
        self.average = WeightSnapshot.take(policy)
        self.magnet = WeightSnapshot.take(policy) if training.magnet_coef else None
        self.reference = WeightSnapshot.take(policy) if self.has_reference and not has_adapters else None

    @property
    def has_value(self) -> bool:
        return self.actor.value_head is not None

    @property
    def snapshots(self) -> dict[str, WeightSnapshot]:
        """The weights that are kept besides the policy's own, by name."""
        named = {"average": self.average, "magnet": self.magnet, "reference": self.reference}
        return {name: snapshot for name, snapshot in named.items() if snapshot}

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the policy's rate; a value head with its own rate keeps the ratio between the two."""
        usual = self.training.learning_rate
        policy, *heads = self.optimizer.param_groups
        policy["lr"] = learning_rate
        for head in heads:
            head["lr"] = learning_rate * (self.value_learning_rate or usual) / usual

    def compute_logprobs(self, batch: Batch) -> Logprobs:
        """Return those of a whole update by the current weights, without gradients, part by part."""
        zeros = partial(torch.zeros_like, dtype=torch.get_default_dtype())
        computed = Logprobs(
            zeros(batch.tokens_bt), zeros(batch.tokens_bt), zeros(batch.sequences_b),
            None if batch.allowed_utw is None else zeros(batch.allowed_utw),
        )  # fmt: skip
        with torch.no_grad():
            for part in batch.micro_batches(max_tokens=self.training.tokens_per_pass):
                part_logprobs = compute_logprobs(self.actor, part, temperature=self.temperature)
                indices = (part.indices_b, part.indices_b, part.indices_b, part.indices_u)
                for whole, rows, values in zip(computed, indices, part_logprobs, strict=True):
                    if whole is not None:
                        whole[rows] = values
        return computed

    def compute_anchor_logprobs(self, batch: Batch) -> Logprobs | None:
        """Return those by the weights that the loss pulls to, the magnet or the reference; None without."""
        policy, snapshot = self.actor.policy, self.magnet or self.reference
        if snapshot is None and not self.has_reference:
            return None
        with snapshot.applied_to(policy) if snapshot else adapters_off(policy):
            return self.compute_logprobs(batch)

    def update(
        self,
        batch: Batch,
        loss: Loss,
        *,
        seed: int,
        step: int,
        detach_trunk: bool = False,
        is_enough: Callable[[Mapping[str, float]], bool] | None = None,
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Update the policy on a batch, in epochs of mini-batches; return sums over its steps, and metrics.

        The loss of a mini-batch is the mean over its turns, by their weights, on all ranks: `loss` gives the
        sum over a part of it. The shares of the mini-batches follow from the seed, the step and the rank.
        detach_trunk: see `compute_logprobs`. is_enough: tells from a step's sums whether to make no other.
        Raises TrainingDiverged where the first ratios are not 1, or a loss or gradient is not finite; the
        weights are then as before the failed step.
        """
        training, sums, deviation = self.training, defaultdict[str, float](float), 0.0
        self.set_learning_rate(training.learning_rate_at(step))
        old, anchor = self.compute_logprobs(batch), self.compute_anchor_logprobs(batch)
        weight = float(sum_over_ranks(batch.weights_b.sum())) / training.num_mini_batches
        generator = np.random.default_rng((seed, step, PartialState().process_index))
        epochs = (
            batch.mini_batches(training.num_mini_batches, generator=generator)
            for _ in range(training.num_epochs)
        )
        for mini_batch in itertools.chain.from_iterable(epochs):
            if not float(sum_over_ranks(mini_batch.weights_b.sum())):
                continue  # no turn on any rank: a step would follow old moments alone
            self.optimizer.zero_grad(set_to_none=True)
            step_sums = defaultdict(float, steps=1.0)
            for part in mini_batch.micro_batches(max_tokens=training.tokens_per_pass):
                now = compute_logprobs(
                    self.actor, part, temperature=self.temperature, detach_trunk=detach_trunk
                )
                part_loss, figures = loss(now, old.select(part), anchor and anchor.select(part), part)
                self.scaler.scale(part_loss / weight).backward()
                add(step_sums, {**figures, "loss": float(part_loss.detach()) / weight})
            if not sums:
                deviation = check_first_ratio(step_sums, self.actor.policy.dtype)
            step_sums["grad_norm"] = self.step(step_sums["loss"])
            add(sums, step_sums)
            if is_enough and is_enough(step_sums):
                break
        if is_enough and sums["steps"] == 1:  # measured before the only step, the KL is 0
            kl_bt = estimate_kl(old.logprobs_bt, self.compute_logprobs(batch).logprobs_bt)
            sums |= {"approx_kl": float(kl_bt.sum()), "tokens": float(batch.mask_bt.sum())}
        decay = training.average_decay  # the first update's weights begin the average, not the untrained ones
        self.average.move_towards(self.actor.policy, (1 - decay) / (1 - decay ** (step + 1)))
        if self.magnet:
            self.magnet.move_towards(self.actor.policy, training.magnet_rate)
        metrics = describe_update(batch, old, sums)
        metrics |= {
            "learning_rate": training.learning_rate_at(step),
            "update/entropy_coef": training.entropy_coef_at(step),
            "update/first_ratio_deviation": deviation,
        }
        if anchor is not None:
            name = "update/magnet_kl" if self.magnet else "kl"
            metrics[name] = sums["anchor_kl"] / (sums["token_weight"] or 1.0)
        return sums, metrics

    def step(self, loss: float) -> float:
        """Step by the gradients of all ranks, and return their norm, 0 after an overflow of float16.

        loss: of the mini-batch. Raises TrainingDiverged, before the step, if it or the norm is not finite.
        """
        parameters = self.actor.parameters_to_train()
        for parameter in parameters:
            if parameter.grad is None:  # none of this rank's sequences reached it
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad = sum_over_ranks(parameter.grad)
        self.scaler.unscale_(self.optimizer)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.training.max_grad_norm))
        # After an overflow of float16 the scaler skips the step and lowers its scale.
        has_overflowed = self.scaler.is_enabled() and not math.isfinite(norm)
        if not math.isfinite(loss) or not (math.isfinite(norm) or has_overflowed):
            raise TrainingDiverged(
                f"the loss is {loss:.3g} and its gradient's norm {norm:.3g}; "
                f"lower training.learning_rate, or the coefficient that grew{see('nan')}"
            )
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return 0.0 if has_overflowed else norm


def parameter_groups(actor: ActorCritic, value_learning_rate: float | None) -> list[dict[str, object]]:
    """Return AdamW's groups: one, or the policy and then a value head with a learning rate of its own."""
    parameters = actor.parameters_to_train()
    if value_learning_rate is None or actor.value_head is None:
        return [{"params": parameters}]
    num_policy = len(parameters) - len(list(actor.value_head.parameters()))
    head = {"params": parameters[num_policy:], "lr": value_learning_rate}
    return [{"params": parameters[:num_policy]}, head]


def check_first_ratio(sums: Mapping[str, float], dtype: torch.dtype) -> float:
    """Return the mean distance of the ratios from 1 before the first step, which `dtype` rounds.

    Raises TrainingDiverged where it is larger than that. The mean is judged, not the maximum, which grows
    with the number of tokens.
    """
    deviation = sums["ratio_gap"] / (sums["tokens"] or 1.0)
    if deviation > MAX_FIRST_DEVIATION[dtype]:
        raise TrainingDiverged(
            f"before the first step of an update the ratios are {deviation:.3g} away from 1 in the mean: two "
            f"passes in {str(dtype).removeprefix('torch.')} over the same turns gave different "
            "log-probabilities; write model.dtype = float32"
        )
    return deviation


def describe_update(batch: Batch, old: Logprobs, sums: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of an update that SPIRAL and PPO share, from this rank's sums over its steps."""
    steps, tokens = max(sums["steps"], 1.0), max(sums["tokens"], 1.0)
    metrics = {
        "loss": PartialState().num_processes * sums["loss"] / steps,  # of which this rank has a share
        "grad_norm": sums["grad_norm"] / steps,
        "entropy": float(old.entropies_bt.sum()) / max(int(batch.mask_bt.sum()), 1),
        "update/approx_kl": sums["approx_kl"] / tokens,
        "update/clip_share": sums["clipped"] / tokens,
        "update/num_passed_rows": float(len(batch.lengths_u)),
    }
    if batch.targets_b is not None:
        errors_b, spread = batch.targets_b - old.values_b, float(batch.targets_b.var(correction=0))
        metrics["update/value_loss"] = sums["value_loss"] / (sums["turn_weight"] or 1.0)
        explained = 1 - float(errors_b.var(correction=0)) / spread if spread > 1e-12 else 0.0
        metrics["update/explained_variance"] = explained
    return metrics
