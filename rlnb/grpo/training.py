"""What rlnb adds to TRL's GRPOTrainer: which class it is, and the callbacks of a run.

The step itself is TRL's; docs/one_grpo_step.md maps each hook here to the method there.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from pathlib import Path
from statistics import fmean

import torch
from accelerate import PartialState
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import GRPOTrainer

from rlnb.errors import TrainingDiverged, see
from rlnb.evaluations import evaluate_step
from rlnb.grpo.answer_trainer import AnswerTrainer
from rlnb.grpo.cpu_trainer import CpuGRPOTrainer
from rlnb.grpo.kl import MeasureKl
from rlnb.params.bases import write_base
from rlnb.params.sections import NotebookParams, value_of
from rlnb.policy.adapters import rewind
from rlnb.policy.builtin import model_directory
from rlnb.policy.loading import Policy
from rlnb.run.checkpoints import (
    checkpoint_step,
    checkpoint_to_resume,
    complete_checkpoint,
    remove_old_checkpoints,
)
from rlnb.run.directory import log_line
from rlnb.run.health import AnswerEnd, Health
from rlnb.run.memory import memory_advice
from rlnb.run.stop_signal import SaveTimer, StopSignal
from rlnb.run.tracking import Tracker, open_run_tracker

NUM_PICTURES = 50  # redrawings of the live plot over a run
SHARES_IN_LOG = {
    "reward/pass_rate": "passes",
    "status/ok_with_output_share": "prints",
    "strategy/honest_share": "honest",
    "strategy/win_share": "wins",
    "game/win_share": "wins",
    "game/valid_share": "valid",
    "game/opponent_right": "opponent right",
}


def choose_trainer(policy: Policy) -> type[AnswerTrainer]:
    """Return TRL's GRPOTrainer with completions that end with their program; on a CPU with the short step."""
    return CpuGRPOTrainer if policy.device.type == "cpu" else AnswerTrainer


def prepare_adapters(trainer: GRPOTrainer) -> None:
    """Undo two things before `train()` wraps or loads the adapters.

    With beta > 0 TRL copies them as "ref". But transformers loads from a checkpoint with two sets only the
    second, so a resumed run would start from scratch; without a copy TRL's reference is the model without
    adapters, also in a run that began with `model.adapters`. And fp16's gradient scaler refuses trained
    weights of 16 bits.
    """
    if "ref" in getattr(trainer.model, "peft_config", {}):
        trainer.model.delete_adapter("ref")
    if trainer.args.fp16:
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()


def train(
    trainer: GRPOTrainer,
    params: NotebookParams,
    *,
    before: Mapping[str, float] | None = None,
    evaluate: Callable[[int], Mapping[str, float]] | None = None,
    show: Callable[[int, int], None] | None = None,
) -> None:
    """Train to the last step, from the newest checkpoint of `params.output_dir`, else from the first weights.

    before: metrics, reported as step 0 of a run that starts from the beginning. evaluate: takes a step and
    returns metrics; called every `evaluation.eval_interval_steps` steps. show: called with (step, max_steps)
    some fifty times over the run. Raises Preempted after a signal, OutOfMemory, and TrainingDiverged.
    """
    checkpoint = checkpoint_to_resume(params, params.output_dir)
    trainer.args.resume_from_checkpoint = checkpoint  # where callbacks look it up
    prepare_adapters(trainer)
    rewind(trainer.model)
    trainer.remove_callback(PrinterCallback)
    print(
        f"{trainer.args.max_steps} steps, {f'resuming from {checkpoint}' if checkpoint else 'from the start'}"
    )
    tracker = open_run_tracker(params, step=checkpoint_step(checkpoint))
    with tracker, StopSignal() as stop, memory_advice(params, doing="training"):
        # Before the other callbacks, so that no evaluation starts in the seconds that are left.
        trainer.callback_handler.callbacks.insert(0, StopOnSignal(stop))
        trainer.add_callback(UsePresentSettings())
        if not trainer.args.beta:  # TRL measures it itself where it is a penalty
            trainer.add_callback(MeasureKl(trainer))
        trainer.add_callback(MetricsReporter(tracker, trainer, show))
        trainer.add_callback(SaveRecipe(params))
        interval = value_of(params, "evaluation.eval_interval_steps")
        if evaluate and interval and value_of(params, "evaluation.enabled"):
            # Last: it begins when the checkpoint is complete.
            trainer.add_callback(IntervalEvaluation(memory_advice(params)(evaluate), interval, tracker, stop))
        if before and not checkpoint:
            tracker.report(0, before)
        trainer.train(resume_from_checkpoint=checkpoint)
    check_trained(trainer.state)


