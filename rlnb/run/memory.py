"""A run's memory: an estimate before it starts, and what to change where it is used up.

The estimate is by the model's config.json and the longest texts that the parameters allow;
docs/configure.md says how accurate it was where it was measured.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rlnb.errors import OutOfMemory, ParamsError, see
from rlnb.machine import Machine, recommend
from rlnb.machine.table import SHARED_MEMORY
from rlnb.params.model_cache import (
    find_4bit_fault,
    find_copy,
    find_folder,
    is_tied,
    read_config,
    read_facts,
)
from rlnb.params.problems import show
from rlnb.params.resolving import loaded_id, loaded_model, measures_mbpp, resolve
from rlnb.params.sections import ModelParams, NotebookParams, get_value, value_of
from rlnb.run.disk import GIB

UNKNOWN_SIZE = "memory: estimated once the model is on this machine"
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FOUR_BIT = 0.52  # bytes of a weight in NF4 whose constants are quantized as well
ROW_TOKENS = {"compact": 16, "full": 96}  # of a game's short prompts, which read the largest share of logits
PROMPT_TOKENS, LONGEST_COMPACT = 512, 128  # of a prompt without a limit, and of a compact one in any game
COPIES_OF_LOGITS = 6  # float32: logits, over temperature, log-probabilities, two for the entropy, a gradient
# The logits that are computed at a time: by TRL, and by `CpuGRPOTrainer`; unsloth reads a row.
TILE_TOKENS, TILE_WORDS, HEAD_ROWS = 4096, 32_768, 256
TIGHT, TOO_LARGE = 0.85, "does not fit"  # share of the memory above which it is tight; the line's end above 1
# Settings to change where memory is used up, cheapest first, by what the run was doing.
MEMORY_SETTINGS = {
    "training": (
        "vllm.gpu_memory_utilization", "training.tokens_per_pass", "training.per_device_train_batch_size",
        "training.gradient_checkpointing", "game.batch_size", "model.load_in_4bit",
        "game.max_new_tokens", "training.max_completion_length",
    ),
    "evaluation": (
        "evaluation.batch_size", "game.batch_size", "model.load_in_4bit", "game.max_new_tokens",
        "training.max_completion_length", "mbpp.max_completion_length",
    ),
}  # fmt: skip
Doing = Literal["training", "evaluation"]
NEEDED = ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


class ModelSizes(NamedTuple):
    """Sizes of a decoder. queries, keys: widths of all heads; mlp: of the experts that a token uses."""

    parameters: int
    embeddings: int  # with the unembedding, where it is another matrix
    experts: int  # parameters of a mixture's experts, which bitsandbytes leaves in 16 bits
    layers: int
    width: int
    queries: int
    keys: int
    mlp: int
    vocabulary: int
    linear: dict[str, int]  # {name of a linear layer: its inputs + outputs}

    def count_adapters(self, model: ModelParams) -> int:
        """Return the number of weights of LoRA adapters of the rank and on the layers asked for."""
        named = {name.rpartition(".")[2] for name in model.lora_target_modules}
        names = set(self.linear) if "all-linear" in named else named
        return model.lora_rank * self.layers * sum(self.linear.get(name, 0) for name in names)


def load_model_sizes(model_id: str, cache_dir: str | Path) -> ModelSizes | None:
    """Return the sizes of a model by its config.json, None where it is not here or does not tell them."""
    folder = find_folder(model_id, cache_dir)
    config = read_config(folder) if folder else {}
    return count_sizes(config) if all(type(config.get(name)) is int for name in NEEDED) else None


def count_sizes(config: Mapping[str, Any]) -> ModelSizes:
    """Count a decoder of the usual form; its biases and norms, less than a hundredth, are left out."""
    width, vocabulary, layers, heads, mlp = (config[name] for name in NEEDED)
    head = config.get("head_dim") or width // heads
    queries, keys = heads * head, (config.get("num_key_value_heads") or heads) * head
    linear = dict.fromkeys(("q_proj", "o_proj"), width + queries)
    linear |= dict.fromkeys(("k_proj", "v_proj"), width + keys)
    num_experts = config.get("num_local_experts") or config.get("num_experts") or 0
    mlp = (num_experts and config.get("moe_intermediate_size")) or mlp
    if not num_experts:
        linear |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), width + mlp)
    embeddings = vocabulary * width * (1 if is_tied(config) else 2)
    experts = layers * num_experts * 3 * width * mlp
    total = embeddings + layers * 2 * width * (queries + keys) + (experts or layers * 3 * width * mlp)
    mlp *= config.get("num_experts_per_tok", 1) if num_experts else 1
    return ModelSizes(total, embeddings, experts, layers, width, queries, keys, mlp, vocabulary, linear)


def describe_memory(params: NotebookParams, machine: Machine) -> list[str]:
    """Return the estimate in a line and a table of its parts, or a line that says why there is none.

    Without a model there is no line.
    """
    if loaded_model(params) is None:
        return []
    parts, capacity = estimate_memory(params, machine), machine.memory_gib
    if parts is None:
        return [UNKNOWN_SIZE]
    total = sum(parts.values())
    share = total / capacity if capacity else 0
    verdict = "fits" if share <= TIGHT else "tight" if share <= 1 else TOO_LARGE
    known = f" of {capacity:.1f} GiB: {verdict}" if capacity else " GiB"
    return [f"memory: {total:.1f}{known}", *(f"  {gib:6.2f} GiB  {name}" for name, gib in parts.items())]


def check_memory(params: NotebookParams, machine: Machine) -> str:
    """Return the estimate in a line, "" for a run without a model.

    Raises ParamsError for a run that does not fit, unless `model.check_memory` is false.
    """
    model = loaded_model(params)
    if model is None:
        return ""
    lines = describe_memory(params, machine)
    if model.check_memory and lines[0].endswith(TOO_LARGE):
        doing: Doing = "training" if "training" in type(params).model_fields else "evaluation"
        remedies = describe_remedies(params, doing=doing, on_gpu=machine.capability is not None)
        raise ParamsError(
            f"{params.place_of('model.id')} = {model.id!r} does not fit with these "
            f"parameters. {'; '.join(lines)}. {remedies}; or write model.check_memory = false "
            f"to run it all the same{see('out-of-memory')}"
        )
    return lines[0]


def describe_remedies(params: NotebookParams, *, doing: Doing, on_gpu: bool = True) -> str:
    """Return the first settings to change for less memory, with their present values."""
    can_quantize = on_gpu and _can_quantize(loaded_model(params))
    values = {field: get_value(params, field, None) for field in MEMORY_SETTINGS[doing]}
    for switch, setting in (
        ("vllm.enabled", "vllm.gpu_memory_utilization"),
        ("model.lora_rank", "model.load_in_4bit"),  # weights that are all trained cannot be quantized
        ("mbpp.enabled", "mbpp.max_completion_length"),
    ):
        if not get_value(params, switch, True) or (setting == "model.load_in_4bit" and not can_quantize):
            values.pop(setting, None)
    open_to_change = [f"{f} = {show(value)}" for f, value in values.items() if value not in (None, True)]
    order = ", ".join(open_to_change[:3]) or "none is left"
    return f"Take a smaller model, or in this order halve a number or write true for false: {order}"


def _can_quantize(model: ModelParams | None) -> bool:
    """Return whether `model.load_in_4bit = true` would load the model that is loaded now in 16 bits."""
    if model is None:
        return False
    by_unsloth = model.engine == "unsloth"
    folder = find_folder(find_copy(model.id, in_4bit=True) if by_unsloth else model.id, model.cache_dir)
    return not folder or not find_4bit_fault(read_config(folder))


@contextmanager
def memory_advice(params: NotebookParams, *, doing: Doing = "evaluation") -> Iterator[None]:
    """Turn CUDA's out-of-memory error into OutOfMemory: the settings to change, with their present values."""
    import torch

    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        advice = describe_remedies(params, doing=doing) + see("out-of-memory")
        raise OutOfMemory(f"the GPU's memory is used up. {advice}") from error


