"""How much memory a run will need, part by part, and which settings to change where it does not fit.

An estimate to choose settings by, from the sizes of the model and the longest texts that the parameters
allow; docs/configure.md says how it is made and how far it was off where it was measured. Imports no torch.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rlnb.machine import Machine, installed_version, recommend
from rlnb.model_shape import ModelShape, shape_of
from rlnb.params.problems import show
from rlnb.params.resolving import resolve
from rlnb.params.sections import ModelParams, NotebookParams, Section, value_of

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FOUR_BIT = 0.52  # bytes of a weight in NF4, its constants quantized as well
# torch and transformers on a CPU; CUDA's context, kernels and what its allocator rounds on a GPU
PROCESS_GIB = {"cpu": 0.6, "gpu": 0.8}
PROMPT_TOKENS = 512  # where the parameters do not say how long a prompt may be
ROW_TOKENS = {"compact": 16, "full": 96}  # a game's short prompts, which leave most places to be read
LONGEST_COMPACT = 128  # tokens of a compact prompt, whatever the game
COPIES_OF_LOGITS = 6  # float32: logits, over temperature, log-probabilities, two for the entropy, a gradient
TIGHT = 0.85  # share of the memory from which on it is tight
WORTH_NAMING = 0.05  # a change that saves less than this share is not named
# What to change, in this order, which is that of `rlnb.training.resources`. Numbers are halved, down to the
# second entry.
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


class Part(NamedTuple):
    """What takes memory, how much (GiB), and what that follows from."""

    name: str
    gib: float
    why: str


class Change(NamedTuple):
    """A setting to change: its value now, the one proposed, and GiB of the whole run after it and those
    before."""

    field: str
    now: str
    value: str
    total_gib: float


@dataclass(frozen=True)
class Estimate:
    """Of one process on one device. parts: needed at the same time at the peak, largest first.

    capacity_gib: what the machine has, 0.0 where unknown. changes: in the order to make them, the cheapest
    first; empty where it fits. source: what the model's sizes are from.
    """

    parts: tuple[Part, ...]
    capacity_gib: float
    changes: tuple[Change, ...]
    source: str
    is_guess: bool

    @property
    def total_gib(self) -> float:
        return sum(part.gib for part in self.parts)

    @property
    def verdict(self) -> str:
        """fits, tight, does not fit, or unknown."""
        if not self.capacity_gib:
            return "unknown"
        share = self.total_gib / self.capacity_gib
        return "fits" if share <= TIGHT else "tight" if share <= 1 else "does not fit"

    def lines(self) -> list[str]:
        """For a terminal: total and verdict, the parts, what to change."""
        has = f" of {self.capacity_gib:.1f} GiB" if self.capacity_gib else ""
        about = "about, by the size in its name alone" if self.is_guess else "by its config.json"
        lines = [f"memory: {self.total_gib:.1f}{has}: {self.verdict} ({about})"]
        lines += [f"  {part.gib:6.2f} GiB  {part.name}: {part.why}" for part in self.parts]
        if self.changes:
            lines.append("  to change, in this order:")
        lines += [
            f"  {change.field} = {change.value} (now {change.now}): {change.total_gib:.1f} GiB in all"
            for change in self.changes
        ]
        if self.verdict == "does not fit" and (not self.changes or self._remains_too_large()):
            lines.append("  then a smaller model: model.id")
        return lines

    def _remains_too_large(self) -> bool:
        return self.changes[-1].total_gib > self.capacity_gib


def estimate_memory(
    params: NotebookParams, machine: Machine, *, environ: Mapping[str, str] = os.environ
) -> Estimate | None:
    """What a run of these parameters needs on this machine; None where no model is loaded or none is known.

    "auto" counts as what this machine would make of it. Raises ParamsError for a config.json that cannot be
    read.
    """
    settled = resolve(params, recommend(machine, environ=environ), environ=environ)
    model, writer = _section(settled, "model"), _section(settled, "writer")
    if not isinstance(model, ModelParams) or (writer is not None and writer.kind != "policy"):
        return None
    shape = shape_of(model.id, model.cache_dir, environ=environ)
    if shape is None:
        return None

    def total(candidate: NotebookParams) -> float:
        return sum(part.gib for part in _parts(candidate, shape, machine, environ))

    parts = _parts(settled, shape, machine, environ)
    found = Estimate(parts, machine.memory_gib, (), shape.source, shape.is_guess)
    if found.verdict in ("fits", "unknown"):
        return found
    changes = tuple(_changes(settled, total, machine))
    return Estimate(parts, machine.memory_gib, changes, shape.source, shape.is_guess)


def _parts(
    params: NotebookParams, shape: ModelShape, machine: Machine, environ: Mapping[str, str]
) -> tuple[Part, ...]:
    """What stays, and the larger of what training and writing need in turns."""
    model: ModelParams = _section(params, "model")
    training = _section(params, "training")
    number_bytes = BYTES[model.dtype]
    parts = [_weights(model, shape, is_trained=training is not None)]
    if training is not None:
        parts += _trained(model, training, shape, number_bytes)
    parts += _second_model(params, number_bytes, environ)
    passing = [] if training is None else _training_pass(params, training, shape, number_bytes)
    parts += max(passing, _writing(params, shape, number_bytes), key=lambda some: sum(p.gib for p in some))
    vllm = _section(params, "vllm")
    if vllm is not None and vllm.enabled and vllm.mode == "colocate":
        share = vllm.gpu_memory_utilization
        parts.append(Part("vLLM", share * machine.memory_gib, f"vllm.gpu_memory_utilization = {share}"))
    kind = "gpu" if machine.capability else "cpu"
    what = {"gpu": "CUDA's context and kernels", "cpu": "Python with torch"}[kind]
    parts.append(Part("process", PROCESS_GIB[kind], what))
    return tuple(sorted(parts, key=lambda part: -part.gib))


def _weights(model: ModelParams, shape: ModelShape, *, is_trained: bool) -> Part:
    number_bytes, millions = BYTES[model.dtype], f"{shape.num_parameters / 1e6:,.1f} million"
    embeddings = 0 if model.offload_embedding and model.engine == "unsloth" else shape.embedding_parameters
    inner = shape.num_parameters - shape.embedding_parameters
    if model.load_in_4bit is True:
        # peft turns what is not quantized into float32 before training.
        wide = 4 if is_trained and model.engine == "transformers" else number_bytes
        size = inner * FOUR_BIT + embeddings * wide
        return Part("weights", size / GIB, f"{millions} in 4 bits, embeddings in {8 * wide}")
    packed = shape.expert_parameters if shape.expert_bits else 0
    size = (inner - packed + embeddings) * number_bytes + packed * shape.expert_bits / 8
    return Part("weights", size / GIB, f"{millions} in {model.dtype}")


def _trained(model: ModelParams, training: Any, shape: ModelShape, number_bytes: int) -> Iterator[Part]:
    """Adapters with gradients and the optimizer's two states, and the averages that self-play keeps."""
    rank = _rank_of(model.adapters) or model.lora_rank
    if rank:
        count, wide = shape.adapter_parameters(rank, model.lora_target_modules), 4  # peft keeps them float32
        name, why = "adapters", f"{count / 1e6:,.2f} million of rank {rank}, gradients, AdamW"
    else:
        count, wide = shape.num_parameters, number_bytes
        name, why = "gradients", "of every weight, AdamW"
    state = 2 if getattr(training, "optim", "").endswith("8bit") else 2 * wide
    held = 1 if hasattr(training, "average_decay") else 0
    held += bool(getattr(training, "magnet_coef", 0))
    is_held = getattr(training, "kl_coef", 0) or getattr(training, "init_kl_coef", 0)
    held += bool(is_held and not rank)  # with adapters the untrained model is the same one, without them
    size = count * (wide * (1 if rank else 0) + wide + state + wide * held)
    copies = f", {held} more of them" if held else ""
    yield Part(name, size / GIB, why + copies)


