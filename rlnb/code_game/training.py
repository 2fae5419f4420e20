"""What training on the code game adds to TRL: its prompts, what its checkpoints keep, and the control run."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pandas
from datasets import Dataset
from transformers import TrainerCallback, TrainerState, TrainingArguments
from trl import GRPOConfig

from rlnb.code_game.opponents import EndpointOpponent, ModelOpponent
from rlnb.code_game.params import GrpoCodeGameParams
from rlnb.code_game.prediction import prediction_prompt
from rlnb.code_game.prompts import build_game_prompt, game_questions
from rlnb.code_game.reward import AUTHOR, PREDICTOR, CodeGameReward, ProgramPool
from rlnb.errors import ParamsError
from rlnb.grpo.training import (
    MetricsReporter,
    grpo_config,
    make_trainer,
    num_prompts,
    order_prompts,
    train,
)
from rlnb.policy import Policy, save_adapters
from rlnb.policy.adapters import WeightSnapshot
from rlnb.run.checkpoints import checkpoint_step, checkpoint_to_resume
from rlnb.run.tracking import open_tracker

SNAPSHOT_FILE, POOL_FILE = "snapshot.safetensors", "programs.json"
LAG_STEPS = 2  # the prompts of a step are fetched while the step before it still runs
Evaluation = TypeVar("Evaluation")


def build_game_rows(params: GrpoCodeGameParams, policy: Policy) -> list[dict[str, str]]:
    """Return {"prompt", "prefix"} of each training question whose prompt is not too long."""
    form, limit = params.game.form, params.game.max_prompt_tokens
    questions = game_questions(params.game.topics if form == "topic" else ())["train"]
    prompts = [
        build_game_prompt(question, form, policy.tokenizer, thinking=policy.thinking)
        for question in questions
    ]
    rows = [
        {"prompt": prompt.text, "prefix": prompt.prefix}
        for prompt in prompts
        if len(policy.tokenizer(prompt.text)["input_ids"]) <= limit
    ]
    if not rows:
        raise ParamsError(f"game.max_prompt_tokens = {limit} leaves no question; write more")
    return rows


def build_game_dataset(
    params: GrpoCodeGameParams, policy: Policy, config: GRPOConfig, pool: ProgramPool | None = None
) -> Dataset:
    """Return the prompts of the whole run in order.

    With a pool (the two-sided game) a share of each step's prompts shows a program that the policy wrote
    LAG_STEPS steps before or earlier, and asks what it prints. Which one depends on seed, step and place
    alone, so a resumed run gets the same. As long as there is none, these prompts ask for programs too.
    """
    rows = order_prompts(build_game_rows(params, policy), config)
    rows = [{**row, "role": AUTHOR, "place": place} for place, row in enumerate(rows)]
    if pool is None:
        return Dataset.from_list(rows)
    prompts_per_step = num_prompts(config) // config.max_steps
    num_predictors = min(prompts_per_step - 1, max(1, round(params.game.predictor_share * prompts_per_step)))

    def insert_predictors(batch: dict[str, list]) -> dict[str, list]:
        for row, place in enumerate(batch["place"]):
            step, place_in_step = divmod(place, prompts_per_step)
            programs = pool.until(step - LAG_STEPS) if place_in_step < num_predictors else []
            if programs:
                program = random.Random(f"{config.seed}/{place}").choice(programs)
                batch["role"][row] = PREDICTOR
                batch["prompt"][row] = prediction_prompt(program.code, num_shots=params.opponent.num_shots)
                batch["prefix"][row] = program.code
        return batch

    return Dataset.from_list(rows).with_transform(insert_predictors)


@dataclass(eq=False)
class GameState(TrainerCallback):
    """A callback that saves in each checkpoint what changes besides the adapters.

    snapshot: the weights that `reader` predicts with, replaced by the policy's every `refresh_steps` steps.
    pool: the programs that the policy will be asked to predict, in the two-sided game.
    """

    policy: Policy
    reader: ModelOpponent | EndpointOpponent
    snapshot: WeightSnapshot | None
    refresh_steps: int
    pool: ProgramPool | None

    def on_step_end(self, args: object, state: TrainerState, control: object, **_: object) -> None:
        if self.snapshot is not None and state.global_step % self.refresh_steps == 0:
            self.snapshot.copy_from(self.policy)
            self.forget_weights()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: object, **_: object) -> None:
        checkpoint = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if self.snapshot is not None and state.is_world_process_zero:
            self.snapshot.save(checkpoint / SNAPSHOT_FILE)
        if self.pool is not None and state.is_world_process_zero:
            self.pool.save(checkpoint / POOL_FILE)

    def resume(self, checkpoint: str | None) -> None:
        """Continue with what a checkpoint holds of this."""
        files = {path.name: path for path in Path(checkpoint).iterdir()} if checkpoint else {}
        if self.snapshot is not None and SNAPSHOT_FILE in files:
            self.snapshot.load(files[SNAPSHOT_FILE])
            self.forget_weights()
        if self.pool is not None and POOL_FILE in files:
            self.pool.load(files[POOL_FILE])

    def forget_weights(self) -> None:
        if isinstance(self.reader, ModelOpponent):
            self.reader.forget()


def largest_mean(values: Sequence[float | None], window: int) -> float:
    """Return the largest mean of `window` consecutive measured values, nan where there are fewer."""
    measured = pandas.Series(values, dtype=float).dropna()
    return float(measured.rolling(window).mean().max())


def opponent_time_share(rows: Sequence[Mapping[str, float | None]]) -> float:
    """Return the share of the steps' time that the opponent's passes took; nan without such steps."""
    steps = pandas.DataFrame(rows, columns=["time/opponent_seconds", "step_time"], dtype=float).dropna()
    opponent_seconds, step_seconds = steps.sum()
    return float(opponent_seconds / step_seconds) if step_seconds else math.nan


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

    It has the same prompts and number of steps, but in the two-sided game it only writes programs. The run is
    kept in `output_dir`, and resumes from its own checkpoints. The trained adapters are put back whatever
    happens. Raises Preempted and TrainingDiverged like any training.
    """
    trained = WeightSnapshot.take(policy)
    untrained.restore(policy)
    try:
        config = grpo_config(
            params.training, output_dir=output_dir, seed=params.seed, dtype=params.model.dtype,
            use_gpu=policy.device.type == "cuda", vllm=params.vllm,
        )  # fmt: skip
        trainer = make_trainer(
            policy, config, rewards=[reward], prompts=build_game_dataset(params, policy, config),
            short_step=params.training.short_step,
        )  # fmt: skip
        checkpoint = checkpoint_to_resume(params, output_dir)
        step = checkpoint_step(checkpoint)
        tracker = open_tracker(output_dir, resume_step=step, config={}, tensorboard=False)
        train(trainer, params, MetricsReporter(tracker, trainer), checkpoint=checkpoint)
        save_adapters(policy, output_dir / "adapters")
        return evaluate()
    finally:
        trained.restore(policy)
