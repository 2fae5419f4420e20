"""`rlnb run`: execute a notebook with parameters in a directory; run again, it continues where it stopped.

All checks come before papermill is imported, so a wrong name costs half a second.
"""

import ast
import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rlnb.errors import ParamsError
from rlnb.machine import probe, rank, recommend
from rlnb.params import asks_network, check_machine, dump_yaml, load_dotenv, load_params, resolve
from rlnb.params.loading import choose_profile
from rlnb.params.older_names import explain_path
from rlnb.params.sections import NotebookParams, SandboxParams, value_of
from rlnb.run import directory as runs
from rlnb.run.checkpoints import (
    OF_STATE,
    OF_TASK,
    OF_WEIGHTS,
    checkpoint_step,
    compare,
    describe_refused,
    latest_checkpoint,
    run_recipe,
)
from rlnb.run.launcher import Ranks, run_ranks
from rlnb.run.memory import settle_memory
from rlnb.sandbox import Sandbox


def run_notebook(
    notebook: Path,
    *,
    profile: str | None = None,
    overrides: Mapping[str, object] | None = None,
    out: Path | None = None,
    ranks: Ranks | None = None,
) -> int:
    """Run the notebook, or continue its unfinished run, and return the exit code (0, 1, 85 or 138).

    profile: None means the one that the run in `out` was started with, and `auto` for a new run. out: None
    means the newest unfinished run with the same parameters under outputs/<notebook>/, or else a new
    directory there. ranks: started once all is checked, None for one. Raises ParamsError, SandboxUnavailable
    or RunInUse before anything has run. Under torchrun every rank runs the notebook; rank 0 alone keeps lock
    and versions and prints. Keys of .env go into the environment.
    """
    names = _parameter_names(notebook)
    load_dotenv(Path.cwd())
    machine = probe(ask_hub=False)
    ranks = ranks or Ranks()
    ranks.check(os.environ, machine, out=out)
    overrides = overrides or {}
    if "output_dir" in overrides:
        raise ParamsError(f"--set output_dir={overrides['output_dir']}: is set by --out; write --out")

    def load(profile: str | None, directory: Path) -> NotebookParams:
        values = {**overrides, "output_dir": str(directory)}
        return load_params(notebook.stem, profile=profile or "auto", overrides=values, place="--set")

    if out is None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ParamsError("--out: is missing. Under torchrun all ranks must be told the same directory.")
        if profile in (None, "auto"):
            profile = choose_profile(notebook.stem, recommend(machine).profile)
        directory = runs.choose_directory(
            Path("outputs") / notebook.stem,
            Path(profile or "auto").stem,
            params_text=lambda directory: dump_yaml(load(profile, directory)),
        )
    else:
        directory = out
        saved = str(directory / "params.yaml")
        profile = profile or (saved if os.path.exists(saved) else "auto")
    params = load(profile, directory)
    if asks_network(params):
        machine = probe()
    resolved = resolve(params, recommend(machine))
    sharing = {"WORLD_SIZE": str(ranks.total)} if ranks.total > 1 else {}
    check_machine(resolved, machine, environ={**os.environ, **sharing})
    resolved.check_files()
    if ranks.total > 1 and "training" not in type(params).model_fields:
        raise ParamsError(f"--nproc: {notebook.name} trains nothing, which several ranks could share")
    _, memory = settle_memory(resolved, machine)
    if isinstance(sandbox := getattr(params, "sandbox", None), SandboxParams):
        Sandbox.from_params(sandbox).close()  # refuse before anything has run
    _make_directory(directory)
    first_rank = rank() or ranks.local[0]
    with contextlib.nullcontext() if first_rank else runs.locked(directory):
        last = runs.read_status(directory)
        _check_params(notebook, directory, params)
        if last is not None and last.state == "done" and not _has_more_steps(directory, params):
            print(f"{directory}: finished by attempt {last.attempt}. To run it again, give another --out.")
            return runs.EXIT_DONE
        # By every rank: the text is the same, and the rename is whole.
        runs.write_text(directory / "params.yaml", dump_yaml(params))
        output = runs.attempt_notebook(directory, rank=first_rank)
        if first_rank == 0:
            runs.write_versions(directory, machine=dataclasses.asdict(machine))
            print(f"{output}: {notebook.name}, profile {profile}{_after(last)}", flush=True)
            if memory:
                print(memory, flush=True)
        values = {"profile": str(directory / "params.yaml"), **params.model_dump(mode="json")}
        # Sections stay as the notebook has them, empty: their values come from params.yaml.
        given = {
            name: values[name] for name in names if name in values and not isinstance(values[name], dict)
        }
        if last is not None and "training" in names and value_of(params, "training.resume") == "never":
            given["training"] = {"resume": "auto"}  # "never" was for the first attempt; this one goes on
        if ranks.total > 1:
            return run_ranks(ranks, notebook, output, parameters=given)
        # Imported here: papermill and Jupyter take two seconds, which a refusal need not wait for.
        from rlnb.run.papermill_engine.execution import execute

        return execute(notebook, output, parameters=given)


