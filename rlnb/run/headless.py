"""`rlnb run`: execute a notebook with parameters in a directory; run again, it continues where it stopped.

All checks come before papermill is imported, so a wrong name costs half a second.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from rlnb.errors import ParamsError
from rlnb.machine import Machine, rank, world_size
from rlnb.params import dump_yaml, load_params
from rlnb.params.cell import COMPUTED, read_parameters_cell
from rlnb.params.loading import notebook_name
from rlnb.params.sections import NotebookParams, get_value, value_of
from rlnb.run import directory as runs
from rlnb.run.checkpoints import (
    OF_STATE,
    OF_TASK,
    check_changes,
    check_resuming,
    checkpoint_step,
    latest_checkpoint,
    run_recipe,
)
from rlnb.run.disk import telling_full_disk, write_text
from rlnb.run.launcher import name_cause, run_ranks
from rlnb.run.metrics import main_measures
from rlnb.run.prepare import Values, prepare
from rlnb.run.slurm import join_tasks, own_step
from rlnb.run.tracking import read_metrics

OF_RUN = ("seed", "output_dir")  # which the command sets, whatever the parameters cell says
# Fields that leave the results of a finished run as they are.
NOT_OF_RESULTS = ("tracking.*", "training.save_*", "training.num_threads", "model.check_memory")


class Plan(NamedTuple):
    """A run whose parameters have been read and checked; nothing has been written yet.

    cell: names and values of the parameters cell. params: as params.yaml has them. machine: that it is for.
    memory: the estimate in a line, "" for no model.
    """

    notebook: Path
    cell: dict[str, object]
    params: NotebookParams
    machine: Machine
    memory: str

    @property
    def directory(self) -> Path:
        return Path(self.params.output_dir)

    @property
    def profile(self) -> str:
        return self.params._profile


def run_notebook(
    notebook: Path,
    *,
    profile: str | None = None,
    overrides: Mapping[str, object] | None = None,
    out: Path | None = None,
    num_ranks: int = 1,
) -> int:
    """Run the notebook, or continue its unfinished run, and return the exit code (0, 1, 85 or 138).

    The arguments are those of `plan_run`. Under torchrun and srun every rank runs the notebook; rank 0 alone
    chooses the directory, keeps the lock and the versions, and prints. Raises ParamsError, SandboxUnavailable
    or RunInUse before anything has run.
    """
    join_tasks()
    if out is None and world_size() > 1 and not own_step():
        raise ParamsError("--out: is missing. Under torchrun all ranks must be told one directory.")
    plan = plan_run(notebook, profile=profile, overrides=overrides, out=out, num_ranks=num_ranks)
    with contextlib.ExitStack() as stack:
        if out is None:
            make_directory(plan.directory.parent)
            note = plan.directory.parent / f".step-{own_step()}"
            chosen = runs.agreed_directory(find_run_directories(plan), note, num_ranks=world_size())
            plan = move_run(plan, stack.enter_context(chosen))
        else:
            make_directory(plan.directory)
            if rank() == 0:
                stack.enter_context(runs.locked(plan.directory))
        stack.callback(name_cause, plan.directory, num_ranks=world_size())
        with telling_full_disk(plan.directory):
            code = _run_attempt(plan, num_ranks)
        for line in describe_result(plan.directory, is_done=code == runs.EXIT_DONE) if rank() == 0 else ():
            print(line)
        return code


def describe_result(directory: Path, *, is_done: bool) -> list[str]:
    """Return the result of a run in lines: the headline of its results.json, else its main metrics so far."""
    path = directory / "results.json"
    saved = json.loads(path.read_text(encoding="utf-8")) if is_done and path.is_file() else {}
    if headline := saved.get("headline"):
        return ["result:", *headline]
    steps = {row["step"]: row for row in read_metrics(directory / "metrics.jsonl")}
    lines = []
    for name in main_measures(dict.fromkeys(name for row in steps.values() for name in row)):
        values = [
            f"{row[name]:.3f} at step {step}" for step, row in steps.items() if row.get(name) is not None
        ]
        lines.append(f"{name}: {', '.join(dict.fromkeys(values[:1] + values[-1:]))}")
    return ["so far:", *lines] if lines else []


def plan_run(
    notebook: Path,
    *,
    profile: str | None = None,
    overrides: Mapping[str, object] | None = None,
    out: Path | None = None,
    num_ranks: int = 1,
    machine: Machine | None = None,
) -> Plan:
    """Read and check all parameters of a run, and choose its directory; nothing is written.

    profile: None means the one that the run in `out` was started with, and `auto` for a new run. out: None
    means the newest unfinished run with the same parameters under outputs/<notebook>/, or else a new
    directory there. num_ranks, machine: as `prepare` takes them. Raises ParamsError or SandboxUnavailable.
    """
    cell = read_parameters_cell(notebook)
    overrides = overrides or {}
    if "output_dir" in overrides:
        raise ParamsError(f"--set output_dir={overrides['output_dir']}: is set by --out; write --out")
    if out is not None and os.path.exists(out / runs.POINTS_FILE):
        raise ParamsError(f"--out {out}: is the folder of a sweep; name another, or a point in it")
    saved = None if out is None else out / "params.yaml"
    if saved is not None and not os.path.exists(saved):  # Path.exists raises for too long names
        saved = None
    if saved is not None and not saved.stat().st_size:
        raise ParamsError(f"{saved}: is empty, so the run's parameters are lost; give another --out")
    values = Values(
        profile or str(saved or "auto"), {}, {**overrides, "output_dir": str(out or "outputs")}, "--set"
    )
    if saved is None or profile:  # else the saved parameters have what was edited in the cell
        values = values._replace(cell=choose_edited(cell))
    prepared = prepare(notebook.stem, values, machine=machine, num_ranks=num_ranks)
    plan = Plan(notebook, cell, prepared.saved, prepared.machine, "\n".join(prepared.lines))
    if out is None:
        plan = move_run(plan, next(find_run_directories(plan)))
    try:
        if not is_finished(plan.directory, plan.params) and "training" in type(plan.params).model_fields:
            check_resuming(prepared.params, plan.directory)
    except PermissionError as error:  # somebody else's
        raise ParamsError(
            f"{error.filename}: cannot be read: {error.strerror}. Give another --out (output_dir)."
        ) from None
    return plan


def choose_edited(cell: Mapping[str, object]) -> dict[str, object]:
    """Return the values of a parameters cell that a run takes from it: those that a person has written.

    Raises ParamsError for a computed one: the notebook alone would know it, not params.yaml.
    """
    unedited: tuple[object, ...] = ("auto", {}, None)
    edited = {name: value for name, value in cell.items() if name not in (*OF_RUN, "profile")}
    for name, value in edited.items():
        if value is COMPUTED:
            raise ParamsError(f"parameters cell: {name} is computed there; write the number or text itself")
    return {name: value for name, value in edited.items() if value not in unedited}


def find_run_directories(plan: Plan) -> Iterator[Path]:
    """Yield the directories of unfinished runs with the same parameters, newest first, then new ones."""
    base = Path("outputs") / plan.notebook.stem
    return runs.find_directories(
        base, Path(plan.profile).stem, lambda directory: dump_yaml(move_run(plan, directory).params)
    )


def move_run(plan: Plan, directory: Path) -> Plan:
    """Return the plan for another directory."""
    return plan._replace(params=plan.params.model_copy(update={"output_dir": str(directory)}))


def _run_attempt(plan: Plan, num_ranks: int) -> int:
    """Run the notebook in its directory, which is locked, and return the exit code."""
    directory, params, notebook = plan.directory, plan.params, plan.notebook
    last = runs.read_status(directory)
    if last and is_finished(directory, params):
        print(f"{directory}: finished by attempt {last.attempt}. To run it again, give another --out.")
        return runs.EXIT_DONE
    # By every rank: the text is the same, and the rename is whole.
    write_text(directory / "params.yaml", dump_yaml(params))
    output = runs.attempt_notebook(directory, rank=rank())
    if rank() == 0:
        runs.write_versions(directory, machine=plan.machine)
        lines = [f"{output}: {notebook.name}, profile {plan.profile}", plan.memory]
        print("\n".join(filter(None, lines)), flush=True)
    values = {"profile": str(directory / "params.yaml"), **params.model_dump(mode="json")}
    given = {name: values[name] for name in (*OF_RUN, "profile") if name in plan.cell}
    # params.yaml has what was edited in the cell, unless --set or the first attempt had something else.
    edited = choose_edited(plan.cell)
    given |= {name: {} if isinstance(value, dict) else "auto" for name, value in edited.items()}
    if last is not None and get_value(params, "training.resume") == "never":
        given["overrides"] = {"training.resume": "auto"}  # "never" was for the first attempt alone
    if num_ranks > 1:
        return run_ranks(num_ranks, notebook, output, parameters=given)
    # Imported here: papermill and Jupyter take two seconds, which a refusal need not wait for.
    from rlnb.run.papermill_engine.execution import execute

    return execute(notebook, output, parameters=given)


def make_directory(directory: Path) -> None:
    """Create the directory and write to it: not every file system does what its permissions say."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ParamsError(
            f"{directory}: cannot be a directory of runs: {error.strerror}. Give another --out (output_dir)."
        ) from None


