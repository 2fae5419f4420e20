"""Rows that train: GRPO with a checkpoint, updates of self-play and PPO, and the same in 4 bits."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from datasets import Dataset
from safetensors.torch import load_file

from rlnb.code_execution.params import GrpoCodeExecutionParams
from rlnb.grpo import training as grpo
from rlnb.params import load_params, resolve
from rlnb.params.sections import ModelParams
from rlnb.policy import Policy, generate, load_policy
from rlnb.policy.scoring import score
from rlnb.ppo.params import PpoOpenspielParams
from rlnb.ppo.setup import PpoRun, load_playable_curriculum, make_ppo_run
from rlnb.run.tracking import open_tracker, read_metrics
from rlnb.selftest.models import model_params
from rlnb.selftest.rows import Outcome, Setting
from rlnb.spiral.params import SpiralSelfPlayParams
from rlnb.spiral.setup import run_training

NUM_STEPS, SAVED_STEP = 3, 2
PROMPTS = ("2048 is", "def double(n):", "The player to move")
SAME = 0.02  # relative distance of a repeated step's gradient: sums in another order on a GPU
Rows = list[dict[str, float]]


def check_grpo(setting: Setting, engine: str = "transformers") -> Outcome:
    """Train by GRPO on answers that are all cut, with a reward that generates; repeat the last step."""
    params = grpo_params(setting, model_params(setting, engine=engine))
    policy = load_policy(params.model, gradient_checkpointing=bool(params.training.gradient_checkpointing))
    rows = train_grpo(setting, policy, params, folder="whole")
    checkpoint = setting.folder / "whole" / "checkpoints" / f"checkpoint-{SAVED_STEP}"
    again = load_policy(params.model, gradient_checkpointing=bool(params.training.gradient_checkpointing))
    resumed = train_grpo(setting, again, params, folder="resumed", checkpoint=str(checkpoint))
    return judge_grpo(rows, resumed)


def judge_grpo(rows: Rows, resumed: Rows) -> Outcome:
    """Judge the steps of a run, and its last step made again from a checkpoint."""
    faults = find_step_faults(rows)
    last, repeated = rows[-1], resumed[-1]
    gap = max(relative_gap(last[name], repeated[name]) for name in ("grad_norm", "reward"))
    if len(resumed) != NUM_STEPS - SAVED_STEP or not gap <= SAME:
        faults.append(f"step {NUM_STEPS} from a checkpoint has another gradient or reward ({gap:.1%})")
    norms = [row["grad_norm"] for row in rows]
    return Outcome(
        f"grad_norm {norms[-1]:.3g}, resumed step {gap:.1g} away", "; ".join(faults), {"steps": rows}
    )


def find_step_faults(rows: Rows) -> list[str]:
    """Return what is wrong with steps whose completions differ in reward."""
    faults = []
    for step, row in enumerate(rows, start=1):
        values = [row["loss"], row["grad_norm"]]
        if not all(map(math.isfinite, values)):
            faults.append(f"step {step}: loss {values[0]}, grad_norm {values[1]}")
        elif row["grad_norm"] == 0:
            faults.append(
                f"step {step}: the gradient is 0 though rewards differ: is the loss of cut answers masked?"
            )
    return faults


def relative_gap(first: float, second: float) -> float:
    return abs(first - second) / max(abs(first), abs(second), 1e-6)


def grpo_params(
    setting: Setting, model: ModelParams, *, vllm: Mapping[str, object] | None = None, **training: object
) -> GrpoCodeExecutionParams:
    """Return the parameters of three steps of four completions of eight tokens."""
    usual: dict[str, object] = {
        "learning_rate": 1e-3, "lr_scheduler": "constant", "max_steps": NUM_STEPS, "save_steps": SAVED_STEP,
        "per_device_train_batch_size": 4, "num_generations": 4, "gradient_accumulation_steps": 1,
        "max_completion_length": 8, "gradient_checkpointing": "auto", "num_threads": 0,
    }  # fmt: skip
    overrides = {"model": model.model_dump(), "training": {**usual, **training}, "vllm": dict(vllm or {})}
    params = load_params("grpo_code_execution", profile="default", overrides=overrides, environ={})
    return resolve(GrpoCodeExecutionParams.model_validate(params.model_dump()), setting.choices, environ={})


def train_grpo(
    setting: Setting,
    policy: Policy,
    params: GrpoCodeExecutionParams,
    *,
    folder: str,
    checkpoint: str | None = None,
) -> Rows:
    """Train, or go on from a checkpoint, as the notebook does; return the log of each step."""
    output_dir = setting.folder / folder
    output_dir.mkdir(parents=True)
    config = grpo.grpo_config(
        params.training, output_dir=output_dir, seed=params.seed, dtype=params.model.dtype,
        use_gpu=torch.cuda.is_available(), vllm=params.vllm,
    )  # fmt: skip
    prompts = Dataset.from_list(grpo.order_prompts([{"prompt": text} for text in PROMPTS], config))
    trainer = grpo.make_trainer(policy, config, rewards=[make_reward(policy)], prompts=prompts)
    tracker = open_tracker(output_dir, config={}, tensorboard=False)
    grpo.train(trainer, params, grpo.MetricsReporter(tracker, trainer), checkpoint=checkpoint)
    start = SAVED_STEP if checkpoint else 0
    return [row for row in trainer.state.log_history if "loss" in row and row["step"] > start]


def make_reward(policy: Policy) -> Callable[..., list[float | None]]:
    """Return a reward that differs from completion to completion, and generates and scores meanwhile."""

    def reward(*, prompts: Sequence[str], completions: Sequence[str], **_: object) -> list[float | None]:
        generate(policy, PROMPTS, max_new_tokens=4, temperature=1.0, seed=1)
        score(policy, PROMPTS, PROMPTS)
        return [sum(map(ord, completion)) % 97 / 97 for completion in completions]

    return reward


def check_games(setting: Setting) -> Outcome:
    """Make an update of free self-play in two mini-batches, and one of PPO among legal moves."""
    spiral, spiral_moved = update_by_self_play(setting)
    run, ppo = update_by_ppo(setting, model_params(setting))
    return judge_games(
        {"self-play": spiral, "ppo": ppo}, {"self-play": spiral_moved, "ppo": largest_adapter(run)}
    )


def judge_games(updates: Mapping[str, Mapping[str, float]], moved: Mapping[str, float]) -> Outcome:
    """Judge the metrics of updates, and the largest weight of adapters that started at 0."""
    faults = []
    for name, metrics in updates.items():
        if not (math.isfinite(metrics["loss"]) and 0 < metrics["grad_norm"] < math.inf):
            faults.append(f"{name}: loss {metrics['loss']:.3g}, grad_norm {metrics['grad_norm']:.3g}")
        if not moved[name] > 0:
            faults.append(f"{name}: the adapters did not move")
    deviations = [metrics["update/first_ratio_deviation"] for metrics in updates.values()]
    measured = {
        name: {key: metrics[key] for key in ("loss", "grad_norm", "update/first_ratio_deviation")}
        for name, metrics in updates.items()
    }
    return Outcome(f"first ratios {max(deviations):.2g} away from 1", "; ".join(faults), measured)


def update_by_self_play(setting: Setting) -> tuple[dict[str, float], float]:
    """Return the metrics of an update on free answers, and the largest weight of the adapters after it."""
    overrides = {
        "model": player(model_params(setting)),
        "game": {"name": "tic_tac_toe", "acting": "free", "max_new_tokens": 4, "temperature": 1.0},
        "advantage": {"kind": "rae"},
        "training": {"max_steps": 1, "games_per_step": 8, "num_mini_batches": 2, "warmup_steps": 0},
        "evaluation": {"opponents": ["random"], "interval_games": 2, "modes": ["free"]},
        "tracking": {"tensorboard": False},
    }
    params = load_params("spiral_self_play", profile="tiny", overrides=overrides, environ={})
    if not isinstance(params, SpiralSelfPlayParams):
        raise TypeError(type(params))
    output_dir = setting.folder / "self_play"
    run_training(resolve(params, setting.choices, environ={}), output_dir, reward=outcome_reward)
    return metrics_of_update(output_dir), largest_weight(output_dir / "checkpoints" / "checkpoint-1")


def update_by_ppo(setting: Setting, model: ModelParams) -> tuple[PpoRun, dict[str, float]]:
    """Return a run of PPO after one update on constrained answers, and the update's metrics."""
    stage = {"name": "only", "games": ["kuhn_poker"], "threshold": 0.5, "window": 8, "min_episodes": 8}
    overrides = {
        "model": player(model),
        "curriculum": {"stages": [stage]},
        "training": {"max_steps": 1, "games_per_step": 8, "num_mini_batches": 2},
        "evaluation": {"enabled": False, "opponents": ["random"]},
        "mbpp": {"enabled": False},
        "tracking": {"tensorboard": False},
    }
    params = load_params("ppo_openspiel", profile="tiny", overrides=overrides, environ={})
    if not isinstance(params, PpoOpenspielParams):
        raise TypeError(type(params))
    params, output_dir = resolve(params, setting.choices, environ={}), setting.folder / "ppo"
    policy = keep_trainable(load_policy(params.model, seed=params.seed))
    run = make_ppo_run(params, load_playable_curriculum(params), policy, reward=outcome_reward)
    run.train(run.restore(None, output_dir), output_dir, evaluate=lambda _: {})
    return run, metrics_of_update(output_dir)


