"""The sizes of a language model, as far as they can be known without loading it or asking the network."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rlnb.errors import ParamsError

BUILT_DIRECTORIES = {"embedded": "SmolLM2-135M-Instruct", "tiny": "tiny-2x128"}  # of the model cache
# Whose parameters `parameters_of` counts exactly, by config.json's model_type.
COUNTED = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gpt_oss")
SIZE_IN_NAME = re.compile(r"(?<![\w.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", re.IGNORECASE)
# What models have in common whose name alone is known: hidden size / layers, words, heads of 128 numbers.
WIDTH_PER_LAYER, WORDS, GUESSED_KV_WIDTH, MLP_PER_WIDTH = 64, 152_000, 1024, 3.5


class ModelShape(NamedTuple):
    """A decoder's sizes. query_width, kv_width: all heads together. mlp_width: of one expert where there are
    several. embedding_parameters: embeddings and, where it is not the same matrix, the unembedding.
    num_parameters: all. linear: {name of a layer that takes adapters: (inputs, outputs)}, of one of
    num_layers. source: what told all this. is_guess: whether that was no more than a name.
    """

    num_parameters: int
    embedding_parameters: int
    num_layers: int
    width: int
    mlp_width: int
    query_width: int
    kv_width: int
    num_heads: int
    vocabulary: int
    linear: Mapping[str, tuple[int, int]]
    expert_bits: float
    expert_parameters: int
    source: str
    is_guess: bool

    def adapter_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """Of LoRA adapters of this rank on these layers, by their last names; all-linear alone = on each."""
        names = {target.rpartition(".")[2] for target in targets}
        taken = [
            inputs + outputs
            for name, (inputs, outputs) in self.linear.items()
            if name in names or tuple(targets) == ("all-linear",)
        ]
        return self.num_layers * rank * sum(taken)


def shape_of(
    model_id: str, cache_dir: str | Path, *, environ: Mapping[str, str] = os.environ
) -> ModelShape | None:
    """Of a model by its id or directory: from its config.json, else from the size in its name, else None.

    model_id: as `model.id`, without "auto". Looks into the model cache and the hub's own cache. Raises
    ParamsError for a config.json that cannot be read.
    """
    config_path = _config_path(model_id, Path(cache_dir), environ)
    if config_path is None:
        return _guess(BUILT_DIRECTORIES.get(model_id, model_id))
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
        return from_config(config.get("text_config", config), source=str(config_path))
    except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise ParamsError(f"{config_path}: does not tell the sizes of a language model: {error!r}") from None


def _config_path(model_id: str, cache_dir: Path, environ: Mapping[str, str]) -> Path | None:
    home = Path(environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface"))
    hub_caches = [cache_dir, Path(environ.get("HF_HUB_CACHE") or home / "hub")]
    found = [cache_dir / BUILT_DIRECTORIES[model_id]] if model_id in BUILT_DIRECTORIES else [Path(model_id)]
    for cache in hub_caches:
        found += sorted((cache / ("models--" + model_id.replace("/", "--"))).glob("snapshots/*"))
    return next((path / "config.json" for path in found if (path / "config.json").is_file()), None)


def from_config(config: Mapping[str, Any], *, source: str) -> ModelShape:
    """From what config.json says; KeyError for what it lacks."""
    width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    head = int(config.get("head_dim") or width // heads)
    query, kv = heads * head, int(config.get("num_key_value_heads") or heads) * head
    layers, vocabulary = int(config["num_hidden_layers"]), int(config["vocab_size"])
    experts = int(config.get("num_local_experts") or config.get("num_experts") or 0)
    mlp = int((config.get("moe_intermediate_size") if experts else None) or config["intermediate_size"])
    linear = {
        "q_proj": (width, query),
        "k_proj": (width, kv),
        "v_proj": (width, kv),
        "o_proj": (query, width),
    }
    if not experts:
        linear |= {"gate_proj": (width, mlp), "up_proj": (width, mlp), "down_proj": (mlp, width)}
    kind = str(config.get("model_type", ""))
    expert_parameters = layers * experts * (3 * width * mlp + (2 * mlp + width) * (kind == "gpt_oss"))
    embeddings = vocabulary * width * (1 if config.get("tie_word_embeddings", kind not in COUNTED) else 2)
    each = sum(inputs * outputs for inputs, outputs in linear.values()) + 2 * width + experts * width
    has_bias = bool(config.get("attention_bias"))
    each += (query + 2 * kv) * (has_bias or kind == "qwen2") + width * (has_bias and kind != "qwen2")
    each += (2 * mlp + width) * bool(config.get("mlp_bias"))
    each += 2 * head * (kind in ("qwen3", "qwen3_moe"))  # norms of queries and keys
    each += (heads + experts) * (kind == "gpt_oss")  # attention sinks, the router's bias
    quantization = config.get("quantization_config") or {}
    return ModelShape(
        num_parameters=layers * each + expert_parameters + embeddings + width,
        embedding_parameters=embeddings,
        num_layers=layers,
        width=width,
        mlp_width=mlp * int(config.get("num_experts_per_tok") or 1) if experts else mlp,
        query_width=query,
        kv_width=kv,
        num_heads=heads,
        vocabulary=vocabulary,
        linear=linear,
        expert_bits=4.25 if quantization.get("quant_method") == "mxfp4" else 0.0,
        expert_parameters=expert_parameters,
        source=source,
        is_guess=kind not in COUNTED,
    )


def _guess(name: str) -> ModelShape | None:
    """From the size in a name: 4e9 for Qwen3-4B; 5e5 for the tiny model that is not built yet."""
    sizes = SIZE_IN_NAME.findall(Path(name).name.replace("_", "-"))
    if name == BUILT_DIRECTORIES["tiny"]:
        sizes = [("", "0.5", "m")]
    if not sizes:
        return None
    copies, number, unit = sizes[0]
    parameters = float(number) * int(copies or 1) * (1e9 if unit in "bB" else 1e6)
    # A layer has about 12 width**2 parameters, and wider models have more layers.
    width = max(128, round((parameters * WIDTH_PER_LAYER / 12) ** (1 / 3) / 64) * 64)
    mlp, kv = round(width * MLP_PER_WIDTH), min(width, GUESSED_KV_WIDTH)
    words = WORDS if parameters > 3e8 else 50_000 if parameters > 1e7 else 259
    layers = max(2, round((parameters - words * width) / (2 * width**2 + 2 * width * kv + 3 * width * mlp)))
    linear = {"q_proj": (width, width), "k_proj": (width, kv), "v_proj": (width, kv)}
    linear |= {"o_proj": (width, width), "gate_proj": (width, mlp), "up_proj": (width, mlp)}
    linear |= {"down_proj": (mlp, width)}
    return ModelShape(
        num_parameters=round(parameters),
        embedding_parameters=min(words * width, round(parameters)),
        num_layers=layers,
        width=width,
        mlp_width=mlp,
        query_width=width,
        kv_width=kv,
        num_heads=max(1, width // 128),
        vocabulary=words,
        linear=linear,
        expert_bits=0.0,
        expert_parameters=0,
        source=f"the size in the name {name}",
        is_guess=True,
    )
