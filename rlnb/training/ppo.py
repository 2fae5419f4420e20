"""PPO: games of a curriculum, failures played again, GAE over own turns, one policy update after another.

Schulman et al. 2017 (arXiv:1707.06347). The unit is a player's turn: one value at the prompt's end, one
advantage, one ratio. Games are always played by the current weights, in this process.
"""

import gc
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from accelerate.utils import gather_object

from rlnb.advantages import normalized
from rlnb.errors import TrainingDiverged
from rlnb.games.opponents import Opponent
from rlnb.games.text_games import TextGame
from rlnb.metrics import Tracker
from rlnb.policy.generation import evaluating
from rlnb.rollouts import LEARNER, Rules, play_games
from rlnb.training.alarms import check_alarms, kept_when_diverged, ringing
from rlnb.training.batches import Batch, make_batch
from rlnb.training.credit import turn_estimates
from rlnb.training.curriculum import (
    Assignment,
    Curriculum,
    CurriculumState,
    advance,
    fresh_episodes,
    replayed_episodes,
    results_of,
)
from rlnb.training.play_metrics import GamesFile, mean_over_ranks, play_metrics
from rlnb.training.replay import Replay, Result, num_replays
from rlnb.training.resources import memory_advice
from rlnb.training.spiral import is_due
from rlnb.training.stop_signal import StopSignal
from rlnb.training.update import Learner, update
from rlnb.trajectories import PlayedGame, Player, Trajectory, turns_of

LOW_SUCCESS = 0.3  # below it a run is told what to change


@dataclass(frozen=True)
class PpoState:
    """Where a run is: what it needs besides weights and optimizer. `asdict` and `of` take it through JSON."""

    step: int = 0
    num_games: int = 0
    curriculum: CurriculumState = CurriculumState()
    replay: Replay = Replay()
    alarms: dict[str, int] = field(default_factory=dict)
    first_length: float = 0.0

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> "PpoState":
        """From a checkpoint's mapping; the start of a run from an empty one."""
        if not kept:
            return cls()
        parts = {"curriculum": CurriculumState.of(kept["curriculum"]), "replay": Replay.of(kept["replay"])}
        return cls(**{**kept, **parts})


@dataclass(frozen=True)
class Practice:
    """What is played for each update. player: makes one of the policy's weights as they are now.

    opponents: by their names. params: the notebook's.
    """

    curriculum: Curriculum
    rules: Rules
    player: Callable[[], Player]
    opponents: Mapping[str, Opponent]
    params: Any

    def assignments(self, state: PpoState) -> list[Assignment]:
        """The games of an update that fall to this rank: fresh pairs of both seats, and failures again.

        They follow from the run's seed and the state, so that all ranks know the games of all.
        """
        seed = int(np.random.SeedSequence([self.params.seed, state.step]).generate_state(1)[0])
        rng, count = random.Random(seed), self.params.training.games_per_step
        again = num_replays(count, self.params.replay.share, len(state.replay.failures), rng)
        tasks = state.replay.draw(again, rng)
        fresh = fresh_episodes(
            state.curriculum, self.curriculum, count - len(tasks), seed=rng.getrandbits(40)
        )
        found = [*fresh, *replayed_episodes(tasks, self.curriculum, seed=rng.getrandbits(40))]
        ranks = PartialState()
        return [
            one for number, one in enumerate(found)
            if number // 2 % ranks.num_processes == ranks.process_index
        ]  # fmt: skip

    def play(self, assignments: Sequence[Assignment]) -> list[PlayedGame]:
        """The games in the order of their assignments."""
        return play_games(
            [one.episode for one in assignments], {LEARNER: self.player(), **self.opponents},
            rules=self.rules, num_parallel=self.params.game.num_parallel,
        )  # fmt: skip


