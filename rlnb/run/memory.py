"""An estimate of the memory that a run needs, part by part; what does not fit is refused before it loads.

It follows from the sizes of the model and the longest texts that the parameters allow; docs/configure.md has
the formulas and how accurate they were where it was measured.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rlnb.errors import ParamsError, see
from rlnb.machine import Machine, installed_version, recommend
from rlnb.params.problems import show
from rlnb.params.resolving import SomeParams, loaded_model, resolve
from rlnb.params.sections import ModelParams, NotebookParams, Section, value_of
from rlnb.params.training import VllmParams
from rlnb.run.disk import GIB, check_disk
from rlnb.run.health import list_remedies
from rlnb.run.model_sizes import ModelSizes, load_model_sizes

UNKNOWN_SIZE = "memory: not known: the model's name gives no size"
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FOUR_BIT = 0.52  # bytes of a weight in NF4 whose constants are quantized as well
PROCESS_GIB = {"Python with torch": 1.0, "CUDA's context and kernels": 0.8}  # with its allocator's rounding
PROMPT_TOKENS = 512  # where the parameters do not limit the prompt
ROW_TOKENS = {"compact": 16, "full": 96}  # of a game's short prompts, which read the largest share of logits
LONGEST_COMPACT = 128  # tokens of a compact prompt in any game
COPIES_OF_LOGITS = 6  # float32: logits, over temperature, log-probabilities, two for the entropy, a gradient
# GRPO computes no logits of a whole batch: TRL's tile of tokens x words, and the tokens of `CpuGRPOTrainer`.
TILE_TOKENS, TILE_WORDS, HEAD_ROWS = 4096, 32_768, 64
VLLM_GIB = 1.5  # of vLLM besides weights, keys and values: CUDA graphs, a pass over 4,096 tokens, sampling
UNKNOWN_CARD_SHARE = 0.3  # of vLLM, where the card's memory is not known; TRL's default
TIGHT = 0.85  # share of the memory above which it is tight
MIN_SAVING = 0.05  # a change that saves a smaller share is not proposed
# Settings to change, the cheapest first. Numbers are halved, down to the second entry.
CHANGES: tuple[tuple[str, int], ...] = (
    ("vllm.gpu_memory_utilization", 0),
    ("training.tokens_per_pass", 256),
    ("training.per_device_train_batch_size", 1),
    ("training.gradient_checkpointing", 0),
    ("game.batch_size", 1),
    ("mbpp.batch_size", 1),
    ("evaluation.batch_size", 1),
    ("model.load_in_4bit", 0),
    ("model.offload_embedding", 0),
    ("model.lora_rank", 0),
    ("training.max_completion_length", 64),
    ("game.max_new_tokens", 64),
)


class MemoryPart(NamedTuple):
    """Something that takes memory, its size, and how the size was computed."""

    name: str
    gib: float
    reason: str


class SettingChange(NamedTuple):
    """A setting to change; total_gib: of the whole run after this change and those before it.

    with_it: what else changes, so that a step keeps its completions.
    """

    field: str
    now: str
    value: str
    total_gib: float
    with_it: str = ""


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

    @property
    def summary(self) -> str:
        """The total, the verdict and the largest parts in one line."""
        largest = ", ".join(f"{part.name} {part.gib:.1f}" for part in self.parts[:3])
        return f"{self.lines()[0]}: {largest}"

    def lines(self) -> list[str]:
        """Return total and verdict, the parts, and what to change, as lines of text."""
        capacity = f" of {self.capacity_gib:.1f} GiB" if self.capacity_gib else ""
        basis = "as published" if self.source == "as published" else "by its config.json"
        basis = "about, by the size in its name alone" if self.is_guess else basis
        lines = [f"memory: {self.total_gib:.1f}{capacity}: {self.verdict} ({basis})"]
        lines += [f"  {part.gib:6.2f} GiB  {part.name}: {part.reason}" for part in self.parts]
        lines += ["  to change, in this order:"] if self.changes else []
        lines += [
            f"  {change.field} = {change.value}{change.with_it} (now {change.now}): "
            f"{change.total_gib:.1f} GiB in all"
            for change in self.changes
        ]
        if self.verdict == "does not fit" and not self.can_fit:
            lines.append("  then a smaller model: model.id")
        return lines

    @property
    def can_fit(self) -> bool:
        """Whether the run fits as it is, or after the changes."""
        totals = [self.total_gib, *(change.total_gib for change in self.changes)]
        return totals[-1] <= self.capacity_gib

    def remedies(self) -> str:
        """Return the changes in one sentence."""
        remedies = [
            (change.field, change.now, f"write {change.value}{change.with_it}: {change.total_gib:.1f} GiB")
            for change in self.changes
        ]
        changes = list_remedies(remedies)
        smaller = "Take a smaller model.id, or a machine with more memory"
        if self.can_fit or not changes:
            return changes or smaller
        return f"{changes}. That is not enough: {smaller[0].lower()}{smaller[1:]}"


def estimate_memory(
    params: NotebookParams, machine: Machine, *, environ: Mapping[str, str] = os.environ
) -> MemoryEstimate | None:
    """Return the memory of a run on this machine; None if it loads no model, or one of unknown size.

    "auto" counts as what this machine would make of it. Raises ParamsError for a config.json that cannot be
    read.
    """
    return _estimate(resolve(params, recommend(machine, environ=environ), environ=environ), machine, environ)


def settle_memory(
    params: SomeParams, machine: Machine, *, environ: Mapping[str, str] = os.environ
) -> tuple[SomeParams, str]:
    """Return the parameters with what vLLM may take, and the estimate in a line, "" for no model.

    params: without "auto", but for the section vllm, which depends on the memory that others need. Raises
    ParamsError for a run that does not fit this machine by the sizes of its model, unless
    `model.check_memory` is false; a size guessed from a name is not refused.
    """
    model = loaded_model(params)
    if model is None:
        return params, ""
    loaded = _load_all_sizes(params, environ)
    settled = _settle_vllm(params, machine, loaded)
    estimate = _estimate(params, machine, environ)
    if estimate is None:
        return settled, UNKNOWN_SIZE
    if estimate.verdict != "does not fit":
        return settled, estimate.summary
    if estimate.is_guess or not model.check_memory:
        return settled, f"{estimate.summary}. {estimate.remedies()}"
    device = machine.accelerator or "this machine"
    raise ParamsError(
        f"{params._sources.get('model.id', 'default')}: model.id = {model.id!r} with these parameters needs "
        f"{estimate.total_gib:.1f} GiB by estimate, and {device} has {estimate.capacity_gib:.1f}. "
        f"{estimate.remedies()}. To run it all the same write model.check_memory = "
        f"false{see('out-of-memory')}"
    )


def check_room(params: NotebookParams, *, environ: Mapping[str, str] = os.environ) -> None:
    """Raise ParamsError where the checkpoints of a training do not fit on the disk, by its model's sizes.

    A size guessed from a name is not refused.
    """
    training, model = getattr(params, "training", None), loaded_model(params)
    if training is None or model is None:
        return
    sizes = load_model_sizes(model.id, model.cache_dir, environ=environ)
    if sizes is None or sizes.is_guess:
        return
    trained = _count_trained(params, sizes)
    moments = trained.moment_bytes if training.save_optimizer else 0
    num_bytes = trained.num_weights * (trained.number_bytes * (1 + trained.num_copies) + moments)
    check_disk(value_of(params, "output_dir"), num_bytes, training)


def _load_all_sizes(
    params: NotebookParams, environ: Mapping[str, str]
) -> dict[str, tuple[str, ModelSizes]] | None:
    """Return {field: (model, its sizes)}, model.id first; None if one of them is not known."""
    model: ModelParams = value_of(params, "model")
    names = {"model.id": model.id}
    sizes = {
        field: (name, load_model_sizes(name, model.cache_dir, environ=environ))
        for field, name in names.items()
    }
    known = {field: (name, size) for field, (name, size) in sizes.items() if size is not None}
    return known if len(known) == len(sizes) else None


def _estimate(params: NotebookParams, machine: Machine, environ: Mapping[str, str]) -> MemoryEstimate | None:
    """Return the memory of resolved parameters, None if they load no model, or one of unknown size."""
    loaded = None if loaded_model(params) is None else _load_all_sizes(params, environ)
    if loaded is None:
        return None
    parts = _parts(params, machine, loaded)
    source = loaded["model.id"][1].source
    is_guess = any(sizes.is_guess for _, sizes in loaded.values())
    estimate = MemoryEstimate(parts, machine.memory_gib, source, is_guess)
    if estimate.verdict in ("fits", "unknown"):
        return estimate
    return estimate._replace(changes=tuple(_propose_changes(params, machine, loaded)))


def describe_memory(
    params: NotebookParams, machine: Machine, *, environ: Mapping[str, str] = os.environ
) -> list[str]:
    """Return the lines of an estimate, or one that says why there is none."""
    try:
        estimate = estimate_memory(params, machine, environ=environ)
    except ParamsError as error:
        return [f"memory: not known: {error}"]
    return [UNKNOWN_SIZE] if estimate is None else estimate.lines()


Loaded = Mapping[str, tuple[str, ModelSizes]]  # {field: (model, its sizes)}


def _parts(params: NotebookParams, machine: Machine, loaded: Loaded) -> tuple[MemoryPart, ...]:
    """Return what stays, and the largest of what training, generation and a sleeping vLLM need in turns."""
    params = _settle_vllm(params, machine, loaded)
    staying, in_turns = _staying_parts(params, machine, loaded), _parts_in_turns(params, machine, loaded)
    if _uses_vllm_here(params):
        vllm: VllmParams = value_of(params, "vllm")
        share = float(vllm.gpu_memory_utilization)
        reason = f"vllm.gpu_memory_utilization = {show(vllm.gpu_memory_utilization)}"
        part = MemoryPart("vLLM", share * machine.memory_gib, reason)
        if vllm.sleeps:
            in_turns.append([part])
        else:
            staying.append(part)
    return tuple(sorted([*staying, *max(in_turns, key=_total_gib)], key=lambda part: -part.gib))


def _uses_vllm_here(params: NotebookParams) -> bool:
    return bool(get_value(params, "vllm.enabled")) and not get_value(params, "vllm.server_base_url")


def _settle_vllm(params: SomeParams, machine: Machine, loaded: Loaded | None) -> SomeParams:
    """Replace "auto" in the section vllm by what fits this machine.

    vLLM gets what its weights and a batch of the longest texts need, or what the rest leaves, if that is
    less. It sleeps while the policy learns where both do not fit side by side.
    """
    if not _uses_vllm_here(params):
        return params
    vllm: VllmParams = value_of(params, "vllm")
    capacity, share, sleeps = machine.memory_gib, vllm.gpu_memory_utilization, vllm._sleeps
    if share != "auto" and sleeps is not None:
        return params
    if loaded is None or not capacity:
        share = UNKNOWN_CARD_SHARE if share == "auto" else share
        sleeps = True
    else:
        left = TIGHT * capacity - _total_gib(_staying_parts(params, machine, loaded))
        beside = left - max(map(_total_gib, _parts_in_turns(params, machine, loaded)))
        least, whole = _vllm_needs(params, loaded["model.id"][1])
        wanted = whole if share == "auto" else share * capacity
        sleeps = wanted > beside if sleeps is None else sleeps
        if share == "auto":
            room = max(least, min(whole, left if sleeps else beside))
            share = min(0.95, math.ceil(100 * room / capacity) / 100)
    settled_vllm = vllm.model_copy(update={"gpu_memory_utilization": share})
    settled_vllm._sleeps = sleeps
    settled = params.model_copy(update={"vllm": settled_vllm})
    if vllm.gpu_memory_utilization == "auto":
        settled._sources = params._sources | {"vllm.gpu_memory_utilization": "auto"}
    return settled


def _vllm_needs(params: NotebookParams, sizes: ModelSizes) -> tuple[float, float]:
    """Return the GiB of vLLM for one of the longest texts, and for a step's batch of them."""
    model: ModelParams = value_of(params, "model")
    rows = get_value(params, "training.per_device_train_batch_size")
    rows *= get_value(params, "training.gradient_accumulation_steps")
    row = get_value(params, "vllm.max_model_len") * sizes.cache_bytes(BYTES[model.dtype])
    fixed = VLLM_GIB + estimate_weights(model, sizes).gib
    return fixed + row / GIB, fixed + rows * row / GIB


