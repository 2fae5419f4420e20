"""`rlnb run`: a notebook, its parameters and a directory; run it again and it goes on where it stopped.

All that can be refused is refused in here, before papermill is imported: a wrong name costs half a second.
"""

import ast
import contextlib
import dataclasses
import functools
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlnb import runs
from rlnb.errors import ParamsError
from rlnb.machine import probe, rank, recommend
from rlnb.params import asks_network, check_machine, dump_yaml, load_dotenv, load_params, resolve
from rlnb.params.sections import NotebookParams, SandboxParams, value_of
from rlnb.sandbox import Sandbox


def run_notebook(
    notebook: Path,
    *,
    profile: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    out: Path | None = None,
) -> int:
    """Run the notebook, or go on with its unfinished run, and return the exit code (0, 1, 85 or 138).

    profile: None is what the run in `out` was started with, and `auto` for a new run. out: None is the
    newest unfinished run with the same parameters under outputs/<notebook>/, or else a new directory
    there. Raises ParamsError, SandboxUnavailable or RunInUse before anything has run. Under torchrun every
    rank runs the notebook; status, lock, versions and the terminal are rank 0's. Keys of .env go into the
    environment.
    """
    names = _parameter_names(notebook)
    load_dotenv(Path.cwd())
    machine = probe(ask_hub=False)
    load = functools.partial(_load_params, notebook, overrides=overrides or {})
    if out is None:
        profile = recommend(machine).profile if profile in (None, "auto") else profile
        directory = _default_directory(notebook, profile, load=load)
    else:
        directory = out
        saved = str(directory / "params.yaml")
        profile = profile or (saved if os.path.exists(saved) else "auto")
    params = load(profile, directory)
    if asks_network(params):
        machine = probe()
    check_machine(resolve(params, recommend(machine)), machine)
    if isinstance(sandbox := getattr(params, "sandbox", None), SandboxParams):
        Sandbox.from_params(sandbox).close()  # refused here, where it costs nothing yet
    _make_directory(directory)
    with contextlib.nullcontext() if rank() else runs.locked(directory):
        last = runs.read_status(directory)
        _settle_params(notebook, directory, params)
        if last is not None and last.state == "done":
            print(f"{directory}: finished by attempt {last.attempt}. To run it anew, give another --out.")
            return runs.EXIT_DONE
        output = runs.attempt_notebook(directory, rank=rank())
        if rank() == 0:
            runs.write_versions(directory, machine=dataclasses.asdict(machine))
            print(f"{output}: {notebook.name}, profile {profile}{_after(last)}", flush=True)
        values = {"profile": str(directory / "params.yaml"), **params.model_dump(mode="json")}
        # Sections stay as the notebook has them, empty: their values come from params.yaml.
        given = {
            name: values[name] for name in names if name in values and not isinstance(values[name], dict)
        }
        if last is not None and "training" in names and value_of(params, "training.resume") == "never":
            given["training"] = {"resume": "auto"}  # "never" was for the first attempt; this one goes on
        # Imported here: papermill and Jupyter take two seconds, which a refusal need not wait for.
        from rlnb.papermill_engine.execution import execute

        return execute(notebook, output, parameters=given)


def _after(last: runs.Status | None) -> str:
    if last is None:
        return ""
    if last.state == "unreadable":
        return f", after attempt {last.attempt}; {last.reason}, so how that ended is not known"
    # The directory is ours now, so whatever still says running, on another host perhaps, is not.
    how = "killed" if last.state == "running" else last.state
    return f", after attempt {last.attempt} was {how}" + (f" by {last.signal}" if last.signal else "")


def _parameter_names(notebook: Path) -> list[str]:
    """The names that the parameters cell defines; raises ParamsError where a run could not set its own.

    The notebook is read as the JSON that it is: importing nbformat takes longer than all the rest here.
    """
    if not notebook.is_file():
        meant = Path("notebooks", f"{notebook.stem}.ipynb")
        hint = f"; did you mean {meant}?" if meant.is_file() else ""
        raise ParamsError(f"{notebook}: there is no such notebook in {os.getcwd()}{hint}")
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        tagged = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ParamsError(f"{notebook}: is not a notebook in the format that Jupyter writes") from None
    if not tagged:
        raise ParamsError(
            f"{notebook}: no cell is tagged 'parameters'. Tag the one that defines profile and output_dir, "
            f"so that rlnb run can set them."
        )
    names = _assigned_names("".join(tagged[0]["source"]), notebook)
    for name in ("profile", "output_dir"):
        if name not in names:
            raise ParamsError(
                f"{notebook}: the cell tagged 'parameters' does not define {name}. "
                f'Add a line like {name}: str = "auto", so that rlnb run can set it.'
            )
    return names


def _assigned_names(source: str, notebook: Path) -> list[str]:
    try:
        statements = ast.parse(source).body
    except SyntaxError as error:
        raise ParamsError(
            f"{notebook}: line {error.lineno} of the cell tagged 'parameters' is not Python: {error.msg}"
        ) from None
    targets: list[ast.expr] = []
    for statement in statements:
        if isinstance(statement, ast.Assign):
            targets += statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets.append(statement.target)
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _load_params(
    notebook: Path, profile: str, directory: Path, *, overrides: Mapping[str, Any]
) -> NotebookParams:
    if "output_dir" in overrides:
        raise ParamsError(f"--set output_dir={overrides['output_dir']}: is set by --out; write --out")
    values = {**overrides, "output_dir": str(directory)}
    return load_params(notebook.stem, profile=profile, overrides=values, place="--set")


def _default_directory(notebook: Path, profile: str, *, load: Any) -> Path:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ParamsError("--out: is missing. Under torchrun all ranks must be told the same directory.")
    return runs.choose_directory(
        Path("outputs") / notebook.stem,
        Path(profile).stem,
        params_text=lambda directory: dump_yaml(load(profile, directory)),
    )


def _make_directory(directory: Path) -> None:
    """Make it, and write to it: what permissions promise, not every file system keeps."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ParamsError(
            f"{directory}: cannot be the directory of a run: {error.strerror}. Give another --out."
        ) from None


def _settle_params(notebook: Path, directory: Path, params: NotebookParams) -> None:
    """Write params.yaml, or check that the run was started with these: its checkpoints fit no others.

    output_dir may differ: it is this directory, which may have been moved or named from elsewhere.
    """
    path = directory / "params.yaml"
    if not path.exists():
        # By every rank: the text is the same, and the rename is whole.
        runs.write_text(path, dump_yaml(params))
        return
    before, now = (_flat(p.model_dump()) for p in (load_params(notebook.stem, profile=str(path)), params))
    changed = [
        f"{name} was {before[name]} and is {now[name]} now"
        for name in now
        if name != "output_dir" and now[name] != before[name]
    ]
    if changed:
        raise ParamsError(f"{path}: {'; '.join(changed)}. Give another --out, or ask for what this run had.")


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """{"training.learning_rate": 1e-5} for {"training": {"learning_rate": 1e-5}}."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update({f"{name}.{inner}": deeper for inner, deeper in _flat(value).items()})
        else:
            flat[name] = value
    return flat
