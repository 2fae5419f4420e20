"""`rlnb eval --checkpoint`: a checkpoint's games against opponents.

Its averaged weights play from both seats. Model, prompts, temperature, games and
seeds are those of its run, so two checkpoints of a run play the same games.
"""

import itertools
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import cast

from rlnb.errors import ParamsError
from rlnb.games.opponent_names import canonical_name, name_fault
from rlnb.games.opponents import playable_opponents
from rlnb.games.text_games import TextGame
from rlnb.machine import apply_environment
from rlnb.machine.threads import set_threads
from rlnb.params import check_machine
from rlnb.policy import load_policy
from rlnb.policy.adapters import WeightSnapshot
from rlnb.ppo.curriculum import load_curriculum, score_stages
from rlnb.ppo.display import show_success
from rlnb.ppo.params import PpoOpenspielParams
from rlnb.results import save_results
from rlnb.run.checkpoints import RANKS, latest_checkpoint, saved_recipe
from rlnb.run.memory import memory_advice
from rlnb.run.prepare import Values, load
from rlnb.run.tracking import read_metrics
from rlnb.selfplay.arena import Arena, Match, describe_answers
from rlnb.selfplay.checkpoints import AVERAGE_FILE, PARAMS_FILE
from rlnb.selfplay.display import draw_arena, show_arena
from rlnb.selfplay.params import GameRunParams
from rlnb.selfplay.rollouts import GameRules


def evaluate_checkpoint(
    checkpoint: str,
    *,
    opponents: Sequence[str] = ("random",),
    num_episodes: int = 100,
    out: str | None = None,
) -> None:
    """Play `num_episodes` games against each opponent; print the scores and write arena.json and arena.png.

    checkpoint: as `find_checkpoint` takes it. num_episodes: against an opponent in all, spread over the games
    that it can play and both seats. out: the folder of the results, by default a new one in the checkpoint's
    run. Raises ParamsError before a model is loaded.
    """
    checkpoint = find_checkpoint(checkpoint)
    check_options(checkpoint, opponents, num_episodes)
    run = load_run_params(checkpoint)
    games = [run.game.load_game(name) for name in run.game_names()]
    names = dict.fromkeys(map(canonical_name, opponents))
    matches = [match for name in names for match in share_games(name, games, num_episodes)]
    print(describe_plan(matches, checkpoint, run))
    arena = Arena(
        load_policy(run.model, seed=run.seed), run, GameRules(invalid=run.game.invalid), [], has_value=False
    )
    average = WeightSnapshot.take(arena.actor.policy)
    average.load(Path(checkpoint) / AVERAGE_FILE)
    folder = Path(out) if out else make_folder(checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Match] = []
    with memory_advice(run), arena.using(average):
        for num_done, (game, opponent, num_games) in enumerate(matches, start=1):
            rows += arena.play_match(game, opponent, num_games=num_games, weights="average")
            print(f"match {num_done} of {len(matches)}", file=sys.stderr)
    print("\n".join([str(show_arena(rows)), *describe_answers(rows)]))
    if isinstance(run, PpoOpenspielParams):
        print(f"\n{show_success(score_stages(rows, load_curriculum(run)))}")
    save_results(
        folder / "arena.json", params=run, rows=rows, checkpoint=checkpoint, num_episodes=num_episodes
    )
    draw_arena({Path(checkpoint).name: rows}).savefig(folder / "arena.png", bbox_inches="tight")
    print(f"\n{folder}: arena.json, arena.png")


def find_checkpoint(given: str) -> str:
    """Return a checkpoint's directory: the one given, or the last of the run given as RUN or RUN/final.

    `final` alone is the last checkpoint of the run in outputs/ that saved last.
    """
    path = Path(given)
    if (path / AVERAGE_FILE).is_file():
        return given
    if given == "final":
        saved = Path("outputs").glob(f"*/*/checkpoints/*/{AVERAGE_FILE}")
        path = max(saved, key=os.path.getmtime, default=path).parent.parent
    elif path.name == "final":
        path = path.parent
    run = path.parent if path.name == "checkpoints" else path
    return latest_checkpoint(run) or given


