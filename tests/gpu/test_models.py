"""Tiny models of three families read, learn and are written as on the CPU; 4 bits; vLLM."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from ppo_run import params_of as ppo_params
from ppo_run import train_run as train_ppo
from self_play_run import params_of as spiral_params
from self_play_run import train_run as train_spiral
from tiny_families import CONTINUATION, MODELS, PROMPTS, family_params, grpo_params, train_grpo
from tiny_policy import train_by_hand
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlnb.policy import generate, load_policy
from rlnb.policy.adapters import hash_trained, trained_parameters
from rlnb.policy.export import compare_logits, compute_logits, reload, save_in_format
from rlnb.policy.scoring import score
from rlnb.selfplay.acting import ActorCritic
from rlnb.selfplay.batch import MAX_FIRST_DEVIATION, Learner

pytestmark = pytest.mark.gpu
# Mean distance (nats) between a model's log-probabilities and those of float32 on the CPU.
MAX_MEAN_GAP = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02}
MAX_RATIO_GAP = 0.1  # of the mean ratio between the policy's and vLLM's probabilities from 1
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
HALF = [pytest.param("bfloat16", marks=pytest.mark.needs("bfloat16")), "float16"]
# bitsandbytes has kernels for CPUs as well: `make gpu-paths` runs its cases without a GPU.
CASES = [
    pytest.param(False, "float32"),
    pytest.param(False, "float16", marks=pytest.mark.needs("gpu")),
    pytest.param(False, "bfloat16", marks=pytest.mark.needs("gpu", "bfloat16")),
    pytest.param(True, "float16", marks=pytest.mark.needs("bitsandbytes")),
    pytest.param(True, "bfloat16", marks=pytest.mark.needs("bitsandbytes", "bfloat16")),
]


def reference_logprobs(directory: Path) -> list[list[float]]:
    """Return the log-probabilities of the continuation after each prompt, plainly: a text at a time."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    logprobs = []
    for prompt in PROMPTS:
        head, tail = (tokenizer(text)["input_ids"] for text in (prompt, CONTINUATION))
        with torch.no_grad():
            logits = model(torch.tensor([[*head, *tail]])).logits[0, len(head) - 1 : -1]
        logprobs.append(logits.log_softmax(-1).gather(-1, torch.tensor(tail)[:, None])[:, 0].tolist())
    return logprobs


@pytest.mark.parametrize("name", MODELS)
def test_a_family_reads_as_float32_on_the_cpu_does(models, name, dtype, measured):
    reference = reference_logprobs(models / name)
    policy = load_policy(family_params(models, name, dtype=dtype))
    scores = score(policy, PROMPTS, [CONTINUATION] * len(PROMPTS))
    gaps = np.abs(np.concatenate([each.logprobs for each in scores]) - np.concatenate(reference))
    measured(f"mean gap in {dtype} (nats)", float(gaps.mean()), at_most=MAX_MEAN_GAP[dtype], page="nan")
    assert len(generate(policy, PROMPTS, max_new_tokens=8, temperature=1.0)) == len(PROMPTS)


def test_the_same_tokens_in_another_batch_have_nearly_the_same_probabilities(models, dtype, measured):
    """PPO's ratios begin with this noise: self-play and PPO stop where it is larger."""
    policy = load_policy(family_params(models, "llama", dtype=dtype))
    prompts, texts = [f"{PROMPTS[row % 3]} {row}" for row in range(32)], ["of sliding tiles " * 3] * 32
    alone, many = (score(policy, prompts, texts, batch_size=rows) for rows in (1, 32))
    ratios = np.exp([a.logprobs - b.logprobs for a, b in zip(alone, many, strict=True)])
    noise = float(np.abs(ratios - 1).mean())
    measured(f"mean |ratio - 1| in {dtype}", noise, at_most=MAX_FIRST_DEVIATION[DTYPES[dtype]], page="nan")


@pytest.mark.parametrize(("load_in_4bit", "dtype"), CASES)
def test_grpo_learns_from_cut_answers_and_repeats_a_step_from_a_checkpoint(
    models, tmp_path, load_in_4bit, dtype, measured
):
    model = family_params(models, "llama", dtype=dtype, load_in_4bit=load_in_4bit)

    def train(folder, max_steps):
        policy = load_policy(model, seed=0)

        def reward(*, prompts, completions, **_):
            generate(policy, PROMPTS, max_new_tokens=2, temperature=1.0, seed=1)  # as a judge does
            return [float(index) for index in range(len(completions))]

        return train_grpo(policy, grpo_params(model, max_steps=max_steps), tmp_path / folder, reward=reward)

    _, whole = train("whole", 3)
    for row in whole:
        assert math.isfinite(row["loss"]) and row["grad_norm"] > 0, row  # 0 where cut answers are masked
    train("parts", 2)
    _, resumed = train("parts", 3)
    assert [row["step"] for row in resumed] == [3]
    gap = abs(resumed[0]["grad_norm"] - whole[-1]["grad_norm"]) / whole[-1]["grad_norm"]
    # Sums in another order on a GPU.
    measured("another gradient of a resumed step (share)", gap, at_most=1e-6 if dtype == "float32" else 0.02)


