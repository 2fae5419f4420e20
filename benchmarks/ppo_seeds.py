"""What PPO learns, seed by seed: a profile of ppo_openspiel trained from scratch, judged at its last update.

    python benchmarks/ppo_seeds.py --profile cpu --seeds 1 2 3 --json
    python benchmarks/ppo_seeds.py --profile embedded --seeds 1 2 --opponents random --games 400 --json

The rule of judging is fixed beforehand: sampled games of the averaged weights after the last update, from
both seats, with seeds that differ from those of training, compared with the untrained model on the same
seeds; never the best update of a run. `thresholds`: the first update at which a stage's fresh games had the
mean score that it requires. Runs are kept in outputs/seeds and resumed. `seconds`: wall time of play and
updates, without evaluation.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from rlnb.machine import probe, recommend
from rlnb.machine.threads import set_threads
from rlnb.notebook import load_cell
from rlnb.params import load_params, parse_set, resolve
from rlnb.ppo.checkpoint_arena import load_arena, load_snapshots
from rlnb.ppo.params import UNTRAINED, ArenaEvalParams, PpoOpenspielParams
from rlnb.ppo.setup import run_ppo
from rlnb.results import compare
from rlnb.run.checkpoints import latest_checkpoint
from rlnb.selfplay.arena import Way, match_measures, select_matches


def thresholds(rows: list[dict[str, float]], params: PpoOpenspielParams) -> dict[str, int | None]:
    """Return {stage: the first update at which its threshold was reached}; None for one that never was.

    A run leaves all but the last stage at once, so that the next row's score is of the next stage.
    """
    steps: dict[str, int | None] = {}
    for index, stage in enumerate(params.curriculum.stages, start=1):
        left = [row["step"] for row in rows if row.get("curriculum/stage", 0) > index]
        reached = [
            row["step"]
            for row in rows
            if row.get("curriculum/stage") == index
            and row["curriculum/episodes"] >= stage.min_episodes
            and row["curriculum/score"] >= stage.threshold
        ]
        steps[stage.name] = min([*left[:1], *reached[:1]], default=None)
    return steps


def arena(params: PpoOpenspielParams, run: Path, *, opponents: list[str], num_games: int) -> dict[str, Any]:
    """Return {"game against opponent": {"trained": {role: [score, low, high]}, "untrained", "gain"}}."""
    contest = {
        "checkpoint": latest_checkpoint(run),
        "compare_with": UNTRAINED,
        "opponents": opponents,
        "num_games": num_games,
        "modes": ["constrained"],
    }
    evaluation = load_params("arena_eval", overrides={"contest": contest})
    assert isinstance(evaluation, ArenaEvalParams)
    policy_arena = load_arena(evaluation, params)
    snapshots = load_snapshots(evaluation.contest, policy_arena)
    plan = [(Way("constrained"), name) for name in snapshots]
    rows = policy_arena.play_matches(plan, snapshots, num_games=num_games)
    results: dict[str, Any] = {}
    for row in rows:
        name = "untrained" if row.weights == UNTRAINED else "trained"
        score = [round(value, 3) for value in (row.score.value, row.score.low, row.score.high)]
        results.setdefault(f"{row.game} against {row.opponent}", {}).setdefault(name, {})[row.role] = score
    trained, untrained = (match_measures(select_matches(rows, weights=name)) for name in snapshots)
    for comparison in compare(untrained, trained):
        if comparison.split in results:
            gain = comparison.difference
            results[comparison.split]["gain"] = [
                round(value, 3) for value in (gain.value, gain.low, gain.high)
            ]
    return results


def judge(params: PpoOpenspielParams, run: Path, *, opponents: list[str], num_games: int) -> dict[str, Any]:
    """Train, or resume, and return the results."""
    reward = load_cell("ppo_openspiel", "reward", {"params": params})["reward"]
    rows = run_ppo(params, run, reward=reward)  # type: ignore[arg-type]
    seconds = sum(row.get("time/rollout_seconds", 0.0) + row.get("time/update_seconds", 0.0) for row in rows)
    return {
        "step": rows[-1]["step"],
        "games": rows[-1].get("play/num_games", 0.0),
        "seconds": round(seconds, 1),
        "thresholds": thresholds(rows, params),
        "arena": arena(params, run, opponents=opponents, num_games=num_games),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", default="cpu", help="a file of params/ppo_openspiel")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--opponents", nargs="+", default=["random", "mcts:10", "nash"])
    parser.add_argument("--games", type=int, default=400, help="against each opponent, half from each seat")
    parser.add_argument("--set", nargs="*", default=[], help="parameters, as for rlnb run: replay.share=0")
    parser.add_argument("--out", default="outputs/seeds", help="where runs are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    for seed in options.seeds:
        params = load_params(
            "ppo_openspiel", profile=options.profile, overrides=parse_set(*options.set, f"seed={seed}")
        )
        params = resolve(params, recommend(probe(ask_hub=False)))
        if params.training.num_threads:
            set_threads(params.training.num_threads)
        run = Path(options.out) / f"ppo-{options.profile}-{params.training.max_steps}" / str(seed)
        results[str(seed)] = judge(params, run, opponents=options.opponents, num_games=options.games)
        print(seed, results[str(seed)], flush=True)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
