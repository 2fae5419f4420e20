"""An estimate of the memory that a run needs, part by part, and the settings to change if it does not fit.

It follows from the sizes of the model and the longest texts that the parameters allow; docs/configure.md has
the formulas and how accurate they were where it was measured.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rlnb.configure.model_sizes import ModelSizes, load_model_sizes
from rlnb.errors import ParamsError
from rlnb.machine import Machine, installed_version, recommend
from rlnb.params.problems import show
from rlnb.params.resolving import resolve
from rlnb.params.sections import ModelParams, NotebookParams, Section, value_of

GIB = 2**30
UNKNOWN_SIZE = "memory: not known: the model's name gives no size"
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FOUR_BIT = 0.52  # bytes of a weight in NF4 whose constants are quantized as well
PROCESS_GIB = {"Python with torch": 0.6, "CUDA's context and kernels": 0.8}  # with its allocator's rounding
PROMPT_TOKENS = 512  # where the parameters do not limit the prompt
ROW_TOKENS = {"compact": 16, "full": 96}  # of a game's short prompts, which read the largest share of logits
LONGEST_COMPACT = 128  # tokens of a compact prompt in any game
COPIES_OF_LOGITS = 6  # float32: logits, over temperature, log-probabilities, two for the entropy, a gradient
TIGHT = 0.85  # share of the memory above which it is tight
MIN_SAVING = 0.05  # a change that saves a smaller share is not proposed
# Settings to change, the cheapest first. Numbers are halved, down to the second entry.
CHANGES = (
    ("training.tokens_per_pass", 256),
    ("training.per_device_train_batch_size", 1),
    ("training.gradient_checkpointing", 0),
    ("model.load_in_4bit", 0),
    ("model.lora_rank", 0),
    ("game.batch_size", 1),
    ("mbpp.batch_size", 1),
    ("evaluation.batch_size", 1),
    ("training.max_completion_length", 64),
    ("game.max_new_tokens", 64),
)


class MemoryPart(NamedTuple):
    """Something that takes memory, its size, and how the size was computed."""

    name: str
    gib: float
    reason: str


class SettingChange(NamedTuple):
    """A setting to change; total_gib: of the whole run after this change and those before it."""

    field: str
    now: str
    value: str
    total_gib: float


class MemoryEstimate(NamedTuple):
    """The memory of one process on one device.

    parts: needed at the same time at the peak, largest first. capacity_gib: of the machine, 0.0 if unknown.
    changes: in the order to make them, empty if it fits. source: where the model's sizes are from.
    """

    parts: tuple[MemoryPart, ...]
    capacity_gib: float
    source: str
    is_guess: bool
    changes: tuple[SettingChange, ...] = ()

    @property
    def total_gib(self) -> float:
        return _total_gib(self.parts)

    @property
    def verdict(self) -> str:
        """fits, tight, does not fit, or unknown."""
        if not self.capacity_gib:
            return "unknown"
        share = self.total_gib / self.capacity_gib
        return "fits" if share <= TIGHT else "tight" if share <= 1 else "does not fit"

    def lines(self) -> list[str]:
        """Return total and verdict, the parts, and what to change, as lines of text."""
        capacity = f" of {self.capacity_gib:.1f} GiB" if self.capacity_gib else ""
        basis = "about, by the size in its name alone" if self.is_guess else "by its config.json"
        lines = [f"memory: {self.total_gib:.1f}{capacity}: {self.verdict} ({basis})"]
        lines += [f"  {part.gib:6.2f} GiB  {part.name}: {part.reason}" for part in self.parts]
        lines += ["  to change, in this order:"] if self.changes else []
        lines += [
            f"  {change.field} = {change.value} (now {change.now}): {change.total_gib:.1f} GiB in all"
            for change in self.changes
        ]
        is_too_large = not self.changes or self.changes[-1].total_gib > self.capacity_gib
        if self.verdict == "does not fit" and is_too_large:
            lines.append("  then a smaller model: model.id")
        return lines


def estimate_memory(
    params: NotebookParams, machine: Machine, *, environ: Mapping[str, str] = os.environ
) -> MemoryEstimate | None:
    """Return the memory of a run on this machine; None if it loads no model, or one of unknown size.

    "auto" counts as what this machine would make of it. Raises ParamsError for a config.json that cannot be
    read.
    """
    resolved = resolve(params, recommend(machine, environ=environ), environ=environ)
    model = getattr(resolved, "model", None)
    if not isinstance(model, ModelParams) or _get(resolved, "writer.kind", "policy") != "policy":
        return None
    sizes = load_model_sizes(model.id, model.cache_dir, environ=environ)
    if sizes is None:
        return None
    opponent = _get(resolved, "opponent.model_id") if _get(resolved, "opponent.kind") == "model" else ""
    other = load_model_sizes(opponent, model.cache_dir, environ=environ) if opponent else None
    constant = _constant_parts(resolved, machine, opponent, other)
    parts = _parts(resolved, sizes, constant)
    estimate = MemoryEstimate(parts, machine.memory_gib, sizes.source, sizes.is_guess)
    if estimate.verdict in ("fits", "unknown"):
        return estimate
    return estimate._replace(changes=tuple(_propose_changes(resolved, sizes, constant, machine)))


def describe_memory(
    params: NotebookParams, machine: Machine, *, environ: Mapping[str, str] = os.environ
) -> list[str]:
    """Return the lines of an estimate, or one that says why there is none."""
    try:
        estimate = estimate_memory(params, machine, environ=environ)
    except ParamsError as error:
        return [f"memory: not known: {error}"]
    return [UNKNOWN_SIZE] if estimate is None else estimate.lines()


def _constant_parts(
    params: NotebookParams, machine: Machine, opponent: str, sizes: ModelSizes | None
) -> list[MemoryPart]:
    """Return what no proposed change makes smaller; sizes: those of the opponent."""
    parts = []
    if sizes is not None:
        gib = sizes.num_parameters * BYTES[value_of(params, "model.dtype")] / GIB
        parts.append(MemoryPart("opponent", gib, f"weights of {opponent}"))
    if _get(params, "vllm.enabled") and _get(params, "vllm.mode") == "colocate":
        share = _get(params, "vllm.gpu_memory_utilization")
        parts.append(MemoryPart("vLLM", share * machine.memory_gib, f"vllm.gpu_memory_utilization = {share}"))
    reason = "CUDA's context and kernels" if machine.capability else "Python with torch"
    return [*parts, MemoryPart("process", PROCESS_GIB[reason], reason)]


def _parts(params: NotebookParams, sizes: ModelSizes, constant: list[MemoryPart]) -> tuple[MemoryPart, ...]:
    """Return what stays, and the larger of what training and generation need in turns."""
    has_training = hasattr(params, "training")
    parts = [*constant, _weights(value_of(params, "model"), sizes, is_trained=has_training)]
    in_turns = [_generation(params, sizes)]
    if has_training:
        parts.append(_trained_weights(params, sizes))
        in_turns.insert(0, _training_pass(params, sizes))
    parts += max(in_turns, key=_total_gib)
    return tuple(sorted(parts, key=lambda part: -part.gib))


def _total_gib(parts: Iterable[MemoryPart]) -> float:
    return sum(part.gib for part in parts)


def _weights(model: ModelParams, sizes: ModelSizes, *, is_trained: bool) -> MemoryPart:
    number_bytes, millions = BYTES[model.dtype], f"{sizes.num_parameters / 1e6:,.1f} million"
    embeddings = 0 if model.offload_embedding and model.engine == "unsloth" else sizes.embedding_parameters
    inner = sizes.num_parameters - sizes.embedding_parameters
    if model.load_in_4bit is True:
        # peft turns what is not quantized into float32 before training.
        wide = 4 if is_trained and model.engine == "transformers" else number_bytes
        size = inner * FOUR_BIT + embeddings * wide
        return MemoryPart("weights", size / GIB, f"{millions} in 4 bits, embeddings in {8 * wide}")
    packed = sizes.expert_parameters if sizes.expert_bits else 0
    size = (inner - packed + embeddings) * number_bytes + packed * sizes.expert_bits / 8
    return MemoryPart("weights", size / GIB, f"{millions} in {model.dtype}")


def _trained_weights(params: NotebookParams, sizes: ModelSizes) -> MemoryPart:
    """Return what is trained, its gradients, the optimizer's two states, and the copies of self-play."""
    model: ModelParams = value_of(params, "model")
    rank = _adapter_rank(model)
    if rank:
        count, wide = sizes.count_adapter_parameters(rank, model.lora_target_modules), 4  # float32 in peft
        name, reason = "adapters", f"{count / 1e6:,.2f} million of rank {rank}, gradients, AdamW"
    else:
        count, wide = sizes.num_parameters, BYTES[model.dtype]
        name, reason = "gradients", "of every weight, AdamW"
    state = 2 if _get(params, "training.optim", "").endswith("8bit") else 2 * wide
    has_kl = _get(params, "training.kl_coef") or _get(params, "training.init_kl_coef")
    has_average = _get(params, "training.average_decay", None) is not None
    # With adapters the untrained model of the KL penalty is the same one without them.
    copies = (has_average, _get(params, "training.magnet_coef") > 0, has_kl and not rank)
    num_copies = sum(map(bool, copies))
    size = count * (wide * (1 if rank else 0) + wide + state + wide * num_copies)
    return MemoryPart(name, size / GIB, reason + (f", {num_copies} more of them" if num_copies else ""))


