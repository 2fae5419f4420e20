"""The commands about many runs. Only argparse is needed until one of them is called."""

import argparse
import os
from pathlib import Path

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
    prefetch.add_argument(
        "--machine",
        metavar="NAME",
        help="kind of the machine that runs it: v100, t4, a100, h100, gb10, ... (default: the one that the "
        "profile is named after, else this one)",
    )
    prefetch.add_argument(
        "--gpu-memory",
        type=float,
        metavar="GIB",
        help="memory of its GPU, on which model.id = auto depends (default: of the smallest such machine)",
    )
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
