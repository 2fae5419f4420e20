"""The sections of notebooks that train."""

import os
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rlnb.machine import installed_version
from rlnb.params.sections import Conflict, Section, Switch, VllmAddress


class ResumableParams(Section):
    """Memory, checkpoints and threads of every training loop."""

    gradient_checkpointing: Switch = "auto"
    """Recompute activations: less memory, about a third more time; auto = on GPUs"""
    save_steps: int = Field(default=20, ge=1, description="Steps between checkpoints")
    save_total_limit: int = Field(default=2, ge=1, description="Checkpoints kept; older ones are deleted")
    resume: str = Field(default="auto", min_length=1)
    """auto = go on from the newest complete checkpoint, latest = the same, and there must be one, never =
    start again, or a directory"""
    num_threads: int = Field(default=0, ge=0, description="CPU threads of torch; 0 = torch's own choice")

    def conflicts(self) -> Iterator[Conflict]:
        if self.resume not in ("auto", "latest", "never") and not os.path.isdir(self.resume):
            yield Conflict(
                "training.resume",
                "is not a directory; write auto, latest, never, or a checkpoint's directory",
            )


class TrainingParams(ResumableParams):
    learning_rate: float = Field(default=2e-5, gt=0, le=1, description="Peak learning rate of AdamW")
    max_steps: int = Field(default=90, ge=1, description="Optimizer steps of the whole run")
    per_device_train_batch_size: int = Field(default=8, ge=1)
    """Completions in one forward pass, on each device"""
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    """Forward passes that make one optimizer step"""
    num_generations: int = 2
    """Completions of each prompt; GRPO compares them with one another"""
    max_completion_length: int = Field(default=256, ge=1, description="Longest completion (tokens)")
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Sampling temperature of the completions trained on"""
    top_p: float = Field(default=1.0, gt=0, le=1, description="Share of probability sampled from; 1 = all")
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL penalty; 0 = no reference model, less memory"""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of an entropy bonus, against the collapse to one completion"""
    loss_type: Literal["dapo", "grpo", "dr_grpo", "bnpo"] = "dapo"
    """How token losses are averaged (TRL's names)"""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Divide advantages by the standard deviation of the group's rewards, the batch's, or not"""
    warmup_steps: int = Field(default=0, ge=0, description="Steps in which the learning rate rises from 0")
    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    """The same as a share of the run; in the place of warmup_steps"""
    lr_scheduler: Literal["linear", "cosine", "constant", "constant_with_warmup"] = "linear"
    """Course of the learning rate after the warm-up"""
    optim: Literal["adamw_torch_fused", "adamw_torch", "adamw_8bit", "paged_adamw_8bit"] = "adamw_torch_fused"
    """Optimizer; those with 8 bits keep their state smaller (bitsandbytes, CUDA only)"""
    max_grad_norm: float = Field(default=1.0, gt=0, description="Gradients are clipped to this norm")
    weight_decay: float = Field(default=0.0, ge=0, le=1, description="Weight decay of AdamW")

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        batch = self.per_device_train_batch_size * self.gradient_accumulation_steps
        divisors = ", ".join(str(size) for size in range(2, batch + 1) if batch % size == 0)
        if self.num_generations < 2:
            yield Conflict(
                "training.num_generations",
                "must be at least 2: GRPO learns from differences between completions",
            )
        elif batch % self.num_generations:
            yield Conflict(
                "training.num_generations",
                f"does not divide the {batch} completions of a step, "
                f"per_device_train_batch_size {self.per_device_train_batch_size} x "
                f"gradient_accumulation_steps {self.gradient_accumulation_steps}; "
                f"use one of {divisors or 'a larger batch'}",
                ("training.per_device_train_batch_size", "training.gradient_accumulation_steps"),
            )
        if self.warmup_steps and self.warmup_ratio:
            yield Conflict(
                "training.warmup_ratio",
                f"is set together with warmup_steps = {self.warmup_steps}; write one of them",
                ("training.warmup_steps",),
            )


class VllmParams(Section):
    enabled: bool = Field(default=False, description="Generate completions with vLLM")
    mode: Literal["colocate", "server"] = "colocate"
    """colocate = on the training GPU, server = a vLLM server that runs already"""
    gpu_memory_utilization: float = Field(default=0.85, gt=0, le=1)
    """Share of the GPU's memory that vLLM takes"""
    max_model_len: int = Field(default=2048, ge=64)
    """Longest prompt and completion together (tokens)"""
    server_base_url: VllmAddress = ""
    """Address of the server, for mode server; http://host:port"""

    def find_lack_of_room(
        self, prompts: str, max_prompt_tokens: int, training: TrainingParams
    ) -> Iterator[Conflict]:
        """Yield a conflict if the longest prompt and completion do not fit; prompts: the prompts' section."""
        longest_tokens = max_prompt_tokens + training.max_completion_length
        if self.enabled and self.max_model_len < longest_tokens:
            yield Conflict(
                "vllm.max_model_len",
                f"is below {prompts}.max_prompt_tokens + training.max_completion_length; "
                f"write at least {longest_tokens}",
                (f"{prompts}.max_prompt_tokens", "training.max_completion_length", "vllm.enabled"),
            )

    def conflicts(self) -> Iterator[Conflict]:
        if not self.enabled:
            return
        if installed_version("vllm") is None:
            yield Conflict("vllm.enabled", "needs vllm, which is not installed; ./setup.sh vllm installs it")
        if self.mode == "server" and not self.server_base_url:
            yield Conflict(
                "vllm.server_base_url", "is needed by vllm.mode = 'server'; write http://host:port"
            )