def player(model: ModelParams) -> dict[str, object]:
    """Return the model's section for a notebook whose policy plays games."""
    return model.model_dump()


def outcome_reward(event: str, value: float) -> float:
    """Reward the outcome of a game, and punish answers that name no legal move."""
    return value if event == "end" else -1.0


def metrics_of_update(output_dir: Path) -> dict[str, float]:
    return next(
        row for row in read_metrics(output_dir / "metrics.jsonl") if "update/first_ratio_deviation" in row
    )


def largest_weight(checkpoint: Path) -> float:
    """Return the largest weight of saved adapters that fresh ones have at 0."""
    weights = load_file(checkpoint / "adapter_model.safetensors")
    return max(float(weight.abs().max()) for name, weight in weights.items() if "lora_B" in name)


def largest_adapter(run: PpoRun) -> float:
    parameters = run.learner.actor.policy.model.named_parameters()
    return max(float(parameter.detach().abs().max()) for name, parameter in parameters if "lora_B" in name)


def check_4bit(setting: Setting) -> Outcome:
    """Load in 4 bits; generate, make a GRPO step and a PPO update."""
    model = model_params(setting, load_in_4bit=True)
    params = grpo_params(setting, model, max_steps=1)
    policy = load_policy(model, gradient_checkpointing=bool(params.training.gradient_checkpointing))
    keep_trainable(policy)
    first_dtype = next(policy.model.parameters()).dtype
    rows = train_grpo(setting, policy, params, folder="grpo")
    del policy
    run, metrics = update_by_ppo(setting, model)
    outcome = judge_games({"ppo": metrics}, {"ppo": largest_adapter(run)})
    dtype, is_scaled = run.learner.actor.policy.dtype, run.learner.scaler.is_enabled()
    faults = [*find_step_faults(rows), *([outcome.fault] if outcome.fault else [])]
    if is_scaled != (dtype == torch.float16):
        faults.append(f"computes in {dtype} with the gradient scaler {'on' if is_scaled else 'off'}")
    measured = {
        "first_parameter": str(first_dtype), "computes_in": str(dtype), "scaler": is_scaled,
        "grpo": rows, **outcome.measured,
    }  # fmt: skip
    headline = f"{outcome.headline}, first parameter {first_dtype}, scaler {'on' if is_scaled else 'off'}"
    return Outcome(headline, "; ".join(faults), measured)


def keep_trainable(policy: Policy) -> Policy:
    """Keep bitsandbytes from packing 4-bit weights for a CPU; on a GPU it never does.

    bitsandbytes 0.50 does so at the first pass in evaluation mode, on CPUs with bfloat16; no gradient goes
    through packed weights, and a layer with a bias raises.
    """
    for module in policy.model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return policy
