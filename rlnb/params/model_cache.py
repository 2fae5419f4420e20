"""The files of models and of MBPP, in folders and in the model cache: where they are and what they say.

They are read without huggingface_hub and transformers, before either is imported.
"""

import ast
import fnmatch
import json
import os
import re
import runpy
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

from rlnb.errors import ParamsError
from rlnb.params.bases import BUILT_DIRECTORIES

MBPP_ID = "google-research-datasets/mbpp"
MBPP_REVISION = "4bb6404fdc6cacfda99d4ac4205087b89d32030c"
MBPP_SPLITS = ("prompt", "test", "train", "validation")  # a Parquet file of each in the folder of a subset
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
TOKENIZERS = ("tokenizer.*", "vocab*", "*.model")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")  # of weights in several files
HUB_ID = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
# Families whose config.json does not say that the embeddings are the head as well, and those that learn a
# vector for each position and have none beyond.
TIED = ("gemma", "gemma2", "gemma3_text", "gpt2", "gpt_bigcode", "gpt_neo", "opt", "bloom", "falcon")
LEARNED_POSITIONS = ("gpt2", "gpt_bigcode", "gpt_neo", "opt", "openai-gpt", "biogpt")
POSITIONS = ("max_position_embeddings", "n_positions")
NOT_GGUF = "write the repository of its safetensors, most often the name without -GGUF, or their folder"
ANY_FAMILY = ("PreTrainedTokenizerFast", "TokenizersBackend")  # tokenizers without an end of their own


def is_path(model_id: str) -> bool:
    """Return whether a model's id is a path, by its form or because it is there, not a name on the hub."""
    is_written_so = model_id.startswith(("/", "./", "../", "~"))
    return model_id not in BUILT_DIRECTORIES and (is_written_so or os.path.exists(model_id))


def is_on_hub(model_id: str) -> bool:
    """Return whether a model is loaded from the hub or its cache."""
    return model_id not in BUILT_DIRECTORIES and not is_path(model_id)


def find_id_fault(model_id: str) -> str:
    """Return why an id names no model, with the remedy; "" for a path that is there or a name on the hub."""
    if is_path(model_id):
        if os.path.exists(model_id):
            return f"is a file, not a model's folder; {NOT_GGUF}" if os.path.isfile(model_id) else ""
        return f"is not there; paths count from {os.getcwd()}"
    if not HUB_ID.fullmatch(model_id):
        return f"is neither a path in {os.getcwd()} nor a name on the hub: owner/name"
    return f"holds GGUF files; {NOT_GGUF}" if model_id.lower().endswith(("-gguf", ".gguf")) else ""


