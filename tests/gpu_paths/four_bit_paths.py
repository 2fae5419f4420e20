"""Training with the frozen weights in 4 bits, by bitsandbytes' CPU kernels: run by `make gpu-paths`.

In the set requirements/unsloth.txt, without importing unsloth: bitsandbytes is not in the CPU's set.
"""

import math
import os
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # for the GRPO kernels of TRL 1.15

import numpy as np
import pytest
import torch
from datasets import Dataset
from ppo_run import params_of as ppo_params
from ppo_run import train_run as train_ppo
from self_play_run import params_of as spiral_params
from self_play_run import train_run as train_spiral
from tiny_policy import load_tiny, save_tiny_gpt_oss, tiny_params

from rlnb.grpo import training as grpo
from rlnb.params.training import TrainingParams
from rlnb.policy import generate, load_policy
from rlnb.policy.adapters import hash_trained, trained_parameters
from rlnb.selfplay.acting import ActorCritic
from rlnb.selfplay.update import Learner

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
CASES = [(bits, dtype) for bits in (True, False) for dtype in DTYPES]
MODEL = {"lora_rank": 4, "attention": "sdpa"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_4_bit_weights_compute_in_the_dtype_asked_for_and_nothing_becomes_float32(cache_dir, dtype):
    policy = load_tiny(cache_dir, load_in_4bit=True, dtype=dtype)
    assert policy.dtype == DTYPES[dtype]
    dtypes = {name: parameter.dtype for name, parameter in policy.model.named_parameters()}
    assert {kind for name, kind in dtypes.items() if "lora" not in name} == {torch.uint8, DTYPES[dtype]}
    assert {kind for name, kind in dtypes.items() if "lora" in name} == {torch.float32}
    assert all("lora" in name for name, _ in trained_parameters(policy))
    assert len(generate(policy, ["2048"], max_new_tokens=4, temperature=0)) == 1


@pytest.mark.parametrize(("load_in_4bit", "dtype"), CASES)
def test_losses_are_scaled_where_layers_compute_in_float16(cache_dir, load_in_4bit, dtype):
    actor = ActorCritic(load_tiny(cache_dir, load_in_4bit=load_in_4bit, dtype=dtype), has_value=False)
    learner = Learner(actor, spiral_params(cache_dir).training, temperature=1.0)
    assert learner.scaler.is_enabled() == (dtype == "float16")


@pytest.mark.parametrize("notebook", ["spiral_self_play", "ppo_openspiel"])
@pytest.mark.parametrize(("load_in_4bit", "dtype"), CASES)
def test_updates_of_several_mini_batches_pass_their_checks_and_move_the_adapters(
    cache_dir, tmp_path, notebook, load_in_4bit, dtype
):
    make, train = {
        "spiral_self_play": (spiral_params, train_spiral),
        "ppo_openspiel": (ppo_params, train_ppo),
    }[notebook]
    model = MODEL | {"dtype": dtype, "load_in_4bit": load_in_4bit}
    training = {"max_steps": 2, "games_per_step": 8, "num_mini_batches": 4, "num_epochs": 2}
    params = make(cache_dir, model=model, training=training)
    fresh = hash_trained(load_policy(params.model, seed=params.seed))
    rows = [row for row in train(params, tmp_path) if row["step"]]
    assert len(rows) == 2
    for row in rows:
        assert row["update/first_ratio_deviation"] < 0.1
        assert math.isfinite(row["loss"]) and row["grad_norm"] > 0
    saved = load_policy(
        params.model.model_copy(update={"adapters": str(last_adapters(tmp_path))}), seed=params.seed
    )
    assert hash_trained(saved) != fresh


def last_adapters(output_dir: Path) -> Path:
    """The directory of the newest adapters below a run's directory."""
    return max(output_dir.rglob("adapter_config.json"), key=lambda path: path.stat().st_mtime).parent


@pytest.mark.parametrize(("load_in_4bit", "dtype"), CASES)
def test_a_grpo_step_of_trl_has_a_gradient(cache_dir, tmp_path, load_in_4bit, dtype):
    policy = load_tiny(cache_dir, load_in_4bit=load_in_4bit, dtype=dtype)
    training = TrainingParams(
        max_steps=1, max_completion_length=4, per_device_train_batch_size=4, num_generations=4,
        gradient_accumulation_steps=1, gradient_checkpointing=True,
    )  # fmt: skip
    config = grpo.grpo_config(training, output_dir=tmp_path, seed=0, dtype=dtype, use_gpu=False)
    rows = grpo.order_prompts([{"prompt": "2048 is"}], config)
    trainer = grpo.make_trainer(
        policy, config, rewards=[lambda completions, **_: list(np.arange(len(completions)) * 1.0)],
        prompts=Dataset.from_list(rows), short_step=False,
    )  # fmt: skip
    grpo.prepare_adapters(trainer)
    trainer.train()
    assert trainer.state.log_history[0]["grad_norm"] > 0


def test_a_gpt_oss_in_4_bits_writes_and_keeps_its_experts_in_16_bits(cache_dir, tmp_path):
    save_tiny_gpt_oss(tmp_path / "gpt_oss", cache_dir=cache_dir, dtype=torch.bfloat16)
    policy = load_policy(
        tiny_params(
            cache_dir, id=str(tmp_path / "gpt_oss"), load_in_4bit=True, dtype="bfloat16", attention="eager"
        )
    )
    frozen = {parameter.dtype for parameter in policy.model.parameters() if not parameter.requires_grad}
    assert torch.float32 not in frozen
    assert len(generate(policy, ["2048"], max_new_tokens=3, temperature=0)) == 1