def train(
    learner: Learner,
    practice: Practice,
    state: PpoState,
    *,
    tracker: Tracker,
    output_dir: str | Path,
    evaluate: Callable[[], Mapping[str, float]],
    save: Callable[[PpoState], object],
    show: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] = print,
) -> PpoState:
    """Train from `state` to `training.max_steps` updates and return where it ended.

    evaluate: called every `evaluation.eval_interval_steps`. save: writes a checkpoint, every `save_steps` or
    once no alarm rings any more. show: called with (step, max_steps) some fifty times, and say with a line.
    Raises TrainingDiverged, its games kept in diverged.jsonl and the last checkpoint in place, OutOfMemory,
    and Preempted after a signal.
    """
    params, asked = practice.params, practice.params.training
    max_steps, is_overdue, is_stopping = asked.max_steps, False, False
    gc.freeze()  # what torch and transformers leave: looking through it takes longer than a small game
    with StopSignal() as stop, GamesFile(output_dir, after=state.step) as record, memory_advice(params):
        while state.step < max_steps and not is_stopping:
            # 1. Play. Fresh games of the stage, each from both seats, and failures again.
            started = time.perf_counter()
            with evaluating(learner.actor.policy):
                games = practice.play(assignments := practice.assignments(state))
            results: list[Result] = gather_object(results_of(assignments, games))
            # 2. Credit. From one own turn to the next; what opponent and chance do belongs to the step.
            played = time.perf_counter()
            batch, spread = batch_of(games, asked)
            # 3. Update. The only place where trajectories become tensors.
            with kept_when_diverged(games, output_dir):
                metrics = update(learner, batch, step=state.step, seed=params.seed)
                # 4. Measure and save.
                metrics |= {"time/rollout_seconds": played - started, "advantage/std": spread}
                metrics["time/update_seconds"] = time.perf_counter() - played
                metrics |= play_metrics(games) | {"play/utility": utility(games, practice.curriculum.games)}
                metrics = mean_over_ranks(metrics) | {"play/success_share": success_share(results, params)}
                state, progression = after(state, results, metrics, params)
                check_alarms(state.alarms, metrics, params.alarms, first_length=state.first_length)
                check_kl(metrics, params)
            metrics |= state.curriculum.metrics() | state.replay.metrics(results, step=state.step)
            metrics = {name: value for name, value in metrics.items() if not math.isnan(value)}
            metrics |= {"play/num_games": float(state.num_games)}
            record.write(games, state.step)
            is_stopping = stop.after_step(is_last=(is_last := state.step == max_steps))
            if not is_last and not is_stopping and is_due(state.step, params.evaluation):
                metrics |= evaluate()
            tracker.report(state.step, metrics)
            is_overdue |= state.step % asked.save_steps == 0
            if is_last or is_stopping or (is_overdue and not state.alarms):  # what rings is not good
                save(state)
                is_overdue = False
            for line in [*progression, *lines_due(state, metrics, params)]:
                say(line)
            if show and (is_last or state.step % max(1, max_steps // 50) == 0):
                show(state.step, max_steps)
    return state


def batch_of(games: Sequence[PlayedGame], asked: Any) -> tuple[Batch, float]:
    """The learner's turns with advantages, targets and weights, and the deviation of raw advantages.

    asked: the section training. Advantages are normalized over the turns of all ranks.
    """
    trajectories = [one for game in games for one in game.trajectories]
    advantages, targets = turn_estimates(trajectories, gamma=asked.gamma, lam=asked.lam)
    mean_length = float(np.mean(gather_object([len(one.turns) for one in trajectories])))
    weights = turn_weights(trajectories, weigh=asked.weigh, mean_length=mean_length)
    spread = float(advantages.std())
    if asked.normalize_advantages:
        everyone = gather_object([(advantages, weights)])
        all_advantages, all_weights = (np.concatenate(one) for one in zip(*everyone, strict=True))
        advantages = normalized(advantages, weights, among=(all_advantages, all_weights))
    turns = turns_of(trajectories)
    return make_batch(turns, advantages, targets, weights=weights, memo=asked.prompt_memo), spread


def turn_weights(trajectories: Sequence[Trajectory], *, weigh: str, mean_length: float) -> np.ndarray:
    """float (num_turns,), of mean 1: every turn the same, or ("games") every trajectory the same.

    mean_length: turns of a trajectory, on all ranks.
    """
    lengths = np.array([len(one.turns) for one in trajectories])
    each = np.ones(len(lengths)) if weigh == "turns" else mean_length / np.maximum(lengths, 1)
    return np.repeat(each, lengths)


def utility(games: Sequence[PlayedGame], known: Mapping[str, TextGame]) -> float:
    """Mean of (return - least) / (most - least) over the learner's games: what Affine calls their score."""
    shares = []
    for played in games:
        least, most = known[played.game].game.min_utility(), known[played.game].game.max_utility()
        shares += [(played.returns[one.seat] - least) / (most - least) for one in played.trajectories]
    return float(np.mean(shares)) if shares else float("nan")


def success_share(results: Sequence[Result], params: Any) -> float:
    """Of the fresh games of all ranks; NaN without any."""
    own = [one.score >= params.curriculum.success_score for one in results if one.is_fresh]
    return float(np.mean(own)) if own else float("nan")


def after(
    state: PpoState, results: Sequence[Result], metrics: Mapping[str, float], params: Any
) -> tuple[PpoState, list[str]]:
    """The state one update later, and what to say where the stage changed."""
    curriculum, progression = advance(state.curriculum, results, params.curriculum)
    first_length = state.first_length or metrics["play/completion_tokens"]
    rings = ringing(metrics, params.alarms, first_length=first_length)
    step = state.step + 1
    return PpoState(
        step=step,
        num_games=state.num_games + params.training.games_per_step,
        curriculum=curriculum,
        replay=state.replay.after(
            results, curriculum.mean_scores, step=step,
            success_score=params.curriculum.success_score, params=params.replay,
        ),
        alarms={name: state.alarms.get(name, 0) + 1 for name in sorted(rings)},
        first_length=first_length,
    ), [progression] if progression else []  # fmt: skip


def moved_too_far(metrics: Mapping[str, float], params: Any) -> bool:
    """Whether an update went on to many times `target_kl` before it was noticed."""
    target = params.training.target_kl
    return bool(target) and metrics["update/approx_kl"] > params.alarms.kl_factor * target


def check_kl(metrics: Mapping[str, float], params: Any) -> None:
    """Raise TrainingDiverged where the policy moved too far in one update: it ended early, and too late."""
    if moved_too_far(metrics, params):
        raise TrainingDiverged(
            f"in one update the policy moved by {metrics['update/approx_kl']:.3g} nats a token, more than "
            f"alarms.kl_factor = {params.alarms.kl_factor} times training.target_kl = "
            f"{params.training.target_kl}; lower training.learning_rate = {params.training.learning_rate}, "
            f"or training.num_epochs = {params.training.num_epochs}"
        )


def lines_due(state: PpoState, metrics: Mapping[str, float], params: Any) -> list[str]:
    """What is said after an update: some fifty times how it stands, and advice where too little is won."""
    max_steps, interval = params.training.max_steps, params.alarms.advice_steps
    lines = []
    if state.step == max_steps or state.step % max(1, max_steps // 50) == 0:
        lines.append(
            f"Step {state.step} | Reward: {metrics['reward']:.4f} | "
            f"Score: {metrics['play/score']:.4f} | Success: {metrics.get('play/success_share', 0.0):.2%}"
        )
    share = state.curriculum.share_of_successes(params.curriculum.success_score)
    if interval and state.step % interval == 0 and share < LOW_SUCCESS:
        lines.append(
            f"Success in the stage's last {len(state.curriculum.scores)} games is {share:.0%}, below "
            f"{LOW_SUCCESS:.0%}. What helps, in this order: a higher game.temperature "
            f"({params.game.temperature}), a higher replay.share ({params.replay.share}), easier games or a "
            "lower threshold in curriculum.stages; see that play/invalid_share is near 0 "
            f"({metrics['play/invalid_share']:.2f})"
        )
    return lines
