"""Fetch a repository of the hub into the model cache, with a manifest of its files and their checksums."""

import fnmatch
import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from httpx import HTTPError
from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.hf_api import RepoSibling

from rlnb.errors import ParamsError, see
from rlnb.params.model_cache import (
    CachedFile,
    Manifest,
    Repository,
    find_snapshot,
    manifest_path,
    write_manifest,
)

# What transformers reads of a model: files at the top, and weights in the first of these formats.
WEIGHTS = ("model*.safetensors*", "pytorch_model*.bin*")
NOT_READ = (
    "*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.ot",
    "*.index.json", "*.md", "LICENSE*", ".gitattributes",
)  # fmt: skip
MBPP_FILES = ("full/*.parquet", "sanitized/*.parquet")


class NotIntact(NamedTuple):
    """A file of the cache, and why it is not what was fetched."""

    file: str
    reason: str


def fetch(repository: Repository, cache_dir: str, *, place: str) -> str:
    """Fetch the files of a repository that are missing or damaged, write its manifest, and describe both.

    Files that were whole when an earlier call was interrupted stay. place: where the repository is named, for
    messages. Raises ParamsError for what the hub does not give, and for files that do not arrive whole.
    """
    if constants.HF_HUB_OFFLINE:
        raise ParamsError("HF_HUB_OFFLINE is set, so nothing can be fetched; unset it for this command")
    try:
        return _fetch(repository, cache_dir)
    except (OSError, HTTPError, ValueError) as error:
        raise ParamsError(f"{place} = {repository.id!r} {_explain(error, repository)}") from error


def _fetch(repository: Repository, cache_dir: str) -> str:
    hub = HfApi()
    describe = hub.model_info if repository.kind == "model" else hub.dataset_info
    info = describe(repository.id, files_metadata=True)
    offered = {file.rfilename: file for file in info.siblings or ()}
    names = choose_files(offered, kind=repository.kind)
    snapshot = Path(cache_dir, repository.folder, "snapshots", str(info.sha))
    files = {name: hash_file(snapshot / name) for name in names if (snapshot / name).is_file()}
    damaged = [name for name in files if not _is_as_offered(snapshot / name, files[name], offered[name])]
    for name in damaged:
        (snapshot / name).resolve().unlink()  # the blob that the name leads to; a missing one is fetched
    missing = [name for name in names if name not in files or name in damaged]
    needed, free = sum(offered[name].size or 0 for name in missing), _free_bytes(cache_dir)
    if needed > free:
        raise ValueError(f"needs {needed / 1e9:.1f} GB in {cache_dir}, which has {free / 1e9:.1f} GB free")
    if missing or find_snapshot(cache_dir, repository) != snapshot:
        folder = snapshot_download(
            repository.id, repo_type=repository.kind, cache_dir=cache_dir, allow_patterns=names
        )
        snapshot = Path(folder)
    files |= {name: hash_file(snapshot / name) for name in missing}
    wrong = [name for name in missing if not _is_as_offered(snapshot / name, files[name], offered[name])]
    if wrong:
        raise ValueError(f"did not arrive as the hub describes it: {', '.join(wrong)}; try again")
    write_manifest(manifest_path(cache_dir, repository.folder), Manifest(snapshot.name, files))
    size = sum(file.size for file in files.values())
    repaired = f", {len(damaged)} of them damaged before" if damaged else ""
    what = f"{len(files)} files, {size / 1e6:,.1f} MB, revision {snapshot.name[:12]}"
    return f"{what}: {len(missing)} fetched{repaired}, {len(files) - len(missing)} were there"


def choose_files(names: Iterable[str], *, kind: str) -> list[str]:
    """Return the files of a repository that a run reads. Raises ValueError if it lacks weights or data."""
    if kind == "dataset":
        chosen = [name for pattern in MBPP_FILES for name in fnmatch.filter(names, pattern)]
    else:
        top = [name for name in names if "/" not in name]
        weights = next(filter(None, (fnmatch.filter(top, pattern) for pattern in WEIGHTS)), [])
        others = [name for name in top if not any(fnmatch.fnmatch(name, pattern) for pattern in NOT_READ)]
        chosen = [*weights, *others] if weights else []
    if not chosen:
        raise ValueError(f"holds no {'weights' if kind == 'model' else 'data'} of a known format")
    return sorted(set(chosen))


def hash_file(path: Path) -> CachedFile:
    """Return a file's size and SHA-256."""
    with path.open("rb") as file:
        return CachedFile(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def hash_folder(directory: Path) -> dict[str, CachedFile]:
    """Return the files of a directory by name."""
    return {path.name: hash_file(path) for path in sorted(directory.iterdir()) if path.is_file()}


def check_files(directory: Path, manifest: Manifest) -> list[NotIntact]:
    """Return the files that are missing or differ from what the manifest says."""
    wrong = []
    for name, file in manifest.files.items():
        if not (directory / name).is_file():
            wrong.append(NotIntact(name, "is missing"))
        elif hash_file(directory / name) != file:
            wrong.append(NotIntact(name, "is damaged: its SHA-256 differs from the manifest's"))
    return wrong


def _is_as_offered(path: Path, file: CachedFile, offered: RepoSibling) -> bool:
    """Return whether a file is what the hub describes: by SHA-256 if it is large, else by git's hash."""
    if offered.size is not None and file.size != offered.size:
        return False
    if offered.lfs is not None:
        return bool(offered.lfs.sha256 == file.sha256)
    if not offered.blob_id:
        return True
    return hashlib.sha1(b"blob %d\0" % file.size + path.read_bytes()).hexdigest() == offered.blob_id


def _free_bytes(directory: str) -> int:
    existing = next(path for path in (Path(directory), *Path(directory).absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def _explain(error: Exception, repository: Repository) -> str:
    """Return what is wrong and the remedy, to follow the repository's name."""
    if isinstance(error, GatedRepoError):
        page = f"{constants.ENDPOINT}/{repository.id}"
        return f"is gated: accept its terms on {page}, and put HF_TOKEN=... into .env{see('no-network')}"
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"is not on {constants.ENDPOINT}, or is private; correct the name, or put HF_TOKEN=... into .env"
        )
    if isinstance(error, HFValidationError):
        return "is neither a directory here nor a name on the hub, which is OWNER/NAME"
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, ValueError):
        return reason
    return f"cannot be fetched: {reason}; the same command again goes on with the files that are missing"
