"""The parts of a SPIRAL run, made from its parameters."""

from dataclasses import dataclass
from pathlib import Path

from rlnb.games.text_games import TextGame
from rlnb.policy.loading import Policy
from rlnb.run.checkpoints import checkpoint_to_resume
from rlnb.selfplay.arena import Arena
from rlnb.selfplay.batch import Learner
from rlnb.selfplay.checkpoints import restore
from rlnb.selfplay.rollouts import GameRules, RewardFunction
from rlnb.spiral.params import SpiralSelfPlayParams
from rlnb.spiral.training import SelfPlayGames, SelfPlayState


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
    rules = GameRules(reward=reward, invalid=params.game.invalid)
    arena = Arena(
        policy, rules, [(game, params.evaluation.opponents)], acting=params.game, training=params.training,
        seed=params.seed, has_value=params.advantage.has_value, exact=params.evaluation.exact,
    )  # fmt: skip
    learner = Learner(arena.actor, params.training, temperature=params.game.temperature)
    games = SelfPlayGames(params, game, arena.actor, arena.encoder, rules)
    return SelfPlayRun(params, arena, learner, games)


def resume_run(run: SelfPlayRun, output_dir: str | Path) -> SelfPlayState:
    """Load the checkpoint that `training.resume` names and return its state; else start."""
    params, learner = run.params, run.learner
    checkpoint = checkpoint_to_resume(params, output_dir)
    return restore(SelfPlayState(), checkpoint, learner)
