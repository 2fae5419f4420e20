"""`rlnb eval --checkpoint`: a checkpoint's games against opponents, alone or next to another checkpoint's.

The weights play from both seats, in every way to answer. Model, prompts, temperature, games and seeds are
those of the checkpoint's run, so two checkpoints of a run play the same games.
"""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from rlnb.display.tables import Table, show_comparison
from rlnb.errors import ParamsError
from rlnb.games.opponent_names import name_fault
from rlnb.games.opponents import playable_opponents
from rlnb.games.text_games import load_game
from rlnb.machine import apply_environment, probe, recommend
from rlnb.machine.threads import set_threads
from rlnb.params import asks_network, check_machine, load_dotenv, load_params, resolve
from rlnb.policy import load_policy
from rlnb.policy.adapters import WeightSnapshot
from rlnb.ppo.curriculum import load_curriculum, score_stages
from rlnb.ppo.display import show_success
from rlnb.ppo.params import PpoOpenspielParams
from rlnb.results import compare, save_results
from rlnb.run.checkpoints import MODEL_FIELDS
from rlnb.selfplay.arena import (
    SEATS,
    WAYS,
    Match,
    describe_answers,
    make_arena,
    match_measures,
    select_matches,
)
from rlnb.selfplay.checkpoints import AVERAGE_FILE, PARAMS_FILE
from rlnb.selfplay.display import draw_arena
from rlnb.selfplay.params import GameRunParams
from rlnb.selfplay.rollouts import GameRules

UNTRAINED = "untrained"


def evaluate_checkpoints(
    checkpoint: str,
    *,
    compare_with: str = "",
    opponents: Sequence[str] = ("random",),
    num_episodes: int = 100,
    profile: str = "auto",
    out: str | None = None,
) -> None:
    """Play `num_episodes` games against each opponent; print the scores and write arena.json and arena.png.

    checkpoint, compare_with: a run's checkpoints/checkpoint-N, or UNTRAINED. profile: of ppo_openspiel, for
    an untrained model alone. out: the folder of the results, by default a new one in the checkpoint's run.
    Raises ParamsError before a model is loaded.
    """
    names = [name for name in (checkpoint, compare_with) if name]
    check_options(names, opponents, num_episodes)
    load_dotenv(Path.cwd())
    run = load_run_params(names, profile=profile)
    acting = run.game
    games = [
        load_game(name, style=acting.style, asks_for_thoughts=acting.asks_for_thoughts)
        for name in run.game_names()
    ]
    pairings = [(game, playable_opponents(game, opponents) or ("random",)) for game in games]
    folder = Path(out) if out else new_folder(checkpoint)
    arena = make_arena(
        load_policy(run.model, seed=run.seed), GameRules(invalid=run.game.invalid), pairings,
        acting=run.game, training=run.training, seed=run.seed, has_value=False,
    )  # fmt: skip
    untrained = WeightSnapshot.take(arena.actor.policy)
    snapshots = {name: load_average(name, untrained) for name in names}
    rows = arena.play_matches(
        list(itertools.product(WAYS, names)), snapshots, num_games=num_episodes,
        progress=lambda done, total: print(f"match {done} of {total}", file=sys.stderr),
    )  # fmt: skip
    by_name = {name: select_matches(rows, weights=name) for name in names}
    trained_way = {
        name: select_matches(matches, acting=run.game.acting, greedy=False)
        for name, matches in by_name.items()
    }
    print(show_scores([row for matches in trained_way.values() for row in matches]))
    for name, matches in trained_way.items():
        for line in describe_answers(matches):
            print(f"{name}: {line}")
    comparison = []
    if compare_with:
        first, second = (match_measures(by_name[name]) for name in names)
        comparison = compare(second, first)
        differences = [row for row in comparison if f", {run.game.acting}, sampled" in row.measure]
        print(f"\n{checkpoint} minus {compare_with}, on the same seeds:\n{show_comparison(differences)}")
    if isinstance(run, PpoOpenspielParams):
        for name, matches in trained_way.items():
            print(f"\n{name}: {show_success(score_stages(matches, load_curriculum(run)))}")
    folder.mkdir(parents=True, exist_ok=True)
    save_results(
        folder / "arena.json", params=run, comparison=comparison, rows=rows,
        checkpoint=checkpoint, compare_with=compare_with, num_episodes=num_episodes,
    )  # fmt: skip
    drawn = {  # the same label for the weights of all, so that their scores share a line
        short_name(name): [replace(row, weights="average") for row in rows]
        for name, rows in trained_way.items()
    }
    draw_arena(drawn).savefig(folder / "arena.png", bbox_inches="tight")
    print(f"\n{folder}: arena.json, arena.png")


