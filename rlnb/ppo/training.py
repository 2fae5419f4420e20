"""PPO: games of a curriculum, lost games played again, GAE over a player's turns, clipped updates.

Schulman et al. 2017 (arXiv:1707.06347). The unit is a player's turn: one value at the end of the prompt, one
advantage, one ratio. Games are always played by the current weights, in this process.
"""

import itertools
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from accelerate import PartialState
from accelerate.utils import gather_object

from rlnb.errors import TrainingDiverged, see
from rlnb.games.opponents import Opponent
from rlnb.games.text_games import TextGame
from rlnb.policy.generation import evaluating
from rlnb.ppo.curriculum import (
    SUCCESS_SCORE,
    Assignment,
    Curriculum,
    CurriculumState,
    GameResult,
    ReplayBuffer,
    advance_curriculum,
    collect_results,
    draw_fresh_games,
    draw_replays,
    num_replays,
    score_of_random_play,
)
from rlnb.ppo.params import PpoOpenspielParams, PpoTrainingParams
from rlnb.run.directory import log_line
from rlnb.run.health import ALARM_KL_FACTOR, Health, check_alarms, memory_advice
from rlnb.run.tracking import Tracker
from rlnb.selfplay.advantages import gae_of_turns, normalize_advantages
from rlnb.selfplay.arena import Arena
from rlnb.selfplay.checkpoints import RunState, StepRecorder, mean_over_ranks, play_metrics
from rlnb.selfplay.rollouts import (
    LEARNER,
    FinishedGame,
    Player,
    Trajectory,
    collect_trajectories,
    collect_turns,
    play_games,
)
from rlnb.selfplay.update import Batch, Learner, make_batch, update

GAE_LAMBDA = 0.95  # 0 = one step, 1 = whole games


@dataclass(frozen=True)
class PpoState(RunState):
    """The progress of a run."""

    curriculum: CurriculumState = CurriculumState()
    replay: ReplayBuffer = ReplayBuffer()


@dataclass(frozen=True)
class GamePlan:
    """The games of every update, played by the policy's current weights as in the arena."""

    params: PpoOpenspielParams
    curriculum: Curriculum
    arena: Arena
    opponents: Mapping[str, Opponent]

    def assign_games(self, state: PpoState) -> list[Assignment]:
        """Return this rank's games of an update: fresh games, each from both seats, and replayed failures.

        They follow from the run's seed and the state, so that all ranks know the games of all ranks.
        """
        num_games, share = self.params.training.games_per_step, self.params.replay.share
        seed = int(np.random.SeedSequence([self.params.seed, state.step]).generate_state(1)[0])
        rng = random.Random(seed)
        tasks = state.replay.draw(num_replays(num_games, share, len(state.replay.failures), rng), rng)
        num_fresh = num_games - len(tasks)
        fresh = draw_fresh_games(state.curriculum, self.curriculum, num_fresh, seed=rng.getrandbits(40))
        assignments = [*fresh, *draw_replays(tasks, self.curriculum, seed=rng.getrandbits(40))]
        ranks = PartialState()
        return [
            assignment
            for index, assignment in enumerate(assignments)
            if index // 2 % ranks.num_processes == ranks.process_index
        ]

    def play(self, assignments: Sequence[Assignment]) -> list[FinishedGame]:
        """Return the played games in the order of their assignments."""
        players: dict[str, Player | Opponent] = {LEARNER: self.arena.player(), **self.opponents}
        return play_games([game.episode for game in assignments], players, rules=self.arena.rules)


def train_ppo(
    params: PpoOpenspielParams,
    learner: Learner,
    plan: GamePlan,
    state: PpoState,
    *,
    output_dir: str | Path,
    tracker: Tracker,
    evaluate: Callable[[int], Mapping[str, float]],
    save: Callable[[PpoState], object],
    show: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] = print,
) -> PpoState:
    """Train from `state` to `training.max_steps` updates and return the last state.

    evaluate, show: as in `StepRecorder`. save: writes a checkpoint. say: called with warnings and changes of
    the stage; train.log has these and a line a step. Raises TrainingDiverged, OutOfMemory,
    and Preempted after a signal.
    """
    max_steps = params.training.max_steps

    def log_and_say(line: str) -> None:
        log_line(output_dir, line)
        say(line)

    recorder = StepRecorder(
        output_dir, params.training, params.evaluation, tracker, Health(),
        evaluate=memory_advice(params)(evaluate), describe=describe_step, show=show, say=log_and_say,
    )  # fmt: skip
    with recorder.recording(after=state.step), memory_advice(params, doing="training"):
        while state.step < max_steps and not recorder.is_stopping:
            # 1. Play: fresh games of the stage, each from both seats, and games that were lost before.
            started = time.perf_counter()
            assignments = plan.assign_games(state)
            with evaluating(learner.actor.policy):
                games = plan.play(assignments)
            results = in_order_of_assignment(gather_object([collect_results(assignments, games)]))

            # 2. Credit: GAE from each turn of the learner to its next one.
            played = time.perf_counter()
            batch, advantage_std = make_ppo_batch(games, params.training)

            # 3. Update the weights: the clipped surrogate, several epochs of mini-batches.
            metrics = update(learner, batch, step=state.step, seed=params.seed)
            updated = time.perf_counter()

            # 4. Measure the games of all ranks.
            metrics |= play_metrics(games) | {"advantage/std": advantage_std}
            metrics |= {"play/utility": mean_utility(games, plan.curriculum.games)}
            metrics |= {"time/rollout_seconds": played - started, "time/update_seconds": updated - played}
            metrics = mean_over_ranks(metrics)

            # 5. Move on: curriculum, replay buffer and alarms. Stop a run that has diverged.
            state, notes = next_state(state, results, metrics, params)
            check_alarms(state.alarms, metrics, first_length=state.first_length)
            check_kl(metrics, params)
            metrics["play/success_share"] = success_share(results)
            pairings = plan.curriculum.pairings[state.curriculum.stage]
            metrics["curriculum/random_score"] = score_of_random_play(pairings)
            metrics |= state.curriculum.metrics() | state.replay.metrics(results, step=state.step)
            metrics = {name: value for name, value in metrics.items() if not math.isnan(value)}

            # 6. Evaluate, report and save. Do not checkpoint a policy that raises an alarm.
            recorder.end_step(state, games, metrics, save=partial(save, state), notes=notes)
    return state