def _staying_parts(params: NotebookParams, machine: Machine, loaded: Loaded) -> list[MemoryPart]:
    """Return what is needed from the beginning to the end, vLLM aside."""
    model: ModelParams = value_of(params, "model")
    reason = "CUDA's context and kernels" if machine.capability else "Python with torch"
    parts = [MemoryPart("process", PROCESS_GIB[reason], reason)]
    for field, (name, sizes) in loaded.items():
        weights = estimate_weights(model, sizes)
        other = MemoryPart(field.partition(".")[0], weights.gib, f"weights of {name} ({field})")
        parts.append(weights if field == "model.id" else other)
    sizes = loaded["model.id"][1]
    if hasattr(params, "training"):
        parts.append(_trained_weights(params, sizes))
    elif model.adapters:
        gib = 4 * count_adapters(model, sizes) / GIB
        parts.append(MemoryPart("adapters", gib, "model.adapters"))
    return parts


def _parts_in_turns(params: NotebookParams, machine: Machine, loaded: Loaded) -> list[list[MemoryPart]]:
    """Return what a training pass needs, and what generation needs."""
    sizes = loaded["model.id"][1]
    in_turns = [_generation(params, sizes)]
    if hasattr(params, "training"):
        in_turns.append(_training_pass(params, machine, sizes))
    return in_turns


