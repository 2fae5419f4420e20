"""The project's own code under the real unsloth: `make test-gpu` on a GPU, `make gpu-paths` without.

Each fault that these tests guard against was seen by running it: unsloth printed a line and trained another
loss, or lost its gradient checkpointing at the first evaluation. A file of its own, run by itself: unsloth
patches transformers and TRL for the whole process.
"""

import pretended_gpu

IS_REAL = pretended_gpu.import_unsloth()

import copy  # noqa: E402
import hashlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from bitsandbytes.functional import quantize_4bit  # noqa: E402
from metric_table import is_known  # noqa: E402
from recipes import make_config  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from tiny_families import (  # noqa: E402
    CONTINUATION,
    MODELS,
    PROMPTS,
    by_transformers,
    family_params,
    grpo_params,
    train_grpo,
)
from tiny_policy import train_by_hand  # noqa: E402
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402
from unsloth.models import mapper  # noqa: E402
from unsloth.models.loader_utils import get_model_name  # noqa: E402

from rlnb.errors import ParamsError, PolicyUnavailable  # noqa: E402
from rlnb.params.model_cache import find_copy  # noqa: E402
from rlnb.params.sections import ModelParams  # noqa: E402
from rlnb.policy import Policy, generate, load_policy, save_adapters  # noqa: E402
from rlnb.policy.adapters import adapters_off, hash_trained  # noqa: E402
from rlnb.policy.export import compute_logits, save_and_reload, save_in_format  # noqa: E402
from rlnb.policy.scoring import score  # noqa: E402
from rlnb.run.tracking import read_metrics  # noqa: E402

torch.set_num_threads(1)
# Triton's interpreter gives NaN in bfloat16; a GPU computes in the number format of its runs, which rounds.
DTYPE = ("bfloat16" if torch.cuda.is_bf16_supported() else "float16") if IS_REAL else "float32"
EXACT = {"reads": 5e-3, "exports": 1e-2, "same": 1e-5}
CLOSE = {"reads": 0.2, "exports": 0.3, "same": 0.1} if IS_REAL else EXACT


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    assert by_transformers("build", directory) == list(MODELS)  # its classes are not patched
    return directory


def model_params(models: Path, name: str, **options: object) -> ModelParams:
    return family_params(models, name, engine="unsloth", dtype=DTYPE, **options)


def load(models: Path, name: str, *, checkpointing: bool = False, **options: object) -> Policy:
    params = model_params(models, name, **options)
    policy = load_policy(params, gradient_checkpointing=checkpointing, max_seq_length=1024, seed=0)
    if name.startswith("gpt_oss") and not IS_REAL:
        # On the pretended GPU the rotary frequencies stay uninitialized memory.
        rotary = policy.model.get_base_model().model.rotary_emb
        frequencies, _ = ROPE_INIT_FUNCTIONS[rotary.rope_type](rotary.config, policy.device)
        rotary.inv_freq.copy_(frequencies)
    return policy


def checkpointing_of(policy: Policy) -> set[str]:
    """The kinds of gradient checkpointing of the model's layers, and unsloth's mark of a generation."""
    modules = list(policy.model.modules())
    marks = {"generating" for module in modules if vars(module).get("_flag_for_generation")}
    return marks | {str(getattr(module, "gradient_checkpointing", False)) for module in modules} - {"False"}


