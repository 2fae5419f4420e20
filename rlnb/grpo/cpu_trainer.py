"""AnswerTrainer with a step that suits a CPU: the same loss and gradients, each prompt read once a group."""

from collections.abc import Sequence
from copy import copy

import torch
import torch.nn.functional as F
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel

from rlnb.grpo.answer_trainer import AnswerTrainer, Written
from rlnb.policy.adapters import adapters_in_weights_dtype
from rlnb.policy.decoding import can_decode, decode, distinct_prompts
from rlnb.policy.generation import batches

MODEL_TYPES = ("llama", "qwen2", "qwen3")  # a head without soft caps, scaling or bias
ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # rotations that do not follow the length at hand
TOKEN_LOSSES = ("dapo", "cispo")  # sums over tokens: rows with advantage 0 add nothing
LENGTH_RATIO = 1.25  # of completions that are read together: the longest over the shortest, at most
HEAD_ROWS = 256  # tokens whose logits are computed together
CACHED_ROWS = 8  # of these, so many at a time in float32, which the processor's cache holds
Tensors = dict[str, torch.Tensor]


def read_rope_type(config: PretrainedConfig) -> str:
    """Return the kind of a model's rotary embeddings; `rope_scaling` is transformers 4.57's name, or None."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return str(rope.get("rope_type", "default"))


class CpuGRPOTrainer(AnswerTrainer):
    """An AnswerTrainer that, on a CPU, writes and reads each prompt once per group.

    Of TRL it replaces what writes completions and what computes their log-probabilities. A step's passes keep
    groups together, where TRL's shuffle mixes them, and leave out groups that tie where the loss allows.
    Rewards, advantages, loss and metrics stay TRL's, but that entropy and clipping are averaged over the rows
    that were kept. `is_lean` is false, and everything is TRL's, on a GPU, with vLLM, for other models and
    settings. Methods: those of TRL 1.15 and 1.16.
    """

    _buffered_inputs: list[Tensors] | None

    @property
    def is_lean(self) -> bool:
        """Whether the shorter step computes the same as TRL's for this model and these settings."""
        args, model = self.args, self.accelerator.unwrap_model(self.model)
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        head = base.get_output_embeddings()
        return (
            can_decode(model)
            and self.accelerator.num_processes == 1  # else gradients are averaged in DDP's forward pass
            and base.config.model_type in MODEL_TYPES
            and read_rope_type(base.config) in ROPE_TYPES
            and type(head) is torch.nn.Linear
            and head.bias is None
            and not head.weight.requires_grad
            and not (args.use_vllm or args.use_transformers_continuous_batching or self.tools)
            and not args.gradient_checkpointing  # which forbids a cache
            and not (args.generation_kwargs or args.cast_lm_head_to_fp32)
            and args.top_p == 1.0
            and not args.top_k
            and not args.min_p
            and args.repetition_penalty == 1.0
        )

    def write_completions(self, prompt_ids: list[list[int]], *rest: object, **options: object) -> Written:
        """Write the completions, some tokens beyond their end."""
        if not self.is_lean:
            return super().write_completions(prompt_ids, *rest, **options)
        model = self.accelerator.unwrap_model(self.model_wrapped)
        was_training = model.training
        model.eval()
        try:
            written = decode(
                model,
                prompt_ids,
                max_new_tokens=self.max_completion_length,
                temperature=self.temperature,
                ends=self.eos_token_ids,
                pad=self._tokenizer.pad_token_id,
                is_complete=self.is_complete,
            )
        finally:
            model.train(was_training)
        return written, None

    def _prepare_inputs(self, generation_batch: object) -> Tensors:
        former = self._buffered_inputs
        inputs: Tensors = super()._prepare_inputs(generation_batch)
        passes = self._buffered_inputs or []
        if len(passes) > 1 and passes is not former and self.is_lean:
            self._buffered_inputs = passes = order_by_prompt(passes)
            inputs = passes[self._step % self.args.steps_per_generation]
        return inputs

    def _get_per_token_logps_and_entropies(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        *rest: object,
        **options: object,
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        if not self.is_lean or options.get("compute_aux_loss"):
            values: tuple[torch.Tensor, torch.Tensor, None] = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, *rest, **options
            )
            return values
        prompts, completions = (
            [row[kept].tolist() for row, kept in zip(ids, mask.bool(), strict=True)]
            for ids, mask in (
                (input_ids[:, :-logits_to_keep], attention_mask[:, :-logits_to_keep]),
                (input_ids[:, -logits_to_keep:], attention_mask[:, -logits_to_keep:]),
            )
        )
        model = self.accelerator.unwrap_model(model)
        with adapters_in_weights_dtype(model):
            logprobs, entropies = completion_logprobs(
                model, prompts, completions,
                pad=self._tokenizer.pad_token_id, width=logits_to_keep, temperature=self.temperature,
                trains_entropy=self._entropy_bonus_enabled,
            )  # fmt: skip
        return logprobs, entropies, None

    def _compute_loss(self, model: PreTrainedModel, inputs: Tensors) -> torch.Tensor:
        # With a quantile of entropies every row's tokens take part in finding it.
        others = self.beta or self._entropy_bonus_enabled or self.top_entropy_quantile < 1
        adds_nothing = self.loss_type in TOKEN_LOSSES and not others
        if self.is_lean and adds_nothing:
            inputs = drop_tied_rows(inputs)
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        return loss