@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_moe"])
def test_equal_rewards_teach_a_mixture_of_experts_nothing(models, tmp_path, name, dtype):
    """By default TRL adds the loss that balances the experts, with the model's own coefficient."""
    model = family_params(models, name, dtype=dtype)
    for notebook in ("grpo_code_execution", "grpo_code_game", "gpt_oss_2048"):
        _, (row,) = train_grpo(
            load_policy(model, seed=0), grpo_params(model, max_steps=1), tmp_path / notebook,
            notebook=notebook, reward=lambda completions, **_: [1.0] * len(completions),
        )  # fmt: skip
        assert row["grad_norm"] == 0


@pytest.mark.parametrize(("load_in_4bit", "dtype"), CASES)
@pytest.mark.parametrize("notebook", ["spiral_self_play", "ppo_openspiel"])
def test_updates_of_several_mini_batches_pass_their_checks_and_move_the_adapters(
    models, tmp_path, notebook, load_in_4bit, dtype, measured
):
    make, train = {
        "spiral_self_play": (spiral_params, train_spiral),
        "ppo_openspiel": (ppo_params, train_ppo),
    }[notebook]
    model = {"lora_rank": 4, "dtype": dtype, "load_in_4bit": load_in_4bit}
    training = {"max_steps": 1, "save_steps": 1, "games_per_step": 8, "num_mini_batches": 4, "num_epochs": 2}
    params = make(models / "cache", model=model, training=training)
    (row,) = [row for row in train(params, tmp_path) if "update/first_ratio_deviation" in row]
    bound = MAX_FIRST_DEVIATION[DTYPES[dtype]]
    measured("first ratio's distance from 1", row["update/first_ratio_deviation"], at_most=bound, page="nan")
    assert math.isfinite(row["loss"]) and row["grad_norm"] > 0, row
    (adapters,) = {path.parent for path in tmp_path.rglob("checkpoint-1/adapter_config.json")}
    trained = params.model.model_copy(update={"adapters": str(adapters)})
    assert hash_trained(load_policy(trained)) != hash_trained(load_policy(params.model, seed=params.seed))


@pytest.mark.needs("bitsandbytes")
@pytest.mark.parametrize("dtype", HALF)
def test_4_bits_compute_in_the_dtype_asked_for_and_nothing_becomes_float32(models, dtype):
    policy = load_policy(family_params(models, "llama", load_in_4bit=True, dtype=dtype))
    assert policy.dtype == DTYPES[dtype]
    dtypes = {name: parameter.dtype for name, parameter in policy.model.named_parameters()}
    assert {kind for name, kind in dtypes.items() if "lora" not in name} == {torch.uint8, DTYPES[dtype]}
    assert {kind for name, kind in dtypes.items() if "lora" in name} == {torch.float32}
    assert all("lora" in name for name, _ in trained_parameters(policy))
    learner = Learner(ActorCritic(policy, has_value=False), spiral_params(models).training, temperature=1.0)
    assert learner.scaler.is_enabled() == (dtype == "float16")


@pytest.mark.needs("bitsandbytes", "bfloat16")
def test_a_gpt_oss_in_4_bits_writes_and_keeps_its_experts_in_16_bits(models):
    policy = load_policy(family_params(models, "gpt_oss", load_in_4bit=True, dtype="bfloat16"))
    frozen = {parameter.dtype for parameter in policy.model.parameters() if not parameter.requires_grad}
    assert torch.float32 not in frozen
    assert len(generate(policy, ["2048"], max_new_tokens=3, temperature=0)) == 1


@pytest.mark.parametrize(("name", "form"), [("qwen3", "lora"), ("gpt_oss", "merged_16bit")])
def test_what_is_exported_is_read_again(models, tmp_path, name, form, dtype, measured):
    params = family_params(models, name, dtype=dtype)
    policy = load_policy(params)
    train_by_hand(policy, std=0.1)
    written = compute_logits(policy, PROMPTS)
    effect = compare_logits(compute_logits(policy, PROMPTS, reference=True), written).mean
    directory = save_in_format(policy, tmp_path / form, form, params)
    gap = compare_logits(compute_logits(reload(directory, form, params), PROMPTS), written).mean
    measured("gap of logits, as a share of what the adapters change", gap / effect, at_most=0.3)


@pytest.mark.needs("gpu", "vllm")
def test_vllm_on_the_same_gpu_ends_completions_where_the_policy_does(models, tmp_path, dtype, measured):
    """The model's files do not name "x" as an end: only the policy can tell vLLM."""
    vllm = {"enabled": True, "gpu_memory_utilization": 0.2, "max_model_len": 1024}
    model = family_params(models, "llama", dtype=dtype)
    params = grpo_params(
        model, vllm=vllm, max_completion_length=128, per_device_train_batch_size=4, num_generations=4
    )
    policy = load_policy(model, seed=0)
    policy.model.generation_config.eos_token_id += policy.tokenizer("x")["input_ids"]
    written: list[list[int]] = []

    def reward(*, completions, completion_ids, **_):
        written.extend(completion_ids)
        return [float(index) for index in range(len(completions))]

    _, rows = train_grpo(policy, params, tmp_path, reward=reward)
    ends = set(policy.model.generation_config.eos_token_id)
    num_beyond = sum(bool(ends & set(ids[:-1])) for ids in written)
    measured("completions that go on behind an end token", num_beyond, at_most=0)
    ratio = rows[-1]["sampling/importance_sampling_ratio/mean"]
    measured("vLLM's mean probability ratio's distance from 1", abs(ratio - 1), at_most=MAX_RATIO_GAP)
    assert all(row["grad_norm"] > 0 for row in rows), rows
