"""Each form is written, loaded anew and made to generate; what merging costs; what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_policy import save_tiny_gpt_oss, tiny_params, train_by_hand
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from rlnb.errors import ParamsError
from rlnb.params.bases import find_base
from rlnb.params.model_cache import read_config, read_quantization
from rlnb.params.sections import ModelParams
from rlnb.policy import Policy, generate, load_policy, model_directory
from rlnb.policy.export import (
    ExportFailed,
    LogitDifference,
    compare_logits,
    compute_logits,
    reload,
    save_in_format,
)

PROMPTS = ["def double(n):", "What is a prime number?", "a"]
# Weights of about 0.02 in bfloat16 are wrong by 1 in 256 at most: logits of about 1 by a few hundredths.
ROUNDING = 0.1


def trained(params: ModelParams) -> Policy:
    policy = load_policy(params)
    train_by_hand(policy, std=0.2)
    return policy


@pytest.fixture
def policy(cache_dir: Path) -> Policy:
    return trained(tiny_params(cache_dir))


def greedy(policy: Policy) -> list[str]:
    return [completion.text for completion in generate(policy, PROMPTS, max_new_tokens=8, temperature=0)]


def difference(first: Policy, second: Policy) -> LogitDifference:
    return compare_logits(compute_logits(first, PROMPTS), compute_logits(second, PROMPTS))


def effect(policy: Policy) -> float:
    """How far the adapters move the logits."""
    reference = compute_logits(policy, PROMPTS, reference=True)
    return compare_logits(compute_logits(policy, PROMPTS), reference).largest


def test_a_difference_is_measured_over_all_tokens_of_all_prompts():
    first = [torch.tensor([[0.0, 1.0], [3.0, 1.0]]), torch.tensor([[0.0, 1.0]])]
    second = [torch.tensor([[0.0, 1.5], [1.0, 2.0]]), torch.tensor([[0.0, 1.0]])]
    gap = compare_logits(first, second)  # of six logits three differ: by .5, 2 and 1
    assert (gap.largest, gap.num_positions) == (2.0, 3)
    assert gap.mean == pytest.approx(3.5 / 6)
    assert gap.same_argmax == pytest.approx(2 / 3)


def test_adapters_come_back_as_they_were(policy, cache_dir, tmp_path):
    directory = save_in_format(policy, tmp_path / "out", "lora", tiny_params(cache_dir))
    again = reload(directory, "lora", tiny_params(cache_dir))
    assert difference(again, policy).largest == 0.0 < effect(policy)
    assert greedy(again) == greedy(policy)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_merged_model_says_what_the_adapters_say(policy, cache_dir, tmp_path):
    params = tiny_params(cache_dir)
    save_in_format(policy, tmp_path / "out", "lora", params)
    directory = save_in_format(policy, tmp_path / "out", "merged_16bit", params)
    assert not (directory / "adapter_config.json").exists()  # the older export is replaced whole
    again = reload(directory, "merged_16bit", params)
    assert not hasattr(again.model, "peft_config")
    gap = difference(again, policy)
    assert gap.largest < ROUNDING < effect(policy) / 10
    assert gap.same_argmax > 0.9
    ends = [each.model.generation_config.eos_token_id for each in (again, policy)]
    assert len(greedy(again)) == 3 and ends[0] == ends[1]


def test_the_policy_trains_on_as_if_nothing_had_been_exported(policy, cache_dir, tmp_path):
    policy.model.train()
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    save_in_format(policy, tmp_path / "out", "merged_16bit", tiny_params(cache_dir))
    after = policy.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert policy.model.training and policy.num_parameters()[0] > 0
    tokens = policy.tokenizer("def f(n):", return_tensors="pt")
    policy.model(**tokens, labels=tokens["input_ids"]).loss.backward()
    assert all(p.grad is not None for p in policy.model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("saved_with", "base"),
    [
        ("Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-1.5B"),
        ("unsloth/gpt-oss-20b-unsloth-bnb-4bit", "unsloth/gpt-oss-20b"),  # the model in 16 bits
        ("unsloth/gpt-oss-20b-bnb-4bit", "unsloth/gpt-oss-20b"),
        ("model_cache/SmolLM2-135M-Instruct", "embedded"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        (None, ""),
    ],
)
def test_the_base_is_the_one_that_the_adapters_name(saved_with, base, tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": saved_with}))
    assert find_base(tmp_path) == base
    # The note of the training comes before the name for the hub.
    (tmp_path / "base_model.json").write_text('{"base": "cache/SmolLM2-135M-Instruct"}')
    assert find_base(tmp_path) == "embedded"


# gpt-oss in MXFP4: two layers of four experts, stored as openai stores them.


@pytest.fixture(scope="module")
def gpt_oss(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("gpt-oss")
    save_tiny_gpt_oss(directory, cache_dir=cache_dir, dtype=torch.bfloat16)
    weights = load_file(directory / "model.safetensors")
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, width, height = weights.pop(name).shape
        shape = (experts, height, width // 32, 16)
        weights[f"{name}_blocks"] = torch.randint(0, 256, shape, dtype=torch.uint8)
        weights[f"{name}_scales"] = torch.full(shape[:-1], 127 - 6, dtype=torch.uint8)  # times 2 ** -6
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((directory / "config.json").read_text())
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    written["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    (directory / "config.json").write_text(json.dumps(written))
    return directory


def test_gpt_oss_is_written_in_mxfp4_without_a_gpu(gpt_oss, cache_dir, tmp_path):
    params = tiny_params(cache_dir, id=str(gpt_oss))
    policy = trained(params)
    directory = save_in_format(policy, tmp_path / "out", "mxfp4", params)
    base, written = (load_file(folder / "model.safetensors") for folder in (gpt_oss, directory))
    changed = {name for name in base if not torch.equal(base[name], written[name])}
    assert base.keys() == written.keys()
    assert {name.split(".")[-2] for name in changed} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert read_quantization(read_config(directory)) == "mxfp4"
    again = reload(directory, "mxfp4", params)
    assert difference(again, policy).largest < ROUNDING < effect(policy) / 5
    assert len(greedy(again)) == 3


def test_gpt_oss_merged_in_16_bits_is_not_written_in_mxfp4(gpt_oss, cache_dir, tmp_path):
    params = tiny_params(cache_dir, id=str(gpt_oss))
    policy = trained(params)
    saved = save_in_format(policy, tmp_path / "plain", "merged_16bit", params)
    assert read_quantization(read_config(saved)) == ""
    plain = reload(saved, "merged_16bit", params)
    assert difference(plain, policy).largest < ROUNDING < effect(policy) / 5
    with pytest.raises(ExportFailed, match="mxfp4"):
        save_in_format(plain, tmp_path / "plain", "mxfp4", tiny_params(cache_dir, id=str(saved)))
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]  # the older export, and nothing half done
    assert (saved / "config.json").is_file()


# Six families, tied where a tied one exists: what is merged, and what is not.


@pytest.fixture(scope="module")
def families(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tiny tied model of each family, with tokens of bytes."""
    root = tmp_path_factory.mktemp("families")
    tokenizer = AutoTokenizer.from_pretrained(model_directory("tiny", cache_dir))
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}
    gpt2 = {"n_embd": 64, "n_layer": 2, "n_head": 4}
    for kind in (LlamaConfig, Qwen2Config, Qwen3Config, GemmaConfig, MistralConfig, GPT2Config):
        config = kind(**(gpt2 if kind is GPT2Config else shape), vocab_size=len(tokenizer), eos_token_id=2)
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(root / config.model_type)
        tokenizer.save_pretrained(root / config.model_type)
    return root


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma", "mistral", "gpt2"])
def test_adapters_on_a_layer_of_a_tied_model_are_merged_and_those_on_its_embeddings_refused(
    family, families, cache_dir, tmp_path
):
    layer, embeddings = ("c_attn", "wte") if family == "gpt2" else ("q_proj", "embed_tokens")
    params = tiny_params(cache_dir, id=str(families / family), lora_target_modules=(layer,))
    policy = load_policy(params)
    train_by_hand(policy, std=2.0)
    before = compute_logits(policy, PROMPTS)
    kept = save_in_format(policy, tmp_path / "kept", "merged_16bit", params)
    assert difference(reload(kept, "merged_16bit", params), policy).largest < effect(policy) / 4
    # The last export frees the policy.
    whole = save_in_format(policy, tmp_path / "whole", "merged_32bit", params, is_last=True)
    again = reload(whole, "merged_32bit", params)
    assert compare_logits(compute_logits(again, PROMPTS), before).largest < 1e-4
    assert again.model.config.tie_word_embeddings
    with pytest.raises(ParamsError, match="model.lora_target_modules: the embeddings are this model's head"):
        load_policy(params.model_copy(update={"lora_target_modules": (layer, embeddings)}))
    # Adapters that others have trained.
    bare = load_policy(params, is_trained=False)
    model = get_peft_model(bare.model, LoraConfig(target_modules=[layer, embeddings]))
    for form in ("merged_16bit", "merged_32bit"):
        with pytest.raises(ExportFailed, match="the adapters cannot be merged: the embeddings are"):
            save_in_format(replace(bare, model=model), tmp_path / "none", form, params)
    assert not (tmp_path / "none").exists()


def test_a_base_whose_published_settings_contradict_each_other_is_merged(cache_dir, tmp_path):
    base = Path(shutil.copytree(model_directory("tiny", cache_dir), tmp_path / "base"))
    path = base / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"temperature": 0.9}))
    params = tiny_params(cache_dir, id=str(base))
    assert (
        save_in_format(load_policy(params), tmp_path / "out", "merged_16bit", params) / "config.json"
    ).exists()
