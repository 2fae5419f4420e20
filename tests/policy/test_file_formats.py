"""What rlnb saves is read by transformers 4.57 and 5; what 4.57 would misread is refused."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny_policy import load_tiny, tiny_params, train_by_hand
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlnb.errors import PolicyUnavailable
from rlnb.policy import load_policy, model_directory
from rlnb.policy.export import save_in_format
from rlnb.policy.file_formats import check_readable, make_readable

OLD = "4.57.6"  # of requirements/volta.txt
PROMPT = "def double(n):\n    return n * 2\n" * 9
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip


def read_config(directory: Path, name: str = "config.json") -> dict:
    return json.loads((directory / name).read_text(encoding="utf-8"))


def logits(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    with torch.no_grad():
        return model(**tokenizer(PROMPT, return_tensors="pt")).logits


def rewrite(directory: Path, name: str, config: dict) -> None:
    (directory / name).write_text(json.dumps(config), encoding="utf-8")


def save_llama(directory: Path, cache_dir: Path, **rope: object) -> torch.Tensor:
    """Save a model with these rotary embeddings in the form of transformers 5, and return its logits."""
    tokenizer = AutoTokenizer.from_pretrained(model_directory("tiny", cache_dir))
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=4096, eos_token_id=2, pad_token_id=0, **rope,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    saved = read_config(directory)
    given = saved.pop("rope_scaling", None) or {"rope_type": "default"}
    theta = saved.pop("rope_theta", rope["rope_theta"])
    saved.setdefault("rope_parameters", given | {"rope_theta": theta})
    rewrite(directory, "config.json", saved)
    tokens = read_config(directory, "tokenizer_config.json")
    special = tokens.pop("additional_special_tokens", None) or tokens["extra_special_tokens"]
    tokens |= {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": special}
    rewrite(directory, "tokenizer_config.json", tokens)
    return logits(model.eval(), tokenizer)


def is_readable(directory: Path) -> bool:
    check_readable(str(directory), tiny_params(directory, id=str(directory)), installed=OLD)
    tokens = read_config(directory, "tokenizer_config.json")
    return tokens["tokenizer_class"] == "PreTrainedTokenizerFast" and "extra_special_tokens" not in tokens


def test_built_models_adapters_and_exports_are_readable(cache_dir, tmp_path):
    assert is_readable(Path(model_directory("tiny", cache_dir)))
    policy, params = load_tiny(cache_dir), tiny_params(cache_dir)
    train_by_hand(policy)
    assert is_readable(save_in_format(policy, tmp_path / "merged", "merged_16bit", params))
    adapters = save_in_format(policy, tmp_path / "lora", "lora", params)
    tokens = read_config(adapters, "tokenizer_config.json")
    assert tokens["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert tokens["additional_special_tokens"] == ["<|im_start|>"]


@pytest.mark.parametrize("scaling", [None, LLAMA3])
def test_readable_files_are_the_same_model(scaling, cache_dir, tmp_path):
    directory, params = tmp_path / "model", tiny_params(tmp_path, id=str(tmp_path / "model"))
    expected = save_llama(directory, cache_dir, rope_theta=54321.0, rope_scaling=copy.deepcopy(scaling))
    make_readable(directory)
    assert is_readable(directory)
    assert read_config(directory)["rope_theta"] == 54321.0
    assert read_config(directory)["rope_scaling"] == scaling
    once = {path.name: path.read_bytes() for path in directory.iterdir()}
    make_readable(directory)
    assert once == {path.name: path.read_bytes() for path in directory.iterdir()}
    policy = load_policy(params, is_trained=False)
    assert torch.equal(logits(policy.model, policy.tokenizer), expected)
    assert "<|im_start|>" in policy.tokenizer.all_special_tokens


def is_refused(directory: Path, reason: str) -> bool:
    with pytest.raises(PolicyUnavailable) as raised:
        check_readable(str(directory), tiny_params(directory, id=str(directory)), installed=OLD)
    return f"would misread its {reason} in {directory}; " in str(raised.value)


def test_what_4_57_would_misread_is_refused(cache_dir, tmp_path):
    save_llama(tmp_path, cache_dir, rope_theta=54321.0)
    check_readable(str(tmp_path), tiny_params(tmp_path, id=str(tmp_path)), installed="5.17.0")
    assert is_refused(tmp_path, "rope_parameters and tokenizer")
    rewrite(tmp_path, "config.json", read_config(tmp_path) | {"rope_theta": 54321.0})
    assert is_refused(tmp_path, "tokenizer")


def test_rotary_embeddings_that_differ_between_layers_are_refused(cache_dir, tmp_path):
    directory = tmp_path / "model"
    shutil.copytree(model_directory("tiny", cache_dir), directory)
    config = {name: value for name, value in read_config(directory).items() if not name.startswith("rope_")}
    rope = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    rewrite(directory, "config.json", config | {"rope_parameters": rope})
    make_readable(directory)
    assert is_refused(directory, "rope_parameters")
