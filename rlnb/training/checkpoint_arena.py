"""A checkpoint as a player again: its run's parameters, its model, its weights."""

from pathlib import Path
from typing import Any

from rlnb.errors import ParamsError
from rlnb.evaluation.arena import Arena
from rlnb.evaluation.many_games import Arenas, able_opponents
from rlnb.games.opponents import load_opponent
from rlnb.games.text_games import load_game
from rlnb.machine import Recommendation
from rlnb.params import load_params, resolve
from rlnb.params.arena_eval import UNTRAINED, ArenaEvalParams, ContestParams
from rlnb.params.ppo_openspiel import PpoOpenspielParams
from rlnb.params.sections import NotebookParams
from rlnb.policy import load_policy
from rlnb.policy.adapters import AdapterValues, has_trained
from rlnb.training import ppo_parts, self_play_parts
from rlnb.training.checkpoints import MODEL_FIELDS
from rlnb.training.curriculum import load_curriculum
from rlnb.training.self_play_checkpoints import PARAMS_FILE, load_weights


def run_params(asked: ContestParams, advice: Recommendation) -> NotebookParams:
    """Parameters of the run of the first checkpoint, or of the profile of a model that nobody trained.

    Raises ParamsError where two checkpoints are of different models.
    """
    own = [path for path in (asked.checkpoint, asked.compare_with) if path not in ("", UNTRAINED)]
    if not own:
        return resolve(load_params(asked.notebook, profile=asked.run_profile), advice)
    params = saved_params(own[0])
    for path in own[1:]:
        other = saved_params(path)
        changed = [
            f"model.{name} = {getattr(params.model, name)!r} and {getattr(other.model, name)!r}"
            for name in MODEL_FIELDS
            if getattr(params.model, name) != getattr(other.model, name)
        ]
        if changed:
            raise ParamsError(
                f"contest.compare_with = {asked.compare_with!r} is of another model: {'; '.join(changed)}; "
                "evaluate each by itself"
            )
    return params


def saved_params(checkpoint: str) -> Any:
    """What a checkpoint's run was asked for."""
    path = Path(checkpoint) / PARAMS_FILE
    notebook = next(
        (line.split()[1] for line in path.read_text().splitlines() if line.startswith("notebook: ")), ""
    )
    # Where the run went on from may be gone by now.
    return load_params(notebook, profile=str(path), overrides={"training": {"resume": "auto"}})


def arenas_of(params: ArenaEvalParams, run: Any) -> Arenas:
    """The run's model, untrained, in the arena of each game that is asked for.

    Raises ParamsError for a game that none of the opponents can play.
    """
    asked = params.contest
    is_ppo = isinstance(run, PpoOpenspielParams)
    of_run = [name for stage in run.curriculum.stages for name in stage.games] if is_ppo else [run.game.name]
    games = [
        load_game(name, style=run.game.style, field="contest.games")
        for name in dict.fromkeys(asked.games or of_run)
    ]
    opponents = {game.name: able_opponents(game, asked.opponents) for game in games}
    for game in games:
        if not opponents[game.name]:
            raise ParamsError(
                f"contest.opponents = {list(asked.opponents)} holds nobody who can play {game.name}; "
                "add random"
            )
        for name in opponents[game.name]:
            if not has_trained(name):
                load_opponent(name, game, field="contest.opponents")
    policy = load_policy(run.model, seed=run.seed)
    has_value = is_ppo or run.advantage.has_value
    actor = self_play_parts.actor_of(run, policy, has_value=has_value)
    encoder = self_play_parts.encoder_of(run, policy)
    rules = ppo_parts.rules_of(run) if is_ppo else self_play_parts.rules_of(run)
    arenas = []
    for game in games:
        evaluation = run.evaluation.model_copy(update={"opponents": opponents[game.name]})
        own = run.model_copy(update={"evaluation": evaluation, "seed": params.seed})
        arenas.append(Arena(actor, encoder, game, rules, own))
    return Arenas(tuple(arenas))


def contenders_of(asked: ContestParams, arenas: Arenas) -> dict[str, AdapterValues]:
    """{name: weights} of the checkpoint and of what it is compared with."""
    untrained = AdapterValues.of(arenas.arenas[0].actor.policy)
    found = {}
    for name in (asked.checkpoint, asked.compare_with):
        if name == UNTRAINED:
            found[name] = untrained
        elif name:
            found[name] = load_weights(name, untrained, average=asked.weights == "average")
    return found


def success_criteria(run: Any) -> dict[str, tuple[list[tuple[str, str]], float]]:
    """What each stage of a PPO run asks for, for `stage_scores`; nothing for a run of self-play."""
    if not isinstance(run, PpoOpenspielParams):
        return {}
    return ppo_parts.success_criteria(load_curriculum(run))
