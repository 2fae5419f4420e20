"""What training on the code game adds to TRL: its prompts, what its checkpoints keep, and the control run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from datasets import Dataset
from transformers import TrainerCallback, TrainerState, TrainingArguments
from trl import GRPOConfig

from rlnb.code_game.params import GrpoCodeGameParams
from rlnb.code_game.prompts import build_game_prompt, game_questions
from rlnb.code_game.reward import CodeGameReward
from rlnb.grpo.training import MetricsReporter, grpo_config, make_trainer, order_prompts, train
from rlnb.policy import Policy, save_adapters
from rlnb.policy.adapters import WeightSnapshot
from rlnb.run.checkpoints import checkpoint_step, checkpoint_to_resume
from rlnb.run.tracking import open_tracker

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

    def on_step_end(self, args: object, state: TrainerState, control: object, **_: object) -> None:
        if state.global_step % self.refresh_steps == 0:
            self.snapshot.move_towards(self.policy, 1.0)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: object, **_: object) -> None:
        if state.is_world_process_zero:
            self.snapshot.save(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / SNAPSHOT_FILE)

    def resume(self, checkpoint: str | None) -> None:
        """Continue with the weights of a checkpoint, if it holds any."""
        if checkpoint and Path(checkpoint, SNAPSHOT_FILE).is_file():
            self.snapshot.load(Path(checkpoint, SNAPSHOT_FILE))


def train_control(
    params: GrpoCodeGameParams,
    policy: Policy,
    untrained: WeightSnapshot,
    reward: CodeGameReward,
    *,
    output_dir: Path,
    evaluate: Callable[[], Evaluation],
) -> Evaluation:
    """Train a control run from `untrained` with another reward, and return its evaluation.

    It has the same prompts and number of steps. The run is kept in `output_dir`, and resumes from its own
    checkpoints. The trained adapters are put back whatever happens. Raises Preempted and TrainingDiverged
    like any training.
    """
    trained = WeightSnapshot.take(policy)
    untrained.restore(policy)
    try:
        config = grpo_config(
            params.training, output_dir=output_dir, seed=params.seed, dtype=params.model.dtype,
            use_gpu=policy.device.type == "cuda", vllm=params.vllm,
        )  # fmt: skip
        prompts = build_game_dataset(params, policy, config)
        trainer = make_trainer(policy, config, rewards=[reward], prompts=prompts)
        checkpoint = checkpoint_to_resume(params, output_dir)
        step = checkpoint_step(checkpoint)
        tracker = open_tracker(output_dir, resume_step=step, config={}, tensorboard=False)
        train(trainer, params, MetricsReporter(tracker, trainer), checkpoint=checkpoint)
        save_adapters(policy, output_dir / "adapters")
        return evaluate()
    finally:
        trained.restore(policy)
