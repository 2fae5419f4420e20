"""Measure what the embedded model learns about 2048 at its cpu profile, for several seeds: validity, skill.

    .venv/bin/python benchmarks/strategy_seeds.py --json               # five seeds, an hour
    .venv/bin/python benchmarks/strategy_seeds.py --out outputs/bonus --set training.entropy_coef=0.02

Each seed is a run of notebooks/gpt_oss_2048.ipynb at the cpu profile, in a directory of its own; finished
ones are not run again, interrupted ones go on. Differences are after minus before, on held-out boards in a
held-out wording. Each run draws boards of its own, so figures differ when this is repeated; to play the
boards of an earlier run, pass --set board.same_as=DIR of that run.
"""

import json
import statistics
from typing import Any

from notebook_seeds import run_seeds, seeds_parser


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
    options = seeds_parser(str(__doc__), seeds=[0, 1, 2, 3, 4], out="strategy_seeds").parse_args()
    rows = {}
    for seed, results in run_seeds("gpt_oss_2048", options):
        rows[seed] = read_figures(results)
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