def order_by_prompt(batches: Sequence[Tensors]) -> list[Tensors]:
    """Return batches of the same sizes whose rows, all together, are ordered by their prompts."""
    prompts = [prompt for batch in batches for prompt in batch["prompt_ids"].tolist()]
    order = sorted(range(len(prompts)), key=prompts.__getitem__)
    sizes = [len(batch["prompt_ids"]) for batch in batches]
    ordered: list[Tensors] = [{} for _ in batches]
    for name in batches[0]:
        parts: Sequence[torch.Tensor] = [batch[name] for batch in batches]
        if parts[0].dim():  # else a number that is the same for all
            parts = torch.cat([*parts])[order].split(sizes)
        for batch, part in zip(ordered, parts, strict=True):
            batch[name] = part
    return ordered


def drop_tied_rows(inputs: Tensors) -> Tensors:
    """Return a batch without the rows whose advantage is 0, but with one row at least."""
    rows = inputs["advantages"].nonzero()[:, 0].unique()
    rows = rows if len(rows) else torch.tensor([0])
    return {name: value[rows] if value.dim() else value for name, value in inputs.items()}


def completion_logprobs(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    pad: int,
    width: int,
    temperature: float = 1.0,
    trains_entropy: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies of completion tokens, both float32 (rows, width), in nats.

    They are 0 where a completion has no token. Each distinct prompt is read once, with gradients, and
    completions of like lengths together. The entropies have gradients where `trains_entropy`.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    body, head = base.base_model, base.get_output_embeddings()
    ids, prompt_mask, group = distinct_prompts(prompts, pad)
    longest = max(1, *map(len, completions))
    tokens = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in completions])
    is_token = torch.tensor([[place < len(row) for place in range(longest)] for row in completions])
    cache, positions = DynamicCache(config=base.config), (prompt_mask.cumsum(-1) - 1).clamp(min=0)
    at_end = body(
        input_ids=ids, attention_mask=prompt_mask, position_ids=positions, past_key_values=cache,
        use_cache=True,
    )  # fmt: skip
    outputs = torch.zeros(len(completions), width), torch.zeros(len(completions), width)
    lengths = [len(row) for row in completions]
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for rows in batches(order, sorted(lengths), len(order), ratio=LENGTH_RATIO):
        length, prompt = max(1, lengths[rows[-1]]), group[rows]
        hidden = at_end.last_hidden_state[prompt, -1:]
        if length > 1:
            part = copy(cache)  # the keys and values themselves are shared
            part.layers = [copy(layer) for layer in cache.layers]
            part.batch_select_indices(prompt)
            following = body(
                input_ids=tokens[rows, : length - 1],
                attention_mask=torch.cat([prompt_mask[prompt], is_token[rows, : length - 1]], 1),
                position_ids=positions[prompt, -1:] + torch.arange(1, length),
                past_key_values=part,
                use_cache=True,
            )
            hidden = torch.cat([hidden, following.last_hidden_state], 1)
        kept = is_token[rows, :length]
        targets = tokens[rows, :length][kept]
        values = _HeadLogprobs.apply(hidden[kept], head.weight, targets, temperature, trains_entropy)
        for output, value in zip(outputs, values, strict=True):
            output[rows, :length] = torch.zeros(kept.shape).masked_scatter(kept, value)
    return outputs


class _HeadLogprobs(torch.autograd.Function):
    """Log-probability and entropy of targets under a language model's head, HEAD_ROWS tokens at a time.

    No tensor of tokens times vocabulary is kept: the gradients are computed on the way. For a hidden state h,
    head W, probabilities p and temperature T they are d log p(t) / dh = (W_t - p W) / T, and, with the
    entropy H, dH / dh = -(p (log p + H)) W / T.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        trains_entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, entropies = hidden.new_empty(2, len(hidden), dtype=torch.float32).unbind()
        num_gradients = (1 + trains_entropy) * ctx.needs_input_grad[0]  # of log p, and of the entropy
        gradients = hidden.new_empty(num_gradients, *hidden.shape)
        for start in range(0, len(hidden), HEAD_ROWS):
            part = slice(start, start + HEAD_ROWS)
            logits = F.linear(hidden[part], weight)
            slopes = [logits, torch.empty_like(logits)][:num_gradients]  # the first overwrite the logits
            for first in range(0, len(logits), CACHED_ROWS):
                rows = slice(first, first + CACHED_ROWS)
                target = targets[part][rows, None]
                logprob = (logits[rows].float() / temperature).log_softmax(-1)
                probability = logprob.exp()
                entropy = -(probability * logprob).sum(1)
                logprobs[part][rows], entropies[part][rows] = logprob.gather(1, target)[:, 0], entropy
                if num_gradients == 2:
                    slopes[1][rows] = -probability * (logprob + entropy[:, None])
                if num_gradients:
                    ones = torch.ones_like(target, dtype=torch.float32)
                    slopes[0][rows] = probability.neg_().scatter_add_(1, target, ones)
            for gradient, slope in zip(gradients, slopes, strict=True):
                gradient[part] = slope @ weight / temperature
        ctx.save_for_backward(gradients)
        if not trains_entropy:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *outputs: torch.Tensor
    ) -> tuple[torch.Tensor, None, None, None, None]:
        (gradients,) = ctx.saved_tensors
        parts = [output[:, None] * part for output, part in zip(outputs, gradients, strict=False)]
        return sum(parts[1:], parts[0]).to(gradients.dtype), None, None, None, None
