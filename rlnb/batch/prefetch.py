"""`rlnb prefetch`: fetch on a machine with a network what a run elsewhere will load, by huggingface_hub."""

import fnmatch
import importlib.util
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from runpy import run_path

from httpx import HTTPError
from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

from rlnb.batch.machines import target_machine
from rlnb.errors import ParamsError, PolicyUnavailable, see
from rlnb.machine import recommend
from rlnb.params import load_dotenv, load_params, resolve
from rlnb.params.bases import BUILT_DIRECTORIES
from rlnb.params.loading import choose_profile
from rlnb.params.model_cache import MBPP_ID, Repository
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
    assignments: Sequence[str] = (),
    machine: str | None = None,
    gpu_memory: float | None = None,
) -> int:
    """Fetch a run's models and data into its model cache, print the line that submits it, and return 0.

    assignments: the overrides as they were typed, for that line. machine: the name of a row of the table of
    machines; None means the one that the profile is named after, or this one. gpu_memory: of that machine
    in GiB; None means that of the smallest. Raises ParamsError for what the hub does not give.
    """
    load_dotenv(Path.cwd())
    target = target_machine(profile, machine, gpu_memory)
    if profile in (None, "auto"):
        profile = choose_profile(notebook.stem, recommend(target).profile)
    given = load_params(notebook.stem, profile=str(profile), overrides=overrides, place="--set")
    params = resolve(given, recommend(target))
    cache_dir = cache_directory(params)
    memory = f", {target.memory_gib:g} GiB" if target.memory_gib else ""
    print(f"{notebook.stem}, profile {profile}, for {target.name}{memory}, into {cache_dir}:")
    model, repositories = loaded_model(params), {}
    if model is not None and model.id in BUILT_DIRECTORIES:
        print(f"  {model.id}: built in {_build(model.id, cache_dir)}", flush=True)
    elif model is not None and not Path(model.id).is_dir():
        repositories[Repository(_loaded_name(params, model.id))] = "model.id"
    repositories |= {Repository(MBPP_ID, "dataset"): field for field in mbpp_downloads(params)}
    for repository, field in repositories.items():
        place = f"{params._sources.get(field, 'default')}: {field}"
        print(f"  {repository.id}: {fetch(repository, cache_dir, place=place)}", flush=True)
    words = [".venv/bin/rlnb", "submit", str(notebook), "--profile", str(profile)]
    words += [word for assignment in assignments for word in ("--set", assignment)]
    words += [] if machine is None else ["--machine", machine]
    words += [] if gpu_memory is None else ["--gpu-memory", f"{gpu_memory:g}"]
    print(f"then: {shlex.join(words)}")
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

    try:
        return Path(model_directory(name, cache_dir))
    except PolicyUnavailable as error:
        raise ParamsError(str(error)) from error


def fetch(repository: Repository, cache_dir: str, *, place: str) -> str:
    """Fetch the files of a repository that are missing, and describe what is there.

    huggingface_hub checks what it downloads, gives a file its name only once it is whole, and keeps the whole
    files of an earlier call that was interrupted. place: where the repository is named, for messages. Raises
    ParamsError for what the hub does not give.
    """
    if constants.HF_HUB_OFFLINE:
        raise ParamsError("HF_HUB_OFFLINE is set, so nothing can be fetched; unset it for this command")
    try:
        offered = HfApi().list_repo_files(repository.id, repo_type=repository.kind)
        names = choose_files(offered, kind=repository.kind)
        folder = snapshot_download(
            repository.id, repo_type=repository.kind, cache_dir=cache_dir, allow_patterns=names
        )
    except GatedRepoError:
        page = f"{constants.ENDPOINT}/{repository.id}"
        reason = f"is gated: accept its terms on {page}, and put HF_TOKEN=... into .env"
        raise ParamsError(f"{place} = {repository.id!r} {reason}{see('no-network')}") from None
    except (RepositoryNotFoundError, HFValidationError):
        reason = f"is not on {constants.ENDPOINT} as OWNER/NAME, or is private: put HF_TOKEN=... into .env"
        raise ParamsError(f"{place} = {repository.id!r} {reason}") from None
    except (OSError, HTTPError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = f"cannot be fetched: {reason}; the same command again goes on with what is missing"
        raise ParamsError(f"{place} = {repository.id!r} {reason}") from error
    size = sum(Path(folder, name).stat().st_size for name in names)
    return f"{len(names)} files, {size / 1e6:,.1f} MB, revision {Path(folder).name[:12]}"


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