def _total_gib(parts: Iterable[MemoryPart]) -> float:
    return sum(part.gib for part in parts)


def estimate_weights(model: ModelParams, sizes: ModelSizes) -> MemoryPart:
    """Return the memory of a model's weights in the precision that is asked for."""
    number_bytes, millions = BYTES[model.dtype], f"{sizes.num_parameters / 1e6:,.1f} million"
    by_unsloth, ends = model.engine == "unsloth", sizes.embedding_parameters
    if model.offload_embedding and by_unsloth:
        ends = min(ends, sizes.vocabulary * sizes.width)  # the head stays, also where it is the same matrix
    inner, name = sizes.num_parameters - sizes.embedding_parameters, "weights"
    if model.load_in_4bit is not True and not sizes.in_4bit:
        return MemoryPart(name, (inner + ends) * number_bytes / GIB, f"{millions} in {model.dtype}")
    # bitsandbytes quantizes linear layers alone; unsloth's copies hold their experts as such.
    wide = 0 if by_unsloth or sizes.in_4bit else sizes.expert_parameters
    size = (inner - wide) * FOUR_BIT + (ends + wide) * number_bytes
    rest = "embeddings and experts" if wide else "embeddings"
    return MemoryPart(name, size / GIB, f"{millions} in 4 bits, {rest} in {model.dtype}")


