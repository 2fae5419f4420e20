"""The tiny model as a policy, for tests."""

from pathlib import Path

import torch
from peft.tuners.lora import LoraLayer
from transformers import AutoTokenizer, GptOssConfig, GptOssForCausalLM

from rlnb.params.sections import ModelParams
from rlnb.policy import Policy, load_policy, model_directory


def tiny_params(cache_dir: Path, **options: object) -> ModelParams:
    values = {"id": "tiny", "engine": "transformers", "dtype": "float32"}
    values |= {"load_in_4bit": False, "lora_rank": 4, "cache_dir": str(cache_dir)}
    return ModelParams(**{**values, **options})


def load_tiny(cache_dir: Path, *, is_trained: bool = True, seed: int = 42, **options: object) -> Policy:
    return load_policy(tiny_params(cache_dir, **options), is_trained=is_trained, seed=seed)


def train_by_hand(policy: Policy, *, std: float = 0.5, seed: int = 0) -> None:
    """Move the adapters far from their zero start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)


def add_dropout(policy: Policy, share: float) -> None:
    """Drop a share of the adapters' inputs in training, so that training and evaluation differ."""
    for module in policy.model.modules():
        if isinstance(module, LoraLayer):
            module.lora_dropout["default"] = torch.nn.Dropout(share)


def save_tiny_gpt_oss(directory: Path, *, cache_dir: Path, dtype: torch.dtype = torch.float32) -> None:
    """Two layers of four experts, attention sinks, sliding windows; random weights, tokens of bytes."""
    tokenizer = AutoTokenizer.from_pretrained(model_directory("tiny", cache_dir))
    config = GptOssConfig(
        num_hidden_layers=2, hidden_size=64, intermediate_size=64, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2,
        vocab_size=len(tokenizer), sliding_window=32, max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        router_aux_loss_coef=0.9,  # as published
    )  # fmt: skip
    torch.manual_seed(0)
    GptOssForCausalLM(config).to(dtype).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