def report_after(trainer: GRPOTrainer, params: NotebookParams, metrics: Mapping[str, float]) -> None:
    """Report metrics of the trained policy, if any, with the last step that was trained."""
    last_step = trainer.state.global_step
    if metrics:
        with open_run_tracker(params, step=last_step) as tracker:
            tracker.report(last_step, metrics)


def check_trained(state: TrainerState) -> None:
    """Raise TrainingDiverged when `train()` returned without having trained, or the loss is not finite.

    A dataset with fewer prompts than one step takes trains 0 steps and returns normally in TRL 1.16.
    """
    if state.global_step < 1:
        raise TrainingDiverged("training made 0 steps: the data holds fewer prompts than one step takes")
    losses = [row["loss"] for row in state.log_history if "loss" in row]
    if losses and not math.isfinite(losses[-1]):
        raise TrainingDiverged(f"the loss became {losses[-1]}; lower training.learning_rate{see('nan')}")


def check_gradient(step: int, logs: Mapping[str, float], *, fp16: bool) -> None:
    """Raise TrainingDiverged when a step's gradient is not finite, before a checkpoint of it is written.

    Under fp16 the scaler leaves such a step out and goes on.
    """
    norm = logs.get("grad_norm", 0.0)
    if not math.isfinite(norm) and not fp16:
        raise TrainingDiverged(
            f"step {step}: the norm of the gradient became {norm}; lower training.learning_rate and run "
            f"again: training goes on from the last checkpoint{see('nan')}"
        )


class UsePresentSettings(TrainerCallback):
    """Lets a resumed run use the present learning rate and interval of checkpoints.

    transformers 5 takes both from the checkpoint: the scheduler's state holds the peak learning rate, the
    trainer's state `save_steps`. The rate's course follows the present `max_steps`, warm-up and schedule
    anyway, from the checkpoint's step on, also where it holds no scheduler (`training.save_optimizer`). Equal
    settings give an equal rate, to the bit.
    """

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: object,
        *,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: LambdaLR,
        **_: object,
    ) -> None:
        state.compute_steps(args, state.max_steps)
        step = lr_scheduler.last_epoch or state.global_step
        peaks = [args.learning_rate] * len(lr_scheduler.lr_lambdas)
        rates = [args.learning_rate * factor(step) for factor in lr_scheduler.lr_lambdas]
        lr_scheduler.load_state_dict(
            lr_scheduler.state_dict() | {"last_epoch": step, "base_lrs": peaks, "_last_lr": rates}
        )
        for group, peak, rate in zip(optimizer.param_groups, peaks, rates, strict=True):
            group |= {"initial_lr": peak, "lr": rate}