class TrainedNumbers(NamedTuple):
    """How many numbers are trained, and the bytes of each, of AdamW's two moments of it, and its copies."""

    num_weights: int
    number_bytes: int
    moment_bytes: int
    num_copies: int


def _count_trained(params: NotebookParams, sizes: ModelSizes) -> TrainedNumbers:
    model: ModelParams = value_of(params, "model")
    rank, _ = _adapters(model)
    # peft's adapters are float32.
    count, wide = (count_adapters(model, sizes), 4) if rank else (sizes.num_parameters, BYTES[model.dtype])
    moments = 2 if get_value(params, "training.optim", "").endswith("8bit") else 2 * wide
    has_kl = get_value(params, "training.init_kl_coef")
    has_average = get_value(params, "training.average_decay", None) is not None
    # With adapters the untrained model of the KL penalty is the same one without them.
    copies = (has_average, get_value(params, "training.magnet_coef") > 0, has_kl and not rank)
    return TrainedNumbers(count, wide, moments, sum(map(bool, copies)))


def _trained_weights(params: NotebookParams, sizes: ModelSizes) -> MemoryPart:
    """Return what is trained, its gradients, the optimizer's two states, and the copies of self-play."""
    rank, _ = _adapters(value_of(params, "model"))
    count, wide, moments, num_copies = _count_trained(params, sizes)
    name, reason = "gradients", "of every weight, AdamW"
    if rank:
        name, reason = "adapters", f"{count / 1e6:,.2f} million of rank {rank}, gradients, AdamW"
    size = count * (wide * (1 if rank else 0) + wide + moments + wide * num_copies)
    return MemoryPart(name, size / GIB, reason + (f", {num_copies} more of them" if num_copies else ""))


