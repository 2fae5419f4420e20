"""A run whose policy plays games: what SPIRAL and PPO do around a step, so that their loops are the recipe.

The runs of rlnb/spiral and rlnb/ppo add `play`, `update` and `log`.
"""

import gc
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Generic, Literal, TypeVar

import numpy as np
from accelerate.utils import gather_object

from rlnb.display.progress import progress_bar
from rlnb.evaluations import NOT_TRAINED, evaluate_step
from rlnb.machine import rank
from rlnb.mbpp.evaluation import MbppEvaluation
from rlnb.mbpp.results import mbpp_metrics
from rlnb.mbpp.samples import Sample
from rlnb.policy import Policy, save_adapters
from rlnb.policy.adapters import first_weights, rewind
from rlnb.run.checkpoints import checkpoint_to_resume
from rlnb.run.directory import cut_rows, log_line
from rlnb.run.health import Health, check_alarms
from rlnb.run.memory import memory_advice
from rlnb.run.stop_signal import SaveTimer, StopSignal
from rlnb.run.tracking import Tracker, open_run_tracker
from rlnb.sandbox import Sandbox
from rlnb.selfplay.arena import Arena, ArenaEvaluation
from rlnb.selfplay.batch import Learner
from rlnb.selfplay.checkpoints import RunState, restore, save_checkpoint
from rlnb.selfplay.params import GameRunParams
from rlnb.selfplay.rollouts import FinishedGame, collect_trajectories, collect_turns

GAMES_FILE = "games.jsonl"  # a line for every game of the run, as `FinishedGame.as_record`

AnyParams = TypeVar("AnyParams", bound=GameRunParams)
AnyState = TypeVar("AnyState", bound=RunState)


