"""The sections of notebooks that train."""

import os
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rlnb.params.sections import (
    Conflict,
    MbppInTrainingParams,
    ModelRunParams,
    Section,
    ServerAddress,
    Switch,
    described,
)

MAX_PROMPT_TOKENS = 512  # of a prompt that asks for a program; tasks with a longer one are left out


class ResumableParams(Section):
    """Memory, checkpoints and threads of every training loop."""

    gradient_checkpointing: Switch = "auto"
    """Recompute activations: less memory, about a third more time; auto = on GPUs"""
    save_steps: int = described(20, "Steps between checkpoints", ge=1)
    save_total_limit: int = described(2, "Checkpoints kept; older ones are deleted", ge=1)
    save_optimizer: bool = True
    """Keep the optimizer's state in checkpoints; false = smaller ones, which do not go on bit for bit"""
    resume: str = Field(default="auto", min_length=1)
    """auto = go on from the newest complete checkpoint, latest = the same, and there must be one, never =
    start again, or the directory of another run or checkpoint, whose whole state continues"""
    num_threads: int = described(0, "CPU threads of torch; 0 = one a usable core", ge=0)

    def conflicts(self) -> Iterator[Conflict]:
        if self.resume not in ("auto", "latest", "never") and not os.path.isdir(self.resume):
            reason = "is not a directory; write auto, latest, never, or the directory of a run or checkpoint"
            yield Conflict("training.resume", reason)


class TrainingParams(ResumableParams):
    learning_rate: float = described(2e-5, "Peak learning rate of AdamW", gt=0, le=1)
    max_steps: int = described(90, "Optimizer steps of the whole run", ge=1)
    per_device_train_batch_size: int = described(8, "Completions in one forward pass, on each device", ge=1)
    gradient_accumulation_steps: int = described(1, "Forward passes that make one optimizer step", ge=1)
    num_generations: int = described(2, "Completions of each prompt, which GRPO compares", ge=2)
    max_completion_length: int = described(256, "Longest completion (tokens)", ge=1)
    temperature: float = described(1.0, "Sampling temperature of the completions trained on", gt=0, le=10)
    beta: float = described(0.0, "Weight of the KL penalty; 0 = no reference model, less memory", ge=0)
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of an entropy bonus, against the collapse to one completion"""
    loss_type: Literal["dapo", "grpo", "dr_grpo", "bnpo"] = "dapo"
    """How token losses are averaged (TRL's names)"""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Divide advantages by the standard deviation of the group's rewards, the batch's, or not"""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps in which the learning rate rises, from 0 in the first; then it falls to 0, both linearly"""
    optim: Literal["adamw_torch_fused", "adamw_torch", "adamw_8bit", "paged_adamw_8bit"] = "adamw_torch_fused"
    """Optimizer; those with 8 bits keep their state smaller (bitsandbytes, CUDA only)"""
    max_grad_norm: float = described(1.0, "Gradients are clipped to this norm", gt=0)
    weight_decay: float = described(0.0, "Weight decay of AdamW", ge=0, le=1)

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        batch = self.per_device_train_batch_size * self.gradient_accumulation_steps
        divisors = ", ".join(str(size) for size in range(2, batch + 1) if batch % size == 0)
        if batch % self.num_generations:
            factors = ("training.per_device_train_batch_size", "training.gradient_accumulation_steps")
            reason = f"does not divide the {batch} completions of a step, per_device_train_batch_size x "
            reason += f"gradient_accumulation_steps; use one of {divisors or 'a larger batch'}"
            yield Conflict("training.num_generations", reason, factors)


class VllmParams(Section):
    enabled: bool = described(False, "Generate completions with vLLM")
    server_base_url: ServerAddress = ""
    """Address of a vLLM server that runs already, http://host:port; empty = vLLM on the training GPU"""
    gpu_memory_utilization: float = Field(default=0.4, gt=0, le=1)
    """Share of the GPU's memory that vLLM takes while it generates; it sleeps while the policy learns"""
    max_model_len: int = described(2048, "Longest prompt and completion together (tokens)", ge=64)


class ProgramRunParams(ModelRunParams):
    """The parameters of GRPO on programs, which may use vLLM and is measured on MBPP too."""

    training: TrainingParams = TrainingParams()
    mbpp: MbppInTrainingParams = MbppInTrainingParams()
    vllm: VllmParams = VllmParams()

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        longest_tokens = MAX_PROMPT_TOKENS + self.training.max_completion_length
        if self.vllm.enabled and self.vllm.max_model_len < longest_tokens:
            yield Conflict(
                "vllm.max_model_len",
                f"is below the {MAX_PROMPT_TOKENS} tokens of the longest prompt + "
                f"training.max_completion_length; write at least {longest_tokens}",
                ("training.max_completion_length", "vllm.enabled"),
            )