@pytest.mark.parametrize("name", MODELS)
def test_it_loads_writes_and_scores_as_transformers_does(models, name):
    policy = load(models, name)
    assert (policy.engine, str(policy.dtype)) == ("unsloth", f"torch.{DTYPE}")
    assert 0 < policy.num_parameters()[0] < policy.num_parameters()[1] / 10
    written = generate(policy, PROMPTS, max_new_tokens=6, temperature=0)
    with adapters_off(policy):
        assert written == generate(policy, PROMPTS, max_new_tokens=6, temperature=0)
    logprobs = [scores.logprobs.tolist() for scores in score(policy, PROMPTS, [CONTINUATION] * len(PROMPTS))]
    plain = by_transformers("score", models / name)
    for ours, theirs in zip(logprobs, plain, strict=True):
        assert ours == pytest.approx(theirs, abs=CLOSE["reads"])  # gpt-oss: unsloth's own experts, 1.4e-3
    prompts, tails = [f"{PROMPTS[0]} {number}" for number in range(3)], [CONTINUATION] * 3
    whole = [score(policy, [prompt], [tail])[0] for prompt, tail in zip(prompts, tails, strict=True)]
    for alone, together in zip(whole, score(policy, prompts, tails), strict=True):
        assert alone.logprobs == pytest.approx(together.logprobs, abs=CLOSE["same"])


def test_questions_may_be_longer_than_those_trained_on_and_an_interrupted_pass_leaves_nothing(models):
    tight, roomy = (load_policy(model_params(models, "llama"), max_seq_length=n, seed=0) for n in (64, 1024))
    questions = ["abc " * 40, "x"]
    written = generate(tight, questions, max_new_tokens=6, temperature=0)
    assert written == generate(roomy, questions, max_new_tokens=6, temperature=0)
    os.environ["UNSLOTH_RETURN_HIDDEN_STATES"] = "1"  # as a training pass leaves it that ran out of memory
    for ours, theirs in zip(*(score(each, questions, ["y", "z"]) for each in (tight, roomy)), strict=True):
        assert ours.logprobs.tolist() == pytest.approx(theirs.logprobs.tolist(), abs=CLOSE["same"])
        assert max(ours.logprobs) <= 0


def test_a_model_that_also_sees_is_trained_and_asked_by_its_text(models):
    policy = load(models, "gemma3", lora_target_modules=("all-linear",))
    trained = [name for name, parameter in policy.model.named_parameters() if parameter.requires_grad]
    assert trained and not any("vision" in name for name in trained)
    assert len(generate(policy, PROMPTS, max_new_tokens=3, temperature=0)) == len(PROMPTS)


def test_a_policy_is_where_its_decoder_is_also_with_its_embeddings_on_the_cpu(models):
    policy = load(models, "gpt_oss", offload_embedding=True)
    decoder = policy.model.get_base_model()
    embeddings = decoder.get_input_embeddings()
    if not IS_REAL:  # where all of it was loaded onto the CPU
        on_cpu = copy.deepcopy(embeddings)
        decoder.to("meta").set_input_embeddings(on_cpu)
    assert next(policy.model.parameters()).device.type == "cpu"
    assert policy.device.type == ("cuda" if IS_REAL else "meta")
    if IS_REAL:
        written = generate(policy, PROMPTS, max_new_tokens=6, temperature=0)
        assert written == generate(load(models, "gpt_oss"), PROMPTS, max_new_tokens=6, temperature=0)


