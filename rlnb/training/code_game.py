"""What training on the code game hangs on TRL: its prompts, the snapshot, the programs to be predicted."""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import GRPOConfig, GRPOTrainer

from rlnb.errors import ParamsError
from rlnb.metrics import open_tracker
from rlnb.params.grpo_code_game import GrpoCodeGameParams
from rlnb.policy import Policy, save_adapters
from rlnb.policy.adapters import AdapterValues
from rlnb.rewards.code_game import AUTHOR, PREDICTOR, CodeGameReward
from rlnb.rewards.opponents import ModelOpponent
from rlnb.rewards.program_pool import ProgramPool
from rlnb.tasks.game_prompts import build_game_prompt, game_questions
from rlnb.tasks.prediction import prediction_prompt
from rlnb.training.checkpoints import SaveShape, checkpoint_to_resume, step_of
from rlnb.training.grpo import (
    MetricsReporter,
    StopOnSignal,
    check_trained,
    grpo_config,
    prompt_order,
    prompts_of,
    settle_adapters,
)

SNAPSHOT_FILE, POOL_FILE = "snapshot.safetensors", "programs.json"
LAG_STEPS = 2  # the prompts of a step are fetched while the step before it still runs


def game_rows(params: GrpoCodeGameParams, policy: Policy) -> list[dict[str, Any]]:
    """A row a training question whose prompt is not too long."""
    form = params.game.form
    questions = game_questions(params.game.topics if form == "topic" else ())["train"]
    prompts = [build_game_prompt(question, form, policy.tokenizer) for question in questions]
    rows = [
        {"prompt": prompt.text, "prefix": prompt.prefix}
        for prompt in prompts
        if len(policy.tokenizer(prompt.text)["input_ids"]) <= params.game.max_prompt_tokens
    ]
    if not rows:
        raise ParamsError(
            f"game.max_prompt_tokens = {params.game.max_prompt_tokens} leaves no question; write more"
        )
    return rows


