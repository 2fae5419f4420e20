"""What SPIRAL and PPO keep of a run: its state, checkpoints, games and metrics, and how every step ends.

A checkpoint holds everything that a run needs to continue bit for bit.
"""

import gc
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import torch
from accelerate.utils import gather_object
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file

from rlnb.evaluations import evaluate_step
from rlnb.machine import rank
from rlnb.machine.threads import adapt_threads
from rlnb.params import dump_yaml
from rlnb.policy.adapters import WeightSnapshot, save_trained
from rlnb.policy.builtin import written_whole
from rlnb.run.checkpoints import STATE_FILE, complete_checkpoint, remove_old_checkpoints
from rlnb.run.directory import cut_rows, log_line, write_text
from rlnb.run.disk import sync
from rlnb.run.health import Health, find_alarms, memory_advice
from rlnb.run.stop_signal import SaveTimer, StopSignal
from rlnb.run.tracking import Tracker
from rlnb.selfplay.batch import Learner
from rlnb.selfplay.params import GameRunParams, UpdateParams
from rlnb.selfplay.rollouts import FinishedGame, collect_trajectories, collect_turns

PARAMS_FILE, GAMES_FILE = "params.yaml", "games.jsonl"
HEAD_FILE, AVERAGE_FILE = "value.safetensors", "average.safetensors"


@dataclass(frozen=True)
class RunState:
    """The progress of a run, apart from weights and optimizer: fields that JSON can hold.

    alarms: consecutive updates in which each alarm was raised. first_length: mean tokens of an answer at the
    first update, with which the alarms compare.
    """

    step: int = 0
    num_games: int = 0
    alarms: dict[str, int] = field(default_factory=dict)
    first_length: float = 0.0

    def advance(self, metrics: Mapping[str, float], training: UpdateParams) -> Self:
        """Return the state after an update."""
        first_length = self.first_length or metrics["play/completion_tokens"]
        alarms = find_alarms(metrics, first_length=first_length)
        return replace(
            self,
            step=self.step + 1,
            num_games=self.num_games + training.games_per_step,
            alarms={name: self.alarms.get(name, 0) + 1 for name in alarms},
            first_length=first_length,
        )


AnyState = TypeVar("AnyState", bound=RunState)


