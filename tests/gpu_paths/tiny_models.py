"""Tiny models of the families that GPU machines train; as a script, what transformers computes with one.

python tiny_models.py build  DIRECTORY                  the models, in folders by their names
python tiny_models.py score  MODEL ATTENTION            log-probabilities of " is it" after each prompt
python tiny_models.py logits MODEL ATTENTION ADAPTERS   of each prompt
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))  # of tests/, where this is a script
from tiny_policy import save_tiny_gpt_oss  # noqa: E402

from rlnb.params.sections import ModelParams  # noqa: E402
from rlnb.policy import load_policy  # noqa: E402
from rlnb.policy.builtin import build_tiny  # noqa: E402
from rlnb.policy.export import compute_logits  # noqa: E402
from rlnb.policy.scoring import score  # noqa: E402

MODELS = ("llama", "qwen3", "gpt_oss")
PROMPTS = ["2048 is", "a longer prompt", "x"]


def build_models(directory: Path) -> None:
    """Build a llama, a qwen3 and a gpt-oss of two layers, with tokens of bytes."""
    (directory / "llama").mkdir(parents=True)
    build_tiny(directory / "llama")
    tokenizer = AutoTokenizer.from_pretrained(directory / "llama")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=384, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=2048,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(directory / "qwen3")
    tokenizer.save_pretrained(directory / "qwen3")
    save_tiny_gpt_oss(directory / "gpt_oss", cache_dir=directory / "cache")


def main(task: str, model: str, attention: str = "sdpa", adapters: str = "") -> None:
    torch.set_num_threads(1)
    if task == "build":
        build_models(Path(model))
        print(json.dumps(MODELS))
        return
    params = ModelParams(
        id=model, engine="transformers", dtype="float32", attention=attention, load_in_4bit=False,
        adapters=adapters,
    )  # fmt: skip
    policy = load_policy(params, is_trained=False)
    if task == "score":
        rows = [scores.logprobs.tolist() for scores in score(policy, PROMPTS, [" is it"] * len(PROMPTS))]
    else:
        rows = [logits.tolist() for logits in compute_logits(policy, PROMPTS)]
    print(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
