"""Run a notebook once a seed, for the tables of what it learns."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def seeds_parser(description: str, *, seeds: list[int], out: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=seeds)
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / out)
    parser.add_argument(
        "--set", action="append", default=[], dest="assignments", metavar="SECTION.FIELD=VALUE"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on the last line")
    return parser


def run_seeds(notebook: str, options: argparse.Namespace) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (seed, results.json) of a run of each seed; finished runs are not run again, others go on.

    Raises CalledProcessError if one fails.
    """
    for seed in options.seeds:
        directory = options.out.resolve() / f"seed-{seed}"
        if not (directory / "results.json").exists():
            command = [sys.executable, "-m", "rlnb.cli", "run", str(ROOT / "notebooks" / f"{notebook}.ipynb")]
            command += ["--profile", options.profile, "--out", str(directory)]
            for assignment in [f"seed={seed}", *options.assignments]:
                command += ["--set", assignment]
            subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
        yield seed, json.loads((directory / "results.json").read_text(encoding="utf-8"))