class StopOnSignal(TrainerCallback):
    """Saves and stops at the end of the step in which SIGTERM, SIGUSR1 or SIGINT came.

    Not transformers' `enable_jit_checkpoint`, which saves within a step and so loses it.
    """

    def __init__(self, stop: StopSignal) -> None:
        self.stop = stop

    def on_step_end(self, args: object, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if self.stop.after_step(is_last=state.global_step >= state.max_steps):
            control.should_save = True
            control.should_training_stop = True


class MetricsReporter(TrainerCallback):
    """Passes each step's metrics to the run's tracker, train.log, the health checks and the live plot.

    It replaces the trainer's own printing: what it prints is the warnings of `rlnb.run.health.Health`.
    show: called with (step, max_steps) some fifty times over the run.
    """

    def __init__(
        self, tracker: Tracker, trainer: GRPOTrainer, show: Callable[[int, int], None] | None = None
    ) -> None:
        self.tracker, self.trainer, self.show = tracker, trainer, show
        self.health = Health()

    def on_train_begin(self, args: object, state: TrainerState, control: object, **_: object) -> None:
        if state.global_step >= state.max_steps:  # TRL's closing log would empty the last step's completions
            self.trainer.log_completions = False

    def on_log(
        self, args: object, state: TrainerState, control: object, *, logs: Mapping[str, float], **_: object
    ) -> None:
        check_gradient(state.global_step, logs, fp16=self.trainer.args.fp16)
        if not state.is_world_process_zero or "train_runtime" in logs:
            return
        step, max_steps = state.global_step, state.max_steps
        if self.trainer.scale_rewards == "batch":  # TRL's share says whether the whole batch is tied
            share = tied_share(self._step_rewards(), num_generations=self.trainer.num_generations)
            logs = {**logs, "frac_reward_zero_std": share}
        self.tracker.report(step, dict(logs))
        output_dir = self.tracker.path.parent
        log_line(output_dir, progress_line(step, max_steps, logs))
        for line in self.health.after_step(step, logs, self._step_ends()):
            print(line, flush=True)
            log_line(output_dir, line)
        if self.show and (step == max_steps or step % max(1, max_steps // NUM_PICTURES) == 0):
            self.show(step, max_steps)

    def _step_ends(self) -> list[AnswerEnd]:
        """Return how the last step's completions ended, as the reward has logged it."""
        columns = self.trainer._logs["extra"]
        ends = zip(columns.get("outcome", ()), columns.get("reason", ()), strict=True)
        return [AnswerEnd(outcome, reason) for outcome, reason in ends]

    def _step_rewards(self) -> list[float]:
        """Return the last step's rewards, group after group; NaN for failed programs."""
        paid, weights = self.trainer._logs["rewards"].values(), self.trainer.reward_weights.tolist()
        return [sum(map(mul, weights, parts)) for parts in zip(*paid, strict=True)]


def tied_share(rewards: Sequence[float], *, num_generations: int) -> float:
    """Return the share of the groups whose rewards are all equal; NaN rewards do not count."""
    groups = [rewards[start : start + num_generations] for start in range(0, len(rewards), num_generations)]
    known = [[reward for reward in group if not math.isnan(reward)] for group in groups]
    return fmean(not group or math.isclose(min(group), max(group), abs_tol=1e-8) for group in known)


def progress_line(step: int, max_steps: int, logs: Mapping[str, float]) -> str:
    """Return a step in a line: reward, what became of the completions, length, seconds."""
    shares = [f"{label} {logs[name] or 0.0:.0%}" for name, label in SHARES_IN_LOG.items() if name in logs]
    return "  ".join(
        (
            f"step {step}/{max_steps}",
            f"reward {logs.get('reward') or 0.0:+.2f}",
            *shares,
            f"{logs.get('completions/mean_length') or 0.0:.0f} tokens",
            f"{logs.get('step_time') or 0.0:.1f} s",
        )
    )


@dataclass(eq=False)
class IntervalEvaluation(TrainerCallback):
    """Calls `evaluate(step) -> metrics` every `interval` steps and reports the metrics with that step's.

    The step is saved first, so a signal can cut the evaluation short, and nothing is lost to a kill. What was
    cut short or skipped, a resumed run makes up before its first step, with the same weights. `evaluate` must
    leave the random state and the model's mode as they were; `policy.generate` does.
    """

    evaluate: Callable[[int], Mapping[str, float]]
    interval: int
    tracker: Tracker
    stop: StopSignal

    def is_due(self, state: TrainerState) -> bool:
        step = state.global_step
        return step % self.interval == 0 and 0 < step < state.max_steps

    def on_step_end(self, args: object, state: TrainerState, control: TrainerControl, **_: object) -> None:
        control.should_save |= self.is_due(state)

    def on_save(self, args: object, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if self.is_due(state) and not control.should_training_stop:
            evaluate_step(state.global_step, self.evaluate, self.tracker, self.stop)
            if self.stop.after_step():
                raise self.stop.preempted()  # transformers would train one more step

    on_train_begin = on_save


class SaveRecipe(TrainerCallback):
    """Saves by time as well, and completes each checkpoint by its list of files and the run's recipe.

    The recipe keeps other runs from resuming from it. Until it is written, the checkpoint does not count. To
    come after all callbacks that write files of a checkpoint.
    """

    def __init__(self, params: NotebookParams) -> None:
        self.params = params
        self.timer = SaveTimer()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        control.should_save |= self.timer.is_due()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: object, **_: object) -> None:
        PartialState().wait_for_everyone()  # each rank writes its own random state
        if state.is_world_process_zero:
            checkpoint = Path(str(args.output_dir), f"checkpoint-{state.global_step}")
            model = value_of(self.params, "model")
            write_base(checkpoint, model_directory(model.id, model.cache_dir))
            complete_checkpoint(checkpoint, self.params)
            keep = value_of(self.params, "training.save_total_limit")
            remove_old_checkpoints(checkpoint.parents[1], step=state.global_step, keep=keep)
        self.timer.restart()