def check_options(checkpoints: Sequence[str], opponents: Sequence[str], num_episodes: int) -> None:
    """Raise ParamsError for options that are wrong whatever the run is."""
    for option, path in zip(("--checkpoint", "--compare-with"), checkpoints, strict=False):
        if path != UNTRAINED and not Path(path, AVERAGE_FILE).is_file():
            raise ParamsError(
                f"{option} = {path!r} holds no {AVERAGE_FILE}, as checkpoints of spiral_self_play and "
                "ppo_openspiel do; write a run's checkpoints/checkpoint-N, or untrained"
            )
    for name in opponents:
        if fault := name_fault(name):
            raise ParamsError(f"--opponent = {name!r} {fault}")
    if num_episodes < 2 or num_episodes % 2:
        raise ParamsError(
            f"--episodes = {num_episodes} cannot be played half from each seat; write an even number"
        )


def load_run_params(checkpoints: Sequence[str], *, profile: str = "auto") -> GameRunParams:
    """Return the parameters of the checkpoints' run, or of a profile of ppo_openspiel if none is of a run.

    Raises ParamsError for two checkpoints of different models, and for a model that this machine cannot run.
    """
    runs = [load_saved_params(path) for path in checkpoints if path != UNTRAINED]
    run = runs[0] if runs else cast(GameRunParams, load_params("ppo_openspiel", profile=profile))
    machine = probe(ask_hub=asks_network(run))
    recommendation = recommend(machine)
    apply_environment(recommendation)
    if not runs:
        run = resolve(run, recommendation)
    check_machine(run, machine)
    set_threads(run.training.num_threads)
    for other in runs[1:]:
        pairs = {name: (getattr(run.model, name), getattr(other.model, name)) for name in MODEL_FIELDS}
        if changed := [f"model.{name} = {a!r} and {b!r}" for name, (a, b) in pairs.items() if a != b]:
            raise ParamsError(
                f"--compare-with = {checkpoints[1]!r} is of another model: {'; '.join(changed)}; evaluate "
                "each by itself"
            )
    return run


def load_saved_params(checkpoint: str) -> GameRunParams:
    path = Path(checkpoint) / PARAMS_FILE
    lines = path.read_text(encoding="utf-8").splitlines()
    notebook = next((line.split()[1] for line in lines if line.startswith("notebook: ")), "")
    # The checkpoint that the run started from may be gone by now.
    params = load_params(notebook, profile=str(path), overrides={"training": {"resume": "auto"}})
    return cast(GameRunParams, params)


def load_average(checkpoint: str, untrained: WeightSnapshot) -> WeightSnapshot:
    """Return the averaged weights of a checkpoint, which are what a run's evaluations judge."""
    snapshot = WeightSnapshot(dict(untrained.values))
    if checkpoint != UNTRAINED:
        snapshot.load(Path(checkpoint) / AVERAGE_FILE)
    return snapshot


def new_folder(checkpoint: str) -> Path:
    """Return the first folder of the run named arena-001, arena-002 and so on that is not there yet."""
    run = Path("outputs") if checkpoint == UNTRAINED else Path(checkpoint).resolve().parents[1]
    folders = (run / f"arena-{count:03}" for count in itertools.count(1))
    return next(folder for folder in folders if not folder.exists())


def short_name(checkpoint: str) -> str:
    """Return "cpu-001/checkpoint-300" for the path of that run's checkpoint."""
    return "/".join(Path(checkpoint).parts[-3::2])


def show_scores(rows: Sequence[Match]) -> Table:
    """Return the scores, a line for each game, opponent, seat and set of weights."""
    return Table(
        ["weights", "game", "opponent", "seat", "games", "score (95% interval)", "random play", "at most"],
        [
            (short_name(row.weights), row.game, row.opponent, SEATS[row.seat], row.num_games, row.score)
            + (row.random_score, row.ceiling)
            for row in rows
        ],
        "Sampled answers as in training; greedy and free ones are in arena.json. Score: wins and half the "
        "draws.",
    )
