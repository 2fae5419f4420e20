"""What rlnb hangs on TRL's GRPOTrainer: the configuration, the order of prompts, and callbacks.

The step itself is TRL's; docs/one_grpo_step.md maps each hook here to the method there.
"""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import GRPOConfig

from rlnb.errors import ParamsError, TrainingDiverged
from rlnb.metrics import Tracker
from rlnb.policy import Policy
from rlnb.tasks import Task
from rlnb.tasks.prompts import PromptForm, build_prompt
from rlnb.training.stop_signal import StopSignal

INVALID = (  # metrics
    "status/no_code_share", "status/syntax_error_share", "strategy/no_code_share",
    "game/no_code_share", "game/syntax_error_share",
)  # fmt: skip


def grpo_config(
    training: Any, *, output_dir: str | Path, seed: int, dtype: str, use_gpu: bool, vllm: Any = None
) -> GRPOConfig:
    """TRL's configuration from the parameters' `training` and `vllm` sections.

    One epoch over prompts that `prompt_dataset` has put in order for the whole run, so that a resumed run
    sees the same prompts (TRL's own sampler starts again at its first permutation). Reporting is ours: see
    `MetricsReporter`.
    """
    options: dict[str, Any] = {}
    if vllm is not None and vllm.enabled and vllm.mode == "server":  # its memory is settled by who started it
        options = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": vllm.server_base_url}
    elif vllm is not None and vllm.enabled:
        options = {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": vllm.gpu_memory_utilization,
            "vllm_max_model_length": vllm.max_model_len,
        }
    return GRPOConfig(
        output_dir=str(Path(output_dir) / "checkpoints"),
        learning_rate=training.learning_rate,
        max_steps=training.max_steps,
        per_device_train_batch_size=training.per_device_train_batch_size,
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        num_generations=training.num_generations,
        max_completion_length=training.max_completion_length,
        temperature=training.temperature,
        top_p=training.top_p,
        beta=training.beta,
        loss_type=training.loss_type,
        scale_rewards=training.scale_rewards,
        warmup_steps=training.warmup_steps or round(training.warmup_ratio * training.max_steps),
        optim=training.optim,
        entropy_coef=training.entropy_coef,
        lr_scheduler_type=training.lr_scheduler,
        max_grad_norm=training.max_grad_norm,
        weight_decay=training.weight_decay,
        gradient_checkpointing=bool(training.gradient_checkpointing),
        save_steps=training.save_steps,
        save_total_limit=training.save_total_limit,
        seed=seed,
        use_cpu=not use_gpu,
        bf16=use_gpu and dtype == "bfloat16",
        fp16=use_gpu and dtype == "float16",
        shuffle_dataset=False,
        logging_steps=1,
        logging_first_step=True,
        log_completions=True,
        num_completions_to_print=0,
        disable_tqdm=True,
        report_to="none",
        remove_unused_columns=False,
        dataloader_pin_memory=use_gpu,
        ddp_find_unused_parameters=False,  # each adapter is used in each pass
        **options,
    )


def prompt_order(num_tasks: int, num_prompts: int, *, seed: int) -> list[int]:
    """Indices of the tasks asked over a whole run: seeded permutations in a row, cut to `num_prompts`."""
    if num_tasks < 1:
        raise ParamsError("tasks: no task is left to train on; allow more levels or longer prompts")
    generator = random.Random(seed)
    order: list[int] = []
    while len(order) < num_prompts:
        order += generator.sample(range(num_tasks), num_tasks)
    return order[:num_prompts]


def prompt_dataset(
    tasks: Sequence[Task],
    policy: Policy,
    config: GRPOConfig,
    *,
    form: PromptForm,
    printed_example: bool,
    max_prompt_tokens: int,
) -> Dataset:
    """The prompts of the whole run in order, without tasks whose prompt exceeds `max_prompt_tokens`."""
    prompts = [build_prompt(task, form, policy.tokenizer, printed_example=printed_example) for task in tasks]
    rows = [
        {"prompt": prompt.text, "task_id": task.id, "prefix": prompt.prefix}
        for task, prompt in zip(tasks, prompts, strict=True)
        if len(policy.tokenizer(prompt.text)["input_ids"]) <= max_prompt_tokens
    ]
    return Dataset.from_list([rows[i] for i in prompt_order(len(rows), prompts_of(config), seed=config.seed)])


def prompts_of(config: GRPOConfig) -> int:
    """How many prompts a whole run asks."""
    completions_per_step = (
        config.per_device_train_batch_size * config.gradient_accumulation_steps * config.world_size
    )
    return config.max_steps * math.ceil(completions_per_step / config.num_generations)


def settle_adapters(trainer: Any) -> None:
    """Undo two things that TRL does to adapters, before `train()` wraps or loads them.

    With beta > 0 it copies the fresh ones as "ref". But transformers loads from a checkpoint with two sets
    only the second, so a resumed run would begin anew; without a copy TRL's reference is the model with its
    adapters off, which is the same policy. And TRL makes the adapters of 4-bit models bfloat16, which fp16's
    gradient scaler refuses: under fp16 they become float32 again.
    """
    if "ref" in getattr(trainer.model, "peft_config", {}):
        trainer.model.delete_adapter("ref")
    if trainer.args.fp16:
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()