def game_dataset(
    params: GrpoCodeGameParams, policy: Policy, config: GRPOConfig, pool: ProgramPool | None = None
) -> Dataset:
    """The prompts of the whole run in order.

    With a pool (the two-sided game) a share of each step's prompts asks what a program prints that the policy
    wrote LAG_STEPS steps before or earlier; which one depends on seed, step and place alone, so that a
    resumed run asks the same. Until there is one, programs are asked for instead.
    """
    rows = game_rows(params, policy)
    order = prompt_order(len(rows), prompts_of(config), seed=config.seed)
    asked = [rows[i] | {"role": AUTHOR, "place": place} for place, i in enumerate(order)]
    if pool is None:
        return Dataset.from_list(asked)
    if config.world_size > 1:
        raise ParamsError(
            "game.two_sided = True keeps the programs in one process, and there are "
            f"{config.world_size}; start one, or write two_sided = false"
        )
    a_step = prompts_of(config) // config.max_steps
    num_predictors = min(a_step - 1, max(1, round(params.game.predictor_share * a_step)))

    def with_predictors(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for row, place in enumerate(batch["place"]):
            step, seat = divmod(place, a_step)
            programs = pool.until(step - LAG_STEPS) if seat < num_predictors else []
            if programs:
                program = random.Random(f"{config.seed}/{place}").choice(programs)
                batch["role"][row] = PREDICTOR
                batch["prompt"][row] = prediction_prompt(program.code, num_shots=params.opponent.num_shots)
                batch["prefix"][row] = program.code
        return batch

    return Dataset.from_list(asked).with_transform(with_predictors)


class RefreshSnapshot(TrainerCallback):
    """Every `interval` steps the snapshot that predicts becomes what the policy is; checkpoints keep it."""

    def __init__(
        self, policy: Policy, snapshot: AdapterValues, opponent: ModelOpponent, *, interval: int
    ) -> None:
        self.policy = policy
        self.snapshot = snapshot
        self.opponent = opponent
        self.interval = interval

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.global_step % self.interval == 0:
            self.snapshot.take(self.policy)
            self.opponent.forget()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.is_world_process_zero:
            self.snapshot.save(checkpoint_of(args, state) / SNAPSHOT_FILE)

    def resume(self, checkpoint: str | None) -> None:
        """Go on with the snapshot of a checkpoint, where it holds one."""
        if checkpoint and (Path(checkpoint) / SNAPSHOT_FILE).exists():
            self.snapshot.load(Path(checkpoint) / SNAPSHOT_FILE)
            self.opponent.forget()


class SavePrograms(TrainerCallback):
    """Keeps the programs that the policy will be asked to predict in each checkpoint."""

    def __init__(self, pool: ProgramPool) -> None:
        self.pool = pool

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.is_world_process_zero:
            self.pool.save(checkpoint_of(args, state) / POOL_FILE)

    def resume(self, checkpoint: str | None) -> None:
        """Go on with the programs of a checkpoint, where it holds some."""
        if checkpoint and (Path(checkpoint) / POOL_FILE).exists():
            self.pool.load(Path(checkpoint) / POOL_FILE)


def checkpoint_of(args: TrainingArguments, state: TrainerState) -> Path:
    """Where the checkpoint of this step lies."""
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"


def largest_mean(values: Sequence[float | None], window: int) -> float:
    """The largest mean of `window` measured values in a row; nan where there are fewer."""
    known = [value for value in values if value is not None]
    starts = range(len(known) - window + 1)
    return max((sum(known[i : i + window]) / window for i in starts), default=float("nan"))


def opponent_share(rows: Sequence[Mapping[str, Any]]) -> float:
    """Share of the steps' time that the opponent's passes took, from a run's metrics; nan without any."""
    steps = [row for row in rows if row.get("step_time") and row.get("time/opponent_seconds") is not None]
    total = sum(row["step_time"] for row in steps)
    return sum(row["time/opponent_seconds"] for row in steps) / total if total else float("nan")


def kept_beside(
    params: GrpoCodeGameParams,
    policy: Policy,
    snapshot: AdapterValues,
    reader: Any,
    pool: ProgramPool | None,
    *,
    checkpoint: str | None,
) -> list[TrainerCallback]:
    """What changes while training beside the adapters, as callbacks; they go on from `checkpoint`.

    The snapshot where it is the opponent, the pool of programs in the two-sided game.
    """
    kept: list[RefreshSnapshot | SavePrograms] = []
    if params.opponent.kind == "snapshot":
        kept.append(RefreshSnapshot(policy, snapshot, reader, interval=params.opponent.refresh_steps))
    if pool is not None:
        kept.append(SavePrograms(pool))
    for one in kept:
        one.resume(checkpoint)
    return list(kept)


def play_control(
    params: GrpoCodeGameParams,
    policy: Policy,
    untrained: AdapterValues,
    reward: CodeGameReward,
    *,
    output_dir: Path,
    evaluate: Callable[[], list[Any]],
) -> list[Any]:
    """Train a control from `untrained`, evaluate it, and put the trained adapters back whatever happens."""
    trained = AdapterValues.of(policy)
    untrained.put_into(policy)
    try:
        train_control(params, policy, reward, output_dir=output_dir)
        return evaluate()
    finally:
        trained.put_into(policy)


def train_control(
    params: GrpoCodeGameParams, policy: Policy, reward: CodeGameReward, *, output_dir: Path
) -> None:
    """The same training with another reward: what of it is not the game's doing?

    In the two-sided game the control only writes. The run is kept in `output_dir`, can be interrupted and
    goes on like the other. Raises Preempted and TrainingDiverged as that does.
    """
    params = params.model_copy(
        update={
            "reward": params.reward.model_copy(update={"preset": reward.preset}),
            "game": params.game.model_copy(update={"two_sided": False}),
        }
    )
    config = grpo_config(
        params.training,
        output_dir=output_dir,
        seed=params.seed,
        dtype=params.model.dtype,
        use_gpu=policy.device.type == "cuda",
        vllm=params.vllm,
    )
    trainer = GRPOTrainer(
        policy.model,
        reward_funcs=[reward],
        args=config,
        processing_class=policy.tokenizer,
        train_dataset=game_dataset(params, policy, config),
    )
    checkpoint = checkpoint_to_resume(params, output_dir)
    step = step_of(checkpoint)
    settle_adapters(trainer)
    with (
        open_tracker(output_dir, resume_step=step, config={}, tensorboard=False) as tracker,
        StopOnSignal(trainer),
    ):
        for callback in (MetricsReporter(tracker, trainer), SaveShape(params)):
            trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=checkpoint)
    check_trained(trainer.state)
    save_adapters(policy, output_dir / "adapters")