def estimate_memory(params: NotebookParams, machine: Machine) -> dict[str, float] | None:
    """Return {part: GiB} of a run at its peak, the largest first; None without a model of known size.

    Training, generation and vLLM take turns: the largest counts.
    """
    params = resolve(params, recommend(machine))
    model = loaded_model(params)
    if model is None or (policy := load_model_sizes(loaded_id(model), model.cache_dir)) is None:
        return None
    staying = {"CUDA's context": 0.8} if machine.capability else {"Python with torch": 1.0}
    staying["weights of model.id"] = weight_bytes(model, policy) / GIB
    rows, length = max(_longest_texts(params).values(), key=math.prod)
    cached = length * policy.layers * 2 * policy.keys * BYTES[model.dtype]
    in_turns = [{"keys and values of generation": rows * (cached + 3 * 4 * policy.vocabulary) / GIB}]
    if not machine.capability and model.dtype == "bfloat16":
        in_turns[0]["weights packed for generation"] = staying["weights of model.id"]
    if hasattr(params, "training"):
        staying["gradients, optimizer, adapters"] = _count_trained(params, policy) / GIB
        in_turns.append(_training_pass(params, machine, policy))
    vllm = getattr(params, "vllm", None)
    if vllm is not None and vllm.enabled and not vllm.server_base_url:
        in_turns.append({"vLLM": vllm.gpu_memory_utilization * machine.memory_gib})
    parts = staying | max(in_turns, key=lambda turn: sum(turn.values()))
    return dict(sorted(parts.items(), key=lambda part: -part[1]))


