"""`rlnb prefetch`: fetch on a machine with a network what a run elsewhere will load, by huggingface_hub."""

import fnmatch
import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from runpy import run_path

from httpx import HTTPError
from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

from rlnb.batch.machines import job_machine
from rlnb.errors import ParamsError, see
from rlnb.machine import recommend
from rlnb.params import load_params, resolve
from rlnb.params.loading import choose_profile
from rlnb.params.model_cache import MBPP_ID, MBPP_REVISION, built_directory, is_on_hub
from rlnb.params.resolving import cache_directory, loaded_model, mbpp_downloads
from rlnb.params.sections import NotebookParams

# What transformers reads of a model: files at the top, and weights in the first of these formats.
WEIGHTS = ("model*.safetensors*", "pytorch_model*.bin*")
NOT_READ = (
    "*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.ot",
    "*.index.json", "*.md", "LICENSE*", ".gitattributes",
)  # fmt: skip
MBPP_FILES = ("full/*.parquet", "sanitized/*.parquet")


def prefetch(
    notebook: Path,
    *,
    profile: str | None,
    overrides: Mapping[str, object],
    machine: str | None,
    gpu_memory: float | None,
) -> int:
    """Fetch into the model cache what a run on such a machine (`job_machine`) will load, and return 0.

    Raises ParamsError for what the hub does not give.
    """
    target = job_machine(profile, machine, gpu_memory)
    if profile in (None, "auto"):
        profile = choose_profile(notebook.stem, recommend(target).profile)
    given = load_params(notebook.stem, profile=str(profile), overrides=overrides, place="--set")
    params = resolve(given, recommend(target))
    cache_dir = cache_directory(params)
    print(f"{notebook.stem}, profile {profile}, for {target.name}, into {cache_dir}:")
    model, repositories = loaded_model(params), {}
    if model is not None and built_directory(model.id, cache_dir):
        print(f"  {model.id}: built in {_build(model.id, cache_dir)}", flush=True)
    elif model is not None and is_on_hub(model.id):
        repositories[_loaded_name(params, model.id), "model"] = "model.id"
    for field in mbpp_downloads(params):
        repositories[MBPP_ID, "dataset"] = field
    for (repo_id, kind), field in repositories.items():
        place = f"{params._sources.get(field, 'default')}: {field}"
        print(f"  {repo_id}: {fetch(repo_id, cache_dir, kind=kind, place=place)}", flush=True)
    return 0


def _loaded_name(params: NotebookParams, model_id: str) -> str:
    """Return the repository that the model is loaded from: unsloth loads copies, in 4 bits for instance.

    As unsloth 2026.10's get_model_name, which needs a GPU to be imported.
    """
    model, spec = loaded_model(params), importlib.util.find_spec("unsloth")
    if model is None or model.engine != "unsloth" or spec is None or not spec.origin:
        return model_id
    folder, name = Path(spec.origin).parent / "models", model_id.lower()
    tables = run_path(str(folder / "mapper.py"))
    if model.load_in_4bit:
        copies = {} if name.endswith("-bnb-4bit") else tables["FLOAT_TO_INT_MAPPER"]
    else:
        copies = {**tables["MAP_TO_UNSLOTH_16bit"], **tables["INT_TO_FLOAT_MAPPER"]}
    copy = str(copies.get(name, model_id))
    source = (folder / "loader_utils.py").read_text(encoding="utf-8")
    replaced = dict(re.findall(r'^ +"([^"]+)"\.lower\(\): "([^"]+)"', source, re.MULTILINE))  # BAD_MAPPINGS
    return {bad.lower(): better for bad, better in replaced.items()}.get(copy.lower(), copy)


def _build(name: str, cache_dir: str) -> Path:
    """Build one of the models that need no hub, unless it is there, and return its directory."""
    from rlnb.policy.builtin import model_directory  # torch

    return Path(model_directory(name, cache_dir))


def fetch(repo_id: str, cache_dir: str, *, kind: str, place: str) -> str:
    """Fetch the files of a repository that are missing, and say where they are.

    huggingface_hub checks what it downloads, gives a file its name only once it is whole, and keeps the whole
    files of an earlier call that was interrupted. kind: model or dataset. place: where the repository is
    named, for messages. Raises ParamsError for what the hub does not give.
    """
    if constants.HF_HUB_OFFLINE:
        raise ParamsError("HF_HUB_OFFLINE is set, so nothing can be fetched; unset it for this command")
    revision = MBPP_REVISION if repo_id == MBPP_ID else None
    try:
        listed = HfApi().list_repo_files(repo_id, repo_type=kind, revision=revision)
        names = choose_files(listed, kind=kind)
        folder = snapshot_download(
            repo_id, repo_type=kind, revision=revision, cache_dir=cache_dir, allow_patterns=names
        )
    except (RepositoryNotFoundError, HFValidationError):
        page = f"{constants.ENDPOINT}/{repo_id}"
        reason = f"is not at {page}, or gated: accept its terms there, and put HF_TOKEN=... into .env"
        raise ParamsError(f"{place} = {repo_id!r} {reason}{see('no-network')}") from None
    except (OSError, HTTPError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = f"cannot be fetched: {reason}; the same command again goes on with what is missing"
        raise ParamsError(f"{place} = {repo_id!r} {reason}") from error
    return f"{len(names)} files in {folder}"


def choose_files(names: Sequence[str], *, kind: str) -> list[str]:
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
