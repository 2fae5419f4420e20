"""The sizes of a language model, counted without loading its weights or asking the network."""

import functools
import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlnb.errors import ParamsError
from rlnb.params.bases import BUILT_DIRECTORIES

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PretrainedConfig

SIZE_IN_NAME = re.compile(r"(?<![\w.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", re.IGNORECASE)
# What names of copies add to a published name.
COPY_SUFFIX = re.compile(r"(-instruct|-base|-bf16|-unsloth|-bnb-4bit)+$")
# Typical of models of which only the name is known.
WIDTH_PER_LAYER, VOCABULARY, MAX_KV_WIDTH, MLP_PER_WIDTH, HEAD_WIDTH = 64, 152_000, 1024, 3.5, 128


def _published(model_type: str, *sizes: int, **others: object) -> dict[str, object]:
    """Return a config.json. sizes: width, MLP, layers, heads, key heads, width of a head, vocabulary."""
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "vocab_size",
    )  # fmt: skip
    return {"model_type": model_type, **dict(zip(names, sizes, strict=True)), **others}


# The models that profiles and "auto" take, as published: known before they are downloaded or built.
PUBLISHED = {
    "tiny-2x128": _published("llama", 128, 384, 2, 4, 4, 32, 259),
    "tiny-code-2x128": _published("llama", 128, 384, 2, 4, 4, 32, 711),
    "smollm2-135m": _published("llama", 576, 1536, 30, 9, 3, 64, 49_152, tie_word_embeddings=True),
    "qwen2.5-1.5b": _published("qwen2", 1536, 8960, 28, 12, 2, 128, 151_936, tie_word_embeddings=True),
    "qwen2.5-3b": _published("qwen2", 2048, 11_008, 36, 16, 2, 128, 151_936, tie_word_embeddings=True),
    "qwen3-4b": _published("qwen3", 2560, 9728, 36, 32, 8, 128, 151_936, tie_word_embeddings=True),
    "gpt-oss-20b": _published(
        "gpt_oss", 2880, 2880, 24, 64, 8, 64, 201_088, num_local_experts=32, num_experts_per_tok=4
    ),
    "gpt-oss-120b": _published(
        "gpt_oss", 2880, 2880, 36, 64, 8, 64, 201_088, num_local_experts=128, num_experts_per_tok=4
    ),
}


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a decoder.

    embedding_parameters: embeddings and, where it is another matrix, the unembedding. expert_parameters: of
    experts that are no linear layers, which bitsandbytes leaves in 16 bits. mlp_width: of the experts that
    one token uses. query_width, kv_width: all heads together. linear_widths: {last name of a linear layer:
    inputs + outputs, summed over the model}. in_4bit: whether bitsandbytes' 4 bits are what is stored.
    source: where the sizes are from. is_guess: whether that was the size in the model's name alone.
    """

    num_parameters: int
    embedding_parameters: int
    expert_parameters: int
    num_layers: int
    num_heads: int
    width: int
    mlp_width: int
    query_width: int
    kv_width: int
    vocabulary: int
    linear_widths: Mapping[str, int]
    source: str
    in_4bit: bool = False
    is_guess: bool = False

    @property
    def active_parameters(self) -> int:
        """The parameters that a token is multiplied with: of experts those that it is sent to."""
        used = 3 * self.num_layers * self.width * self.mlp_width if self.expert_parameters else 0
        return self.num_parameters - self.expert_parameters + used

    def cache_bytes(self, number_bytes: int) -> int:
        """Return the bytes of a token's keys and values in all layers."""
        return self.num_layers * 2 * self.kv_width * number_bytes

    def count_adapter_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """Return the size of LoRA adapters of a rank; targets: as model.lora_target_modules."""
        names = {target.rpartition(".")[2] for target in targets}
        is_everywhere = targets == ("all-linear",)
        return rank * sum(
            width for name, width in self.linear_widths.items() if is_everywhere or name in names
        )


def load_model_sizes(
    model_id: str, cache_dir: str | Path, *, environ: Mapping[str, str] = os.environ
) -> ModelSizes | None:
    """Return the sizes of a model from its config.json, as published, from the size in its name, else None.

    model_id: as `model.id`, without "auto". Looks into the model cache and the hub's own cache. Raises
    ParamsError for a config.json that cannot be read.
    """
    path = _find_config(model_id, Path(cache_dir), environ)
    if path is not None:
        return _load(path)
    name = BUILT_DIRECTORIES.get(model_id, model_id)
    config = PUBLISHED.get(COPY_SUFFIX.sub("", Path(name).name.lower()))
    sizes = _guess(name) if config is None else _count(config, source="as published")
    is_copy_in_4bit = name.lower().endswith("-bnb-4bit")
    return replace(sizes, in_4bit=True) if sizes is not None and is_copy_in_4bit else sizes


