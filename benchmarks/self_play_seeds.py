"""What self-play learns, seed by seed: a profile of spiral_self_play, judged at its last update.

    python benchmarks/self_play_seeds.py --profile kuhn --seeds 1 2 3 4 5 --json
    python benchmarks/self_play_seeds.py --profile cpu --kinds none rae leave_one_out gae --max-steps 100

Runs are judged by the exact measures after the last update, never by the best ones of a run. They are kept
in outputs/seeds and resumed, and their reward is the notebook's. `seconds`: wall time of play and updates,
without evaluation.
"""

import argparse
import json
from pathlib import Path

from rlnb.machine import probe, recommend
from rlnb.machine.threads import set_threads
from rlnb.notebook import load_cell
from rlnb.params import load_params, parse_set, resolve
from rlnb.spiral.ablation import make_variant, run_training


def judge_run(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return the exact measures after the last update, and the seconds of play and updates."""
    last = {
        name: round(value, 4) for name, value in rows[-1].items() if name.startswith(("exact/", "arena/"))
    }
    seconds = sum(row.get("time/rollout_seconds", 0.0) + row.get("time/update_seconds", 0.0) for row in rows)
    return {
        "step": rows[-1]["step"],
        "games": rows[-1].get("play/num_games", 0.0),
        "seconds": round(seconds, 1),
        **last,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", default="kuhn", help="a file of params/spiral_self_play")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument(
        "--kinds", nargs="+", default=[], help="advantages to compare; the profile's own by default"
    )
    parser.add_argument("--max-steps", type=int, default=0, help="updates of a run; the profile's by default")
    parser.add_argument("--set", nargs="*", default=[], help="parameters, as for rlnb run: game.name=hex")
    parser.add_argument("--out", default="outputs/seeds", help="where runs are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args()
    params = load_params("spiral_self_play", profile=options.profile, overrides=parse_set(*options.set))
    params = resolve(params, recommend(probe(ask_hub=False)))
    if params.training.num_threads:
        set_threads(params.training.num_threads)
    reward = load_cell("spiral_self_play", "reward", {"params": params})["reward"]
    kinds = options.kinds or [params.advantage.kind]
    max_steps = options.max_steps or params.training.max_steps
    results: dict[str, dict[str, dict[str, float]]] = {kind: {} for kind in kinds}
    for seed in options.seeds:
        for kind in kinds:
            variant = make_variant(params, kind, seed=seed, max_steps=max_steps)
            directory = Path(options.out) / f"{options.profile}-{max_steps}" / f"{kind}-{seed}"
            results[kind][str(seed)] = judge_run(run_training(variant, directory, reward=reward))
            print(kind, seed, results[kind][str(seed)], flush=True)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
