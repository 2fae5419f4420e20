"""Parameters of notebooks/grpo_code_execution.ipynb."""

from typing import Literal

from pydantic import Field

from rlnb.params import sections
from rlnb.params.sections import Section, described
from rlnb.params.training import ProgramRunParams


class RewardParams(Section):
    preset: Literal["execution", "tests", "both"] = "execution"
    """execution = code that runs and prints earns, tests = correct code earns, both = the sum of the two"""


class ProgramEvaluationParams(sections.EvaluationParams):
    num_prompts: int = described(5, "Tasks measured of each held-out split", ge=1)


class GrpoCodeExecutionParams(ProgramRunParams):
    """GRPO with rewards from executed code; every default is the published setting."""

    output_dir: str = Field(default="outputs/grpo_code_execution", min_length=1)
    """Directory for checkpoints, metrics and the model"""
    tasks: sections.TasksParams = sections.TasksParams()
    reward: RewardParams = RewardParams()
    evaluation: ProgramEvaluationParams = ProgramEvaluationParams()

    @property
    def printed_example(self) -> bool:
        """Whether prompts ask for a printed example: not where tests alone pay."""
        return self.reward.preset != "tests"
