"""The model cache as huggingface_hub lays it out, read without that library."""

import json
import os
from pathlib import Path
from typing import NamedTuple

MBPP_ID = "google-research-datasets/mbpp"
MBPP_SPLITS = ("prompt", "test", "train", "validation")  # a Parquet file of each in the folder of a subset
WEIGHTS = ("*.safetensors", "*.bin")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")  # of weights in several files


class Repository(NamedTuple):
    """A model or a dataset on the hub. kind: as the hub's `repo_type`, model or dataset."""

    id: str
    kind: str = "model"

    @property
    def folder(self) -> str:
        return f"{self.kind}s--{self.id.replace('/', '--')}"


def find_snapshot(cache_dir: str | Path, repository: Repository) -> Path | None:
    """Return the folder of the revision that is loaded offline, None if there is none."""
    folder = Path(cache_dir, repository.folder)
    reference = folder / "refs" / "main"
    if not reference.is_file():
        return None
    snapshot = folder / "snapshots" / reference.read_text(encoding="utf-8").strip()
    return snapshot if snapshot.is_dir() else None


class CachedFile(NamedTuple):
    """A file's size in bytes, and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


class Manifest(NamedTuple):
    """What `rlnb prefetch` fetched: the revision ("" of a model built here) and its files by name."""

    revision: str
    files: dict[str, CachedFile]


def manifest_path(cache_dir: str | Path, folder: str) -> Path:
    """Return the file that describes a folder of the cache."""
    return Path(cache_dir, "manifests", f"{folder}.json")


def read_manifest(path: Path) -> Manifest | None:
    """Return a manifest, None where there is none that can be read."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return Manifest(
            saved["revision"], {name: CachedFile(**file) for name, file in saved["files"].items()}
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest whole, or leave the one that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files = {name: file._asdict() for name, file in manifest.files.items()}
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps({"revision": manifest.revision, "files": files}, indent=2) + "\n")
    unfinished.replace(path)


def find_missing(cache_dir: str | Path, model_id: str) -> list[str]:
    """Return what the cache lacks of a model, by names of files; empty if it can be loaded.

    By the manifest where there is one, which has the size of each file, else by what every model has.
    """
    snapshot = find_snapshot(cache_dir, Repository(model_id))
    if snapshot is None:
        return ["all files"]
    manifest = read_manifest(manifest_path(cache_dir, Repository(model_id).folder))
    if manifest is not None and manifest.revision == snapshot.name:
        return [name for name, file in manifest.files.items() if not _has_size(snapshot / name, file.size)]
    missing = [] if (snapshot / "config.json").exists() else ["config.json"]
    index = next((snapshot / name for name in INDEXES if (snapshot / name).exists()), None)
    if index is not None:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return missing + sorted(name for name in shards if not (snapshot / name).exists())
    has_weights = any(path.exists() for pattern in WEIGHTS for path in snapshot.glob(pattern))
    return missing if has_weights else [*missing, "weights"]


def find_mbpp(cache_dir: str | Path, subset: str) -> list[Path]:
    """Return MBPP's Parquet files of a subset in the order of their names, none unless all are there."""
    snapshot = find_snapshot(cache_dir, Repository(MBPP_ID, "dataset"))
    files = sorted(snapshot.glob(f"{subset}/*.parquet")) if snapshot else []
    splits = {path.name.partition("-")[0] for path in files if path.exists()}
    return files if splits >= set(MBPP_SPLITS) else []


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
