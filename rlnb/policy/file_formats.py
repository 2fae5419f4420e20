"""Files of models and tokenizers that transformers 4.57 (V100, requirements/volta.txt) and 5 both read."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from transformers import PretrainedConfig
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from rlnb.errors import PolicyUnavailable
from rlnb.params.sections import ModelParams

NEW_CLASS, OLD_CLASS = "TokenizersBackend", "PreTrainedTokenizerFast"  # of the same tokenizer, in 5 and in 4
EXTRA = "extra_special_tokens"  # a list in 5; a mapping in 4, whose list is additional_special_tokens


def make_readable(directory: Path) -> None:
    """Add to a saved model or tokenizer the names of transformers 4.57, which transformers 5 reads as well.

    Without `rope_theta` 4.57 would silently compute with its default, 10000, and so with another model.
    Rotary embeddings that differ between layers (Gemma 3) are left alone; `check_readable` refuses those.
    """
    for name, add_names in (("config.json", add_rope_names), ("tokenizer_config.json", rename_tokenizer)):
        path = directory / name
        if path.is_file():
            saved = json.loads(path.read_text(encoding="utf-8"))
            path.write_text(json.dumps(add_names(saved), indent=2) + "\n", encoding="utf-8")


def add_rope_names(config: Mapping[str, object]) -> dict[str, object]:
    """Return a model's configuration with `rope_theta` and `rope_scaling` from its `rope_parameters`."""
    rope = config.get("rope_parameters")
    if not isinstance(rope, Mapping) or "rope_theta" not in rope:
        return dict(config)
    outer = {name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}
    is_scaled = rope.get("rope_type", "default") != "default"
    scaling = {name: value for name, value in rope.items() if name not in outer} if is_scaled else None
    return {**config, **outer, "rope_scaling": scaling}


def rename_tokenizer(config: Mapping[str, object]) -> dict[str, object]:
    """Return a tokenizer's configuration with the class and the list of special tokens as 4.57 names them."""
    renamed = dict(config)
    if renamed.get("tokenizer_class") == NEW_CLASS:
        renamed["tokenizer_class"] = OLD_CLASS
    extra = renamed.pop(EXTRA, {})
    if isinstance(extra, list):
        renamed["additional_special_tokens"] = extra
    elif extra:  # 4.57 writes an empty one as well, for which 5 would overlook additional_special_tokens
        renamed[EXTRA] = extra
    return renamed


def check_readable(source: str, params: ModelParams, *, installed: str = version("transformers")) -> None:
    """Raise PolicyUnavailable if the installed transformers is 4.57 and would misread the files of 5."""
    if int(installed.partition(".")[0]) >= 5:
        return
    config, _ = PretrainedConfig.get_config_dict(source, cache_dir=params.cache_dir)
    tokenizer = get_tokenizer_config(source, cache_dir=params.cache_dir)
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, Mapping)]
    misread = {
        "rope_parameters": any("rope_parameters" in part and "rope_theta" not in part for part in parts),
        "tokenizer": tokenizer.get("tokenizer_class") == NEW_CLASS or isinstance(tokenizer.get(EXTRA), list),
    }
    if names := [name for name, is_misread in misread.items() if is_misread]:
        raise PolicyUnavailable(
            f"model.id = {params.id!r}: transformers {installed} would misread its {' and '.join(names)} in "
            f"{source}; export it again with this rlnb (delete one that rlnb has built)"
        )
