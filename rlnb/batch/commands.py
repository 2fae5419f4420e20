"""The commands about many runs. Only argparse is needed until one of them is called."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

SWEEP_HELP = """\
Run every point of a sweep on this machine, some at a time. Each point is a run in a directory of its own,
with its output in run.log. Run the same command again, and unfinished points go on, finished ones stay.
"""
SWEEP_EXAMPLES = """\
examples:
  rlnb sweep notebooks/spiral_self_play.ipynb --profile kuhn --seeds 1-5
  rlnb sweep notebooks/spiral_self_play.ipynb --profile cpu --sweep params/sweeps/spiral_advantages.yaml --jobs 2
  rlnb sweep --point 3 outputs/spiral_self_play/spiral_advantages-cpu     # point 3 alone, as a SLURM task does

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
    parser.add_argument("--sweep", type=Path, metavar="FILE", help="a grid or a list: params/sweeps/NAME.yaml")
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