def _after(last: runs.Status | None) -> str:
    if last is None:
        return ""
    if last.state == "unreadable":
        return f", after attempt {last.attempt}; {last.reason}, so how that ended is not known"
    # We hold the lock, so a status that still says running, perhaps on another host, is outdated.
    how = "killed" if last.state == "running" else last.state
    return f", after attempt {last.attempt} was {how}" + (f" by {last.signal}" if last.signal else "")


def _parameter_names(notebook: Path) -> list[str]:
    """Return the names that the parameters cell defines.

    Raises ParamsError where a run could not set profile and output_dir. The notebook is read as JSON, since
    importing nbformat takes longer than everything else here.
    """
    if not notebook.is_file():
        meant = Path("notebooks", f"{notebook.stem}.ipynb")
        hint = f"; did you mean {meant}?" if meant.is_file() else explain_path(str(notebook))
        raise ParamsError(f"{notebook}: no such notebook in {os.getcwd()}{hint}")
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        tagged = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    except (ValueError, LookupError, TypeError, AttributeError):
        hint = explain_path(str(notebook))
        raise ParamsError(f"{notebook}: is not a notebook in the format that Jupyter writes{hint}") from None
    if not tagged:
        raise ParamsError(
            f"{notebook}: no cell is tagged 'parameters'. Tag the one that defines profile and output_dir, "
            f"so that rlnb run can set them."
        )
    try:
        statements = ast.parse("".join(tagged[0]["source"])).body
    except SyntaxError as error:
        raise ParamsError(
            f"{notebook}: line {error.lineno} of the cell tagged 'parameters' is not Python: {error.msg}"
        ) from None
    names = [
        node.id
        for line in statements
        if isinstance(line, ast.Assign | ast.AnnAssign)
        for node in ast.walk(line)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    for name in ("profile", "output_dir"):
        if name not in names:
            raise ParamsError(
                f"{notebook}: the cell tagged 'parameters' does not define {name}. "
                f'Add a line like {name}: str = "auto", so that rlnb run can set it.'
            )
    return names


def _make_directory(directory: Path) -> None:
    """Create the directory and write to it: not every file system does what its permissions say."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ParamsError(
            f"{directory}: cannot be the directory of a run: {error.strerror}. Give another --out."
        ) from None


def _check_params(notebook: Path, directory: Path, params: NotebookParams) -> None:
    """Raise ParamsError where the run was started with parameters that differ in what may not change.

    A training may change what `checkpoints.compare` allows; anything else nothing but output_dir, which is
    this directory. A training that was started is not started over: its directory holds the first attempts.
    """
    path = directory / "params.yaml"
    if not path.exists():
        return
    saved = load_params(notebook.stem, profile=str(path))
    is_training = "training" in type(params).model_fields
    fixed = {**OF_WEIGHTS, **OF_STATE, **OF_TASK} if is_training else {"*": "it is not a training"}
    refused = describe_refused(compare(run_recipe(saved), run_recipe(params), fixed))
    if is_training and value_of(params, "training.resume") == "never" != value_of(saved, "training.resume"):
        refused = "training.resume is 'never' now (this directory holds the attempts that went before)"
    if refused:
        raise ParamsError(f"{path}: {refused}. Give another --out, or the parameters of this run.")


def _has_more_steps(directory: Path, params: NotebookParams) -> bool:
    """Return whether a run's `training.max_steps` is now above the step of its last checkpoint."""
    checkpoint = latest_checkpoint(directory) if "training" in type(params).model_fields else None
    return checkpoint is not None and checkpoint_step(checkpoint) < value_of(params, "training.max_steps")