@cache
def _read_unsloth_tables() -> dict[str, Any]:
    """Return unsloth's tables of copies, by ids in small letters; {} where it is not installed.

    unsloth itself cannot be imported on a login node without a GPU. Its mapper imports nothing, and of its
    loader the table of copies that it avoids is read alone.
    """
    try:
        mapper, loader = (
            Path(str(distribution("unsloth").locate_file(f"unsloth/models/{name}.py")))
            for name in ("mapper", "loader_utils")
        )
    except PackageNotFoundError:
        return {}
    tables = runpy.run_path(str(mapper))
    for statement in ast.parse(loader.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "BAD_MAPPINGS":
            exec(compile(ast.Module([statement], []), str(loader), "exec"), tables)
    return tables


def find_copy(model_id: str, *, in_4bit: bool) -> str:
    """Return the id of what unsloth loads in place of a model on the hub, most often a copy of its own."""
    tables = _read_unsloth_tables()
    names = ["FLOAT_TO_INT_MAPPER"] if in_4bit else ["INT_TO_FLOAT_MAPPER", "MAP_TO_UNSLOTH_16bit"]
    names = [] if in_4bit and model_id.lower().endswith("-bnb-4bit") else names
    copies = (tables.get(name, {}).get(model_id.lower()) for name in names)
    model_id = next(filter(None, copies), model_id)
    return str(tables.get("BAD_MAPPINGS", {}).get(model_id.lower(), model_id))


def built_directory(model_id: str, cache_dir: str | Path) -> Path | None:
    """Return where a model without a hub is built, None for others."""
    return Path(cache_dir, BUILT_DIRECTORIES[model_id]) if model_id in BUILT_DIRECTORIES else None


def find_folder(model_id: str, cache_dir: str | Path) -> Path | None:
    """Return the folder with a model's files, None where they are not here (yet)."""
    folder = built_directory(model_id, cache_dir) or Path(model_id)
    return folder if folder.is_dir() else find_snapshot(cache_dir, model_id)


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON file's object, an empty one where there is no file. Raises ParamsError."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    except (OSError, TypeError, ValueError) as error:
        raise ParamsError(f"{path}: cannot be read ({error}); download the model again") from None


def read_config(folder: Path) -> dict[str, Any]:
    """Return a model's config.json, what it says of the text of a model of several kinds at the top."""
    config = read_json(folder / "config.json")
    return config | (config.get("text_config") or {})


def read_quantization(config: Mapping[str, Any]) -> str:
    """Return how a model's files are quantized (mxfp4, bitsandbytes, gptq), or "", by its config.json."""
    return str((config.get("quantization_config") or {}).get("quant_method", ""))


def find_4bit_fault(config: Mapping[str, Any]) -> str:
    """Return why unsloth cannot load these files in 4 bits, with the remedy, by config.json; "" if it can.

    In 4 bits its GPT-OSS has a linear layer for each expert. Of files with other names it would make up the
    experts, and go on.
    """
    if config.get("model_type") != "gpt_oss" or read_quantization(config) == "bitsandbytes":
        return ""
    return "needs gpt-oss in bitsandbytes' form; write false, or model.id = unsloth/gpt-oss-20b"


def is_tied(config: Mapping[str, Any]) -> bool:
    """Return whether a model's embeddings are its head as well."""
    return bool(config.get("tie_word_embeddings", config.get("model_type") in TIED))


class ModelFacts(NamedTuple):
    """What a model's files say, or else what is usual. num_positions: that it reads, 0 if they do not say."""

    num_positions: int
    has_learned_positions: bool  # none beyond; else the others are rotations, which can go on
    is_tied: bool
    has_end: bool
    has_chat_template: bool


def read_facts(folder: Path) -> ModelFacts:
    """Return what the files in a model's folder say. Raises ParamsError for one that cannot be read."""
    config, reader = read_config(folder), read_json(folder / "tokenizer_config.json")
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    extended = (scaling.get("original_max_position_embeddings") or 0) * (scaling.get("factor") or 1)
    positions = max([int(extended), *(config.get(name) or 0 for name in POSITIONS)])
    named = read_json(folder / "special_tokens_map.json") | reader
    ends = [read_json(folder / "generation_config.json").get("eos_token_id"), config.get("eos_token_id")]
    has_default = "eos_token" not in named and named.get("tokenizer_class") not in ANY_FAMILY
    has_template = any((folder / f"chat_template.{kind}").is_file() for kind in ("jinja", "json"))
    return ModelFacts(
        positions,
        config.get("model_type") in LEARNED_POSITIONS,
        is_tied(config),
        bool(named.get("eos_token") or has_default) or any(end is not None for end in ends),
        bool(reader.get("chat_template")) or has_template or not reader,
    )


def find_snapshot(cache_dir: str | Path, repo_id: str) -> Path | None:
    """Return the folder of a model's revision that is loaded offline, None if there is none."""
    folder = Path(cache_dir, f"models--{repo_id.replace('/', '--')}")
    reference = folder / "refs" / "main"
    revision = reference.read_text(encoding="utf-8").strip() if reference.is_file() else "none"
    snapshot = folder / "snapshots" / revision
    return snapshot if snapshot.is_dir() else None


def find_missing(cache_dir: str | Path, model_id: str) -> list[str]:
    """Return what is missing of a model, by names of files; empty if it can be loaded or built.

    huggingface_hub gives a file its name only once it is whole, so a download that was cut off lacks files.
    """
    if built_directory(model_id, cache_dir):
        return []
    folder = find_folder(model_id, cache_dir)
    if folder is None:
        return ["all files"]
    try:
        names = {path.name for path in folder.iterdir() if path.exists()}
        pointers = sorted(name for name in names if is_pointer(folder / name))
    except PermissionError as error:
        return [f"the permission to read {error.filename}"]
    if pointers:
        return [f"the content of {pointers[0]} (run `git lfs pull` there)"]
    missing = [] if "config.json" in names else ["config.json"]
    if not any(fnmatch.filter(names, pattern) for pattern in TOKENIZERS):
        missing.append("a tokenizer")
    for whole, index in zip(("model.safetensors", "pytorch_model.bin"), INDEXES, strict=True):
        if whole in names:  # in the order in which transformers looks
            return missing
        if index in names:
            shards = read_json(folder / index).get("weight_map", {}).values()
            return missing + sorted(set(shards) - names)
    weights = [name for pattern in WEIGHTS for name in fnmatch.filter(names, pattern)]
    if any("-of-" in name for name in weights):
        missing.append("the index of its weights")
    return missing if weights else [*missing, "weights"]


def is_pointer(path: Path) -> bool:
    """Return whether a file is what `git clone` without Git LFS leaves of a large one."""
    is_small = path.is_file() and path.stat().st_size < 1024
    return is_small and path.read_bytes().startswith(b"version https://git-lfs")


def find_mbpp(cache_dir: str | Path, subset: str) -> list[Path]:
    """Return MBPP's Parquet files of a subset in the order of their names, none unless all are there."""
    snapshots = Path(cache_dir, f"datasets--{MBPP_ID.replace('/', '--')}", "snapshots")
    files = sorted(snapshots.glob(f"{MBPP_REVISION}/{subset}/*.parquet"))
    splits = {path.name.partition("-")[0] for path in files if path.exists()}
    return files if splits >= set(MBPP_SPLITS) else []
