"""SPIRAL: a policy plays both seats of a zero-sum game and learns from the outcomes.

Liu et al. 2025 (arXiv:2506.24119). Differences from the paper's code: baselines are read before a batch moves
them and are the same on all ranks; old log-probabilities come from the training pass; optionally a magnet and
an average of the weights are kept.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from accelerate import PartialState

from rlnb.games.text_games import TextGame
from rlnb.policy.generation import evaluating
from rlnb.run.health import Health, check_alarms, memory_advice
from rlnb.run.tracking import Tracker
from rlnb.selfplay.advantages import Advantages, compute_advantages
from rlnb.selfplay.arena import Arena
from rlnb.selfplay.checkpoints import RunState, StepRecorder, mean_over_ranks, play_metrics, save_checkpoint
from rlnb.selfplay.rollouts import (
    LEARNER,
    Episode,
    FinishedGame,
    collect_trajectories,
    collect_turns,
    play_games,
    self_play_episodes,
)
from rlnb.selfplay.update import Batch, Learner, make_batch, update
from rlnb.spiral.params import SpiralSelfPlayParams


@dataclass(frozen=True)
class SelfPlayState(RunState):
    """The progress of a run. baselines: by "game/role"."""

    baselines: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SelfPlayGames:
    """The source of each update's games, played by the policy's current weights as in the arena."""

    params: SpiralSelfPlayParams
    game: TextGame
    arena: Arena

    def episodes(self, step: int) -> list[Episode]:
        """Return this rank's games of an update; those of all ranks follow from the run's seed and the step.

        Games of the same opening stay on one rank.
        """
        params, ranks = self.params, PartialState()
        seed = int(np.random.SeedSequence([params.seed, step, 0]).generate_state(1)[0])
        episodes = self_play_episodes(
            self.game, params.training.games_per_step, seed=seed,
            max_opening_plies=params.game.max_opening_plies, games_per_opening=params.games_per_opening,
        )  # fmt: skip
        return [each for each in episodes if each.group % ranks.num_processes == ranks.process_index]

    def play(self, step: int) -> list[FinishedGame]:
        return play_games(self.episodes(step), {LEARNER: self.arena.player()}, rules=self.arena.rules)


def train(
    learner: Learner,
    self_play: SelfPlayGames,
    state: SelfPlayState,
    *,
    tracker: Tracker,
    output_dir: str | Path,
    evaluate: Callable[[int], Mapping[str, float]],
    show: Callable[[int, int], None] | None = None,
) -> SelfPlayState:
    """Train from `state` to `training.max_steps` updates and return the final state.

    evaluate, show: as in `StepRecorder`. Raises TrainingDiverged, OutOfMemory, and Preempted after a
    signal.
    """
    params, training = self_play.params, self_play.params.training
    recorder = StepRecorder(
        output_dir, training, params.evaluation, tracker, Health(), evaluate=memory_advice(params)(evaluate),
        describe=partial(describe_step, max_steps=training.max_steps), show=show,
    )  # fmt: skip
    with recorder.recording(after=state.step), memory_advice(params, doing="training"):
        while state.step < training.max_steps and not recorder.is_stopping:
            # 1. Play. Games advance in lockstep; the learner plays both seats.
            started = time.perf_counter()
            with evaluating(learner.actor.policy):
                games = self_play.play(state.step)
            played = time.perf_counter()
            # 2. Advantages. Returns are compared with the baselines from before this batch.
            advantages = compute_advantages(games, state.baselines, params.advantage)
            # 3. Update. The only place where trajectories become tensors.
            batch = select_turns(games, advantages, has_value=learner.has_value)
            metrics = update(learner, batch, step=state.step, seed=params.seed)
            updated = time.perf_counter()
            # 4. Measure. An alarm that lasts for ALARM_PATIENCE updates ends the run here.
            metrics |= play_metrics(games) | {"advantage/std": float(advantages.advantages.std())}
            metrics |= {"time/rollout_seconds": played - started, "time/update_seconds": updated - played}
            metrics = mean_over_ranks(metrics)
            state = replace(state.advance(metrics, training), baselines=advantages.baselines)
            check_alarms(state.alarms, metrics, first_length=state.first_length)
            # 5. Evaluate, report and save.
            save = partial(
                save_checkpoint, output_dir, learner, state, params, keep=training.save_total_limit
            )
            recorder.end_step(state, games, metrics, save=save)
    return state


def select_turns(games: Sequence[FinishedGame], advantages: Advantages, *, has_value: bool) -> Batch:
    """Return a batch of the turns that teach something: those with a choice or, for a value head, all."""
    turns = collect_turns(collect_trajectories(games))
    kept = [index for index, turn in enumerate(turns) if has_value or turn.choices]
    some = [turns[index] for index in kept]
    return make_batch(some, advantages.advantages[kept], advantages.targets[kept])


def describe_step(step: int, metrics: Mapping[str, float], *, max_steps: int) -> str:
    """Return an update's line of train.log."""
    parts = [
        f"step {step}/{max_steps}",
        f"score {metrics['play/score']:.2f}",
        f"first seat {metrics['play/first_score']:.2f}",
        f"draws {metrics['play/draw_share']:.0%}",
        f"invalid {metrics['play/invalid_share']:.0%}",
        f"entropy {metrics['entropy']:.3f}",
    ]
    exact = {"NashConv": "nash_conv", "loss as first": "loss_first", "as second": "loss_second"}
    parts += [
        f"{label} {metrics[f'exact/{name}']:.3f}"
        for label, name in exact.items()
        if f"exact/{name}" in metrics
    ]
    seconds = metrics["time/rollout_seconds"] + metrics["time/update_seconds"]
    return "  ".join([*parts, f"{seconds:.1f} s"])
