"""The sizes of a language model, counted without loading its weights or asking the network."""

import functools
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlnb.errors import ParamsError

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PretrainedConfig

BUILT_DIRECTORIES = {"embedded": "SmolLM2-135M-Instruct", "tiny": "tiny-2x128"}  # in the model cache
SIZE_IN_NAME = re.compile(r"(?<![\w.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", re.IGNORECASE)
# Typical of models of which only the name is known.
WIDTH_PER_LAYER, VOCABULARY, MAX_KV_WIDTH, MLP_PER_WIDTH, HEAD_WIDTH = 64, 152_000, 1024, 3.5, 128


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a decoder.

    embedding_parameters: embeddings and, where it is another matrix, the unembedding. mlp_width: of the
    experts that one token uses. query_width, kv_width: all heads together. linear_widths: {last name of a
    linear layer: inputs + outputs, summed over the model}. expert_bits: of a quantized expert's weight, else
    0. source: where the sizes are from. is_guess: whether that was the model's name alone.
    """

    num_parameters: int
    embedding_parameters: int
    expert_parameters: int
    expert_bits: float
    num_layers: int
    num_heads: int
    width: int
    mlp_width: int
    query_width: int
    kv_width: int
    vocabulary: int
    linear_widths: Mapping[str, int]
    source: str
    is_guess: bool = False

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
    """Return the sizes of a model from its config.json, else from the size in its name, else None.

    model_id: as `model.id`, without "auto". Looks into the model cache and the hub's own cache. Raises
    ParamsError for a config.json that cannot be read.
    """
    path = _find_config(model_id, Path(cache_dir), environ)
    return _guess(BUILT_DIRECTORIES.get(model_id, model_id)) if path is None else _load(path)


def _find_config(model_id: str, cache_dir: Path, environ: Mapping[str, str]) -> Path | None:
    home = Path(environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface"))
    built = BUILT_DIRECTORIES.get(model_id)
    folders = [Path(model_id) if built is None else cache_dir / built]
    for cache in (cache_dir, Path(environ.get("HF_HUB_CACHE") or home / "hub")):
        folders += sorted((cache / ("models--" + model_id.replace("/", "--"))).glob("snapshots/*"))
    return next((folder / "config.json" for folder in folders if (folder / "config.json").is_file()), None)


@functools.lru_cache(maxsize=32)
def _load(path: Path) -> ModelSizes:
    from transformers import AutoConfig

    try:
        return _measure(AutoConfig.from_pretrained(path.parent), source=str(path))
    except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
        reason = str(error).splitlines()[0]
        raise ParamsError(f"{path}: does not give the sizes of a language model: {reason}") from None


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
        expert_bits=4.25 if quantization.get("quant_method") == "mxfp4" else 0.0,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        width=config.hidden_size,
        mlp_width=mlp_width,
        query_width=config.num_attention_heads * head_width,
        kv_width=num_kv_heads * head_width,
        vocabulary=config.vocab_size,
        linear_widths=linear_widths,
        source=source,
    )


@functools.lru_cache(maxsize=32)
def _guess(name: str) -> ModelSizes | None:
    """Measure a typical model of the size in a name: 4e9 for Qwen3-4B."""
    from transformers import LlamaConfig

    typical = {BUILT_DIRECTORIES["tiny"]: "0.5M"}  # before its first use builds it
    size = SIZE_IN_NAME.search(typical.get(name, Path(name).name.replace("_", "-")))
    if size is None:
        return None
    num_parameters = round(int(size[1] or 1) * float(size[2]) * (1e9 if size[3] in "bB" else 1e6))

    # A layer has about 12 width**2 parameters, and wider models have more layers.
    num_heads = max(1, round((num_parameters * WIDTH_PER_LAYER / 12) ** (1 / 3) / HEAD_WIDTH))
    width = num_heads * HEAD_WIDTH
    mlp_width = round(width * MLP_PER_WIDTH)
    vocabulary = VOCABULARY if num_parameters > 3e8 else 50_000 if num_parameters > 1e7 else 259
    layer_parameters = 4 * width**2 + 3 * width * mlp_width
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=mlp_width,
        num_hidden_layers=max(2, round((num_parameters - vocabulary * width) / layer_parameters)),
        num_attention_heads=num_heads,
        tie_word_embeddings=True,
    )
    sizes = _measure(config, source=f"the size in the name {name}")
    return replace(
        sizes,
        num_parameters=num_parameters,
        embedding_parameters=min(sizes.embedding_parameters, num_parameters),
        kv_width=min(width, MAX_KV_WIDTH),
        is_guess=True,
    )
