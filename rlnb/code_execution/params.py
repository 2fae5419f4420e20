"""Parameters of notebooks/grpo_code_execution.ipynb."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rlnb.params.sections import (
    Conflict,
    EvaluationParams,
    MbppInTrainingParams,
    ModelParams,
    NotebookParams,
    SandboxParams,
    Section,
    TasksParams,
    TrackingParams,
)
from rlnb.params.training import TrainingParams, VllmParams


class RewardParams(Section):
    preset: Literal["execution", "tests"] = "execution"
    """execution = code that runs and prints earns, tests = correct code earns"""


class GrpoCodeExecutionParams(NotebookParams):
    """GRPO with rewards from executed code; every default is the published setting."""

    output_dir: str = Field("outputs/grpo_code_execution", min_length=1)
    """Directory for checkpoints, metrics and the model"""
    model: ModelParams = ModelParams()
    tasks: TasksParams = TasksParams()
    reward: RewardParams = RewardParams()
    sandbox: SandboxParams = SandboxParams()
    training: TrainingParams = TrainingParams()
    evaluation: EvaluationParams = EvaluationParams()
    mbpp: MbppInTrainingParams = MbppInTrainingParams()
    vllm: VllmParams = VllmParams()
    tracking: TrackingParams = TrackingParams()

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        longest_tokens = self.tasks.max_prompt_tokens + self.training.max_completion_length
        if self.vllm.enabled and self.vllm.max_model_len < longest_tokens:
            yield Conflict(
                "vllm.max_model_len",
                "is below tasks.max_prompt_tokens + training.max_completion_length; "
                f"write at least {longest_tokens}",
                ("tasks.max_prompt_tokens", "training.max_completion_length", "vllm.enabled"),
            )
