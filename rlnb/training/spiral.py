"""SPIRAL: a policy plays both seats of a zero-sum game and learns from who won.

Liu et al. 2025 (arXiv:2506.24119). What differs from the paper's code: baselines are read before a batch
moves them and are the same on all ranks; an opponent other than oneself sits in either seat and none of its
tokens is trained on; old log-probabilities are computed by the training pass; a magnet and an average of the
weights can be kept.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState

from rlnb.games.opponents import Opponent
from rlnb.games.text_games import TextGame
from rlnb.metrics import Tracker
from rlnb.policy.generation import evaluating
from rlnb.rollouts import LEARNER, Episode, Rules, against, play_games, self_play
from rlnb.training.alarms import check_alarms, kept_when_diverged, ringing
from rlnb.training.batches import Batch, make_batch
from rlnb.training.credit import Credit, credit
from rlnb.training.play_metrics import GamesFile, mean_over_ranks, play_metrics, progress_line
from rlnb.training.stop_signal import StopSignal
from rlnb.training.update import Learner, update
from rlnb.trajectories import PlayedGame, Player


@dataclass(frozen=True)
class SelfPlayState:
    """Where a run is: what it needs besides weights and optimizer. baselines: by "game/role"."""

    step: int = 0
    num_games: int = 0
    baselines: dict[str, float] = field(default_factory=dict)
    alarms: dict[str, int] = field(default_factory=dict)
    first_length: float = 0.0

    def after(self, metrics: Mapping[str, float], credited: Credit, params: Any) -> "SelfPlayState":
        """One update later. first_length: tokens of an answer at the first, for the alarms."""
        first_length = self.first_length or metrics["play/completion_tokens"]
        rings = ringing(metrics, params.alarms, first_length=first_length)
        return SelfPlayState(
            step=self.step + 1,
            num_games=self.num_games + params.training.games_per_step,
            baselines=credited.baselines,
            alarms={name: self.alarms.get(name, 0) + 1 for name in rings},
            first_length=first_length,
        )


@dataclass(frozen=True)
class SelfPlay:
    """What is played, by whom, for what. player: makes one of the policy's weights as they are now."""

    game: TextGame
    rules: Rules
    player: Callable[[], Player]
    opponents: Mapping[str, Opponent]
    params: Any

    def episodes(self, step: int) -> list[Episode]:
        """The games of an update that fall to this rank, by seeds of the run, the step and the rank."""
        asked, ranks = self.params.game, PartialState()
        seed = int(np.random.SeedSequence([self.params.seed, step, ranks.process_index]).generate_state(1)[0])
        count = self.params.training.games_per_step // ranks.num_processes
        if asked.opponent == "self":
            return self_play(
                self.game, count, seed=seed, max_opening_plies=asked.max_opening_plies,
                games_per_opening=asked.games_per_opening,
            )  # fmt: skip
        return against(
            self.game, asked.opponent, count, seed=seed, max_opening_plies=asked.max_opening_plies,
            games_per_opening=max(2, asked.games_per_opening),
        )  # fmt: skip

    def play(self, step: int) -> list[PlayedGame]:
        return play_games(
            self.episodes(step), {LEARNER: self.player(), **self.opponents}, rules=self.rules,
            num_parallel=self.params.game.num_parallel,
        )  # fmt: skip


def train(
    learner: Learner,
    table: SelfPlay,
    state: SelfPlayState,
    *,
    tracker: Tracker,
    output_dir: str | Path,
    evaluate: Callable[[], Mapping[str, float]],
    save: Callable[[SelfPlayState], object],
    show: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] = print,
) -> SelfPlayState:
    """Train from `state` to `training.max_steps` updates and return where it ended.

    evaluate: called every `evaluation.eval_interval_steps`. save: writes a checkpoint of a state, every
    `save_steps` or as soon as no alarm rings any more. show: called with (step, max_steps) some fifty times,
    and say with a line. Raises TrainingDiverged, its games
    kept in diverged.jsonl and the last checkpoint in place, and Preempted after a signal.
    """
    params, max_steps, is_overdue = table.params, table.params.training.max_steps, False
    gc.freeze()  # what torch and transformers leave: looking through it was a third of a rollout of Kuhn
    with StopSignal() as stop, GamesFile(output_dir, after=state.step) as record:
        while state.step < max_steps:
            # 1. Play. Games advance in lockstep; both seats by the same weights.
            started = time.perf_counter()
            with evaluating(learner.actor.policy):
                games = table.play(state.step)
            # 2. Credit. Returns against the baselines from before this batch.
            played = time.perf_counter()
            credited = credit(games, state.baselines, params.advantage)
            # 3. Update. The only place where trajectories become tensors.
            with kept_when_diverged(games, output_dir):
                batch = batch_of(games, credited, has_value=learner.value_coef > 0, training=params.training)
                metrics = update(learner, batch, step=state.step, seed=params.seed)
                # 4. Measure and save.
                updated = time.perf_counter()
                metrics |= play_metrics(games) | {"advantage/std": float(credited.advantages.std())}
                metrics |= {"time/rollout_seconds": played - started, "time/update_seconds": updated - played}
                metrics = mean_over_ranks(metrics)
                state = state.after(metrics, credited, params)
                check_alarms(state.alarms, metrics, params.alarms, first_length=state.first_length)
            metrics["play/num_games"] = float(state.num_games)
            record.write(games, state.step)
            is_last = state.step == max_steps
            is_stopping = stop.after_step(is_last=is_last)
            if not is_last and not is_stopping and is_due(state.step, params.evaluation):
                metrics |= evaluate()
            tracker.report(state.step, metrics)
            is_overdue |= state.step % params.training.save_steps == 0
            if is_last or is_stopping or (is_overdue and not state.alarms):  # what rings is not good
                save(state)
                is_overdue = False
            if is_last or state.step % max(1, max_steps // 50) == 0:
                say(progress_line(state.step, max_steps, metrics))
                if show:
                    show(state.step, max_steps)
            if is_stopping:
                break
    return state


def is_due(step: int, evaluation: Any) -> bool:
    """Whether an evaluation in between falls on this step."""
    interval = evaluation.eval_interval_steps if evaluation.enabled else 0
    return bool(interval) and step % interval == 0


def batch_of(games: Sequence[PlayedGame], credited: Credit, *, has_value: bool, training: Any) -> Batch:
    """The turns from which something is learned: those with a choice, or a value.

    With `drop_zero_advantages` trajectories all of whose advantages are 0 are left out, unless all are so.
    """
    trajectories = [trajectory for game in games for trajectory in game.trajectories]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    is_kept = np.array([has_value or bool(turn.choices) for turn in turns], dtype=bool)
    if training.drop_zero_advantages:
        numbers = np.repeat(np.arange(len(trajectories)), [len(one.turns) for one in trajectories])
        is_taught = np.isin(numbers, numbers[credited.advantages != 0])
        is_kept &= is_taught if is_taught.any() else True
    kept = np.flatnonzero(is_kept)
    return make_batch(
        [turns[one] for one in kept],
        credited.advantages[kept],
        credited.targets[kept],
        memo=training.prompt_memo,
    )
