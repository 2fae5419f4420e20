"""Decoding on a CPU, token after token, for any decoder of transformers.

`generate` computes each prompt once per completion, keeps finished rows, and draws by `torch.multinomial`,
which takes a millisecond a row. benchmarks/grpo_step.py compares the two.
"""

import inspect
import platform
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from rlnb.errors import TrainingDiverged, see
from rlnb.policy.adapters import adapters_in_weights_dtype

LOOK_TOKENS = 8  # is_complete is asked after so many tokens
ROOM_TOKENS = 64  # for so many more tokens a cache is enlarged at a time
CACHED_ROWS = 16  # of logits, of which so many are sampled from at a time, in the processor's cache
ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
Draw = Callable[[Sequence[int]], torch.Tensor]  # rows of the batch -> a number in [0, 1) for each
Complete = Callable[[int, list[int]], bool]  # row of the batch, its tokens -> whether the answer has its end


class RoomyLayer(DynamicLayer):
    """Keys and values in buffers with room for more tokens: a DynamicLayer copies all of them at each token.

    keys, values: views of the buffers, (rows, heads, tokens, size).
    """

    keys: torch.Tensor
    values: torch.Tensor
    buffers: Sequence[torch.Tensor] = ()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            return super().update(key_states, value_states, *args, **kwargs)
        start, end = self.keys.shape[2], self.keys.shape[2] + key_states.shape[2]
        if not self.buffers or self.buffers[0].shape[2] < end:
            shape = (0, 0, 0, end - start + ROOM_TOKENS)
            self.buffers = [torch.nn.functional.pad(states, shape) for states in (self.keys, self.values)]
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = states
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.buffers)
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        length = self.keys.shape[2]
        self.buffers = [states[indices] for states in self.buffers or (self.keys, self.values)]
        self.keys, self.values = (buffer[:, :, :length] for buffer in self.buffers)


def draw_uniform(rows: Sequence[int]) -> torch.Tensor:
    """Return numbers of torch's global generator."""
    return torch.rand(len(rows))


def sample_tokens(logits: torch.Tensor, temperature: float, uniforms: torch.Tensor | None) -> torch.Tensor:
    """Return a token for each row of logits, (rows, vocabulary): the likeliest at temperature 0.

    Otherwise the token at which the distribution function of softmax(logits / temperature) passes the row's
    uniform number (inverse transform sampling), int64 (rows,). Raises TrainingDiverged for NaN.
    """
    if uniforms is None or not temperature:
        highest, tokens = logits.max(-1)
        _check_finite(highest)
        return tokens
    if logits.is_cpu and len(logits) > CACHED_ROWS:
        parts = zip(logits.split(CACHED_ROWS), uniforms.split(CACHED_ROWS), strict=True)
        return torch.cat([sample_tokens(part, temperature, numbers) for part, numbers in parts])
    scaled = logits.to(torch.float32, copy=True)  # in place: the vocabulary is large
    cumulative = scaled.sub_(scaled.amax(-1, keepdim=True)).div_(temperature).exp_().cumsum_(-1)
    _check_finite(cumulative[:, -1])
    thresholds = uniforms[:, None].to(cumulative) * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, thresholds, right=True)[:, 0]
    return tokens.clamp(max=cumulative.shape[1] - 1)


def _check_finite(values: torch.Tensor) -> None:
    if not values.isfinite().all():
        raise TrainingDiverged(
            "the model's logits are NaN or infinite: lower training.learning_rate and go on from an earlier "
            f"checkpoint, or write another model.dtype{see('nan')}"
        )


