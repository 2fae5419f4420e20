"""The model that saved adapters belong to, by the files next to them."""

import json
import os
import re
from pathlib import Path

from rlnb.errors import ParamsError

# Models that are built in the model cache: {model.id: directory}.
BUILT_DIRECTORIES = {
    "embedded": "SmolLM2-135M-Instruct",
    "tiny": "tiny-2x128",
    "tiny_code": "tiny-code-2x128",
}
MAX_RANK = 4096
# Where adapter_config.json names layers: in lists, and as keys.
LAYERS = (
    "exclude_modules", "layer_replication", "layers_pattern", "layers_to_transform", "modules_to_save",
    "target_modules", "target_parameters",
)  # fmt: skip
PATTERNS = ("alpha_pattern", "rank_pattern")
REPEATED_GROUP, REPEAT = re.compile(r"\)[*+?{]"), re.compile(r"[*+]|,\}")


def find_adapter_fault(adapters: str | Path) -> str:
    """Return why a directory holds no adapters that can be loaded, with the remedy; "" where it does."""
    # Unlike Path.is_file it takes names that are too long, and folders that others have closed.
    if not os.path.isfile(Path(adapters) / "adapter_config.json"):
        return (
            "holds no adapter_config.json; write a run's adapters/ or checkpoint. Where all weights were "
            "trained there is a whole model instead; write model.id = that directory"
        )
    # Else peft would ask the hub, or take a pickle.
    if not os.path.isfile(Path(adapters) / "adapter_model.safetensors"):
        return "holds no adapter_model.safetensors; save the adapters again by peft's save_pretrained"
    return find_config_fault(Path(adapters) / "adapter_config.json")


def find_config_fault(path: Path) -> str:
    """Return why LoRA's configuration cannot be loaded, "" where it can. peft runs its texts as patterns."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        kind, rank = config.get("peft_type", "LORA"), config.get("r", 8)  # loading says where one is missing
        named = [config.get(key) or [] for key in LAYERS] + [list(config.get(key) or {}) for key in PATTERNS]
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        return f"holds a damaged adapter_config.json ({error}); save the adapters again"
    if kind != "LORA":
        return f"are of kind {str(kind)[:40]!r}; LORA alone is loaded"
    if type(rank) is not int or not 0 < rank <= MAX_RANK:
        return f"have r = {str(rank)[:40]}, which is not a rank of 1 to {MAX_RANK}"
    if not all(is_layer(name) for names in named for name in (names if isinstance(names, list) else [names])):
        return "name layers by a pattern that may take forever; list their names in adapter_config.json"
    return ""


def is_layer(name: object) -> bool:
    """Return whether a number, a name or a pattern of layers is soon compared with any name.

    unsloth writes patterns with up to five repeats of a character; a repeated group may take forever.
    """
    if not isinstance(name, str):
        return type(name) is int
    return len(name) <= 4000 and not REPEATED_GROUP.search(name) and len(REPEAT.findall(name)) <= 6


def read_base(adapters: str | Path) -> str:
    """Return the hub id or directory of the model that a directory of adapters belongs to, "" if not known.

    Of base_model.json first: in adapter_config.json unsloth names the copy that it loaded.
    """
    for file, key in (("base_model.json", "base"), ("adapter_config.json", "base_model_name_or_path")):
        path = Path(adapters) / file
        try:
            base = json.loads(path.read_text(encoding="utf-8")).get(key) if os.path.isfile(path) else ""
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise ParamsError(f"{path}: is damaged ({error}); name other adapters") from None
        if base:
            return str(base)
    return ""


def write_base(adapters: str | Path, base: str) -> None:
    """Note the model that a directory of adapters belongs to, where `read_base` looks first."""
    text = json.dumps({"base": base}) + "\n"
    (Path(adapters) / "base_model.json").write_text(text, encoding="utf-8")


def find_base(adapters: str | Path) -> str:
    """Return the `model.id` of the model that a directory of adapters belongs to, "" if not known.

    Of a copy in 4 bits on the hub it is the model in 16 bits, onto which adapters can be merged.
    """
    base = read_base(adapters)
    if base.startswith("HuggingFaceTB/"):  # its name is that of the embedded model
        return base
    ids = {directory: model_id for model_id, directory in BUILT_DIRECTORIES.items()}
    return ids.get(Path(base).name, base if Path(base).is_dir() else without_bits(base))


def is_same_model(base: str, model: str) -> bool:
    """Return whether two ids or directories name one model, whoever's copy and in 4 bits or not."""
    names = [Path(BUILT_DIRECTORIES.get(each, each)).name.casefold() for each in (base, model)]
    return without_bits(names[0]) == without_bits(names[1])


def without_bits(name: str) -> str:
    """Return a name without the suffixes of unsloth's copies in 4 bits."""
    return name.removesuffix("-bnb-4bit").removesuffix("-unsloth")
