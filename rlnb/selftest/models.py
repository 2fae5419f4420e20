"""Small models from configurations, with the tokenizer of bytes: 2 layers of width 256, random weights."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GptOssConfig,
    GptOssForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlnb.params.sections import ModelParams
from rlnb.policy import model_directory
from rlnb.policy.builtin import written_whole
from rlnb.policy.loading import DTYPES
from rlnb.selftest.rows import Outcome, Setting

FAMILIES = ("qwen2", "qwen3", "gpt_oss")
CONSTANT = 0.5  # the first entry of every embedding, far larger than the others
SHARPNESS = 10.0  # of the head's weights: logits are 3 apart, as a trained model's are, and not 0.3
# What a model's head adds to the logit of the chat's end, by the end of its folder's name.
END_LOGITS = {"endless": -30.0, "ends": 8.0}
TEXTS = (
    ("2048 is", " a game of sliding tiles"),
    ("def double(n):", "\n    return 2 * n\n"),
    ("The player to move has the cards", " K, Q and J; it may bet or pass, and passes"),
    ("a", "bc"),
)


def model_params(
    setting: Setting, family: str = "qwen2", *, kind: str = "endless", **changes: object
) -> ModelParams:
    """Return the parameters of a small model, built if it is missing, as this machine's choices have them.

    kind: "endless" never writes an end token, "ends" ends a chat after some ten tokens, by a token that its
    own files do not name as an end.
    """
    dtype = str(changes.get("dtype", setting.choices.dtype))
    directory = setting.models / f"{family}-{dtype}-{kind}"
    if not directory.exists():
        with written_whole(directory) as unfinished:
            build_model(family, unfinished, setting.models, dtype=dtype, end_logit=END_LOGITS[kind])
    has_experts = family.startswith("gpt_oss")
    values: dict[str, object] = {
        "id": str(directory),
        "cache_dir": str(setting.models),
        "engine": "transformers",
        "dtype": dtype,
        "attention": "eager" if has_experts else setting.choices.attention,
        "load_in_4bit": False,
        "lora_rank": 4,
        "lora_alpha": 8,
        "lora_target_modules": ("q_proj", "k_proj", "v_proj", "o_proj") if has_experts else ("all-linear",),
    }
    return ModelParams.model_validate({**values, **changes})


def build_model(family: str, directory: Path, models: Path, *, dtype: str, end_logit: float) -> None:
    """Write a model in this number format. "gpt_oss_mxfp4" has experts as openai stores them."""
    tokenizer = AutoTokenizer.from_pretrained(model_directory("tiny", models))
    chat_end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    # As in the files of Qwen's base models, from which vLLM does not learn where a chat ends.
    tokenizer.eos_token = "<|endoftext|>"
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    torch.manual_seed(0)
    if family == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**shape))
    elif family == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=64))
    else:
        experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32, "head_dim": 64}
        model = GptOssForCausalLM(GptOssConfig(**shape, **experts))
    set_logits(model, {chat_end: end_logit, tokenizer.eos_token_id: END_LOGITS["endless"]})
    model.to(DTYPES[dtype]).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    if family == "gpt_oss_mxfp4":
        store_experts_in_mxfp4(directory)


def set_logits(model: PreTrainedModel, logits: Mapping[int, float]) -> None:
    """Make logits as uneven as a trained model's, and those of some tokens about these values everywhere.

    All embeddings have the same first entry, so hidden states have about the same one, which the head reads.
    """
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    with torch.no_grad():
        embeddings[:, 0] = CONSTANT
        head.mul_(SHARPNESS)
        head[:, 0] = 0.0
        decoder = model.base_model
        states = decoder(input_ids=torch.arange(3, len(head))[None]).last_hidden_state
        for token, logit in logits.items():
            head[token] = 0.0
            head[token, 0] = logit / states[0, :, 0].mean()


def store_experts_in_mxfp4(directory: Path) -> None:
    """Replace the experts' weights by random ones in the 4-bit format in which gpt-oss is published."""
    path, generator = directory / "model.safetensors", torch.Generator().manual_seed(0)
    weights = load_file(path)
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, width, height = weights.pop(name).shape
        shape = (experts, height, width // 32, 16)
        weights[f"{name}_blocks"] = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        weights[f"{name}_scales"] = torch.full(shape[:-1], 127 - 7, dtype=torch.uint8)  # times 2 ** -7
    save_file(weights, path, metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")


def reference_logprobs(directory: str, texts: Sequence[tuple[str, str]] = TEXTS) -> list[list[float]]:
    """Return the log-probabilities of each continuation's tokens, computed plainly in float32 on the CPU."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    logprobs = []
    for prompt, continuation in texts:
        head, tail = (tokenizer(text)["input_ids"] for text in (prompt, continuation))
        with torch.no_grad():
            logits = model(torch.tensor([[*head, *tail]])).logits[0, len(head) - 1 : -1]
        logprobs.append(logits.log_softmax(-1).gather(-1, torch.tensor(tail)[:, None])[:, 0].tolist())
    return logprobs


def build_and_read(setting: Setting) -> Outcome:
    """Build a model of each family, and measure its `reference_logprobs`.

    In a process without unsloth, which rewrites the classes of models.
    """
    references = {family: reference_logprobs(model_params(setting, family).id) for family in FAMILIES}
    return Outcome("", measured=references)