def distinct_prompts(
    prompts: Sequence[Sequence[int]], pad: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the distinct prompts padded on the left, their mask, and which of them each prompt is.

    Token ids and mask: int64 (distinct, longest); indices: int64 (prompts,).
    """
    places: dict[tuple[int, ...], int] = {}
    rows = torch.tensor([places.setdefault(tuple(prompt), len(places)) for prompt in prompts])
    width = max(map(len, places))
    ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in places])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in places])
    return ids, mask, rows


def cut_answer(
    tokens: Sequence[int], ends: Collection[int], is_complete: Complete | None = None, *, row: int = 0
) -> tuple[list[int], bool]:
    """Return the tokens of a completion up to its end, and whether the limit of tokens ended it.

    It ends with the first of `ends`, or with the token at which `is_complete(row, tokens)` becomes true, and
    stays true. What a batch adds behind that, such as padding, goes.
    """
    num_tokens = next((num for num, token in enumerate(tokens, 1) if token in ends), None)
    answer = list(tokens[:num_tokens])
    if is_complete is None or not is_complete(row, answer):
        return answer, num_tokens is None
    shortest = bisect_left(range(len(answer)), True, key=lambda num: is_complete(row, answer[:num]))
    return answer[:shortest], False


@contextmanager
def packed_weights(model: PreTrainedModel) -> Iterator[None]:
    """Multiply by copies of bfloat16 weights in the order in which oneDNN reads them: the same bits, sooner.

    Without gradients only. The copies take as much memory as the weights, and 0.2 s a gigabyte to make. Not
    on ARM, where none of this was measured. Layers with a forward of their own are left.
    """
    layers = [
        layer
        for layer in model.modules()
        if type(layer) is torch.nn.Linear
        and layer.weight.dtype == torch.bfloat16
        and "forward" not in vars(layer)
    ]
    can_pack = platform.machine() == "x86_64" and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    try:
        for layer in layers if can_pack else ():
            weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight)
            layer.forward = partial(_packed_product, weight, layer.bias)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _packed_product(weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


@torch.no_grad()
def decode(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float,
    ends: Sequence[int],
    pad: int,
    draw: Draw = draw_uniform,
    is_complete: Complete | None = None,
) -> list[list[int]]:
    """Return the new tokens of each prompt, up to and including one of `ends`, or beyond (see `cut_answer`).

    Each distinct prompt is read once, and its cache repeated for its group; finished rows leave the batch.
    The model should be in evaluation mode; its adapters compute in the weights' dtype. temperature: 0 is
    greedy. draw: the randomness, asked at every token for the rows that are left. is_complete: asked every
    LOOK_TOKENS tokens with a row's index and tokens whether they are enough.
    """
    forward = _forward_of(model)
    ids, mask, group = distinct_prompts(prompts, pad)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    end_tokens, rows = torch.tensor(sorted(ends)), list(range(len(prompts)))
    completions: list[list[int]] = [[] for _ in prompts]
    with packed_weights(model), adapters_in_weights_dtype(model):
        logits = forward(ids, mask, positions, cache)[group]
        cache.batch_select_indices(group)
        mask, position = mask[group], positions[group, -1:]
        for count in range(1, max_new_tokens + 1):
            tokens = sample_tokens(logits, temperature, draw(rows) if temperature else None)
            for row, token in zip(rows, tokens.tolist(), strict=True):
                completions[row].append(token)
            is_left = ~torch.isin(tokens, end_tokens)
            if is_complete and count % LOOK_TOKENS == 0:
                is_left &= ~torch.tensor([is_complete(row, completions[row]) for row in rows])
            left = is_left.nonzero()[:, 0]
            if not len(left) or count == max_new_tokens:
                break
            if len(left) < len(rows):
                cache.batch_select_indices(left)
                tokens, mask, position = tokens[left], mask[left], position[left]
                rows = [rows[index] for index in left.tolist()]
            mask, position = torch.cat([mask, mask.new_ones(len(rows), 1)], 1), position + 1
            logits = forward(tokens[:, None], mask, position, cache)
    return completions


def can_decode(model: PreTrainedModel) -> bool:
    """Return whether `decode` writes what `generate` would.

    It does on a CPU, for decoders whose whole memory is the keys and values of earlier tokens (Mamba's and
    other recurrent states cannot be repeated for a group).
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if model.device.type != "cpu" or base.config.is_encoder_decoder or base._is_stateful:
        return False
    if "past_key_values" not in inspect.signature(base.forward).parameters:
        return False
    # transformers 4.57 makes a layer of keys and values also for those that have none.
    kinds = getattr(base.config.get_text_config(decoder=True), "layer_types", None) or ()
    if not set(kinds) <= ATTENTION_LAYERS:
        return False
    layers = DynamicCache(config=base.config).layers
    # Not isinstance: layers that keep a recurrent state as well are subclasses of these.
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


def _forward_of(model: PreTrainedModel) -> Callable[..., torch.Tensor]:
    """Return a pass that gives the logits of the last position, (rows, vocabulary), and extends the cache."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    accepted = inspect.signature(base.forward).parameters
    options: dict[str, object] = {"use_cache": True}

    def forward(
        ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        if "position_ids" in accepted:
            options["position_ids"] = positions
        if "logits_to_keep" in accepted:
            # As an index: a slice of several prompts would make torch copy the head once a prompt.
            options["logits_to_keep"] = torch.tensor([ids.shape[1] - 1])
        output = model(input_ids=ids, attention_mask=mask, past_key_values=cache, **options)
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    return forward