def in_order_of_assignment(by_rank: Sequence[Sequence[GameResult]]) -> list[GameResult]:
    """Return the results of all ranks as one rank would have them; see `GamePlan.assign_games`."""
    pairs = [[results[start : start + 2] for start in range(0, len(results), 2)] for results in by_rank]
    rounds = itertools.zip_longest(*pairs, fillvalue=())
    return [result for pair in itertools.chain.from_iterable(rounds) for result in pair]


def make_ppo_batch(games: Sequence[FinishedGame], training: PpoTrainingParams) -> tuple[Batch, float]:
    """Return the learner's turns as a batch, and the standard deviation of their raw advantages.

    Advantages are normalized over the turns of all ranks.
    """
    trajectories = collect_trajectories(games)
    advantages, targets = gae_of_turns(trajectories, lam=GAE_LAMBDA)
    lengths = [len(trajectory.turns) for trajectory in trajectories]
    weights = weigh_turns(
        trajectories, weigh=training.weigh, mean_length=float(np.mean(gather_object(lengths)))
    )
    every_rank = gather_object([(advantages, weights)])
    all_advantages, all_weights = (np.concatenate(arrays) for arrays in zip(*every_rank, strict=True))
    normalized = normalize_advantages(advantages, weights, among=(all_advantages, all_weights))
    batch = make_batch(collect_turns(trajectories), normalized, targets, weights=weights)
    return batch, float(advantages.std())


def weigh_turns(trajectories: Sequence[Trajectory], *, weigh: str, mean_length: float) -> np.ndarray:
    """Return float (num_turns,) with mean 1: equal weights for all turns, or ("games") for all trajectories.

    mean_length: turns of a trajectory, on all ranks.
    """
    lengths = np.array([len(trajectory.turns) for trajectory in trajectories])
    weights = np.ones(len(lengths)) if weigh == "turns" else mean_length / np.maximum(lengths, 1)
    return np.repeat(weights, lengths)


def mean_utility(games: Sequence[FinishedGame], known: Mapping[str, TextGame]) -> float:
    """Return the mean of (return - least) / (most - least) over the learner's games, all in [0, 1]."""
    shares = []
    for played in games:
        game = known[played.game].game
        least, most = game.min_utility(), game.max_utility()
        shares += [(played.returns[each.seat] - least) / (most - least) for each in played.trajectories]
    return float(np.mean(shares)) if shares else float("nan")


def success_share(results: Sequence[GameResult]) -> float:
    """Return the share of the fresh games that are successes; NaN without fresh games."""
    successes = [result.score >= SUCCESS_SCORE for result in results if result.is_fresh]
    return float(np.mean(successes)) if successes else float("nan")


def next_state(
    state: PpoState, results: Sequence[GameResult], metrics: Mapping[str, float], params: PpoOpenspielParams
) -> tuple[PpoState, list[str]]:
    """Return the state after an update, and a line if the stage changed."""
    curriculum, progression = advance_curriculum(state.curriculum, results, params.curriculum)
    state = state.advance(metrics, params.training)
    replay = state.replay.update(results, curriculum.mean_scores, step=state.step)
    return replace(state, curriculum=curriculum, replay=replay), [progression] if progression else []


def check_kl(metrics: Mapping[str, float], params: PpoOpenspielParams) -> None:
    """Raise TrainingDiverged if one update moved the policy by more than ALARM_KL_FACTOR times target_kl."""
    target = params.training.target_kl
    if target and metrics["update/approx_kl"] > ALARM_KL_FACTOR * target:
        raise TrainingDiverged(
            f"in one update the policy moved by {metrics['update/approx_kl']:.3g} nats a token, more than "
            f"{ALARM_KL_FACTOR} times training.target_kl = {target}; lower "
            f"training.learning_rate = {params.training.learning_rate}, or training.num_epochs = "
            f"{params.training.num_epochs}{see('nan')}"
        )


def describe_step(step: int, metrics: Mapping[str, float]) -> str:
    return (
        f"Step {step} | Reward: {metrics['reward']:.4f} | Score: {metrics['play/score']:.4f} | "
        f"Success: {metrics.get('play/success_share', 0.0):.2%}"
    )