def share_games(
    opponent: str, games: Sequence[TextGame], num_episodes: int
) -> list[tuple[TextGame, str, int]]:
    """Return each game that the opponent can play with its share of the episodes, which is even.

    Raises ParamsError where it can play none, or a game would have no share.
    """
    playable = [game for game in games if playable_opponents(game, [opponent])]
    if not playable:
        names = ", ".join(game.name for game in games)
        raise ParamsError(f"--opponent = {opponent!r} can play none of {names}; write random")
    if num_episodes < 2 * len(playable):
        raise ParamsError(
            f"--episodes = {num_episodes} is less than a game from each seat of each of the {len(playable)} "
            f"games against {opponent}; write at least {2 * len(playable)}"
        )
    pairs, num_larger = divmod(num_episodes // 2, len(playable))
    return [(game, opponent, 2 * (pairs + (index < num_larger))) for index, game in enumerate(playable)]


def describe_plan(matches: Sequence[tuple[TextGame, str, int]], checkpoint: str, run: GameRunParams) -> str:
    """Return how many games will be played, and about how long, by the speed of the run's training."""
    total = sum(num_games for _, _, num_games in matches)
    rows = read_metrics(Path(checkpoint).resolve().parents[1] / "metrics.jsonl")
    seconds = [row["time/rollout_seconds"] for row in rows if row.get("time/rollout_seconds")]
    estimate = "no estimate, since metrics.jsonl of its run has no times"
    if seconds:
        num_ranks = cast(int, saved_recipe(checkpoint)[RANKS])  # each played a share of the games
        each = num_ranks * median(seconds) / run.training.games_per_step
        duration = timedelta(seconds=round(total * each))
        estimate = f"about {duration}, at the {each:.2g} s a game of its training"
    opponents = dict.fromkeys(opponent for _, opponent, _ in matches)
    return f"{checkpoint}: {total} games against {', '.join(opponents)}; {estimate}"


def check_options(checkpoint: str, opponents: Sequence[str], num_episodes: int) -> None:
    """Raise ParamsError for options that are wrong whatever the run is."""
    if not Path(checkpoint, AVERAGE_FILE).is_file():
        raise ParamsError(
            f"--checkpoint = {checkpoint!r} holds no {AVERAGE_FILE}, as checkpoints of spiral_self_play and "
            "ppo_openspiel do; write a run's directory or its checkpoints/checkpoint-N"
        )
    for name in opponents:
        if fault := name_fault(name):
            raise ParamsError(f"--opponent = {name!r} {fault}")
    if num_episodes < 2 or num_episodes % 2:
        raise ParamsError(
            f"--episodes = {num_episodes} cannot be played half from each seat; write an even number"
        )


def load_run_params(checkpoint: str) -> GameRunParams:
    """Return the parameters of a checkpoint's run. Raises ParamsError for a model that cannot run here."""
    path = Path(checkpoint) / PARAMS_FILE
    lines = path.read_text(encoding="utf-8").splitlines()
    notebook = next((line.split()[1] for line in lines if line.startswith("notebook: ")), "")
    # What the run started from, a checkpoint or adapters, may be gone by now.
    overrides: dict[str, object] = {"training": {"resume": "auto"}}
    if (path.parent / "adapter_config.json").is_file():
        overrides["model"] = {"adapters": checkpoint}
    _, params, machine, advice, _ = load(notebook, Values(str(path), overrides=overrides))
    run = cast(GameRunParams, params)
    apply_environment(advice)
    check_machine(run, machine)
    set_threads(run.training.num_threads)
    return run


def make_folder(checkpoint: str) -> Path:
    """Make the first folder of the run named arena-001, arena-002 and so on that is not there yet."""
    for count in itertools.count(1):
        with suppress(FileExistsError):
            folder = Path(checkpoint).resolve().parents[1] / f"arena-{count:03}"
            folder.mkdir()
            break
    return folder