def train(models: Path, name: str, output_dir: Path, *, max_steps: int = 3, beta: float = 0.0) -> dict:
    """Train with checkpoints and interval evaluation, two prompts a batch. Return what was seen."""
    policy = load(models, name, checkpointing=True)
    seen, steps = [], []

    def reward(*, completions: list[str], completion_ids: list[list[int]], **_: object) -> list[float]:
        state = torch.cuda.get_rng_state(policy.device) if IS_REAL else torch.get_rng_state()
        random = hashlib.sha256(state.numpy().tobytes()).hexdigest()[:12]
        steps.append({"tokens": completion_ids, "adapters": hash_trained(policy)[:12], "random": random})
        scored = score(policy, (PROMPTS * 2)[: len(completions)], completions)  # as a reward by a judge does
        assert len(scored) == len(completions)
        return [float(index) for index in range(len(completions))]

    def evaluate(step: int) -> dict[str, float]:
        before = checkpointing_of(policy)
        generate(policy, PROMPTS, max_new_tokens=3, temperature=0)
        seen.append((before, checkpointing_of(policy)))
        return {"heldout/known/reward": 1.0}

    batches = {"per_device_train_batch_size": 4, "max_steps": max_steps, "beta": beta}
    params = grpo_params(model_params(models, name), **batches)
    trainer, history = train_grpo(policy, params, output_dir, reward=reward, evaluate=evaluate)
    for row, step in zip(history, steps, strict=False):  # what tells two runs of a GPU apart
        print({key: value for key, value in row.items() if key in ("step", "loss", "grad_norm", "kl")}, step)
    assert "UnslothGRPOTrainer" in [base.__name__ for base in type(trainer).__mro__]
    ends = policy.model.generation_config.eos_token_id
    ends = {ends} if isinstance(ends, int) else set(ends)
    cut = [sum(ends.isdisjoint(ids) for ids in step["tokens"]) / len(step["tokens"]) for step in steps]
    return {"policy": policy, "history": history, "checkpointing": seen, "cut": cut}


@pytest.mark.parametrize("name", MODELS)
def test_grpo_trains_the_loss_that_was_asked_for_through_evaluations_and_a_resume(models, name, tmp_path):
    beta = 0.01 if name == "gpt_oss" else 0.0
    whole = train(models, name, tmp_path / "whole", beta=beta)
    norms = [row["grad_norm"] for row in whole["history"]]
    assert len(norms) == 3 and all(norm > 0 for norm in norms)  # 0 where cut completions are masked
    assert [row["completions/clipped_ratio"] for row in whole["history"]] == whole["cut"]
    assert max(whole["cut"]) > 0  # the tiny models seldom end by themselves
    for before, after in whole["checkpointing"]:
        assert before == after and before and "generating" not in before
    rows = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    assert not {key for row in rows for key in row if key not in ("step", "time") and not is_known(key)}

    train(models, name, tmp_path / "parts", max_steps=2, beta=beta)
    resumed = train(models, name, tmp_path / "parts", beta=beta)
    assert [row["step"] for row in resumed["history"]] == [3]
    assert resumed["history"][-1]["grad_norm"] == pytest.approx(norms[-1], rel=0.02 if IS_REAL else 1e-4)
    if not IS_REAL:  # a GPU sums in another order each time
        assert hash_trained(resumed["policy"]) == hash_trained(whole["policy"])


@pytest.mark.parametrize("name", MODELS)
def test_the_reference_is_the_model_with_its_adapters_off(models, name):
    policy = load(models, name)
    fresh = compute_logits(policy, PROMPTS)
    train_by_hand(policy)
    for moved, same, expected in zip(
        compute_logits(policy, PROMPTS), compute_logits(policy, PROMPTS, reference=True), fresh, strict=True
    ):
        torch.testing.assert_close(same, expected, atol=CLOSE["same"], rtol=0)
        assert float((moved - expected).abs().max()) > 1e-2
    with adapters_off(policy):
        torch.testing.assert_close(compute_logits(policy, PROMPTS)[0], fresh[0], atol=CLOSE["same"], rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_exports_are_read_by_transformers_and_adapters_by_unsloth(models, name, tmp_path):
    policy = load(models, name)
    train_by_hand(policy, std=0.1)
    ours = compute_logits(policy, PROMPTS)
    adapters = save_adapters(policy, tmp_path / "adapters")
    merged = save_in_format(policy, tmp_path / "merged", "merged_16bit", model_params(models, name))
    for directory, saved in ((models / name, adapters), (merged, "")):
        theirs = by_transformers("logits", directory, saved)
        for first, second in zip(ours, theirs, strict=True):
            torch.testing.assert_close(first, torch.tensor(second), atol=CLOSE["exports"], rtol=0)
    again = load(models, name, adapters=str(adapters))
    for first, second in zip(ours, compute_logits(again, PROMPTS), strict=True):
        torch.testing.assert_close(first, second, atol=CLOSE["same"], rtol=0)


def save_linear_gpt_oss(source: Path, directory: Path) -> None:
    """Write a GPT-OSS as unsloth's copies in 4 bits have it: a linear layer for each expert, in NF4."""
    shutil.copytree(source, directory)
    linear = {}
    for name, weight in load_file(source / "model.safetensors").items():
        if ".experts." in name:
            layer, _, tail = name.rpartition(".")
            experts = f"{layer}.{tail.removesuffix('_bias')}s"
            kind = "bias" if tail.endswith("_bias") else "weight"
            each = weight if kind == "bias" else weight.mT.contiguous()
            linear |= {f"{experts}.{index}.{kind}": each[index].clone() for index in range(len(each))}
        else:
            linear[name.replace(".router.", ".router.linear.")] = weight
    for name in [name for name, weight in linear.items() if "proj" in name and weight.ndim == 2]:
        linear[name], state = quantize_4bit(linear[name], quant_type="nf4", compress_statistics=True)
        linear |= {f"{name}.{key}": each for key, each in state.as_dict(packed=True).items()}
    save_file(linear, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": DTYPE,
        "llm_int8_skip_modules": ["embed_tokens", "lm_head", "router"],
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))