def _find_config(model_id: str, cache_dir: Path, environ: Mapping[str, str]) -> Path | None:
    home = Path(environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface"))
    built = BUILT_DIRECTORIES.get(model_id)
    folders = [Path(model_id) if built is None else cache_dir / built]
    for cache in (cache_dir, Path(environ.get("HF_HUB_CACHE") or home / "hub")):
        folders += sorted((cache / ("models--" + model_id.replace("/", "--"))).glob("snapshots/*"))
    return next((folder / "config.json" for folder in folders if (folder / "config.json").is_file()), None)


@functools.lru_cache(maxsize=32)
def _load(path: Path) -> ModelSizes:
    """Count by arithmetic, in milliseconds, else by transformers, which takes seconds to import."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if config.get("model_type") in FAMILIES:
            return _count(config, source=str(path))
        from transformers import AutoConfig

        return _measure(AutoConfig.from_pretrained(path.parent), source=str(path))
    except KeyError as error:
        raise ParamsError(f"{path}: does not give the sizes of a language model: no {error}") from None
    except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
        reason = str(error).splitlines()[0]
        raise ParamsError(f"{path}: does not give the sizes of a language model: {reason}") from None


FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gpt_oss")  # that `_count` knows


def _count(config: Mapping[str, Any], *, source: str) -> ModelSizes:
    """Count the parameters of a model of FAMILIES. config: its config.json."""
    family, width, vocabulary = config["model_type"], config["hidden_size"], config["vocab_size"]
    num_layers, num_heads, mlp = (
        config[name] for name in ("num_hidden_layers", "num_attention_heads", "intermediate_size")
    )
    head_width = config.get("head_dim") or width // num_heads
    query, key = num_heads * head_width, (config.get("num_key_value_heads") or num_heads) * head_width
    layers = {"q_proj": (width, query), "k_proj": (width, key), "v_proj": (width, key)}
    layers["o_proj"] = (query, width)
    has_bias = config.get("attention_bias", family == "gpt_oss")
    biases = query + 2 * key if has_bias or family == "qwen2" else 0
    biases += width if has_bias else 0
    num_experts = config.get("num_local_experts", 0) if family == "gpt_oss" else 0
    experts = num_experts * (3 * width * mlp + 2 * mlp + width)
    if not num_experts:
        layers |= {"gate_proj": (width, mlp), "up_proj": (width, mlp), "down_proj": (mlp, width)}
        biases += 2 * mlp + width if config.get("mlp_bias") else 0
    # Norms of a layer, of Qwen3's queries and keys; GPT-OSS' router, and a sink of each head.
    others = 2 * width + (2 * head_width if family == "qwen3" else 0)
    others += num_experts * (width + 1) + num_heads if num_experts else 0
    linear = sum(inputs * outputs for inputs, outputs in layers.values())
    embeddings = vocabulary * width * (1 if config.get("tie_word_embeddings") else 2)
    quantization = config.get("quantization_config") or {}
    return ModelSizes(
        num_parameters=embeddings + width + num_layers * (linear + biases + others + experts),
        embedding_parameters=embeddings,
        expert_parameters=num_layers * experts,
        num_layers=num_layers,
        num_heads=num_heads,
        width=width,
        mlp_width=mlp * (config["num_experts_per_tok"] if num_experts else 1),
        query_width=query,
        kv_width=key,
        vocabulary=vocabulary,
        linear_widths={name: num_layers * sum(widths) for name, widths in layers.items()},
        source=source,
        in_4bit=quantization.get("quant_method") == "bitsandbytes",
    )


def _measure(config: "PretrainedConfig", *, source: str) -> ModelSizes:
    """Build the model on the meta device, which holds shapes and no numbers, and measure it."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    linear_widths: Counter[str] = Counter()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not model.get_output_embeddings():
            linear_widths[name.rpartition(".")[2]] += module.in_features + module.out_features
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    embeddings = {id(end.weight): end.weight.numel() for end in ends if end is not None}
    config = config.get_text_config()
    head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    mlp_width = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    if getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None):
        mlp_width = config.num_experts_per_tok * (getattr(config, "moe_intermediate_size", None) or mlp_width)
    quantization = getattr(config, "quantization_config", None) or {}
    experts = [weights.numel() for name, weights in model.named_parameters() if ".experts." in name]
    return ModelSizes(
        num_parameters=model.num_parameters(),
        embedding_parameters=sum(embeddings.values()),
        expert_parameters=sum(experts),
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        width=config.hidden_size,
        mlp_width=mlp_width,
        query_width=config.num_attention_heads * head_width,
        kv_width=num_kv_heads * head_width,
        vocabulary=config.vocab_size,
        linear_widths=linear_widths,
        source=source,
        in_4bit=quantization.get("quant_method") == "bitsandbytes",
    )


@functools.lru_cache(maxsize=32)
def _guess(name: str) -> ModelSizes | None:
    """Count a typical model of the size in a name: 4e9 for a Phi-4B."""
    size = SIZE_IN_NAME.search(Path(name).name.replace("_", "-"))
    if size is None:
        return None
    num_parameters = round(int(size[1] or 1) * float(size[2]) * (1e9 if size[3] in "bB" else 1e6))

    # A layer has about 12 width**2 parameters, and wider models have more layers.
    num_heads = max(1, round((num_parameters * WIDTH_PER_LAYER / 12) ** (1 / 3) / HEAD_WIDTH))
    width = num_heads * HEAD_WIDTH
    mlp_width = round(width * MLP_PER_WIDTH)
    vocabulary = VOCABULARY if num_parameters > 3e8 else 50_000 if num_parameters > 1e7 else 259
    layer_parameters = 4 * width**2 + 3 * width * mlp_width
    num_layers = max(2, round((num_parameters - vocabulary * width) / layer_parameters))
    typical_config = _published(
        "llama", width, mlp_width, num_layers, num_heads, num_heads, HEAD_WIDTH, vocabulary,
        tie_word_embeddings=True,
    )  # fmt: skip
    sizes = _count(typical_config, source=f"the size in the name {name}")
    return replace(
        sizes,
        num_parameters=num_parameters,
        embedding_parameters=min(sizes.embedding_parameters, num_parameters),
        kv_width=min(width, MAX_KV_WIDTH),
        is_guess=True,
    )