def estimate_host_memory(params: NotebookParams, machine: Machine, *, num_workers: int) -> float:
    """Return the GiB of the system's memory that a run and its programs need; 0 where that is not known.

    On a GPU with memory of its own these are CUDA's libraries, and the weights, which pass through.
    num_workers: programs that run at a time.
    """
    parts = estimate_memory(params, machine)
    if parts is None:
        return 0.0
    if machine.capability and machine.capability not in SHARED_MEMORY:
        parts = {"Python with CUDA": 6.0, "weights": parts["weights of model.id"]}
    return sum(parts.values()) + num_workers * get_value(params, "sandbox.memory_mib") / 1024


def weight_bytes(model: ModelParams, sizes: ModelSizes) -> float:
    """Return the bytes of a model's weights in the precision that is asked for."""
    number_bytes, ends, by_unsloth = BYTES[model.dtype], sizes.embeddings, model.engine == "unsloth"
    inner = sizes.parameters - ends
    if model.offload_embedding is True and by_unsloth:
        ends = min(ends, sizes.vocabulary * sizes.width)  # the head stays, also where it is the same matrix
    if model.load_in_4bit is not True:
        return (inner + ends) * number_bytes
    # bitsandbytes quantizes linear layers alone; unsloth's copies hold their experts as such.
    wide = 0 if by_unsloth else sizes.experts
    return (inner - wide) * FOUR_BIT + (ends + wide) * number_bytes


def _count_trained(params: NotebookParams, sizes: ModelSizes) -> float:
    """Return the bytes of what is trained beyond the weights: gradients, moments, adapters, copies."""
    model: ModelParams = value_of(params, "model")
    # peft's adapters are float32; the weights themselves, where all are trained, are counted already.
    count = sizes.count_adapters(model) if model.lora_rank else sizes.parameters
    wide = 4 if model.lora_rank else BYTES[model.dtype]
    moments = 2 if get_value(params, "training.optim", "").endswith("8bit") else 2 * wide
    # With adapters the untrained model of the KL penalty is the same one without them.
    copied = ["average_decay", "magnet_coef", *([] if model.lora_rank else ["init_kl_coef"])]
    copies = wide * sum(bool(get_value(params, f"training.{name}")) for name in copied)
    return count * ((2 if model.lora_rank else 1) * wide + moments + copies)