def _adapter_rank(model: ModelParams) -> int:
    """Return the rank of the trained adapters to begin with, else that of fresh ones; 0 = all weights."""
    path = Path(model.adapters) / "adapter_config.json"
    if model.adapters and path.is_file():
        return int(json.loads(path.read_text(encoding="utf-8"))["r"])
    return model.lora_rank


def _training_pass(params: NotebookParams, sizes: ModelSizes) -> list[MemoryPart]:
    """Return what one forward and backward pass keeps: activations, and the logits that are read."""
    model: ModelParams = value_of(params, "model")
    tokens, number_bytes = _get(params, "training.tokens_per_pass"), BYTES[model.dtype]
    if tokens:
        answer = _get(params, "game.max_new_tokens") if _get(params, "game.acting") == "free" else 1
        length = min(_longest_prompt(params) + answer, tokens)  # of the longest row
        read = -(-tokens * answer // (answer + ROW_TOKENS[_get(params, "game.style")]))
        reason = f"{tokens} tokens (training.tokens_per_pass)"
    else:
        rows = _get(params, "training.per_device_train_batch_size")
        answer = _get(params, "training.max_completion_length")
        length = _longest_prompt(params) + answer
        tokens, read, reason = rows * length, rows * answer, f"{rows} x {length} tokens"
    eager_length = length if model.attention == "eager" else 0
    layer = _layer_bytes(sizes, number_bytes, adapted=_adapter_rank(model) > 0, eager_length=eager_length)
    if _get(params, "training.gradient_checkpointing"):
        kept = sizes.num_layers * sizes.width * number_bytes + layer
        reason += f", inputs of {sizes.num_layers} layers and one layer whole"
    else:
        kept = sizes.num_layers * layer
        reason += f", {sizes.num_layers} layers"
    logits_gib = read * sizes.vocabulary * 4 * COPIES_OF_LOGITS / GIB
    places = f"{read} places x {sizes.vocabulary} words, {COPIES_OF_LOGITS} copies"
    return [MemoryPart("activations", tokens * kept / GIB, reason), MemoryPart("logits", logits_gib, places)]


def _longest_prompt(params: NotebookParams) -> int:
    for section in ("game", "tasks"):
        tokens: int = _get(params, f"{section}.max_prompt_tokens")
        if tokens:
            is_compact = _get(params, f"{section}.style") == "compact"
            return min(tokens, LONGEST_COMPACT) if is_compact else tokens
    longest: int = _get(params, "model.max_seq_length")
    return max(1, longest - _get(params, "training.max_completion_length")) if longest else PROMPT_TOKENS


def _layer_bytes(sizes: ModelSizes, number_bytes: int, *, adapted: bool, eager_length: int) -> float:
    """Return what one layer keeps of one token for the backward pass.

    Both norms keep float32; the linear layers their inputs (adapters in float32, where they are); attention
    its queries, keys, values, all heads of them, and its output; the MLP both branches, the gated one, and
    their product. eager_length: with eager attention, the keys that a token looks at.
    """
    width, query, mlp = sizes.width, sizes.query_width, sizes.mlp_width
    inside = 2 * width + 4 * query + 4 * mlp
    cast = 4 * (5 * width + query + mlp) if adapted and number_bytes < 4 else 0
    scores = sizes.num_heads * eager_length * (4 + 2 * number_bytes)
    return 8 * width + number_bytes * inside + cast + scores


def _generation(params: NotebookParams, sizes: ModelSizes) -> list[MemoryPart]:
    """Return the keys and values of the largest batch of completions that are generated together."""
    prompt, training_rows = _longest_prompt(params), _get(params, "training.per_device_train_batch_size")
    completed = prompt + _get(params, "training.max_completion_length")
    plays_freely = _get(params, "evaluation.enabled") and "free" in _get(params, "evaluation.modes", ())
    training_batch = training_rows * _get(params, "training.gradient_accumulation_steps")
    batches = [(training_batch, completed, "training's batch")]
    if training_rows:
        batches.append((_get(params, "evaluation.batch_size"), completed, "evaluation.batch_size"))
    if _get(params, "game.acting") == "free" or plays_freely:
        length = prompt + _get(params, "game.max_new_tokens")
        batches.append((_get(params, "game.batch_size"), length, "game.batch_size"))
    if _get(params, "mbpp.enabled", True):
        length = PROMPT_TOKENS + _get(params, "mbpp.max_completion_length")
        batches.append((_get(params, "mbpp.batch_size"), length, "mbpp.batch_size"))
    rows, length, field = max(batches, key=lambda batch: batch[0] * batch[1])
    cache = rows * length * sizes.num_layers * 2 * sizes.kv_width * BYTES[value_of(params, "model.dtype")]
    logits = rows * sizes.vocabulary * 4 * 3
    reason = f"{rows} x {length} tokens of keys, values ({field})"
    return [MemoryPart("generation", (cache + logits) / GIB, reason)]


def _propose_changes(
    params: NotebookParams, sizes: ModelSizes, constant: list[MemoryPart], machine: Machine
) -> Iterator[SettingChange]:
    """Yield settings to change until the run fits, each on top of those before."""
    limit_gib = TIGHT * machine.memory_gib
    before = _total_gib(_parts(params, sizes, constant))
    for field, smallest in CHANGES:
        values = _values_to_try(params, field, smallest, machine)
        candidates = [_with_value(params, field, value) for value in values]
        totals = [_total_gib(_parts(candidate, sizes, constant)) for candidate in candidates]
        # The mildest value that makes it fit, else the mildest that saves as much as the harshest.
        enough = max(limit_gib, 1.01 * min(totals, default=before))
        pairs = zip(candidates, totals, strict=True)
        best, after = next((pair for pair in pairs if pair[1] <= enough), (params, before))
        if before - after < MIN_SAVING * before:
            continue
        yield SettingChange(field, show(value_of(params, field)), show(value_of(best, field)), after)
        params, before = best, after
        if after <= limit_gib:
            return


def _values_to_try(params: NotebookParams, field: str, smallest: int, machine: Machine) -> list[int]:
    """Return other values of a field that may help, the mildest first."""
    now, model = _get(params, field, None), value_of(params, "model")
    if now is None:
        return []
    if smallest:
        halves = [now >> k for k in range(1, now.bit_length()) if now >> k >= smallest]
        return [half for half in halves if now % half == 0]
    if field == "model.lora_rank":
        return [] if model.lora_rank or model.adapters else [16]
    can_quantize = machine.capability and installed_version("bitsandbytes") and model.lora_rank
    return [True] if can_quantize or field != "model.load_in_4bit" else []


def _with_value(params: NotebookParams, field: str, value: int) -> NotebookParams:
    """Return the parameters with another value; a smaller batch has as many more passes in a step."""
    section_name, _, name = field.partition(".")
    section: Section = getattr(params, section_name)
    update = {name: value}
    if name == "per_device_train_batch_size":
        num_completions = _get(params, field) * _get(params, "training.gradient_accumulation_steps")
        update["gradient_accumulation_steps"] = num_completions // value
    return params.model_copy(update={section_name: section.model_copy(update=update)})


def _get(params: NotebookParams, field: str, default: Any = 0) -> Any:
    """Return the value of a field, the default where this notebook has no such field."""
    section, _, name = field.partition(".")
    return getattr(getattr(params, section, None), name, default)
