"""The parts of a SPIRAL run, made from its parameters."""

from dataclasses import dataclass
from pathlib import Path

from rlnb.errors import ParamsError
from rlnb.games.opponents import load_opponent
from rlnb.games.text_games import TextGame, load_game
from rlnb.policy.loading import Policy
from rlnb.run.checkpoints import checkpoint_to_resume, weights_to_begin_with
from rlnb.selfplay.arena import EXACT_GAMES, Arena, check_opponents, is_exact, make_arena
from rlnb.selfplay.checkpoints import prepare_output, restore
from rlnb.selfplay.rollouts import GameRules, RewardFunction
from rlnb.selfplay.update import Learner
from rlnb.spiral.params import SpiralSelfPlayParams
from rlnb.spiral.training import SelfPlayGames, SelfPlayState
from rlnb.spiral.warm_up import warm_up


def load_self_play_game(params: SpiralSelfPlayParams) -> TextGame:
    """Return the game.

    Raises ParamsError, before any model is loaded, if an opponent cannot play the game, or if the ablation is
    enabled for a game without exact measures.
    """
    game = load_game(params.game.name, style=params.game.style)
    if params.game.opponent != "self":
        load_opponent(params.game.opponent, game, field="game.opponent")
    check_opponents(game, params.evaluation.opponents)
    if params.ablation.enabled and not is_exact(game):
        raise ParamsError(
            f"ablation.enabled = true cannot compare runs of {game.name}: they are judged by exact measures, "
            f"which only {', '.join(EXACT_GAMES)} have. Write false"
        )
    return game


@dataclass(frozen=True)
class SelfPlayRun:
    """The parts of a run, which share one policy; `learner` and `games` are what `train` takes."""

    params: SpiralSelfPlayParams
    arena: Arena
    learner: Learner
    games: SelfPlayGames


def make_self_play_run(
    params: SpiralSelfPlayParams, policy: Policy, game: TextGame, *, reward: RewardFunction
) -> SelfPlayRun:
    """Return the parts of a run that starts from the policy's weights. reward: as in `GameRules`."""
    name = params.game.opponent
    has_value = params.advantage.has_value
    rules = GameRules(reward=reward, invalid=params.game.invalid, num_retries=params.game.num_retries)
    arena = make_arena(
        policy, rules, [(game, params.evaluation.opponents)], acting=params.game, training=params.training,
        seed=params.seed, has_value=has_value, exact=params.evaluation.exact,
    )  # fmt: skip
    learner = Learner(
        arena.actor, params.training, temperature=params.game.temperature,
        value_coef=params.advantage.value_coef if has_value else 0.0,
        loss_tokens=params.loss_tokens, kl_coef=params.training.kl_coef,
    )  # fmt: skip
    opponents = {} if name == "self" else {name: load_opponent(name, game, field="game.opponent")}
    return SelfPlayRun(params, arena, learner, SelfPlayGames(params, game, arena, opponents))


def resume_run(run: SelfPlayRun, output_dir: str | Path) -> SelfPlayState:
    """Load the checkpoint that `training.resume` names and return its state; else start, warmed up if asked.

    Also checks the disk's free space and keeps positions by which an export is compared with the policy.
    """
    params, learner = run.params, run.learner
    prepare_output(output_dir, run.arena, learner, keep=params.training.save_total_limit)
    checkpoint = checkpoint_to_resume(params, output_dir)
    weights_of = weights_to_begin_with(params, output_dir)
    if params.game.warm_up_steps and not (checkpoint or weights_of):
        warm_up(
            learner, run.games.game, run.arena.encoder, num_steps=params.game.warm_up_steps, seed=params.seed
        )
    return restore(SelfPlayState, checkpoint, learner, weights_of=weights_of)
