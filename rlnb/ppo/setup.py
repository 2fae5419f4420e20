"""Set-up of a PPO run from its parameters, and the whole run without a notebook."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rlnb.games.opponents import playable_opponents
from rlnb.games.text_games import states_in_play
from rlnb.policy import Policy
from rlnb.policy.loading import load_tokenizer
from rlnb.policy.prompts import Chat
from rlnb.ppo.curriculum import Curriculum, load_curriculum, load_opponents, move_to_stage
from rlnb.ppo.params import PpoOpenspielParams
from rlnb.ppo.training import GamePlan, PpoState, train_ppo
from rlnb.run.checkpoints import saved_recipe
from rlnb.run.directory import say
from rlnb.run.tracking import Tracker, open_tracker
from rlnb.selfplay.acting import make_encoder
from rlnb.selfplay.arena import Arena
from rlnb.selfplay.batch import Learner
from rlnb.selfplay.checkpoints import restore
from rlnb.selfplay.rollouts import GameRules, RewardFunction

SAMPLED_GAMES = 50


def load_playable_curriculum(params: PpoOpenspielParams) -> Curriculum:
    """Return the curriculum, without any model.

    Raises ParamsError if a game cannot be played, or if a prompt of sampled games does not fit.
    """
    curriculum = load_curriculum(params)
    chat = Chat(load_tokenizer(params.model), params.model.thinking, params.model.system)
    encoder = make_encoder(params.game, chat)
    for game in curriculum.games.values():
        states = states_in_play(game, SAMPLED_GAMES, rng=random.Random(0))
        encoder.prompt_ids([game.prompt(state) for state in states])
    return curriculum


@dataclass(frozen=True)
class PpoRun:
    """A run of PPO: what is measured (arena), trained (learner) and played (plan)."""

    params: PpoOpenspielParams
    curriculum: Curriculum
    arena: Arena
    learner: Learner
    plan: GamePlan

    def restore(self, checkpoint: str | None, output_dir: str | Path) -> PpoState:
        """Load a checkpoint and return its state; the start of a run without one.

        The stage is that of `curriculum.start` in a new run, and where this field has changed since the
        checkpoint was saved; a line says so.
        """
        start = self.params.curriculum.start
        fresh = PpoState(kl_coef=self.params.training.init_kl_coef)
        state = restore(fresh, checkpoint, self.learner)
        before = saved_recipe(checkpoint).get("curriculum.start") if checkpoint else None
        if not start or start == before:
            return state
        curriculum = move_to_stage(state.curriculum, start, self.params.curriculum)
        first, now = state.curriculum.stage + 1, curriculum.stage + 1
        say(output_dir, f"curriculum.start = {start!r}: moved from stage {first} to {now}")
        return replace(state, curriculum=curriculum)

    def open_tracker(self, output_dir: str | Path, state: PpoState) -> Tracker:
        tracking = self.params.tracking.model_dump()
        return open_tracker(output_dir, resume_step=state.step, config=self.params.model_dump(), **tracking)

    def train(
        self,
        state: PpoState,
        output_dir: str | Path,
        *,
        evaluate: Callable[[int], Mapping[str, float]],
        before: Mapping[str, float] | None = None,
        show: Callable[[int, int], None] | None = None,
        say: Callable[[str], None] = print,
    ) -> PpoState:
        """Train by `train_ppo` to the last update. before: metrics of the untrained policy, for step 0."""
        with self.open_tracker(output_dir, state) as tracker:
            if before and state.step == 0:
                tracker.report(0, before)
            return train_ppo(
                self.params, self.learner, self.plan, state, output_dir=output_dir, tracker=tracker,
                evaluate=evaluate, show=show, say=say,
            )  # fmt: skip


def make_ppo_run(
    params: PpoOpenspielParams, curriculum: Curriculum, policy: Policy, *, reward: RewardFunction
) -> PpoRun:
    """Return the run of a policy with a fresh value head, optimizer and averages.

    The arena has all games of the curriculum, against those of `evaluation.opponents` that can play each
    game, and against its opponents in the stages. reward: see GameRules.
    """
    acting, training = params.game, params.training
    rules = GameRules(reward=reward, invalid=acting.invalid)
    pairings = [pairing for stage_pairings in curriculum.pairings for pairing in stage_pairings]
    opponents = []
    for game in curriculum.games.values():
        stage_opponents = [opponent for other, opponent in pairings if other.name == game.name]
        playable = playable_opponents(game, params.evaluation.opponents)
        opponents.append((game, tuple(dict.fromkeys([*playable, *stage_opponents]))))
    arena = Arena(
        policy, rules, opponents, acting=acting, training=training, seed=params.seed, has_value=True,
        exact=params.evaluation.exact, names_games=True,
    )  # fmt: skip
    learner = Learner(
        arena.actor, training, temperature=acting.temperature,
        value_learning_rate=training.value_learning_rate, has_reference=training.init_kl_coef > 0,
    )  # fmt: skip
    plan = GamePlan(params, curriculum, arena.actor, arena.encoder, rules, load_opponents(curriculum))
    return PpoRun(params, curriculum, arena, learner, plan)
