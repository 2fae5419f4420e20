"""`rlnb prefetch`: fetch on a machine with a network what a run elsewhere would fetch, and verify it."""

import importlib.util
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from runpy import run_path

from rlnb.batch.hub_files import NotIntact, check_files, fetch, hash_folder
from rlnb.batch.machines import target_machine
from rlnb.errors import ParamsError, PolicyUnavailable
from rlnb.machine import recommend
from rlnb.params import load_dotenv, load_params, resolve
from rlnb.params.bases import BUILT_DIRECTORIES
from rlnb.params.loading import choose_profile
from rlnb.params.model_cache import (
    MBPP_ID,
    Manifest,
    Repository,
    manifest_path,
    read_manifest,
    write_manifest,
)
from rlnb.params.resolving import cache_directory, loaded_model, mbpp_downloads, model_names
from rlnb.params.sections import NotebookParams

DAMAGED = 1  # exit code


def prefetch(
    notebook: Path,
    *,
    profile: str | None,
    overrides: Mapping[str, object],
    assignments: Sequence[str] = (),
    machine: str | None = None,
    gpu_memory: float | None = None,
    verify: bool = False,
) -> int:
    """Fetch a run's models and data into its model cache, print the line that submits it, and return 0.

    assignments: the overrides as they were typed, for that line. machine: the name of a row of the table of
    machines; None means the one that the profile is named after, or this one. gpu_memory: of that machine
    in GiB; None means that of the smallest. verify: only compare what is there with the manifests, without
    a network; then the return value is 1 if something is missing or damaged. Raises ParamsError for what
    the hub does not give.
    """
    load_dotenv(Path.cwd())
    target = target_machine(profile, machine, gpu_memory)
    if profile in (None, "auto"):
        profile = choose_profile(notebook.stem, recommend(target).profile)
    given = load_params(notebook.stem, profile=str(profile), overrides=overrides, place="--set").complete()
    params = resolve(given, recommend(target))
    cache_dir = cache_directory(params)
    memory = f", {target.memory_gib:g} GiB" if target.memory_gib else ""
    print(f"{notebook.stem}, profile {profile}, for {target.name}{memory}, into {cache_dir}:")
    models = {field: name for field, name in model_names(params).items() if not Path(name).is_dir()}
    built = sorted(name for name in set(models.values()) if name in BUILT_DIRECTORIES)
    repositories = {
        Repository(_loaded_name(params, name)): field for field, name in models.items() if name not in built
    }
    repositories |= {Repository(MBPP_ID, "dataset"): field for field in mbpp_downloads(params)}
    if verify:
        folders = [BUILT_DIRECTORIES[name] for name in built] + [item.folder for item in repositories]
        return _verify(cache_dir, folders)
    for name in built:
        print(f"  {name}: {_build(name, cache_dir)}", flush=True)
    for repository, field in repositories.items():
        place = f"{params._sources.get(field, 'default')}: {field}"
        print(f"  {repository.id}: {fetch(repository, cache_dir, place=place)}", flush=True)
    kind = {"--machine": machine, "--gpu-memory": None if gpu_memory is None else f"{gpu_memory:g}"}
    options = [word for option, value in kind.items() if value is not None for word in (option, value)]
    print(f"then: {_submit_line(notebook, str(profile), assignments)} {shlex.join(options)}".rstrip())
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


def _build(name: str, cache_dir: str) -> str:
    """Build one of the models that need no hub, write its manifest, and describe what was done."""
    from rlnb.policy.builtin import model_directory  # torch

    folder = BUILT_DIRECTORIES[name]
    path, directory = manifest_path(cache_dir, folder), Path(cache_dir, folder)
    manifest = read_manifest(path)
    if manifest is not None and not check_files(directory, manifest):
        return "is there and verifies"
    try:
        model_directory(name, cache_dir)
    except PolicyUnavailable as error:
        raise ParamsError(str(error)) from error
    write_manifest(path, Manifest("", hash_folder(directory)))
    return f"built in {directory}"


def _verify(cache_dir: str, folders: Sequence[str]) -> int:
    """Compare the files of folders of the cache with their manifests, and return the exit code."""
    damaged = 0
    for folder in folders:
        manifest = read_manifest(manifest_path(cache_dir, folder))
        if manifest is None:
            wrong = [NotIntact(str(manifest_path(cache_dir, folder)), "is missing")]
        else:
            inner = Path("snapshots", manifest.revision) if manifest.revision else Path()
            wrong = check_files(Path(cache_dir, folder, inner), manifest)
        if manifest is not None and not wrong:
            size = sum(file.size for file in manifest.files.values())
            print(f"  {folder}: {len(manifest.files)} files, {size / 1e6:,.1f} MB, all as fetched")
        for file, reason in wrong:
            print(f"  {folder}: {file} {reason}")
        damaged += len(wrong)
    if damaged:
        print("The same command without --verify fetches these anew.")
    return DAMAGED if damaged else 0


def _submit_line(notebook: Path, profile: str, assignments: Sequence[str]) -> str:
    options = ["--profile", profile, *(word for item in assignments for word in ("--set", item))]
    return shlex.join([".venv/bin/rlnb", "submit", str(notebook), *options])