@dataclass
class GameRun(Generic[AnyParams, AnyState]):
    """A policy that plays games, with what measures it (arena), trains it (learner) and keeps it.

    state: the progress, at first that of a new run. show: called with (step, max_steps) some fifty times.
    say: called with warnings.
    """

    params: AnyParams
    arena: Arena
    learner: Learner
    state: AnyState
    show: Callable[[int, int], None] | None = None
    say: Callable[[str], None] = print
    before: Mapping[str, float] = field(default_factory=dict, init=False)  # metrics of the untrained policy
    seconds: dict[str, float] = field(default_factory=dict, init=False)  # of the present step
    is_stopping: bool = field(default=False, init=False)  # a signal has come, and its checkpoint is saved
    is_save_due: bool = field(default=False, init=False)
    tracker: Tracker = field(init=False)

    def __post_init__(self) -> None:
        self.first_state = replace(self.state)

    def describe(self, metrics: Mapping[str, float]) -> str:
        """Return an update's line of train.log."""
        raise NotImplementedError

    @property
    def policy(self) -> Policy:
        return self.arena.policy

    @property
    def output_dir(self) -> Path:
        return Path(self.params.output_dir)

    def steps(self) -> Iterator[int]:
        """Yield the number of updates so far before each update that is left; `log` completes it.

        The run goes on from its last checkpoint, or begins with the policy's first weights. Games and metrics
        of later steps, from an attempt that was killed, are dropped; an evaluation that a signal skipped or
        cut short is made up first. Raises Preempted after a signal, with the step saved.
        """
        max_steps = self.params.training.max_steps
        checkpoint = checkpoint_to_resume(self.params, self.output_dir)
        head = self.learner.actor.value_head
        if rewind(self.policy.model, *([head] if head else [])):
            self.learner = replace(self.learner)  # with a fresh optimizer and fresh copies of the weights
        self.state = restore(self.first_state, checkpoint, self.learner)
        gc.freeze()  # scanning the objects of torch and transformers took a third of a rollout of Kuhn poker
        self.output_dir.mkdir(parents=True, exist_ok=True)
        if rank() == 0:
            cut_rows(self.output_dir / GAMES_FILE, after=self.state.step)
        self.stop, self.health, self.timer = StopSignal(), Health(), SaveTimer()
        self.is_stopping = self.is_save_due = False
        with open_run_tracker(self.params, step=self.state.step) as self.tracker, self.stop:
            if self.before and self.state.step == 0:
                self.tracker.report(0, self.before)
            if 0 < self.state.step < max_steps and self.params.evaluation.is_due(self.state.step):
                self.interval_evaluation()
            if self.state.step >= max_steps:
                self.say(f"{self.output_dir} has all {max_steps} updates; train again in another output_dir")
            while (step := self.state.step) < max_steps and not self.is_stopping:
                yield step
                if self.state.step == step:
                    raise RuntimeError("the loop has not called run.log(step, games, metrics)")

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Time a part of a step; if the GPU's memory is used up there, say what to lower."""
        started = time.perf_counter()
        with memory_advice(self.params, doing="training"):
            yield
        self.seconds[f"time/{part}_seconds"] = time.perf_counter() - started

    def mean_metrics(self, games: Sequence[FinishedGame], metrics: Mapping[str, float]) -> dict[str, float]:
        """Return a step's metrics with those of its games and its seconds, means over all ranks."""
        return mean_over_ranks({**metrics, **play_metrics(games), **self.seconds})

    def record(
        self, games: Sequence[FinishedGame], metrics: Mapping[str, float], *, notes: Sequence[str] = ()
    ) -> None:
        """Write an update's games and metrics, evaluate and save where that is due; end a run that diverges.

        notes: lines to say.
        """
        state, training, evaluation = self.state, self.params.training, self.params.evaluation
        check_alarms(state.alarms, metrics, first_length=state.first_length)
        values = {**metrics, "play/num_games": float(state.num_games)}
        records = gather_object([{"step": state.step, **game.as_record()} for game in games])
        if rank() == 0:
            lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in records]
            with (self.output_dir / GAMES_FILE).open("a", encoding="utf-8") as file:
                file.writelines(lines)
        is_last = state.step == training.max_steps
        self.is_stopping = self.stop.after_step(is_last=is_last)
        is_evaluated = evaluation.is_due(state.step) and not is_last and not self.is_stopping
        self.tracker.report(state.step, values)
        self.is_save_due |= is_evaluated or state.step % training.save_steps == 0 or self.timer.is_due()
        # A policy that raises an alarm is saved at the end and on a signal only.
        if is_last or self.is_stopping or (self.is_save_due and not state.alarms):
            save_checkpoint(self.output_dir, self.learner, state, self.params)
            self.is_save_due = False
            self.timer.restart()
        if is_evaluated:
            values |= self.interval_evaluation()
            if self.is_stopping and state.alarms:
                save_checkpoint(self.output_dir, self.learner, state, self.params)
        log_line(self.output_dir, self.describe(values))
        # The warning of KL(policy || reference) is GRPO's; PPO adapts its weight.
        for line in [*notes, *self.health.after_step(state.step, {**values, "kl": None})]:
            log_line(self.output_dir, line)
            self.say(line)
        if self.show and (is_last or state.step % max(1, training.max_steps // 50) == 0):
            self.show(state.step, training.max_steps)

    def interval_evaluation(self) -> Mapping[str, float]:
        """Report and return the evaluation of a step that is saved, {} where a signal has cut it short."""
        metrics = evaluate_step(self.state.step, self.measure_step, self.tracker, self.stop)
        self.is_stopping = self.stop.after_step()
        return metrics

    def measure_step(self, step: int) -> Mapping[str, float]:
        """Return the metrics of play and of MBPP in between, from `evaluation.interval_games` games."""
        num_games = self.params.evaluation.interval_games
        with memory_advice(self.params):
            played = self.arena.measure_once(self.learner.average, f"step-{step}", num_games=num_games)
            solved = self.mbpp.measure(self.policy, f"step-{step}")
        return {**played.metrics, **mbpp_metrics(solved)}

    def measure(self, label: Literal["before", "after"]) -> tuple[ArenaEvaluation | None, list[Sample]]:
        """Return the full evaluation of play and of MBPP, and report its metrics.

        Without `evaluation.enabled` there is none. Raises RuntimeError for "after" where this run has trained
        nothing: a cell that is run again makes it anew.
        """
        if label == "after" and not self.state.step:
            raise RuntimeError(NOT_TRAINED)
        if not self.params.evaluation.enabled:
            return None, []
        mbpp_bar = progress_bar(f"{label}: MBPP") if self.params.mbpp.enabled else None
        average = first_weights(self.policy) if label == "before" else self.learner.average
        with memory_advice(self.params):
            played = self.arena.measure_once(
                average,
                label,
                num_games=self.params.evaluation.num_games,
                progress=progress_bar(label),
            )
            solved = self.mbpp.measure(self.policy, label, progress=mbpp_bar)
        metrics = {**played.metrics, **mbpp_metrics(solved)}
        if label == "before":
            self.before = metrics  # reported when training starts
        else:
            with open_run_tracker(self.params, step=self.state.step) as tracker:
                tracker.report(self.state.step, metrics)
            if self.show:
                self.show(self.state.step, self.params.training.max_steps)
        return played, solved

    @cached_property
    def sandbox(self) -> Sandbox:
        return Sandbox.from_params(self.params.sandbox)

    @cached_property
    def mbpp(self) -> MbppEvaluation:
        return MbppEvaluation.from_params(self.params, self.sandbox)

    def save_weights(self) -> None:
        """Write the trained weights to adapters/ and their average to average/."""
        save_adapters(self.policy, self.output_dir / "adapters")
        with self.learner.average.applied_to(self.policy):
            save_adapters(self.policy, self.output_dir / "average")


def play_metrics(games: Sequence[FinishedGame]) -> dict[str, float]:
    """Return the metrics of the learner's turns and of the outcomes, by their names in METRICS."""
    trajectories = collect_trajectories(games)
    turns = collect_turns(trajectories)
    lengths = [len(turn.completion_ids) for turn in turns]
    masses = [turn.legal_mass for turn in turns if not math.isnan(turn.legal_mass)]
    scores = [game.score(trajectory.seat) for game in games for trajectory in game.trajectories]
    metrics = {
        "play/first_score": float(np.mean([game.score(0) for game in games])),
        "play/score": float(np.mean(scores)),
        "play/draw_share": float(np.mean([game.winner is None for game in games])),
        "play/turns": len(turns) / len(games),
        "play/invalid_share": sum(turn.problem is not None for turn in turns) / max(1, len(turns)),
        "play/cut_share": sum(turn.problem == "cut" for turn in turns) / max(1, len(turns)),
        "play/completion_tokens": float(np.mean(lengths)) if turns else 0.0,
        "play/distinct_share": len({game.history for game in games}) / len(games),
        "reward": float(np.mean([trajectory.reward for trajectory in trajectories])),
    }
    return metrics | ({"play/legal_mass": float(np.mean(masses))} if masses else {})


def mean_over_ranks(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the means over all ranks, the same on each, so that all ranks stop or continue together."""
    ranks: list[Mapping[str, float]] = gather_object([dict(metrics)])
    return {name: float(np.mean([values[name] for values in ranks if name in values])) for name in metrics}
