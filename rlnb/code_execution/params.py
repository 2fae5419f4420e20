"""Parameters of notebooks/grpo_code_execution.ipynb."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rlnb.params import sections
from rlnb.params.sections import Conflict, NotebookParams, Section, described
from rlnb.params.training import TrainingParams, VllmParams


class RewardParams(Section):
    preset: Literal["execution", "tests", "both"] = "execution"
    """execution = code that runs and prints earns, tests = correct code earns, both = the sum of the two"""


class ProgramEvaluationParams(sections.EvaluationParams):
    num_prompts: int = described(5, "Tasks measured of each held-out split", ge=1)


class GrpoCodeExecutionParams(NotebookParams):
    """GRPO with rewards from executed code; every default is the published setting."""

    output_dir: str = Field(default="outputs/grpo_code_execution", min_length=1)
    """Directory for checkpoints, metrics and the model"""
    model: sections.ModelParams = sections.ModelParams()
    tasks: sections.TasksParams = sections.TasksParams()
    reward: RewardParams = RewardParams()
    sandbox: sections.SandboxParams = sections.SandboxParams()
    training: TrainingParams = TrainingParams()
    evaluation: ProgramEvaluationParams = ProgramEvaluationParams()
    mbpp: sections.MbppInTrainingParams = sections.MbppInTrainingParams()
    vllm: VllmParams = VllmParams()
    tracking: sections.TrackingParams = sections.TrackingParams()

    @property
    def printed_example(self) -> bool:
        """Whether prompts ask for a printed example: not where tests alone pay."""
        return self.reward.preset != "tests"

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        yield from self.vllm.find_lack_of_room(self.training)
