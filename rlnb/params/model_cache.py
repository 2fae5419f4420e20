"""The model cache as huggingface_hub lays it out, read without that library."""

import fnmatch
import json
from pathlib import Path

MBPP_ID = "google-research-datasets/mbpp"
MBPP_SPLITS = ("prompt", "test", "train", "validation")  # a Parquet file of each in the folder of a subset
WEIGHTS = ("*.safetensors", "*.bin")
TOKENIZERS = ("tokenizer*", "vocab*", "*.model")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")  # of weights in several files


def find_snapshot(cache_dir: str | Path, repo_id: str, *, kind: str = "model") -> Path | None:
    """Return the folder of the revision that is loaded offline, None if there is none."""
    folder = Path(cache_dir, f"{kind}s--{repo_id.replace('/', '--')}")
    reference = folder / "refs" / "main"
    revision = reference.read_text(encoding="utf-8").strip() if reference.is_file() else "none"
    snapshot = folder / "snapshots" / revision
    return snapshot if snapshot.is_dir() else None


def find_missing(cache_dir: str | Path, model_id: str) -> list[str]:
    """Return what the cache lacks of a model, by names of files; empty if it can be loaded.

    huggingface_hub gives a file its name only once it is whole, so a download that was cut off lacks files.
    """
    snapshot = find_snapshot(cache_dir, model_id)
    if snapshot is None:
        return ["all files"]
    names = {path.name for path in snapshot.iterdir() if path.exists()}
    missing = [] if "config.json" in names else ["config.json"]
    if not any(fnmatch.filter(names, pattern) for pattern in TOKENIZERS):
        missing.append("a tokenizer")
    for index in names.intersection(INDEXES):
        shards = json.loads((snapshot / index).read_text(encoding="utf-8"))["weight_map"].values()
        return missing + sorted(set(shards) - names)
    weights = [name for pattern in WEIGHTS for name in fnmatch.filter(names, pattern)]
    if any("-of-" in name for name in weights):
        missing.append("the index of its weights")
    return missing if weights else [*missing, "weights"]


def find_mbpp(cache_dir: str | Path, subset: str) -> list[Path]:
    """Return MBPP's Parquet files of a subset in the order of their names, none unless all are there."""
    snapshot = find_snapshot(cache_dir, MBPP_ID, kind="dataset")
    files = sorted(snapshot.glob(f"{subset}/*.parquet")) if snapshot else []
    splits = {path.name.partition("-")[0] for path in files if path.exists()}
    return files if splits >= set(MBPP_SPLITS) else []