def _adapters(model: ModelParams) -> tuple[int, tuple[str, ...]]:
    """Return rank and layers of the adapters to begin with, else of fresh ones; rank 0 = all weights."""
    path = Path(model.adapters) / "adapter_config.json"
    if not model.adapters or not path.is_file():
        return model.lora_rank, model.lora_target_modules
    config = json.loads(path.read_text(encoding="utf-8"))
    targets = config.get("target_modules") or "all-linear"  # peft writes a list of names, or this word
    return int(config["r"]), (targets,) if isinstance(targets, str) else tuple(targets)


def count_adapters(model: ModelParams, sizes: ModelSizes) -> int:
    """Return the number of weights of the adapters that are trained."""
    rank, targets = _adapters(model)
    return sizes.count_adapter_parameters(rank, targets)


def _training_pass(params: NotebookParams, machine: Machine, sizes: ModelSizes) -> list[MemoryPart]:
    """Return what one forward and backward pass keeps: activations, and the logits that are read."""
    model: ModelParams = value_of(params, "model")
    tokens, number_bytes = get_value(params, "training.tokens_per_pass"), BYTES[model.dtype]
    checkpointing = bool(get_value(params, "training.gradient_checkpointing"))
    is_adapted, by_unsloth = _adapters(model)[0] > 0, model.engine == "unsloth"
    if by_unsloth and sizes.expert_parameters and model.dtype == "float16":
        number_bytes = 4  # GPT-OSS overflows in float16, so unsloth computes it in float32
    is_lean = (
        machine.capability is None and bool(get_value(params, "training.short_step")) and not checkpointing
    )
    if tokens:
        answer = get_value(params, "game.max_new_tokens") if get_value(params, "game.acting") == "free" else 1
        length = min(longest_prompt(params) + answer, tokens)  # of the longest row
        read = -(-tokens * answer // (answer + ROW_TOKENS[get_value(params, "game.style")]))
        reason = f"{tokens} tokens (training.tokens_per_pass)"
        logits, places = read * COPIES_OF_LOGITS, f"{read} places"
    else:
        rows, prompt = get_value(params, "training.per_device_train_batch_size"), longest_prompt(params)
        answer = get_value(params, "training.max_completion_length")
        length, read = prompt + answer, rows * answer
        prompts = -(-rows // get_value(params, "training.num_generations")) if is_lean else rows
        tokens, reason = rows * answer + prompts * prompt, f"{rows} x {answer} + {prompts} x {prompt} tokens"
        # unsloth reads a row at a time.
        tile = min(read, TILE_TOKENS) * min(1.0, TILE_WORDS / sizes.vocabulary) * 2
        logits = (
            HEAD_ROWS * COPIES_OF_LOGITS if is_lean else answer * COPIES_OF_LOGITS if by_unsloth else tile
        )
        places = f"{read} places in parts"
    is_eager = model.attention == "eager" and not by_unsloth  # which brings its own for attention sinks
    # On a CPU the short step computes with adapters in the precision of the weights.
    has_cast = is_adapted and not is_lean
    layer = _layer_bytes(sizes, number_bytes, adapted=has_cast, eager_length=length if is_eager else 0)
    if checkpointing:
        kept = sizes.num_layers * sizes.width * number_bytes + layer
        reason += f", inputs of {sizes.num_layers} layers and one layer whole"
    else:
        kept = sizes.num_layers * layer
        reason += f", {sizes.num_layers} layers"
    logits_gib = logits * sizes.vocabulary * 4 / GIB
    return [
        MemoryPart("activations", tokens * kept / GIB, reason),
        MemoryPart("logits", logits_gib, f"{places} x {sizes.vocabulary} words"),
    ]


def longest_prompt(params: NotebookParams) -> int:
    """Return the tokens of the longest prompt that the parameters allow."""
    for section in ("game", "tasks"):
        tokens: int = get_value(params, f"{section}.max_prompt_tokens")
        if tokens:
            is_compact = get_value(params, f"{section}.style") == "compact"
            return min(tokens, LONGEST_COMPACT) if is_compact else tokens
    longest: int = get_value(params, "model.max_seq_length")
    return max(1, longest - get_value(params, "training.max_completion_length")) if longest else PROMPT_TOKENS


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
    prompt, training_rows = longest_prompt(params), get_value(params, "training.per_device_train_batch_size")
    completed = prompt + get_value(params, "training.max_completion_length")
    # Evaluations of games measure free answers as well.
    plays_freely = get_value(params, "evaluation.enabled") and get_value(params, "game.acting", "")
    training_batch = training_rows * get_value(params, "training.gradient_accumulation_steps")
    batches = [(0 if get_value(params, "vllm.enabled") else training_batch, completed, "training's batch")]
    if training_rows:
        batches.append((get_value(params, "evaluation.batch_size"), completed, "evaluation.batch_size"))
    if get_value(params, "game.acting") == "free" or plays_freely:
        length = prompt + get_value(params, "game.max_new_tokens")
        batches.append((get_value(params, "game.batch_size"), length, "game.batch_size"))
    if get_value(params, "mbpp.enabled", True):
        length = PROMPT_TOKENS + get_value(params, "mbpp.max_completion_length")
        batches.append((get_value(params, "mbpp.batch_size"), length, "mbpp.batch_size"))
    rows, length, field = max(batches, key=lambda batch: batch[0] * batch[1])
    cache = rows * length * sizes.cache_bytes(BYTES[value_of(params, "model.dtype")])
    logits = rows * sizes.vocabulary * 4 * 3
    reason = f"{rows} x {length} tokens of keys, values ({field})"
    return [MemoryPart("generation", (cache + logits) / GIB, reason)]


def _propose_changes(params: NotebookParams, machine: Machine, loaded: Loaded) -> Iterator[SettingChange]:
    """Yield settings to change until the run fits, each on top of those before."""
    limit_gib = TIGHT * machine.memory_gib
    before = _total_gib(_parts(params, machine, loaded))
    for field, smallest in CHANGES:
        values = _values_to_try(params, field, smallest, machine)
        candidates = [_with_value(params, field, value) for value in values]
        totals = [_total_gib(_parts(candidate, machine, loaded)) for candidate in candidates]
        # The mildest value that makes it fit, else the mildest that saves as much as the harshest.
        enough = max(limit_gib, 1.01 * min(totals, default=before))
        pairs = zip(candidates, totals, strict=True)
        best, after = next((pair for pair in pairs if pair[1] <= enough), (params, before))
        if before - after < MIN_SAVING * before:
            continue
        passes = "training.gradient_accumulation_steps"
        with_it = f", and {passes} = {value_of(best, passes)}" if field.endswith("train_batch_size") else ""
        now, value = show(value_of(params, field)), value_of(best, field)
        yield SettingChange(field, now, value if isinstance(value, str) else show(value), after, with_it)
        params, before = best, after
        if after <= limit_gib:
            return


def _values_to_try(params: NotebookParams, field: str, smallest: int, machine: Machine) -> list[int | str]:
    """Return other values of a field that may help, the mildest first."""
    now, model = get_value(params, field, None), value_of(params, "model")
    if now is None:
        return []
    if smallest:
        halves = [now >> k for k in range(1, now.bit_length()) if now >> k >= smallest]
        return [half for half in halves if now % half == 0]
    if field == "model.lora_rank":
        return [] if model.lora_rank or model.adapters else [16]
    if field.startswith("vllm."):
        other = "auto" if field == "vllm.gpu_memory_utilization" else True
        return [other] if _uses_vllm_here(params) and now not in ("auto", True) else []
    if field == "model.offload_embedding":
        return [True] if model.engine == "unsloth" and not now else []
    can_quantize = machine.capability and installed_version("bitsandbytes") and model.lora_rank
    return [True] if now is not True and (can_quantize or field != "model.load_in_4bit") else []


def _with_value(params: NotebookParams, field: str, value: int | str) -> NotebookParams:
    """Return the parameters with another value; a smaller batch has as many more passes in a step."""
    section_name, _, name = field.partition(".")
    section: Section = getattr(params, section_name)
    update = {name: value}
    if name == "per_device_train_batch_size":
        num_completions = get_value(params, field) * get_value(params, "training.gradient_accumulation_steps")
        update["gradient_accumulation_steps"] = num_completions // int(value)
    return params.model_copy(update={section_name: section.model_copy(update=update)})


def get_value(params: NotebookParams, field: str, default: Any = 0) -> Any:
    """Return the value of a field, the default where this notebook has no such field."""
    section, _, name = field.partition(".")
    return getattr(getattr(params, section, None), name, default)
