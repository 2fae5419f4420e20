"""A run in JupyterLab: its kernel keeps the lock, the records and the status that `rlnb run` keeps else."""

import atexit
import os
from contextlib import ExitStack
from pathlib import Path

from rlnb.errors import ParamsError
from rlnb.machine import rank
from rlnb.params import dump_yaml
from rlnb.params.sections import NotebookParams, get_value, value_of
from rlnb.run import directory as runs
from rlnb.run.checkpoints import check_resuming, checkpoint_step, latest_checkpoint, set_aside
from rlnb.run.disk import telling_full_disk, write_text
from rlnb.run.headless import Plan, find_run_directories, is_finished, make_directory, move_run
from rlnb.run.prepare import Prepared

HELD = ExitStack()  # what this kernel holds of its run, one at a time: the lock and the heartbeat
BEGUN: list[Path] = []  # the run's directory
atexit.register(HELD.close)


def is_run_by_parent(output_dir: str) -> bool:
    """Return whether the process that started this kernel, such as `rlnb run`, keeps the run's directory."""
    status = runs.read_status(Path(output_dir), rank())
    return status is not None and status.state == "running" and status.pid == os.getppid()


def begin(notebook: str, prepared: Prepared, out: Path | None) -> NotebookParams:
    """Begin or continue a run in this kernel, and return its parameters.

    out: its directory, None to choose one as `rlnb run` does. The run before it in this kernel ends. Raises
    ParamsError or RunInUse before anything large is loaded.
    """
    HELD.close()
    plan = Plan(Path(f"{notebook}.ipynb"), {}, prepared.saved, prepared.machine, "")
    if out is not None and os.path.exists(out / runs.POINTS_FILE):
        raise ParamsError(
            f"output_dir = {str(out)!r}: is the folder of a sweep; name another, or a point in it"
        )
    with ExitStack() as held:
        make_directory(out or Path("outputs", notebook))
        if out is None:
            out = held.enter_context(runs.claimed_directory(find_run_directories(plan)))
        else:
            held.enter_context(runs.locked(out))
        plan, params = move_run(plan, out), prepared.params.model_copy(update={"output_dir": str(out)})
        if is_finished(out, plan.params):
            print(f"{out}: this run is finished, and is shown again. To train again, change output_dir.")
        else:
            with telling_full_disk(out):
                params = _start_attempt(plan, params, held)
        BEGUN.append(out.resolve())
        held.callback(BEGUN.clear)
        HELD.enter_context(held.pop_all())
    return params


def check_own(path: Path) -> None:
    """Raise RuntimeError for a file of another run than this kernel's, whose objects may still be there."""
    if BEGUN and BEGUN[0] not in path.resolve().parents:
        raise RuntimeError(f"{path} is of an earlier run; run all cells above again, for that in {BEGUN[0]}")


def _start_attempt(plan: Plan, params: NotebookParams, held: ExitStack) -> NotebookParams:
    directory, step = plan.directory, 0
    if get_value(params, "training.resume") == "never":
        if runs.read_status(directory) is None:
            set_aside(directory)
        # That was for the first attempt, and this kernel may run its training cell more than once.
        training = value_of(params, "training").model_copy(update={"resume": "auto"})
        params = params.model_copy(update={"training": training})
    if "training" in type(params).model_fields:
        check_resuming(params, directory)
        step = checkpoint_step(latest_checkpoint(directory))
    write_text(directory / "params.yaml", dump_yaml(plan.params))
    runs.write_versions(directory, machine=plan.machine)
    status = runs.start_attempt(directory, notebook=plan.notebook.name, first_step=step)
    held.callback(end, directory, "preempted", reason="its kernel was closed, or began another run")
    held.enter_context(runs.heartbeat(directory))
    print(f"{directory}: attempt {status.attempt}{f', from step {step}' if step else ''}")
    return params


def end(directory: Path, state: str, *, reason: str = "") -> None:
    """Record how this kernel's attempt in a directory ended, unless that is recorded or no other's."""
    status = runs.read_status(directory)
    if status is not None and status.state == "running" and status.pid == os.getpid():
        runs.end_attempt(directory, status, state=state, reason=reason)
