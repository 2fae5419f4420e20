"""What training on the code game adds to TRL: its prompts, what its checkpoints keep, and the control run."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from datasets import Dataset
from transformers import TrainerCallback, TrainerState, TrainingArguments
from trl import GRPOConfig, GRPOTrainer

from rlnb.code_game.params import GrpoCodeGameParams
from rlnb.code_game.prompts import build_game_prompt, game_questions
from rlnb.grpo.config import order_prompts
from rlnb.grpo.rewards import TrlReward
from rlnb.grpo.training import train
from rlnb.params.sections import TrackingParams
from rlnb.policy import Policy, save_adapters
from rlnb.policy.adapters import WeightSnapshot

SNAPSHOT_FILE = "snapshot.safetensors"
Evaluation = TypeVar("Evaluation")


def build_game_dataset(params: GrpoCodeGameParams, policy: Policy, config: GRPOConfig) -> Dataset:
    """Return the prompts of the whole run in order, each with its prefix."""
    form = params.game.form
    prompts = [build_game_prompt(question, form, policy.chat) for question in game_questions(form)["train"]]
    rows = [{"prompt": prompt.text, "prefix": prompt.prefix, "function": ""} for prompt in prompts]
    return Dataset.from_list(order_prompts(rows, config))


@dataclass(eq=False)
class SnapshotCallback(TrainerCallback):
    """Replaces the snapshot that the opponent predicts with by the policy every `refresh_steps` steps.

    Each checkpoint keeps them, since a resumed run has to go on with the same ones.
    """

    policy: Policy
    snapshot: WeightSnapshot
    refresh_steps: int

    def on_train_begin(self, args: TrainingArguments, *_: object, **__: object) -> None:
        checkpoint = args.resume_from_checkpoint
        if checkpoint and Path(checkpoint, SNAPSHOT_FILE).is_file():
            self.snapshot.load(Path(checkpoint, SNAPSHOT_FILE))
        elif not checkpoint:
            self.snapshot.move_towards(self.policy, 1.0)

    def on_step_end(self, args: object, state: TrainerState, control: object, **_: object) -> None:
        if state.global_step % self.refresh_steps == 0:
            self.snapshot.move_towards(self.policy, 1.0)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: object, **_: object) -> None:
        if state.is_world_process_zero:
            self.snapshot.save(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / SNAPSHOT_FILE)


def train_control(
    trainer: GRPOTrainer,
    params: GrpoCodeGameParams,
    policy: Policy,
    reward: TrlReward,
    *,
    evaluate: Callable[[], Evaluation],
) -> Evaluation:
    """Train a control as `trainer` was, but with another reward; return its evaluation.

    It starts from the same weights. Its run is kept in control/ of the run's directory, and resumes from its
    own checkpoints. The trained adapters are put back whatever happens. Raises Preempted and TrainingDiverged
    like any training.
    """
    directory = Path(params.output_dir, "control")
    changes = {"output_dir": str(directory), "tracking": TrackingParams(wandb="disabled")}
    if params.training.resume != "never":  # a checkpoint of the run is none of the control's
        changes["training"] = params.training.model_copy(update={"resume": "auto"})
    config = copy(trainer.args)
    config.output_dir = str(directory / "checkpoints")
    trained = WeightSnapshot.take(policy)
    try:
        control = type(trainer)(
            policy.model,
            reward,
            args=config,
            train_dataset=trainer.train_dataset,
            processing_class=policy.tokenizer,
        )
        train(control, params.model_copy(update=changes))
        save_adapters(policy, directory / "adapters")
        return evaluate()
    finally:
        trained.restore(policy)
