"""The project's own code under the real unsloth, on a CPU: run by `make gpu-paths`, not by `make test`.

Each fault that these tests guard against was seen by running it: unsloth printed a line and trained another
loss, or lost its gradient checkpointing at the first evaluation.
"""

import pretended_gpu

pretended_gpu.import_unsloth()

import json  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from tiny_models import MODELS, PROMPTS  # noqa: E402
from tiny_policy import train_by_hand  # noqa: E402
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402

from rlnb.code_execution.params import GrpoCodeExecutionParams  # noqa: E402
from rlnb.errors import ParamsError  # noqa: E402
from rlnb.grpo import training as grpo  # noqa: E402
from rlnb.params.sections import ModelParams  # noqa: E402
from rlnb.params.training import TrainingParams  # noqa: E402
from rlnb.policy import Policy, generate, load_policy, save_adapters  # noqa: E402
from rlnb.policy.adapters import adapters_off, hash_trained  # noqa: E402
from rlnb.policy.export import compute_logits, save_in_format  # noqa: E402
from rlnb.policy.scoring import cache_prefix, score  # noqa: E402
from rlnb.run.checkpoints import checkpoint_to_resume  # noqa: E402
from rlnb.run.metrics import describe  # noqa: E402
from rlnb.run.tracking import open_tracker, read_metrics  # noqa: E402

torch.set_num_threads(1)
ATTENTION_ONLY = ("q_proj", "k_proj", "v_proj", "o_proj")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    assert by_transformers("build", directory) == list(MODELS)
    return directory


def model_params(models: Path, name: str, **options: object) -> ModelParams:
    values = {
        "id": str(models / name), "engine": "unsloth", "dtype": "float32", "load_in_4bit": False,
        "attention": "eager" if name == "gpt_oss" else "sdpa", "cache_dir": str(models / "cache"),
        "lora_rank": 4, "lora_alpha": 8, "lora_target_modules": ATTENTION_ONLY,
    }  # fmt: skip
    return ModelParams(**values | options)


def load(models: Path, name: str, *, checkpointing: bool = False, **options: object) -> Policy:
    params = model_params(models, name, **options)
    policy = load_policy(params, gradient_checkpointing=checkpointing, max_seq_length=1024, seed=0)
    if name == "gpt_oss":
        # On the pretended GPU the rotary frequencies stay uninitialized memory; whether on a real one too is
        # what row 8 of `rlnb doctor --selftest` shows.
        rotary = policy.model.get_base_model().model.rotary_emb
        frequencies, _ = ROPE_INIT_FUNCTIONS[rotary.rope_type](rotary.config, policy.device)
        rotary.inv_freq.copy_(frequencies)
    return policy


def checkpointing_of(policy: Policy) -> set[str]:
    """The kinds of gradient checkpointing of the model's layers, and unsloth's mark of a generation."""
    modules = list(policy.model.modules())
    marks = {"generating" for module in modules if vars(module).get("_flag_for_generation")}
    return marks | {str(getattr(module, "gradient_checkpointing", False)) for module in modules} - {"False"}