class StopOnSignal(TrainerCallback):
    """On SIGTERM or SIGUSR1 save and stop at the end of the step.

    Not transformers' `enable_jit_checkpoint`, which saves in mid-step and so loses a step. Use as a context
    manager around `train()`: it puts the handlers back, and raises Preempted when a signal has cut training
    short.
    """

    def __init__(self, trainer: Any) -> None:
        # Before the others, so that no evaluation is begun in the seconds that are left.
        trainer.callback_handler.callbacks.insert(0, self)
        self.stop = StopSignal()

    def __enter__(self) -> "StopOnSignal":
        self.stop.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop.__exit__(*error)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if self.stop.after_step(is_last=state.global_step >= state.max_steps):
            control.should_save = True
            control.should_training_stop = True
        return control


class MetricsReporter(TrainerCallback):
    """Hands every log of the trainer to the run's tracker, and prints some fifty lines over the run.

    show: called with (step, max_steps) as often as a line is printed, for the live plot. Takes the place of
    the trainer's own printing of whole logs. `step_seconds` counts the time inside steps,
    `log_seconds` that of tracking and showing.
    """

    def __init__(
        self, tracker: Tracker, trainer: Any, *, show: Callable[[int, int], None] | None = None
    ) -> None:
        trainer.remove_callback(PrinterCallback)
        self.tracker = tracker
        self.trainer = trainer
        self.show = show
        self.step_seconds = 0.0
        self.log_seconds = 0.0
        self._step_started = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.global_step >= state.max_steps:  # TRL's closing log would empty the last step's completions
            self.trainer.log_completions = False

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._step_started = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.step_seconds += time.perf_counter() - self._step_started

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        started = time.perf_counter()
        step, last = state.global_step, state.max_steps
        self.tracker.report(step, dict(logs))
        if step == last or step % max(1, last // 50) == 0:
            print(progress_line(step, last, logs), flush=True)
            if self.show:
                self.show(step, last)
        self.log_seconds += time.perf_counter() - started


def progress_line(step: int, max_steps: int, logs: Mapping[str, Any]) -> str:
    """One step in a line: reward, what became of the completions, length, seconds."""
    if "strategy/honest_share" in logs:
        shares = (
            f"honest {logs['strategy/honest_share'] or 0.0:.0%}  wins {logs['strategy/win_share'] or 0.0:.0%}"
        )
    elif "game/win_share" in logs:
        right = logs["game/opponent_right"]
        shares = (
            f"wins {logs['game/win_share'] or 0.0:.0%}  valid {logs['game/valid_share'] or 0.0:.0%}  "
            f"opponent right {'-' if right is None or right != right else format(right, '.0%')}"
        )
    else:
        ran = sum(logs.get(f"status/{name}_share") or 0.0 for name in ("ok_with_output", "ok_without_output"))
        shares = f"passes {logs.get('reward/pass_rate') or 0.0:.0%}  runs {ran:.0%}"
    return (
        f"step {step}/{max_steps}  reward {logs.get('reward') or 0.0:+.2f}  {shares}  "
        f"{logs.get('completions/mean_length') or 0.0:.0f} tokens  {logs.get('step_time') or 0.0:.1f} s"
    )


class IntervalEvaluation(TrainerCallback):
    """Every `interval` steps call `evaluate() -> metrics` and add them to that step's log.

    `evaluate` must leave the random state and the model's mode as they were; `policy.generate` does. The
    metrics go through the trainer's own store: `trainer.log` inside a callback would swallow the step's log.
    """

    def __init__(self, evaluate: Callable[[], Mapping[str, float]], *, interval: int, trainer: Any) -> None:
        self.evaluate = evaluate
        self.interval = interval
        self.trainer = trainer

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        due = self.interval and state.global_step % self.interval == 0 and state.global_step < state.max_steps
        if due and not control.should_training_stop:
            for name, value in self.evaluate().items():
                self.trainer._metrics["train"][name].append(value)
            control.should_log = True
        return control


class FirstStepCheck(TrainerCallback):
    """After the first step says in one line what was learned from, and warns where it was next to nothing."""

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self.say = say
        self._done = False

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if self._done or not logs or logs.get("reward") is None:
            return
        self._done = True
        cut, tied = logs.get("completions/clipped_ratio") or 0.0, logs.get("frac_reward_zero_std") or 0.0
        length = logs.get("completions/mean_length") or 0.0
        invalid = sum(logs.get(name) or 0.0 for name in INVALID)
        self.say(
            f"step {state.global_step}: mean reward {logs['reward']:+.2f}, {length:.0f} tokens a completion, "
            f"{cut:.0%} cut, {tied:.0%} of the groups tied, {invalid:.0%} without valid code"
        )
        if cut > 0.2:
            self.say(f"warning: {cut:.0%} of the completions were cut; raise training.max_completion_length")
        if tied >= 1:
            self.say(
                "warning: all groups tied, so nothing was learned; "
                "raise training.num_generations or change reward.preset"
            )
        if invalid > 0.5:
            remedies = {
                "strategy/no_code_share": "another prompt.preset, or prompt.prefilled = true",
                "game/no_code_share": "game.form = seeded, or a model made for chat",
            }
            found = [text for name, text in remedies.items() if name in logs]
            remedy = (*found, "tasks.prompt = prefilled")[0]
            self.say(f"warning: {invalid:.0%} of the completions hold no valid code; try {remedy}")


def check_trained(state: TrainerState) -> None:
    """Raise TrainingDiverged when `train()` came back without having trained, or its loss is no number.

    A dataset with fewer prompts than one step takes trains 0 steps and returns normally in TRL 1.16.
    """
    if state.global_step < 1:
        raise TrainingDiverged("training made 0 steps: the data holds fewer prompts than one step takes")
    losses = [row["loss"] for row in state.log_history if "loss" in row]
    if losses and not math.isfinite(losses[-1]):
        raise TrainingDiverged(f"the loss became {losses[-1]}; lower training.learning_rate")