@dataclass
class StepRecorder:
    """The end of a step: games.jsonl, metrics, checkpoint, evaluation, log and warnings.

    evaluate: called with the step every `evaluation.eval_interval_steps`. describe: returns the step's line
    of train.log. show: called with (step, max_steps) some fifty times. say: called with warnings.
    is_stopping: a signal has come, and its checkpoint is saved.
    """

    output_dir: str | Path
    params: GameRunParams
    learner: Learner
    tracker: Tracker
    evaluate: Callable[[int], Mapping[str, float]]
    describe: Callable[[int, Mapping[str, float]], str]
    show: Callable[[int, int], None] | None = None
    say: Callable[[str], None] = print
    stop: StopSignal = field(default_factory=StopSignal)
    health: Health = field(default_factory=Health)
    timer: SaveTimer = field(default_factory=SaveTimer)
    is_stopping: bool = False
    is_save_due: bool = False

    @contextmanager
    def going_on(self, *, after: int) -> Iterator[None]:
        """Record a run that goes on after a step; later games, of an attempt that was killed, are dropped.

        An evaluation of that step that a signal skipped or cut short is made up first. Raises Preempted if a
        signal has stopped the run, and OutOfMemory with what to lower.
        """
        adapt_threads()
        gc.freeze()  # scanning the objects of torch and transformers took a third of a rollout of Kuhn poker
        self.games_file.parent.mkdir(parents=True, exist_ok=True)
        if rank() == 0:
            cut_rows(self.games_file, after=after)
        with self.stop:
            if 0 < after < self.params.training.max_steps and self.params.evaluation.is_due(after):
                self.measure(after)
            with memory_advice(self.params, doing="training"):
                yield

    @property
    def games_file(self) -> Path:
        """A line for every game of the run, as `FinishedGame.as_record`."""
        return Path(self.output_dir) / GAMES_FILE

    def measure(self, step: int) -> Mapping[str, float]:
        evaluate = memory_advice(self.params)(self.evaluate)
        values = evaluate_step(step, evaluate, self.tracker, self.stop)
        self.is_stopping = self.stop.after_step()
        return values

    def end_step(
        self,
        state: RunState,
        games: Sequence[FinishedGame],
        metrics: Mapping[str, float],
        *,
        notes: Sequence[str] = (),
    ) -> None:
        """Record an update's games and metrics, and save where a checkpoint is due. notes: lines to say."""
        training, evaluation, step = self.params.training, self.params.evaluation, state.step
        values = {**metrics, "play/num_games": float(state.num_games)}
        if rank() == 0:
            records = [{"step": step, **game.as_record()} for game in games]
            lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in records]
            with self.games_file.open("a", encoding="utf-8") as file:
                file.writelines(lines)
        is_last = step == training.max_steps
        self.is_stopping = self.stop.after_step(is_last=is_last)
        is_evaluated = evaluation.is_due(step) and not is_last and not self.is_stopping
        self.tracker.report(step, values)
        self.is_save_due |= is_evaluated or step % training.save_steps == 0 or self.timer.is_due()
        # A policy that raises an alarm is saved at the end and on a signal only.
        if is_last or self.is_stopping or (self.is_save_due and not state.alarms):
            save_checkpoint(self.output_dir, self.learner, state, self.params)
            self.is_save_due = False
            self.timer.restart()
        if is_evaluated:
            values |= self.measure(step)
            if self.is_stopping and state.alarms:
                save_checkpoint(self.output_dir, self.learner, state, self.params)
        log_line(self.output_dir, self.describe(step, values))
        # The warning of KL(policy || reference) is GRPO's; PPO adapts its weight.
        for line in [*notes, *self.health.after_step(step, {**values, "kl": None})]:
            self.say(line)
        if self.show and (is_last or step % max(1, training.max_steps // 50) == 0):
            self.show(step, training.max_steps)
        adapt_threads()


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


def save_checkpoint(output_dir: str | Path, learner: Learner, state: RunState, params: GameRunParams) -> Path:
    """Write checkpoints/checkpoint-N atomically, and delete all but the newest; rank 0 only.

    The random states of play and of mini-batches follow from the seed and the step; torch's is saved for
    dropout. Without `training.save_optimizer` the optimizer's own state is left out.
    """
    directory = Path(output_dir) / "checkpoints" / f"checkpoint-{state.step}"
    if rank() != 0:
        return directory
    with written_whole(directory) as unfinished:
        save_trained(learner.actor.policy, unfinished)
        for name, snapshot in learner.snapshots.items():
            snapshot.save(unfinished / f"{name}.safetensors")
        if learner.actor.value_head is not None:
            save_file(learner.actor.value_head.state_dict(), unfinished / HEAD_FILE)
        tensors = {"scaler": learner.scaler.state_dict(), "random": torch.random.get_rng_state()}
        if learner.training.save_optimizer:
            tensors["optimizer"] = learner.optimizer.state_dict()
        torch.save(tensors, unfinished / "optimizer.pt")
        write_text(unfinished / PARAMS_FILE, dump_yaml(params))  # read by `rlnb eval`
        fields = {"global_step": state.step, **asdict(state)}
        write_text(unfinished / STATE_FILE, json.dumps(fields, indent=1) + "\n")
        complete_checkpoint(unfinished, params)
        shutil.rmtree(directory, ignore_errors=True)  # of an earlier attempt; this one started over
    sync(directory.parent)
    remove_old_checkpoints(output_dir, step=state.step, keep=params.training.save_total_limit)
    return directory


def restore(start: AnyState, checkpoint: str | None, learner: Learner) -> AnyState:
    """Put a checkpoint into a fresh learner and return its state; without one, that of the start."""
    if checkpoint is None:
        return start
    policy, head, directory = learner.actor.policy, learner.actor.value_head, Path(checkpoint)
    weights = WeightSnapshot.take(policy)
    weights.load_trained(directory)
    weights.restore(policy)
    if head is not None:
        head.load_state_dict(load_file(directory / HEAD_FILE))
    for name, snapshot in learner.snapshots.items():
        snapshot.load(directory / f"{name}.safetensors")
    tensors = torch.load(directory / "optimizer.pt", weights_only=True, map_location="cpu")
    if "optimizer" in tensors:
        learner.optimizer.load_state_dict(tensors["optimizer"])
    if tensors["scaler"]:  # empty if saved under another model.dtype than float16
        learner.scaler.load_state_dict(tensors["scaler"])
    torch.random.set_rng_state(tensors["random"])
    fields = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
    fields.pop("global_step")
    return TypeAdapter(type(start)).validate_python(fields)
