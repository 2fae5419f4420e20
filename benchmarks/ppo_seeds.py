"""What PPO learns, seed by seed: a profile of ppo_openspiel trained anew, judged at its last update.

    python benchmarks/ppo_seeds.py --profile cpu --seeds 1 2 3 --json
    python benchmarks/ppo_seeds.py --profile embedded --seeds 1 2 --opponents random --games 400 --json

The rule of judging is fixed beforehand: sampled games of the averaged weights after the last update, from
both seats, with seeds that no training has seen, beside the untrained model on the same seeds; never the best
of a run. `gates`: the update after which a stage's fresh games first had the mean score that it asks for.
Runs are kept in outputs/seeds and resumed. `seconds`: wall time of play and updates, without evaluation.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from rlnb.evaluation.contest import play_contest
from rlnb.machine import probe, recommend
from rlnb.params import load_params, parse_set, resolve
from rlnb.params.arena_eval import UNTRAINED
from rlnb.params.ppo_openspiel import PpoOpenspielParams
from rlnb.training.checkpoint_arena import arenas_of, contenders_of
from rlnb.training.checkpoints import latest_checkpoint
from rlnb.training.ppo_parts import train_run


def gates(rows: list[dict[str, Any]], params: PpoOpenspielParams) -> dict[str, int | None]:
    """{stage: the first update at which its own gate was open}; None for one that stayed shut.

    The gate of all but the last lets the run go on, and the next row's score is of the next stage.
    """
    found: dict[str, int | None] = {}
    for number, stage in enumerate(params.curriculum.stages, start=1):
        left = [row["step"] for row in rows if row.get("curriculum/stage", 0) > number]
        own = [
            row["step"]
            for row in rows
            if row.get("curriculum/stage") == number
            and row["curriculum/episodes"] >= stage.min_episodes
            and row["curriculum/score"] >= stage.threshold
        ]
        found[stage.name] = min([*left[:1], *own[:1]], default=None)
    return found


def arena(params: PpoOpenspielParams, run: Path, *, opponents: list[str], num_games: int) -> dict[str, Any]:
    """{"game opponent": [trained, low, high, untrained, low, high, ceiling]} of both seats, half of each."""
    asked = load_params(
        "arena_eval",
        overrides={
            "contest": {
                "checkpoint": latest_checkpoint(run),
                "compare_with": UNTRAINED,
                "opponents": opponents,
                "num_games": num_games,
                "modes": ["constrained"],
            }
        },
    )
    arenas = arenas_of(asked, params)
    contest = play_contest(
        arenas, contenders_of(asked.contest, arenas), num_games=num_games, modes=["constrained"]
    )
    found: dict[str, Any] = {}
    for name, rows in contest.rows.items():
        who = "untrained" if name == UNTRAINED else "trained"
        for row in rows:
            if not row.greedy:
                score = [row.score.value, row.score.low, row.score.high]
                by_seat = found.setdefault(f"{row.game} {row.opponent}", {}).setdefault(who, {})
                by_seat[row.role] = [round(value, 3) for value in score]
    for one in contest.differences:
        if not one.greedy:
            gain = (one.score.value, one.score.low, one.score.high)
            found[f"{one.game} {one.opponent}"]["gain"] = [round(value, 3) for value in gain]
    return found


def judged(params: PpoOpenspielParams, run: Path, *, opponents: list[str], num_games: int) -> dict[str, Any]:
    """Train, or go on, and say how it ended."""
    rows = train_run(params, run)
    seconds = sum(row.get("time/rollout_seconds", 0.0) + row.get("time/update_seconds", 0.0) for row in rows)
    return {
        "step": rows[-1]["step"],
        "games": rows[-1].get("play/num_games", 0.0),
        "seconds": round(seconds, 1),
        "gates": gates(rows, params),
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
    asked = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for seed in asked.seeds:
        params = load_params(
            "ppo_openspiel", profile=asked.profile, overrides=parse_set(*asked.set, f"seed={seed}")
        )
        params = resolve(params, recommend(probe(ask_hub=False)))
        if params.training.num_threads:
            torch.set_num_threads(params.training.num_threads)
        run = Path(asked.out) / f"ppo-{asked.profile}-{params.training.max_steps}" / str(seed)
        found[str(seed)] = judged(params, run, opponents=asked.opponents, num_games=asked.games)
        print(seed, found[str(seed)], flush=True)
    if asked.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