def by_transformers(task: str, *arguments: object) -> object:
    """What a process without unsloth computes: unsloth patches the classes of transformers."""
    script = str(Path(__file__).with_name("tiny_models.py"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("UNSLOTH")}
    done = subprocess.run(
        [sys.executable, script, task, *map(str, arguments)], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", MODELS)
def test_it_loads_writes_and_scores_as_transformers_does(models, name):
    policy = load(models, name)
    assert (policy.engine, policy.dtype) == ("unsloth", torch.float32)
    assert 0 < policy.num_parameters()[0] < policy.num_parameters()[1] / 10
    written = generate(policy, PROMPTS, max_new_tokens=6, temperature=0)
    assert written == generate(policy, PROMPTS, max_new_tokens=6, temperature=0, reference=True)
    logprobs = [scores.logprobs.tolist() for scores in score(policy, PROMPTS, [" is it"] * len(PROMPTS))]
    plain = by_transformers("score", models / name, "eager" if name == "gpt_oss" else "sdpa")
    for ours, theirs in zip(logprobs, plain, strict=True):
        assert ours == pytest.approx(theirs, abs=5e-3)  # gpt-oss: unsloth's own experts, 1.4e-3


@pytest.mark.parametrize("name", MODELS)
def test_a_cached_beginning_is_used_only_where_the_cache_can_be_repeated(models, name):
    policy = load(models, name)
    prompts = [f"{PROMPTS[0]} {number}" for number in range(3)]
    front, tails = cache_prefix(policy, prompts), [" is it"] * 3
    assert (front is None) == (name != "gpt_oss")
    whole, cached = score(policy, prompts, tails), score(policy, prompts, tails, front=front)
    for first, second in zip(whole, cached, strict=True):
        assert first.logprobs == pytest.approx(second.logprobs, abs=1e-4)


def test_generation_leaves_gradient_checkpointing_as_it_was(models):
    for name in MODELS:
        policy = load(models, name, checkpointing=True)
        policy.model.for_training(use_gradient_checkpointing="unsloth")
        before = checkpointing_of(policy)
        assert before and "generating" not in before
        generate(policy, PROMPTS, max_new_tokens=2, temperature=0)
        assert checkpointing_of(policy) == before, name
        score(policy, PROMPTS, [" x"] * len(PROMPTS))
        assert checkpointing_of(policy) == before, name
        assert policy.model.training


def train(models: Path, name: str, output_dir: Path, *, max_steps: int = 3, beta: float = 0.0) -> dict:
    """Train with checkpoints and interval evaluation; every completion is cut. Return what was seen."""
    policy = load(models, name, checkpointing=True)
    training = TrainingParams(
        max_steps=max_steps, max_completion_length=4, per_device_train_batch_size=2, num_generations=2,
        gradient_accumulation_steps=1, save_steps=1, learning_rate=1e-3, beta=beta,
        gradient_checkpointing=True, lr_scheduler="constant", kl_interval_steps=1,
    )  # fmt: skip
    config = grpo.grpo_config(training, output_dir=output_dir, seed=0, dtype="float32", use_gpu=False)

    def reward(*, completions: list[str], **_: object) -> list[float]:
        scored = score(policy, PROMPTS[: len(completions)], completions)  # as a reward by a judge does
        assert len(scored) == len(completions)
        return [float(index) for index in range(len(completions))]

    rows = grpo.order_prompts([{"prompt": prompt} for prompt in PROMPTS], config)
    prompts = Dataset.from_list(rows)
    trainer = grpo.make_trainer(policy, config, rewards=[reward], prompts=prompts, short_step=False)
    assert type(trainer).__name__ == "UnslothGRPOTrainer"
    seen = []

    def evaluate(step: int) -> dict[str, float]:
        before = checkpointing_of(policy)
        generate(policy, PROMPTS, max_new_tokens=3, temperature=0)
        seen.append((before, checkpointing_of(policy)))
        return {"heldout/known/reward": 1.0}

    params = GrpoCodeExecutionParams(model=model_params(models, name), training=training)
    checkpoint = checkpoint_to_resume(params, output_dir)
    tracker = open_tracker(output_dir, config={}, resume_step=0, tensorboard=False)
    reporter = grpo.MetricsReporter(tracker, trainer)
    evaluation = grpo.IntervalEvaluation(evaluate, interval=1, reporter=reporter)
    grpo.train(trainer, params, reporter, checkpoint=checkpoint, callbacks=[evaluation])
    history = [row for row in trainer.state.log_history if "loss" in row]
    return {"policy": policy, "history": history, "checkpointing": seen, "resumed": checkpoint}


@pytest.mark.parametrize("name", MODELS)
def test_grpo_trains_the_loss_that_was_asked_for_through_evaluations_and_a_resume(models, name, tmp_path):
    whole = train(models, name, tmp_path / "whole", beta=0.01 if name == "gpt_oss" else 0.0)
    norms = [row["grad_norm"] for row in whole["history"]]
    assert len(norms) == 3 and all(norm > 0 for norm in norms)  # 0 where cut completions are masked
    assert all(row["completions/clipped_ratio"] == 1 for row in whole["history"])
    for before, after in whole["checkpointing"]:
        assert before == after
    rows = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    assert not {key for row in rows for key in row if key not in ("step", "time") and not describe(key)}

    beta = 0.01 if name == "gpt_oss" else 0.0
    train(models, name, tmp_path / "parts", max_steps=2, beta=beta)
    resumed = train(models, name, tmp_path / "parts", beta=beta)
    assert resumed["resumed"] and resumed["history"][-1]["step"] == 3
    assert resumed["history"][-1]["grad_norm"] == pytest.approx(norms[-1], rel=1e-4)
    assert hash_trained(resumed["policy"]) == hash_trained(whole["policy"])


@pytest.mark.parametrize("name", MODELS)
def test_the_reference_is_the_model_with_its_adapters_off(models, name):
    policy = load(models, name)
    fresh = compute_logits(policy, PROMPTS)
    train_by_hand(policy)
    for moved, same, expected in zip(
        compute_logits(policy, PROMPTS), compute_logits(policy, PROMPTS, reference=True), fresh, strict=True
    ):
        torch.testing.assert_close(same, expected, atol=1e-5, rtol=0)
        assert float((moved - expected).abs().max()) > 1e-2
    with adapters_off(policy):
        torch.testing.assert_close(compute_logits(policy, PROMPTS)[0], fresh[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_exports_are_read_by_transformers_and_adapters_by_unsloth(models, name, tmp_path):
    policy = load(models, name)
    train_by_hand(policy, std=0.1)
    ours = compute_logits(policy, PROMPTS)
    adapters = save_adapters(policy, tmp_path / "adapters")
    merged = save_in_format(policy, tmp_path / "merged", "merged_16bit", model_params(models, name))
    attention = "eager" if name == "gpt_oss" else "sdpa"
    for options in ((models / name, adapters), (merged, "")):
        theirs = by_transformers("logits", options[0], attention, options[1])
        for first, second in zip(ours, theirs, strict=True):
            torch.testing.assert_close(first, torch.tensor(second), atol=1e-2, rtol=0)
    again = load(models, name, adapters=str(adapters))
    for first, second in zip(ours, compute_logits(again, PROMPTS), strict=True):
        torch.testing.assert_close(first, second, atol=1e-5, rtol=0)


def test_a_setting_that_unsloth_overrides_is_an_error(models):
    training = TrainingParams(loss_type="dr_grpo", scale_rewards="group", gradient_checkpointing=False)
    with pytest.raises(ParamsError, match="scale_rewards = 'group' was changed to"):
        grpo.grpo_config(training, output_dir="out", seed=0, dtype="float32", use_gpu=False)


def test_its_warning_of_two_lengths_is_not_printed_for_each_batch(models, caplog):
    policy = load(models, "llama")
    generate(policy, PROMPTS, max_new_tokens=2, temperature=0)
    assert "max_length" not in caplog.text
    assert policy.model.generation_config.max_length is None