def is_finished(directory: Path, params: NotebookParams) -> bool:
    """Return whether the run in a directory is done, and these parameters ask for no more steps.

    Raises ParamsError where the run was started with parameters that differ in what may not change: in a
    training what a checkpoint fixes, in anything else and in a finished run all but NOT_OF_RESULTS. A
    training that was started is not started over: its directory holds the first attempts.
    """
    if not os.path.isdir(directory):  # unlike Path.is_dir it takes names that are too long
        return False
    path = directory / "params.yaml"
    saved = load_params(notebook_name(params), profile=str(path)) if path.exists() else params
    is_training = "training" in type(params).model_fields
    fixed = OF_STATE + OF_TASK if is_training else ("*",)
    changes = check_changes(path, run_recipe(saved), params, fixed)
    if is_training and value_of(params, "training.resume") == "never" != value_of(saved, "training.resume"):
        raise ParamsError(
            f"{path}: training.resume is 'never' now, but this directory holds attempts. Give another --out "
            "(output_dir)."
        )
    last = runs.read_status(directory, ask=lambda _: {})  # done or not: SLURM need not be asked
    if last is None or last.state != "done":
        return False
    checkpoint = latest_checkpoint(directory) if is_training else None
    if checkpoint is not None and checkpoint_step(checkpoint) < value_of(params, "training.max_steps"):
        return False
    others = ", ".join(
        f"{field} {change}"
        for field, change in changes.items()
        if not any(fnmatchcase(field, pattern) for pattern in NOT_OF_RESULTS)
    )
    if others:
        raise ParamsError(
            f"{directory}: finished by attempt {last.attempt} with other parameters: {others}. A finished "
            "run does not train again: give another --out (output_dir), or a larger training.max_steps."
        )
    return True
