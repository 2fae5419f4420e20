"""`rlnb prefetch`: fetch on a machine with a network what a run elsewhere will load, by huggingface_hub."""

from collections.abc import Mapping
from pathlib import Path

from httpx import HTTPError
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

from rlnb.batch.machines import job_machine
from rlnb.errors import ParamsError, see
from rlnb.params.cell import read_parameters_cell
from rlnb.params.model_cache import MBPP_ID, MBPP_REVISION, find_missing
from rlnb.params.resolving import cache_directory, mbpp_downloads, model_downloads
from rlnb.run.headless import choose_edited
from rlnb.run.prepare import Values, load

# What a run reads of a repository: of a model the files at the top, weights as safetensors.
READ = {
    "model": ["*.json", "*.jinja", "*.model", "*.txt", "model*.safetensors", "tokenizer*", "vocab*"],
    "dataset": ["full/*.parquet", "sanitized/*.parquet"],
}
NOT_READ = {"model": ["*/*", "pytorch_model*"], "dataset": []}


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
    cell = choose_edited(read_parameters_cell(notebook))
    saved, params, *_ = load(
        notebook.stem, Values(profile or "auto", cell, overrides, "--set"), machine=target
    )
    cache_dir = cache_directory(params)
    print(f"{notebook.stem}, profile {saved._profile}, for {target.name}, into {cache_dir}:")
    repositories = {(model_id, "model"): field for model_id, field in model_downloads(params).items()}
    for field in mbpp_downloads(params):
        repositories[MBPP_ID, "dataset"] = field
    for (repo_id, kind), field in repositories.items():
        place = params.place_of(field)
        print(f"  {repo_id}: {fetch(repo_id, cache_dir, kind=kind, place=place)}", flush=True)
    return 0


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
        folder = snapshot_download(
            repo_id, repo_type=kind, revision=revision, cache_dir=cache_dir, allow_patterns=READ[kind],
            ignore_patterns=NOT_READ[kind],
        )  # fmt: skip
    except (RepositoryNotFoundError, HFValidationError):
        page = f"{constants.ENDPOINT}/{repo_id}"
        reason = f"is not at {page}, or gated: accept its terms there, and put HF_TOKEN=... into .env"
        raise ParamsError(f"{place} = {repo_id!r} {reason}{see('no-network')}") from None
    except (OSError, HTTPError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = f"cannot be fetched: {reason}; the same command again goes on with what is missing"
        raise ParamsError(f"{place} = {repo_id!r} {reason}") from error
    if kind == "model" and (missing := find_missing(cache_dir, repo_id)):
        raise ParamsError(
            f"{place} = {repo_id!r} lacks {', '.join(missing[:3])}; take a model of safetensors"
        )
    return f"in {folder}"
