"""Measure what the embedded model learns about 2048 in 40 steps, for several seeds: validity and skill.

    .venv/bin/python benchmarks/strategy_seeds.py --json               # five seeds, an hour and a half
    .venv/bin/python benchmarks/strategy_seeds.py --out outputs/bonus --set training.entropy_coef=0.02

Each seed is a run of notebooks/gpt_oss_2048.ipynb at the cpu profile, in a directory of its own; finished
ones are not run again, interrupted ones go on. Differences are after minus before, on held-out boards in a
held-out wording. Each run draws boards of its own, so figures differ when this is repeated; to play the
boards of an earlier run, pass --set board.same_as=DIR of that run.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "notebooks" / "gpt_oss_2048.ipynb"


def run_seed(seed: int, directory: Path, assignments: list[str]) -> dict[str, Any]:
    """Return the results of one seed, after running it if needed. Raises CalledProcessError if it fails."""
    if not (directory / "results.json").exists():
        options = [part for assignment in [f"seed={seed}", *assignments] for part in ("--set", assignment)]
        command = [sys.executable, "-m", "rlnb.cli", "run", str(NOTEBOOK), "--profile", "cpu", "--out"]
        subprocess.run([*command, str(directory), *options], cwd=ROOT, check=True, stdout=sys.stderr)
    results: dict[str, Any] = json.loads((directory / "results.json").read_text(encoding="utf-8"))
    return results


def read_figures(results: dict[str, Any]) -> dict[str, Any]:
    """Return the row of one seed; estimates are {"value", "low", "high"}, None if nothing was honest."""
    gains = {row["measure"]: row["difference"] for row in results["comparison"]}
    after = results["figures"]["after"]
    return {
        "score_gain": gains["score"],
        "honest_share": after["honest_share"],
        "skill": after.get("skill"),
        "greedy_skill": after.get("greedy_skill"),
        "distinct_programs": after["distinct_programs"],
    }


def format_figure(figure: Any) -> str:
    if isinstance(figure, dict):
        return f"{figure['value']:+.3f} [{figure['low']:+.3f}, {figure['high']:+.3f}]"
    return "none" if figure is None else f"{figure:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "strategy_seeds")
    parser.add_argument(
        "--set", action="append", default=[], dest="assignments", metavar="SECTION.FIELD=VALUE"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on the last line")
    options = parser.parse_args()
    rows = {}
    for seed in options.seeds:
        rows[seed] = read_figures(run_seed(seed, options.out.resolve() / f"seed-{seed}", options.assignments))
        print(f"seed {seed}:", *(f"{name} {format_figure(value)};" for name, value in rows[seed].items()))
    valid = [row["score_gain"]["value"] >= 0.5 and row["score_gain"]["low"] > 0 for row in rows.values()]
    skilled = [row["skill"] is not None and row["skill"]["low"] > 0 for row in rows.values()]
    summary = {
        "seeds": rows,
        "num_valid": sum(valid),  # gained 0.5 with the lower bound above zero
        "num_honest": sum(row["honest_share"] >= 0.9 for row in rows.values()),
        "num_skilled": sum(skilled),  # whose interval of skill lies above random play
        "median_skill": statistics.median(
            row["skill"]["value"] if row["skill"] else -1.0 for row in rows.values()
        ),
    }
    if options.json:
        print(json.dumps(summary))


if __name__ == "__main__":
    main()