def _rank_of(adapters: str) -> int:
    """Of trained adapters in a directory, 0 where there are none."""
    path = Path(adapters) / "adapter_config.json"
    return int(json.loads(path.read_text(encoding="utf-8"))["r"]) if adapters and path.is_file() else 0


def _second_model(params: NotebookParams, number_bytes: int, environ: Mapping[str, str]) -> Iterator[Part]:
    """An opponent with weights of its own (grpo_code_game)."""
    opponent = _section(params, "opponent")
    if getattr(opponent, "kind", "") == "model":
        name: str = opponent.model_id
        shape = shape_of(name, _section(params, "model").cache_dir, environ=environ)
        if shape is not None:
            yield Part("opponent", shape.num_parameters * number_bytes / GIB, f"weights of {name}")


def _training_pass(params: NotebookParams, training: Any, shape: ModelShape, number_bytes: int) -> list[Part]:
    """One forward and backward pass with what it must keep in between."""
    model: ModelParams = _section(params, "model")
    tokens, read, length, why = _pass_size(params, training)
    adapted = (_rank_of(model.adapters) or model.lora_rank) > 0
    each = _layer_bytes(
        shape, number_bytes, adapted=adapted, eager_length=length * (model.attention == "eager")
    )
    if training.gradient_checkpointing is True:
        kept = shape.num_layers * shape.width * number_bytes + each
        kind = f"{why}, inputs of {shape.num_layers} layers and one layer whole"
    else:
        kept, kind = shape.num_layers * each, f"{why}, {shape.num_layers} layers"
    logits = read * shape.vocabulary * 4 * COPIES_OF_LOGITS
    return [
        Part("activations", tokens * kept / GIB, kind),
        Part("logits", logits / GIB, f"{read} places x {shape.vocabulary} words, {COPIES_OF_LOGITS} copies"),
    ]