def _training_pass(params: NotebookParams, machine: Machine, sizes: ModelSizes) -> dict[str, float]:
    """Return what one forward and backward pass keeps: activations, and the logits that are read."""
    get, prompt, model = partial(get_value, params), longest_prompt(params), value_of(params, "model")
    tokens, is_recomputed = get("training.tokens_per_pass"), bool(get("training.gradient_checkpointing"))
    is_short = not (tokens or machine.capability or is_recomputed)
    if tokens:
        answer = get("game.max_new_tokens") if get("game.acting") == "free" else 1
        places = -(-tokens * answer // (answer + ROW_TOKENS[get("game.style")]))
        logits = places * sizes.vocabulary * COPIES_OF_LOGITS
    else:
        answer, rows = get("training.max_completion_length"), get("training.per_device_train_batch_size")
        prompts = -(-rows // get("training.num_generations")) if is_short else rows
        tokens = rows * answer + prompts * prompt
        logits = 2 * min(rows * answer, TILE_TOKENS) * min(sizes.vocabulary, TILE_WORDS)
        if is_short:
            logits = 2 * HEAD_ROWS * sizes.vocabulary  # and as many slopes of the entropy
        elif model.engine == "unsloth":
            logits = answer * sizes.vocabulary * COPIES_OF_LOGITS
    # The short step's adapters compute in the precision of the weights.
    layer = layer_bytes(
        sizes, BYTES[model.dtype], is_cast=model.lora_rank > 0 and not is_short,
        on_gpu=machine.capability is not None,
    )  # fmt: skip
    inputs = sizes.layers * sizes.width * BYTES[model.dtype]
    kept = inputs + layer if is_recomputed else sizes.layers * layer
    return {"activations": tokens * kept / GIB, "logits": logits * 4 / GIB}


def layer_bytes(sizes: ModelSizes, number_bytes: int, *, is_cast: bool, on_gpu: bool) -> float:
    """Return what one layer keeps of a token for the backward pass.

    Both norms in float32; the inputs of linear layers; queries, keys, values of all heads and their output;
    both branches of the MLP, the gated one and their product. is_cast: adapters keep inputs in float32 too.
    A CPU attends in float32 and does not repeat keys and values (`cpu_attention`).
    """
    is_narrow = number_bytes < 4
    cast = 4 * (5 * sizes.width + sizes.queries + sizes.mlp) if is_cast and is_narrow else 0
    attention = number_bytes * 4 * sizes.queries
    if not on_gpu:
        attention = 8 * (sizes.queries + sizes.keys) + (number_bytes * sizes.queries if is_narrow else 0)
    return 8 * sizes.width + number_bytes * (2 * sizes.width + 4 * sizes.mlp) + attention + cast


def _longest_texts(params: NotebookParams) -> dict[str, tuple[int, int]]:
    """Return {field of the length: (rows generated at once, tokens of the longest prompt and answer)}."""
    get, prompt = partial(get_value, params), longest_prompt(params)
    rows = get("training.per_device_train_batch_size") * get("training.gradient_accumulation_steps")
    length = get("training.max_completion_length")
    at_once = max(0 if get("vllm.enabled") else rows, get("evaluation.batch_size") if length else 0)
    field = "training.max_completion_length" if length else "game.max_prompt_tokens"
    texts = {field: (at_once, prompt + length)}
    if get("game.acting") == "free":
        texts["game.max_new_tokens"] = (get("game.batch_size"), prompt + get("game.max_new_tokens"))
    if measures_mbpp(params):
        length = get("mbpp.max_completion_length")
        texts["mbpp.max_completion_length"] = (get("evaluation.batch_size"), PROMPT_TOKENS + length)
    return texts


def check_positions(params: NotebookParams) -> str:
    """Return a warning of texts longer than the model has learned to read, "" where all are short enough.

    Raises ParamsError where it has no positions beyond them.
    """
    model = loaded_model(params)
    if model is None or (folder := find_folder(loaded_id(model), model.cache_dir)) is None:
        return ""
    facts, lines = read_facts(folder), []
    for field, (_, tokens) in _longest_texts(params).items():
        if (value := get_value(params, field)) and tokens > facts.num_positions > 0:
            room = value + facts.num_positions - tokens
            lines.append(
                f"{params.place_of(field)} = {value} makes texts of up to {tokens} "
                f"tokens, prompts included, and {model.id} has {facts.num_positions} positions; "
                f"{f'write at most {room}' if room > 0 else 'allow shorter prompts'}, or take another model"
            )
    if lines and facts.has_learned_positions:
        raise ParamsError("\n".join(lines))
    return "\n".join(lines)


def longest_prompt(params: NotebookParams) -> int:
    """Return the tokens of the longest prompt that the parameters allow."""
    tokens: int = get_value(params, "game.max_prompt_tokens")
    if tokens:
        return min(tokens, LONGEST_COMPACT) if get_value(params, "game.style") == "compact" else tokens
    longest: int = get_value(params, "model.max_seq_length")
    return max(1, longest - get_value(params, "training.max_completion_length")) if longest else PROMPT_TOKENS
