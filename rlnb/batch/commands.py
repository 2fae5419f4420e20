"""The commands about many runs. Only argparse is needed until one of them is called."""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rlnb.errors import ParamsError

SWEEP_HELP = """\
Run every point of a sweep on this machine, some at a time. Each point is a run in a directory of its own,
with its output in run.log. Run the same command again, and unfinished points go on, finished ones stay.
"""
SWEEP_EXAMPLES = """\
examples:
  rlnb sweep notebooks/spiral_self_play.ipynb --profile kuhn --seeds 1-5
  rlnb sweep notebooks/spiral_self_play.ipynb --profile cpu --sweep params/sweeps/spiral_advantages.yaml \\
      --seeds 1-5 --jobs 2
  rlnb sweep --point 3 outputs/spiral_self_play/spiral_advantages-cpu     # that one alone, as a SLURM task

exit codes:
  0 all points are done; 1 some failed, the table says why; 2 refused before any point ran;
  85 stopped by a signal, which all running points received: run again to go on.
"""

Main = Callable[[Sequence[str]], int]  # `main` of rlnb/cli.py


def add_sweep(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", main: Main) -> None:
    """Add `rlnb sweep`. main: runs another command of rlnb."""
    sweep = commands.add_parser(
        "sweep",
        help="run a grid of parameters, or several seeds, on this machine",
        description=SWEEP_HELP,
        epilog=SWEEP_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sweep.add_argument("target", type=Path, metavar="NOTEBOOK", help="with --point: the folder of a sweep")
    add_points(sweep)
    sweep.add_argument("--jobs", type=int, metavar="N", help="points at a time (default: 1)")
    sweep.add_argument(
        "--point", type=int, metavar="I", help="run point I of a prepared folder; points count from 0"
    )
    sweep.set_defaults(command=lambda options: _sweep(options, main))


def add_points(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which points a command is about."""
    parser.add_argument("--profile", metavar="PROFILE", help="as in `rlnb run`, for all points")
    parser.add_argument(
        "--sweep", type=Path, metavar="FILE", help="a grid or a list: params/sweeps/NAME.yaml"
    )
    parser.add_argument("--seeds", metavar="1-5", help="every point with these seeds: 1-5, or 1,3,7")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="assignments",
        metavar="SECTION.FIELD=VALUE",
        help="one parameter of all points; may be repeated",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder (default: outputs/<notebook>/<sweep>-<profile>)"
    )


def _sweep(options: argparse.Namespace, main: Main) -> int:
    from rlnb.batch.sweeps import prepare_sweep, read_point

    if options.point is not None:
        names = ("profile", "sweep", "seeds", "out", "assignments", "jobs")
        if given := [name for name in names if getattr(options, name) not in (None, [])]:
            word = given[0].replace("assignments", "set")
            raise ParamsError(f"--{word}: has no place beside --point, which takes what points.json says")
        return main(read_point(options.target, options.point))
    num_jobs = 1 if options.jobs is None else options.jobs
    if num_jobs < 1:
        raise ParamsError(f"--jobs {num_jobs}: is not a number of points; write 1 or more")
    from rlnb.batch.local import run_points

    sweep = prepare_sweep(
        options.target,
        profile=options.profile,
        sweep=options.sweep,
        seeds=options.seeds,
        assignments=options.assignments,
        out=options.out,
    )
    return run_points(sweep, num_jobs=num_jobs)


RESULTS_HELP = """\
Gather the runs of a sweep, or of any folder, into one table: the parameters in which they differ, how each
ended, and the last value of each measure, never the best one. Runs that differ in their seed alone are one
group, with the mean and Student's 95% interval over them.
"""
RESULTS_EXAMPLES = """\
examples:
  rlnb results outputs/spiral_self_play/spiral_advantages-cpu \\
      --rank exact/loss_first --rank exact/loss_second
  rlnb results outputs/grpo_code_execution/seeds-cpu --gains
  rlnb results outputs/ppo_openspiel/seeds-cpu --reach "curriculum/stage>=2" --csv > points.csv
"""


def add_results(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `rlnb results`."""
    results = commands.add_parser(
        "results",
        help="the runs of a sweep, or of any folder, as one table",
        description=RESULTS_HELP,
        epilog=RESULTS_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    results.add_argument("directories", type=Path, nargs="+", metavar="DIR", help="of a sweep, or of runs")
    for option, name, help in (
        ("--by", "FIELD", "group the runs by this field (default: by all in which they differ but the seed)"),
        ("--show", "MEASURE", "a measure to show (default: the main ones); all of them are in --csv"),
        ("--rank", "MEASURE", "rank the groups by it, by the mean where several are given"),
        ("--reach", "MEASURE>=X", "a measure more: the first step that meets it; several with commas"),
    ):
        results.add_argument(
            option, action="append", default=[], metavar=name, help=f"{help}; may be repeated"
        )
    results.add_argument(
        "--lowest-first", action="store_true", help="--rank: lower is better, as it is for losses"
    )
    results.add_argument(
        "--gains",
        action="store_true",
        help="before, after and difference, each with its intervals over items, over runs and over both",
    )
    results.add_argument(
        "--csv", action="store_true", help="print CSV: a line a run, with --by a line a group and measure"
    )
    results.set_defaults(command=_results)


def _results(options: argparse.Namespace) -> int:
    from rlnb.batch import points_table as tables
    from rlnb.params import load_dotenv

    if options.csv:
        _refuse_options_of_tables(options)
    load_dotenv(Path.cwd())  # whose fields the points that have not begun will take
    results = tables.gather_results(options.directories, reach=options.reach)
    groups = tables.group_results(results, by=options.by)
    if options.csv:
        print(tables.groups_csv(groups) if options.by else tables.points_csv(results), end="")
        return 0
    named = [name for name in dict.fromkeys([*options.show, *options.rank]) if name not in options.reach]
    # A condition is a column even where no run has met it.
    measures = list(dict.fromkeys([*tables.choose_measures(results, named), *options.reach]))
    first = groups[0]
    if options.rank:
        groups = tables.rank_groups(groups, options.rank, lowest_first=options.lowest_first)
    print(tables.show_points(results, measures))
    if any(len(group.results) > 1 for group in groups):
        print("", tables.show_groups(groups, measures, judged_by=options.rank, first=first), sep="\n")
    if options.gains:
        for group in groups:
            if group.finished:
                print("", tables.show_gains(group), sep="\n")
    if failures := tables.show_failures(results):
        print("", *failures, sep="\n")
    return 0


def _refuse_options_of_tables(options: argparse.Namespace) -> None:
    """Raise ParamsError for the options of the tables, which would change nothing in the CSV."""
    given = [f"--show {name}" for name in options.show] + [f"--rank {name}" for name in options.rank]
    given += ["--lowest-first"] * options.lowest_first + ["--gains"] * options.gains
    if given:
        raise ParamsError(
            f"--csv with {' '.join(given)}: CSV holds all measures and ranks nothing; leave out "
            f"{'this option' if len(given) == 1 else 'these options'}, or --csv"
        )


PREFETCH_HELP = """\
Fetch what a run will need, on a machine with a network such as a login node: its models in the form that the
profile's machine loads, its tokenizer, MBPP. What is there and verifies is not fetched again. Prints the
command that submits the run.
"""
PREFETCH_EXAMPLES = """\
examples:
  rlnb prefetch notebooks/grpo_code_execution.ipynb --profile v100
  rlnb prefetch notebooks/grpo_code_execution.ipynb --profile v100 --gpu-memory 32 --set tasks.source=builtin
  rlnb prefetch notebooks/mbpp_eval.ipynb --profile mine.yaml --machine a100
  rlnb prefetch notebooks/grpo_code_execution.ipynb --profile v100 --verify     # without a network

exit codes: 0 all is there; 1 --verify found something missing or damaged; 2 refused, or not to be had.
"""


def add_prefetch(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `rlnb prefetch`."""
    prefetch = commands.add_parser(
        "prefetch",
        help="fetch a run's models and data, for a machine without a network",
        description=PREFETCH_HELP,
        epilog=PREFETCH_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    prefetch.add_argument("notebook", type=Path, metavar="NOTEBOOK")
    prefetch.add_argument("--profile", metavar="PROFILE", help="as in `rlnb run`")
    prefetch.add_argument(
        "--set", action="append", default=[], dest="assignments", metavar="SECTION.FIELD=VALUE",
        help="one parameter, as in `rlnb run`",
    )  # fmt: skip
    add_target(prefetch)
    prefetch.add_argument("--verify", action="store_true", help="only compare checksums with the manifests")
    prefetch.set_defaults(command=_prefetch)


def add_sync(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `rlnb sync`."""
    sync = commands.add_parser(
        "sync",
        help="upload to W&B what was tracked offline",
        description="Upload the runs in and below the directories that were tracked with tracking.wandb = "
        "offline. Runs that have not changed since they were uploaded are left out.",
    )
    sync.add_argument("directories", type=Path, nargs="*", metavar="DIR", help="default: outputs")
    sync.set_defaults(command=_sync)


def _prefetch(options: argparse.Namespace) -> int:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # before huggingface_hub is imported
    from rlnb.batch.prefetch import prefetch
    from rlnb.params import parse_set

    return prefetch(
        options.notebook,
        profile=options.profile,
        overrides=parse_set(*options.assignments),
        assignments=options.assignments,
        machine=options.machine,
        gpu_memory=options.gpu_memory,
        verify=options.verify,
    )


def _sync(options: argparse.Namespace) -> int:
    from rlnb.batch.wandb_sync import sync

    return sync(options.directories or [Path("outputs")])


RUNS_HELP = """\
Say of each run in and below the directories how it is: done, running, preempted, failed, died at step N (its
process or its job is gone, whatever status.json says), waiting (its job is in the queue), pending (a point of
a sweep that has not begun). A run on another host is dead when nothing was heard of it for two minutes.
"""
RUNS_EXAMPLES = """\
examples:
  rlnb runs
  rlnb runs outputs/spiral_self_play --csv > runs.csv
"""


def add_runs(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `rlnb runs`."""
    runs = commands.add_parser(
        "runs",
        help="how all runs are: done, running, failed, dead, waiting",
        description=RUNS_HELP,
        epilog=RUNS_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    runs.add_argument("directories", type=Path, nargs="*", metavar="DIR", help="default: outputs")
    runs.add_argument("--csv", action="store_true", help="print CSV, with job and host")
    runs.set_defaults(command=_runs)


def _runs(options: argparse.Namespace) -> int:
    from rlnb.batch.overview import list_runs, runs_csv, runs_text

    rows = list_runs(options.directories or [Path("outputs")])
    print(runs_csv(rows) if options.csv else runs_text(rows), end="" if options.csv else "\n")
    return 0


SUBMIT_HELP = """\
Submit a run, or the points of a sweep as an array, to SLURM. All that the job would refuse is refused here,
also for a GPU that this machine has not. The script and the log lie in the folder of the run or the sweep.
The job saves before its time is up and goes back into the queue as long as it makes steps. The same command
again goes on with what is not done.
"""
SUBMIT_EXAMPLES = """\
examples:
  rlnb submit notebooks/grpo_code_execution.ipynb --profile v100 --time 08:00:00 \\
      --sbatch-option gres=gpu:volta:1
  rlnb submit notebooks/spiral_self_play.ipynb --profile cpu --sweep params/sweeps/spiral_advantages.yaml \\
      --seeds 1-5 --array-parallel 10 --cpus-per-task 2
  rlnb submit notebooks/ppo_openspiel.ipynb --profile h100 --nodes 2 --gpus 8
  rlnb submit notebooks/ppo_openspiel.ipynb --profile tiny --dry-run        # the script, not submitted
"""


def add_submit(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `rlnb submit`."""
    submit = commands.add_parser(
        "submit",
        help="a run, or a sweep, as a job of SLURM",
        description=SUBMIT_HELP,
        epilog=SUBMIT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    submit.add_argument("notebook", type=Path, metavar="NOTEBOOK")
    add_points(submit)
    add_target(submit)
    for option, kind, name, help in (
        ("--time", str, "HH:MM:SS", "time limit (default: 04:00:00)"),
        (
            "--gpus",
            int,
            "K",
            "GPUs of a node (default: 1 for the profile of a GPU, else 0); each gets a rank",
        ),
        ("--nodes", int, "M", "nodes, whose ranks train together (default: 1)"),
        ("--cpus-per-task", int, "C", "cores of a node (default: 8)"),
        ("--partition", str, "P", "partition (default: the cluster's)"),
        ("--warning-seconds", int, "S", "save this long before the limit; a step must fit (default: 300)"),
        ("--array-parallel", int, "K", "points of a sweep at a time (default: all)"),
    ):
        submit.add_argument(option, type=kind, metavar=name, help=help)
    submit.add_argument(
        "--sbatch-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option of sbatch, such as gres=gpu:volta:1; may be repeated",
    )
    submit.add_argument(
        "--vllm-node",
        action="store_true",
        help="one more node, on which a vLLM server writes the completions",
    )
    submit.add_argument("--dry-run", action="store_true", help="print the script, and submit nothing")
    submit.set_defaults(command=_submit)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the machine that a run is for."""
    parser.add_argument(
        "--machine",
        metavar="NAME",
        help="kind of the machine that runs it: v100, t4, a100, h100, gb10, ... (default: the one that the "
        "profile is named after, else this one)",
    )
    parser.add_argument(
        "--gpu-memory",
        type=float,
        metavar="GIB",
        help="memory of its GPU, on which model.id = auto depends (default: of the smallest such machine)",
    )


def _submit(options: argparse.Namespace) -> int:
    from rlnb.batch.submit import JobOptions, submit_run, submit_sweep
    from rlnb.params import parse_set

    job = JobOptions(
        time=options.time,
        gpus=options.gpus,
        nodes=1 if options.nodes is None else options.nodes,
        cpus_per_task=options.cpus_per_task,
        partition=options.partition,
        warning_seconds=options.warning_seconds,
        array_parallel=options.array_parallel,
        vllm_node=options.vllm_node,
        others=tuple(options.sbatch_option),
    )
    names = ("profile", "out", "machine", "gpu_memory")
    common = {name: getattr(options, name) for name in names}
    if options.sweep is None and options.seeds is None:
        overrides = parse_set(*options.assignments)
        return submit_run(
            options.notebook, overrides=overrides, options=job, is_dry=options.dry_run, **common
        )
    return submit_sweep(
        options.notebook,
        sweep=options.sweep,
        seeds=options.seeds,
        assignments=options.assignments,
        options=job,
        is_dry=options.dry_run,
        **common,
    )


def check_run(options: argparse.Namespace) -> int:
    """Check what a run would refuse on its machine, print its directory and memory, and start nothing."""
    from rlnb.batch.machines import describe_missing, job_machine
    from rlnb.params import parse_set
    from rlnb.run.headless import plan_run
    from rlnb.run.launcher import Ranks

    plan = plan_run(
        options.notebook,
        profile=options.profile,
        overrides=parse_set(*options.assignments),
        out=None if options.out is None else Path(options.out),
        ranks=Ranks(options.nproc, options.nnodes),
        machine=job_machine(options.profile, options.machine, options.gpu_memory),
        is_memory_known=options.gpu_memory is not None,
    )
    name = plan.notebook.name
    print(f"{plan.directory}: {name}, profile {plan.profile}, for {plan.machine.name}: not refused")
    if plan.memory:
        print(plan.memory)
    if missing := describe_missing(plan):
        print(f"On a node without a network this would be refused:\n{missing}")
    return 0
