"""SPIRAL: a policy plays both seats of a zero-sum game and learns from the outcomes.

Liu et al. 2025 (arXiv:2506.24119). Differences from the paper's code: baselines are read before a batch moves
them and are the same on all ranks; another opponent may take either seat, and its tokens are not trained on;
old log-probabilities come from the training pass; optionally a magnet and an average of the weights are kept.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from accelerate import PartialState

from rlnb.games.opponents import Opponent
from rlnb.games.text_games import TextGame
from rlnb.policy.generation import evaluating
from rlnb.run.directory import log_line
from rlnb.run.health import Health, check_alarms, count_alarms, memory_advice, save_games_when_diverged
from rlnb.run.stop_signal import StopSignal
from rlnb.run.tracking import Tracker
from rlnb.selfplay.advantages import Advantages, compute_advantages
from rlnb.selfplay.checkpoints import save_checkpoint
from rlnb.selfplay.losses import Batch, make_batch
from rlnb.selfplay.params import UpdateParams
from rlnb.selfplay.play_metrics import GamesFile, mean_over_ranks, play_metrics
from rlnb.selfplay.rollouts import (
    LEARNER,
    Episode,
    FinishedGame,
    GameRules,
    Player,
    collect_trajectories,
    collect_turns,
    paired_episodes,
    play_games,
    self_play_episodes,
)
from rlnb.selfplay.update import Learner, update
from rlnb.spiral.params import SpiralSelfPlayParams


@dataclass(frozen=True)
class SelfPlayState:
    """The progress of a run, apart from weights and optimizer.

    baselines: by "game/role". alarms: number of updates in a row that raised each. first_length: mean tokens
    of an answer at the first update, with which the alarms compare.
    """

    step: int = 0
    num_games: int = 0
    baselines: dict[str, float] = field(default_factory=dict)
    alarms: dict[str, int] = field(default_factory=dict)
    first_length: float = 0.0

    def advance(
        self, metrics: Mapping[str, float], baselines: dict[str, float], params: SpiralSelfPlayParams
    ) -> "SelfPlayState":
        """Return the state after an update."""
        first_length = self.first_length or metrics["play/completion_tokens"]
        return SelfPlayState(
            step=self.step + 1,
            num_games=self.num_games + params.training.games_per_step,
            baselines=baselines,
            alarms=count_alarms(self.alarms, metrics, params.alarms, first_length=first_length),
            first_length=first_length,
        )


@dataclass(frozen=True)
class SelfPlayGames:
    """The source of each update's games. make_player: returns a player with the policy's current weights."""

    game: TextGame
    rules: GameRules
    make_player: Callable[[], Player]
    opponents: Mapping[str, Opponent]
    params: SpiralSelfPlayParams

    def episodes(self, step: int) -> list[Episode]:
        """Return this rank's games of an update, seeded by the run's seed, the step and the rank."""
        game, ranks = self.params.game, PartialState()
        seed = int(np.random.SeedSequence([self.params.seed, step, ranks.process_index]).generate_state(1)[0])
        num_games = self.params.training.games_per_step // ranks.num_processes
        if game.opponent == "self":
            return self_play_episodes(
                self.game, num_games, seed=seed, max_opening_plies=game.max_opening_plies,
                games_per_opening=game.games_per_opening,
            )  # fmt: skip
        return paired_episodes(
            self.game, game.opponent, num_games, seed=seed, max_opening_plies=game.max_opening_plies,
            games_per_opening=max(2, game.games_per_opening),
        )  # fmt: skip

    def play(self, step: int) -> list[FinishedGame]:
        return play_games(
            self.episodes(step), {LEARNER: self.make_player(), **self.opponents}, rules=self.rules,
            num_parallel=self.params.game.num_parallel,
        )  # fmt: skip


def train(
    learner: Learner,
    self_play: SelfPlayGames,
    state: SelfPlayState,
    *,
    tracker: Tracker,
    output_dir: str | Path,
    evaluate: Callable[[], Mapping[str, float]],
    show: Callable[[int, int], None] | None = None,
) -> SelfPlayState:
    """Train from `state` to `training.max_steps` updates and return the final state.

    evaluate: called every `evaluation.eval_interval_steps`. show: called with (step, max_steps) some fifty
    times. Raises TrainingDiverged, with the games in diverged.jsonl and the last checkpoint in place,
    OutOfMemory, and Preempted after a signal.
    """
    params, max_steps = self_play.params, self_play.params.training.max_steps
    health, is_checkpoint_due, is_stopping = Health(has_reward_trend=False), False, False
    gc.freeze()  # scanning the objects of torch and transformers took a third of a rollout of Kuhn poker
    with StopSignal() as stop, GamesFile(output_dir, after=state.step) as games_file, memory_advice(params):
        while state.step < max_steps and not is_stopping:
            # 1. Play. Games advance in lockstep; the same weights play both seats.
            started = time.perf_counter()
            with evaluating(learner.actor.policy):
                games = self_play.play(state.step)
            played = time.perf_counter()
            # 2. Advantages. Returns are compared with the baselines from before this batch.
            advantages = compute_advantages(games, state.baselines, params.advantage)
            with save_games_when_diverged(games, output_dir):
                # 3. Update. The only place where trajectories become tensors.
                batch = select_turns(games, advantages, params.training, has_value=learner.value_coef > 0)
                metrics = update(learner, batch, step=state.step, seed=params.seed)
                updated = time.perf_counter()
                # 4. Measure and save.
                metrics |= play_metrics(games) | {"advantage/std": float(advantages.advantages.std())}
                metrics |= {"time/rollout_seconds": played - started, "time/update_seconds": updated - played}
                metrics = mean_over_ranks(metrics)
                state = state.advance(metrics, advantages.baselines, params)
                check_alarms(state.alarms, metrics, params.alarms, first_length=state.first_length)
            metrics["play/num_games"] = float(state.num_games)
            games_file.write(games, state.step)
            is_last = state.step == max_steps
            is_stopping = stop.after_step(is_last=is_last)
            if params.evaluation.is_due(state.step) and not is_last and not is_stopping:
                metrics |= evaluate()
            tracker.report(state.step, metrics)
            is_checkpoint_due |= state.step % params.training.save_steps == 0
            # Do not checkpoint a policy that is raising an alarm.
            if is_last or is_stopping or (is_checkpoint_due and not state.alarms):
                save_checkpoint(output_dir, learner, state, params, keep=params.training.save_total_limit)
                is_checkpoint_due = False
            report_progress(output_dir, state.step, max_steps, metrics, health, show)
    return state


def select_turns(
    games: Sequence[FinishedGame], advantages: Advantages, training: UpdateParams, *, has_value: bool
) -> Batch:
    """Return a batch of the turns that teach something: those with a choice or, for a value head, all.

    With `drop_zero_advantages` trajectories with only zero advantages are left out, unless all are zero.
    """
    trajectories = collect_trajectories(games)
    turns = collect_turns(trajectories)
    is_kept = np.array([has_value or bool(turn.choices) for turn in turns], dtype=bool)
    if training.drop_zero_advantages:
        lengths = [len(trajectory.turns) for trajectory in trajectories]
        indices = np.repeat(np.arange(len(trajectories)), lengths)
        teaches = np.isin(indices, indices[advantages.advantages != 0])
        is_kept &= teaches if teaches.any() else True
    kept = np.flatnonzero(is_kept)
    return make_batch(
        [turns[index] for index in kept],
        advantages.advantages[kept],
        advantages.targets[kept],
        memo=training.prompt_memo,
    )


def report_progress(
    output_dir: str | Path,
    step: int,
    max_steps: int,
    metrics: Mapping[str, float],
    health: Health,
    show: Callable[[int, int], None] | None,
) -> None:
    """Log an update in a line of train.log, print warnings, and redraw the live figure."""
    scores = {
        "score": f"{metrics['play/score']:.2f}",
        "first seat": f"{metrics['play/first_score']:.2f}",
        "draws": f"{metrics['play/draw_share']:.0%}",
        "invalid": f"{metrics['play/invalid_share']:.0%}",
        "entropy": f"{metrics['entropy']:.3f}",
    }
    exact = {"NashConv": "nash_conv", "loss as first": "loss_first", "as second": "loss_second"}
    scores |= {
        label: f"{metrics[f'exact/{name}']:.3f}"
        for label, name in exact.items()
        if f"exact/{name}" in metrics
    }
    seconds = metrics["time/rollout_seconds"] + metrics["time/update_seconds"]
    parts = [f"step {step}/{max_steps}", *(f"{label} {text}" for label, text in scores.items())]
    log_line(output_dir, "  ".join([*parts, f"{seconds:.1f} s"]))
    for line in health.after_step(step, metrics):
        print(line)
    if show and (step == max_steps or step % max(1, max_steps // 50) == 0):
        show(step, max_steps)
