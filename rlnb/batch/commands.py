"""The commands about many runs. Only argparse is needed until one of them is called."""

import argparse
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
    sweep.add_argument("--jobs", type=int, default=1, metavar="N", help="points at a time (default: 1)")
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
        return main(read_point(options.target, options.point))
    if options.jobs < 1:
        raise ParamsError(f"--jobs {options.jobs}: is not a number of points; write 1 or more")
    from rlnb.batch.local import run_points

    sweep = prepare_sweep(
        options.target,
        profile=options.profile,
        sweep=options.sweep,
        seeds=options.seeds,
        assignments=options.assignments,
        out=options.out,
    )
    return run_points(sweep, num_jobs=options.jobs)


RESULTS_HELP = """\
Gather the runs of a sweep, or of any folder, into one table: the parameters in which they differ, how each
ended, and the last value of each measure, never the best one. Runs that differ in their seed alone are one
group, with the mean and Student's 95% interval over them.
"""
RESULTS_EXAMPLES = """\
examples:
  rlnb results outputs/spiral_self_play/spiral_advantages-cpu --lowest-first \\
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
    results.add_argument("--lowest-first", action="store_true", help="--rank: lower is better")
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

    results = tables.gather_results(options.directories, reach=options.reach)
    groups = tables.group_results(results, by=options.by)
    if options.csv:
        print(tables.groups_csv(groups) if options.by else tables.points_csv(results), end="")
        return 0
    wanted = dict.fromkeys([*options.show, *options.rank, *options.reach])
    measures = tables.choose_measures(results, list(wanted) if options.show or options.rank else [])
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