def test_a_gpt_oss_in_4_bits_is_read_tried_again_and_merged_into_its_model_in_16_bits(models, tmp_path):
    save_linear_gpt_oss(models / "gpt_oss", models / "gpt_oss-unsloth-bnb-4bit")
    policy = load(models, "gpt_oss-unsloth-bnb-4bit", load_in_4bit=True)
    plain = by_transformers("logits", models / "gpt_oss")
    gaps = [
        float((ours - torch.tensor(theirs)).abs().mean())
        for ours, theirs in zip(compute_logits(policy, PROMPTS), plain, strict=True)
    ]
    assert max(gaps) < 0.1  # random experts: 0.2
    train_by_hand(policy, std=0.3)
    params = model_params(models, "gpt_oss-unsloth-bnb-4bit", load_in_4bit=True)
    for form, share in (("lora", 1e-3), ("merged_16bit", 0.5)):
        said = save_and_reload(policy, tmp_path / form, form, params, prompt=PROMPTS[1])
        assert "reloaded, and continues" in said
        gap, change = map(float, re.findall(r" by (\S+)", said))
        assert gap < share * change, said


def test_a_load_that_makes_up_weights_is_refused_before_it_and_by_its_report(models, monkeypatch):
    with pytest.raises(ParamsError, match="model.load_in_4bit = true needs gpt-oss in bitsandbytes' form"):
        load(models, "gpt_oss", load_in_4bit=True)
    monkeypatch.setattr("rlnb.policy.loading.find_4bit_fault", lambda config: "")
    with pytest.raises(PolicyUnavailable, match=r"its files lack weights, such as model\.layers"):
        load(models, "gpt_oss", load_in_4bit=True)


@pytest.mark.parametrize("in_4bit", [False, True])
def test_the_copy_that_is_fetched_is_the_one_that_unsloth_loads(in_4bit):
    tables = (mapper.INT_TO_FLOAT_MAPPER, mapper.FLOAT_TO_INT_MAPPER, mapper.MAP_TO_UNSLOTH_16bit)
    known = {"me/mine", "unsloth/gpt-oss-20b-BF16"}.union(*tables)
    for model_id in known:
        assert find_copy(model_id, in_4bit=in_4bit) == get_model_name(model_id, load_in_4bit=in_4bit)


def test_a_setting_that_unsloth_overrides_is_an_error(models):
    params = grpo_params(model_params(models, "llama"), loss_type="dr_grpo", scale_rewards="group")
    with pytest.raises(ParamsError, match="scale_rewards"):
        make_config(params, load(models, "llama"))
