"""A checkpoint as a player: its run's parameters, its model and its weights in the arena."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol, cast

from rlnb.errors import ParamsError
from rlnb.games.opponent_names import opponent_kind
from rlnb.games.opponents import check_opponents, refusals
from rlnb.games.text_games import load_game
from rlnb.machine import Machine, Recommendation
from rlnb.params import load_params, resolve
from rlnb.params.sections import NotebookParams
from rlnb.policy import load_policy
from rlnb.policy.adapters import WeightSnapshot
from rlnb.ppo.curriculum import Curriculum, load_curriculum
from rlnb.ppo.params import UNTRAINED, ArenaEvalParams, ContestParams, PpoOpenspielParams
from rlnb.run.checkpoints import MODEL_FIELDS
from rlnb.run.memory import UNKNOWN_SIZE, estimate_memory
from rlnb.selfplay.arena import Arena, make_arena, playable_opponents
from rlnb.selfplay.checkpoints import PARAMS_FILE, load_weights
from rlnb.selfplay.params import ActingParams, ArenaParams, PlayerModelParams, UpdateParams
from rlnb.selfplay.rollouts import GameRules


class GameRunParams(Protocol):
    """The parameters of a run whose policy plays games: of ppo_openspiel or spiral_self_play."""

    @property
    def seed(self) -> int: ...
    @property
    def model(self) -> PlayerModelParams: ...
    @property
    def game(self) -> ActingParams: ...
    @property
    def training(self) -> UpdateParams: ...
    @property
    def evaluation(self) -> ArenaParams: ...


def load_run_params(contest: ContestParams, recommendation: Recommendation) -> GameRunParams:
    """Return the parameters of the first checkpoint's run, or of the profile of an untrained model.

    Raises ParamsError for two checkpoints of different models.
    """
    checkpoints = [path for path in (contest.checkpoint, contest.compare_with) if path not in ("", UNTRAINED)]
    if not checkpoints:
        params = resolve(load_params(contest.notebook, profile=contest.run_profile), recommendation)
        return cast(GameRunParams, params)
    run, *others = map(load_saved_params, checkpoints)
    for other in others:
        pairs = {name: (getattr(run.model, name), getattr(other.model, name)) for name in MODEL_FIELDS}
        changed = [f"model.{name} = {a!r} and {b!r}" for name, (a, b) in pairs.items() if a != b]
        if changed:
            raise ParamsError(
                f"contest.compare_with = {contest.compare_with!r} is of another model: {'; '.join(changed)}; "
                "evaluate each by itself"
            )
    return run


class PlayedParams(NotebookParams):
    """What takes memory in the arena: the model of a run, the way it plays, and the weights that play."""

    model: PlayerModelParams
    game: ActingParams
    contest: ContestParams


def describe_play_memory(
    contest: ContestParams, run: GameRunParams, machine: Machine, *, environ: Mapping[str, str] = os.environ
) -> str:
    """Return the estimated memory of the arena in a line; only said, since a run's model stays as it is."""
    acting: Literal["free", "constrained"] = "free" if "free" in contest.modes else "constrained"
    game = run.game.model_copy(update={"acting": acting})
    played = PlayedParams(model=run.model, game=game, contest=contest)
    estimate = estimate_memory(played, machine, environ=environ)
    return UNKNOWN_SIZE if estimate is None else estimate.summary


def load_saved_params(checkpoint: str) -> GameRunParams:
    path = Path(checkpoint) / PARAMS_FILE
    lines = path.read_text().splitlines()
    notebook = next((line.split()[1] for line in lines if line.startswith("notebook: ")), "")
    # The checkpoint that the run started from may be gone by now.
    params = load_params(notebook, profile=str(path), overrides={"training": {"resume": "auto"}})
    return cast(GameRunParams, params)


def load_arena(params: ArenaEvalParams, run: GameRunParams) -> Arena:
    """Return the run's untrained model in an arena with the games and opponents of `contest`.

    A game that none of the opponents can play is played against an equilibrium where it has one, else against
    random play; a line says so. Raises ParamsError for opponents and games that are none.
    """
    contest = params.contest
    if isinstance(run, PpoOpenspielParams):
        run_games = [name for stage in run.curriculum.stages for name in stage.games]
    else:
        run_games = [str(run.game.model_dump()["name"])]
    pairings = []
    for name in dict.fromkeys(contest.games or run_games):
        game = load_game(name, style=run.game.style, field="contest.games")
        opponents = playable_opponents(game, contest.opponents)
        if not opponents:
            reasons = refusals(game)
            opponents = ("random",) if reasons["nash"] else ("nash",)
            why = " ".join(dict.fromkeys(reasons[opponent_kind(other)] for other in contest.opponents))
            print(f"{game.name} is played against {opponents[0]}, not {', '.join(contest.opponents)}: {why}")
        check_opponents(game, opponents, field="contest.opponents")
        pairings.append((game, opponents))
    policy = load_policy(run.model, seed=run.seed)
    rules = GameRules(
        invalid=run.game.invalid, num_retries=run.game.num_retries,
        max_turns=run.game.max_turns if isinstance(run, PpoOpenspielParams) else 0,
    )  # fmt: skip
    return make_arena(
        policy, rules, pairings, acting=run.game, training=run.training, seed=params.seed, has_value=False
    )


def load_snapshots(contest: ContestParams, arena: Arena) -> dict[str, WeightSnapshot]:
    """Return the weights of the checkpoint, and of the one it is compared with, by name."""
    untrained, average = WeightSnapshot.take(arena.actor.policy), contest.weights == "average"
    names = [name for name in (contest.checkpoint, contest.compare_with) if name]
    return {
        name: untrained if name == UNTRAINED else load_weights(name, untrained, average=average)
        for name in names
    }


def load_stages(run: GameRunParams) -> Curriculum | None:
    """Return the curriculum of a PPO run, None for a run of self-play."""
    return load_curriculum(run) if isinstance(run, PpoOpenspielParams) else None