def _pass_size(params: NotebookParams, training: Any) -> tuple[int, int, int, str]:
    """Tokens of a pass with padding, places whose logits are read, tokens of its longest row; in words."""
    game = _section(params, "game")
    if hasattr(training, "tokens_per_pass"):
        answer = game.max_new_tokens if game.acting == "free" else 1
        tokens, length = training.tokens_per_pass, _longest_prompt(params) + answer
        read = -(-tokens * answer // (answer + ROW_TOKENS[game.style]))
        return tokens, read, min(length, tokens), f"{tokens} tokens (training.tokens_per_pass)"
    rows, answer = training.per_device_train_batch_size, training.max_completion_length
    length = _longest_prompt(params) + answer
    return rows * length, rows * answer, length, f"{rows} x {length} tokens"


def _longest_prompt(params: NotebookParams) -> int:
    for section in ("game", "tasks"):
        tokens = getattr(_section(params, section), "max_prompt_tokens", None)
        if isinstance(tokens, int):
            is_compact = getattr(_section(params, section), "style", "") == "compact"
            return min(tokens, LONGEST_COMPACT) if is_compact else tokens
    longest = getattr(_section(params, "model"), "max_seq_length", None)
    answer = getattr(_section(params, "training"), "max_completion_length", 0)
    return max(1, longest - answer) if isinstance(longest, int) else PROMPT_TOKENS


def _layer_bytes(shape: ModelShape, number_bytes: int, *, adapted: bool, eager_length: int) -> float:
    """What one layer keeps of one token for the backward pass.

    Both norms keep float32; the linear layers their inputs (adapters in float32, where they are); attention
    its queries, keys, values, all heads of them, and its output; the MLP both branches, the gated one, and
    their product. eager_length: with eager attention, the keys that a token looks at.
    """
    width, query, mlp = shape.width, shape.query_width, shape.mlp_width
    inside = 2 * width + 4 * query + 4 * mlp
    cast = 4 * (5 * width + query + mlp) if adapted and number_bytes < 4 else 0
    scores = shape.num_heads * eager_length * (4 + 2 * number_bytes)
    return 8 * width + number_bytes * inside + cast + scores


def _writing(params: NotebookParams, shape: ModelShape, number_bytes: int) -> list[Part]:
    """The keys and values of the answers that are written side by side, the largest of all occasions."""
    rows, length, why = max(_occasions(params), default=(0, 0, ""), key=lambda one: one[0] * one[1])
    cache = rows * length * shape.num_layers * 2 * shape.kv_width * number_bytes
    logits = rows * shape.vocabulary * 4 * 3
    return [
        Part(
            "answers being written",
            (cache + logits) / GIB,
            f"{rows} x {length} tokens of keys, values ({why})",
        )
    ]


def _occasions(params: NotebookParams) -> Iterator[tuple[int, int, str]]:
    """(rows, tokens of the longest, the field that says so) wherever something is written."""
    prompt = _longest_prompt(params)
    training, game = _section(params, "training"), _section(params, "game")
    evaluation, mbpp = _section(params, "evaluation"), _section(params, "mbpp")
    if hasattr(training, "per_device_train_batch_size"):
        rows = training.per_device_train_batch_size * training.gradient_accumulation_steps
        yield rows, prompt + training.max_completion_length, "training's batch"
        if hasattr(evaluation, "batch_size"):
            yield evaluation.batch_size, prompt + training.max_completion_length, "evaluation.batch_size"
    if hasattr(game, "batch_size"):
        modes = getattr(evaluation, "modes", ()) if getattr(evaluation, "enabled", False) else ()
        if game.acting == "free" or "free" in modes:
            yield game.batch_size, prompt + game.max_new_tokens, "game.batch_size"
    if mbpp is not None and getattr(mbpp, "enabled", True):
        yield mbpp.batch_size, PROMPT_TOKENS + mbpp.max_completion_length, "mbpp.batch_size"


def _changes(
    params: NotebookParams, total: Callable[[NotebookParams], float], machine: Machine
) -> Iterator[Change]:
    """Settings to change until it fits, each on top of those before; first what costs time only."""
    least_gib = TIGHT * machine.memory_gib
    before = total(params)
    for field, values in _candidates(params, machine):
        tried = [_with_values(params, {field: value} | _beside(params, field, value)) for value in values]
        totals = [total(one) for one in tried]
        # The mildest that makes it fit, or else that does as much as the harshest.
        enough = max(least_gib, 1.01 * min(totals, default=before))
        best, after = next(
            (pair for pair in zip(tried, totals, strict=True) if pair[1] <= enough), (params, before)
        )
        if before - after < WORTH_NAMING * before:
            continue
        yield Change(field, show(value_of(params, field)), show(value_of(best, field)), after)
        params, before = best, after
        if after <= least_gib:
            return


def _candidates(params: NotebookParams, machine: Machine) -> Iterator[tuple[str, list[Any]]]:
    """(field, values to try, the mildest first) of what this notebook and this machine have."""
    model: ModelParams = _section(params, "model")
    can_quantize = machine.capability is not None and installed_version("bitsandbytes") is not None
    for field, least in CHANGES:
        if not _has(params, field):
            continue
        now = value_of(params, field)
        if least:
            halves = [now >> k for k in range(1, now.bit_length()) if now >> k >= least]
            yield field, [half for half in halves if now % half == 0]
        elif field == "training.gradient_checkpointing" or (
            field == "model.load_in_4bit" and can_quantize and model.lora_rank
        ):
            yield field, [True]
        elif field == "model.lora_rank" and not model.lora_rank and not model.adapters:
            yield field, [16]


def _beside(params: NotebookParams, field: str, value: Any) -> dict[str, Any]:
    """What has to change too: smaller passes, as many more of them."""
    if field != "training.per_device_train_batch_size":
        return {}
    passes = "training.gradient_accumulation_steps"
    return {passes: value_of(params, passes) * value_of(params, field) // value}


def _section(params: NotebookParams, name: str) -> Any:
    """A section that not every notebook has, else None."""
    return getattr(params, name, None)


def _has(params: NotebookParams, field: str) -> bool:
    section, _, name = field.partition(".")
    return hasattr(_section(params, section), name)


def _with_values(params: NotebookParams, values: Mapping[str, Any]) -> NotebookParams:
    for field, value in values.items():
        section, _, name = field.partition(".")
        own: Section = getattr(params, section)
        params = params.model_copy(update={section: own.model_copy(update={name: value})})
    return params
