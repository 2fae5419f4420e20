"""The commands about many runs, and the options that commands share. Only argparse is imported at first."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rlnb.errors import ParamsError

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Main = Callable[[Sequence[str]], int]  # `main` of rlnb/cli.py
Run = Callable[[argparse.Namespace], int]

SWEEP_HELP = """\
Run every point of a sweep on this machine, some at a time. Each point is a run in a directory of its own,
with its output in run.log. Run the same command again, and unfinished points go on, finished ones stay.
Exit codes: 0 all are done; 1 some failed; 2 refused before any ran; 85 stopped by a signal, run it again.
"""
SUBMIT_HELP = """\
Submit a run, or the points of a sweep as an array, to SLURM. What the job would refuse is refused here, also
for a GPU that this machine does not have. The job saves before its time is up and goes back into the queue as
long as it makes steps. The same command again goes on with what is not done. Options of sbatch follow `--`:
  rlnb submit notebooks/grpo_code_execution.ipynb --profile v100 -- --time=08:00:00 --gres=gpu:volta:1
"""
RUNS_HELP = """\
Print the state of each run in and below the directories, the newest first: done, running, preempted, failed,
died at step N (its process or job is gone), waiting (its job is in the queue), pending (a point that has not
begun), new (a run that has not begun), or unreadable (its files may not be read).
"""
RESULTS_HELP = """\
Print the runs of a sweep, or of any folder, as one table: the parameters in which they differ, how each
ended, and the last value of each measure, never the best one. Runs that differ only in their seed are one
group, with means, their 95% intervals, and the differences from the first group over paired seeds.
Two runs of mbpp_eval, or two files with results on MBPP, are compared problem by problem.
"""
PREFETCH_HELP = """\
Fetch what a run will need, on a machine with a network such as a login node: its models in the form that the
profile's machine loads, its tokenizer, MBPP. Files that are there are not fetched again.
"""


# Options that several commands share, as argparse takes them.
SHARED: dict[str, dict[str, Any]] = {
    "--profile": {
        "metavar": "PROFILE", "type": os.path.expanduser,  # shells leave the ~ of --profile=~/x.yaml
        "help": "a file of params/<notebook>/ by its name, or a path ending in .yaml or .json "
        "(default: what suits this machine)",
    },
    "--set": {
        "action": "append", "default": [], "dest": "assignments", "metavar": "SECTION.FIELD=VALUE",
        "help": "one parameter, over the profile and the environment; may be repeated",
    },
    "--out": {
        "metavar": "DIR",
        "help": "directory; a run in it goes on with its profile (default: outputs/<notebook>/<profile>-NNN, "
        "the newest unfinished run with the same parameters or else a new one; of a sweep outputs/<notebook>/"
        "<sweep>-<profile>)",
    },
    "--sweep": {
        "type": lambda text: Path(os.path.expanduser(text)), "metavar": "FILE",
        "help": "a grid or a list: params/sweeps/NAME.yaml",
    },
    "--seeds": {"metavar": "1-5", "help": "every point with these seeds: 1-5, or 1,3,7"},
    "--machine": {
        "metavar": "NAME",
        "help": "kind of the machine that runs it: v100, t4, a100, h100, gb10, ... (default: the one that "
        "the profile is named after, else this one)",
    },
    "--gpu-memory": {
        "type": float, "metavar": "GIB",
        "help": "memory of its GPU, on which model.id = auto depends (default: of the smallest such GPU)",
    },
}  # fmt: skip
STATE: dict[str, Any] = {
    "action": "append", "default": [], "help": "only such runs; repeatable",
    "choices": ["done", "running", "preempted", "failed", "died", "waiting", "pending", "new", "unreadable"],
}  # fmt: skip
PARAMETERS, POINTS, MACHINE = ("--profile", "--set"), ("--sweep", "--seeds"), ("--machine", "--gpu-memory")


def add_command(
    commands: Commands, name: str, run: Run, help: str, *, description: str = "", shared: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """Add a command that calls `run` with its options, and return its parser. shared: names in SHARED."""
    command = commands.add_parser(
        name, help=help, description=description or help, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.set_defaults(command=run)
    for option in shared:
        command.add_argument(option, **SHARED[option])
    return command


def add_batch_commands(commands: Commands, main: Main) -> None:
    """Add the commands of this module. main: runs another command of rlnb."""
    sweep = add_command(
        commands, "sweep", lambda options: _sweep(options, main),
        "run a grid of parameters, or several seeds, on this machine",
        description=SWEEP_HELP, shared=(*PARAMETERS, "--out", *POINTS),
    )  # fmt: skip
    sweep.add_argument("target", type=Path, metavar="NOTEBOOK", help="or the folder of a sweep, with --point")
    sweep.add_argument("--jobs", type=int, default=1, metavar="N", help="points at a time (default: 1)")
    sweep.add_argument(
        "--point", type=int, metavar="I", help="run point I of a prepared folder; points count from 0"
    )

    submit = add_command(
        commands, "submit", _submit, "submit a run, or a sweep, to SLURM",
        description=SUBMIT_HELP, shared=(*PARAMETERS, "--out", *POINTS, *MACHINE),
    )  # fmt: skip
    submit.add_argument("notebook", type=Path, metavar="NOTEBOOK")
    submit.add_argument("--dry-run", action="store_true", help="print the script; write and submit nothing")

    runs = add_command(
        commands, "runs", _runs, "print the state of all runs",
        description=RUNS_HELP,
    )  # fmt: skip
    runs.add_argument("directories", type=Path, nargs="*", metavar="DIR", help="default: outputs")
    runs.add_argument("--state", **STATE)
    runs.add_argument("--csv", action="store_true", help="print CSV")

    results = add_command(
        commands, "results", _results, "print the runs of a sweep or folder as one table, or compare two",
        description=RESULTS_HELP,
    )  # fmt: skip
    results.add_argument(
        "paths",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="folder of a sweep or of runs; or two results",
    )
    results.add_argument(
        "--show", action="append", default=[], metavar="MEASURE", help="(default: the main ones); repeatable"
    )
    results.add_argument(
        "--gains", action="store_true", help="before, after, difference; intervals over items, runs and both"
    )
    results.add_argument("--state", **STATE)
    results.add_argument("--csv", action="store_true", help="print CSV: a line a run, all measures")

    prefetch = add_command(
        commands, "prefetch", _prefetch, "fetch a run's models and data, for a machine without a network",
        description=PREFETCH_HELP, shared=(*PARAMETERS, *MACHINE),
    )  # fmt: skip
    prefetch.add_argument("notebook", type=Path, metavar="NOTEBOOK")


def _sweep(options: argparse.Namespace, main: Main) -> int:
    from rlnb.batch.sweeps import prepare_sweep, read_sweep

    if options.point is not None:
        return main(read_sweep(options.target).run_arguments(options.point))
    if options.jobs < 1:
        raise ParamsError(f"--jobs {options.jobs}: is not a number of points; write 1 or more")
    from rlnb.batch.local import run_points
    from rlnb.run.disk import telling_full_disk

    sweep = prepare_sweep(
        options.target, profile=options.profile, sweep=options.sweep, seeds=options.seeds,
        assignments=options.assignments, out=path_or_none(options.out),
    )  # fmt: skip
    with telling_full_disk(sweep.directory):
        return run_points(sweep, num_jobs=options.jobs)


def path_or_none(text: str | None) -> Path | None:
    """Return the value of --out as a path. Raises ParamsError for an empty one."""
    if text is not None and not text.strip():
        raise ParamsError("--out: is empty; most likely the shell variable in it is not set")
    return None if text is None else Path(os.path.expanduser(text))


def _results(options: argparse.Namespace) -> int:
    from rlnb.batch import points_table as tables

    is_plain = not (options.show or options.gains or options.csv or options.state)
    if len(options.paths) == 2 and is_plain and all(map(_can_be_compared, options.paths)):
        from rlnb.results import compare_files

        print(compare_files(*options.paths))
        return 0
    results = tables.gather_results(options.paths)
    if options.state:
        results = results[results["state"].str.split().str[0].isin(options.state)]
    if options.csv:
        print(results.to_csv(index=False), end="")
        return 0
    groups = tables.group_results(results)
    measures = tables.choose_measures(results, options.show)
    print(tables.show_points(results, measures))
    if any(len(group.results) > 1 for group in groups):
        print("", tables.show_groups(groups, measures), sep="\n")
    if options.gains:
        for group in groups:
            print("", tables.show_gains(group), sep="\n")
    if failures := tables.show_failures(results):
        print("", *failures, sep="\n")
    return 0


def _can_be_compared(path: Path) -> bool:
    """Return whether a path is a file of results, or the directory of a run of mbpp_eval."""
    saved = path / "params.yaml"
    if not saved.is_file():
        return path.is_file()
    lines = saved.read_text(encoding="utf-8", errors="replace").splitlines()
    return "notebook: mbpp_eval" in lines


def _prefetch(options: argparse.Namespace) -> int:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # before huggingface_hub is imported
    from rlnb.batch.prefetch import prefetch
    from rlnb.params import parse_set

    return prefetch(
        options.notebook, profile=options.profile, overrides=parse_set(*options.assignments),
        machine=options.machine, gpu_memory=options.gpu_memory,
    )  # fmt: skip


def _runs(options: argparse.Namespace) -> int:
    import csv
    from dataclasses import astuple, fields

    from rlnb.batch.overview import RunRow, list_runs
    from rlnb.display.tables import Table

    told = list_runs(options.directories or [Path("outputs")])
    told.sort(key=lambda row: row.started, reverse=True)
    headers = [field.name for field in fields(RunRow)]
    rows = [astuple(row) for row in told if not options.state or row.state.split()[0] in options.state]
    if options.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([headers, *rows])
    else:
        print(Table(headers, rows, empty="no runs"))
    return 0


def _submit(options: argparse.Namespace) -> int:
    from rlnb.batch.submit import submit

    options.out = path_or_none(options.out)
    return submit(options)
