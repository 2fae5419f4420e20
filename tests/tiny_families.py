"""Tiny models of the families that GPU machines train, and GRPO steps of them.

As a script (`by_transformers`) it computes on the CPU, without unsloth, which patches the tests' own process.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

MODELS = ("llama", "qwen3", "gpt_oss")
PROMPTS = ["2048 is", "a longer prompt", "x"]
CONTINUATION = " is it"
ATTENTION_ONLY = ("q_proj", "k_proj", "v_proj", "o_proj")


def family_params(models: Path, name: str, **options: object):
    """Return the section `model` of one of the models: float32, adapters on the attention."""
    from rlnb.params.sections import ModelParams

    values = {
        "id": str(models / name), "engine": "transformers", "dtype": "float32", "load_in_4bit": False,
        "cache_dir": str(models / "cache"), "lora_rank": 4, "lora_alpha": 8,
        "lora_target_modules": ATTENTION_ONLY,
    }  # fmt: skip
    return ModelParams(**values | options)


def build_models(directory: Path) -> None:
    """Build a llama, a qwen3, its mixture of experts and a gpt-oss of two layers, with tokens of bytes."""
    import torch
    from tiny_policy import save_tiny_gpt_oss
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    from rlnb.policy.builtin import build_tiny

    (directory / "llama").mkdir(parents=True)
    build_tiny(directory / "llama")
    tokenizer = AutoTokenizer.from_pretrained(directory / "llama")
    torch.manual_seed(0)
    shape = {
        "vocab_size": len(tokenizer), "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 2048,
        "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    for name, model in {
        "qwen3": Qwen3ForCausalLM(Qwen3Config(**shape)),
        "qwen3_moe": Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **experts)),
    }.items():
        model.save_pretrained(directory / name)
        tokenizer.save_pretrained(directory / name)
    save_tiny_gpt_oss(directory / "gpt_oss", cache_dir=directory / "cache")
    save_seeing_gemma(directory / "gemma3", directory / "llama")


def save_seeing_gemma(directory: Path, tokenizer_of: Path) -> None:
    """Save a Gemma 3 that reads text and pictures, with its processor."""
    from transformers import AutoModelForImageTextToText, AutoTokenizer, Gemma3Config, Gemma3Processor
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    marks = {f"{name}_token": f"<{name}>" for name in ("boi", "eoi", "image")}
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of, extra_special_tokens=marks)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {"num_key_value_heads": 2, "head_dim": 32, "sliding_window": 16, "vocab_size": len(tokenizer)}
    config = Gemma3Config(
        text_config={**sizes, **text, "pad_token_id": tokenizer.pad_token_id},
        vision_config={"image_size": 28, "patch_size": 14, **sizes},
        mm_tokens_per_image=4, boi_token_index=tokenizer.boi_token_id, eoi_token_index=tokenizer.eoi_token_id,
        image_token_index=tokenizer.image_token_id,
    )  # fmt: skip
    AutoModelForImageTextToText.from_config(config).save_pretrained(directory)
    pictures = Gemma3ImageProcessorPil(size={"height": 28, "width": 28})
    Gemma3Processor(pictures, tokenizer, image_seq_length=4).save_pretrained(directory)


def by_transformers(task: str, *arguments: object) -> list:
    """Return what a process without unsloth computes."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("UNSLOTH")}
    done = subprocess.run(
        [sys.executable, __file__, task, *map(str, arguments)], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def grpo_params(model, *, vllm: dict | None = None, **training: object):
    """Return the parameters of three GRPO steps of two completions, all of them cut at four tokens."""
    from recipes import NO_TRACKING

    from rlnb.code_execution.params import GrpoCodeExecutionParams, ProgramEvaluationParams
    from rlnb.params.training import TrainingParams, VllmParams

    usual = {
        "max_steps": 3, "max_completion_length": 4, "per_device_train_batch_size": 2, "num_generations": 2,
        "gradient_accumulation_steps": 1, "save_steps": 1, "learning_rate": 1e-3,
        "gradient_checkpointing": True,
    }  # fmt: skip
    return GrpoCodeExecutionParams(
        model=model, training=TrainingParams(**usual | training), vllm=VllmParams(**(vllm or {})), seed=0,
        evaluation=ProgramEvaluationParams(eval_interval_steps=1), tracking=NO_TRACKING,
    )  # fmt: skip


def train_grpo(
    policy, params, output_dir: Path, *, reward: Callable, evaluate: Callable | None = None, **recipe: str
):
    """Train, or go on from the newest checkpoint; return the trainer, and the log of each step made now."""
    import torch
    from datasets import Dataset
    from recipes import make_config

    from rlnb.grpo import kl
    from rlnb.grpo import training as grpo
    from rlnb.grpo.answer_trainer import AnswerTrainer
    from rlnb.grpo.config import order_prompts
    from rlnb.run.checkpoints import checkpoint_step, latest_checkpoint

    kl.INTERVAL_STEPS = 1
    params = params.model_copy(update={"output_dir": str(output_dir)})
    start = checkpoint_step(latest_checkpoint(output_dir))
    config = make_config(
        params, policy, use_cpu=not torch.cuda.is_available(),  # also where the GPU is pretended
        lr_scheduler_type="constant",  # a run cut at two steps has the rates of the whole one
        **recipe,
    )  # fmt: skip
    rows = order_prompts([{"prompt": prompt} for prompt in PROMPTS], config)
    trainer = AnswerTrainer(
        policy.model, reward, config, Dataset.from_list(rows), processing_class=policy.tokenizer
    )
    grpo.train(trainer, params, evaluate=evaluate)
    history = [row for row in trainer.state.log_history if "loss" in row and row["step"] > start]
    return trainer, history


def main(task: str, model: str, adapters: str = "") -> None:
    """Build the models in a directory, or print the scores of CONTINUATION or the logits of PROMPTS."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch is imported
    import torch

    from rlnb.policy import load_policy
    from rlnb.policy.export import compute_logits
    from rlnb.policy.scoring import score

    torch.set_num_threads(1)
    if task == "build":
        build_models(Path(model))
        print(json.dumps(MODELS))
        return
    params = family_params(Path(model).parent, Path(model).name, adapters=adapters)
    policy = load_policy(params, is_trained=False)
    scores = [each.logprobs for each in score(policy, PROMPTS, [CONTINUATION] * len(PROMPTS))]
    results = scores if task == "score" else compute_logits(policy, PROMPTS)
    print(json.dumps([result.tolist() for result in results]))


if __name__ == "__main__":
    main(*sys.argv[1:])
