"""Parameters of notebooks/grpo_code_game.ipynb."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rlnb.params import sections
from rlnb.params.sections import Conflict, Section, ServerAddress, described
from rlnb.params.training import ProgramRunParams

NUM_HELD_OUT = 96  # questions
GameForm = Literal["seeded", "topic"]
# By form, of a valid program; 40 characters are ample for one value.
MAX_OUTPUT_CHARS = {"seeded": 40, "topic": 200}
MAX_CODE_TOKENS = {"seeded": 100, "topic": 200}
# Of a prediction that the table of programs shows; by a model in this process it is not what judges.
MAX_PREDICTION_TOKENS = {"seeded": 48, "topic": 256}


class GameParams(Section):
    form: GameForm = "topic"
    """seeded = a first line is given and the reply goes on at print(, for small models, topic = a chat
    that names a topic, whose reply has begun with the fence"""


class OpponentParams(Section):
    """Who predicts: the policy with its adapters off, unless one of these says otherwise."""

    refresh_steps: int = Field(default=0, ge=0)
    """The opponent is a snapshot of the policy, taken again every so many steps; 0 = the policy with its
    adapters off, always the same"""
    base_url: ServerAddress = ""
    """Address of a server with OpenAI's protocol that predicts instead, like http://host:port/v1"""
    model_id: str = described("", "The model's name on that server")

    @property
    def kind(self) -> Literal["base", "snapshot", "endpoint"]:
        return "endpoint" if self.base_url else "snapshot" if self.refresh_steps else "base"

    def conflicts(self) -> Iterator[Conflict]:
        if bool(self.base_url) != bool(self.model_id):
            yield Conflict("opponent.model_id", "and opponent.base_url go together; write both or none")
        if self.base_url and self.refresh_steps:
            yield Conflict("opponent.refresh_steps", "is not for a server, opponent.base_url; write 0")


class GameRewardParams(Section):
    preset: Literal["required", "graded", "validity"] = "required"
    """required = +1 when the opponent is wrong, -1 when it is right or the program invalid, graded = 1 - 2
    x mean probability of the output's tokens, validity = +1 for any valid program, the control"""


class GameEvaluationParams(sections.EvaluationParams):
    num_prompts: int = Field(default=50, ge=1, le=NUM_HELD_OUT)
    """Held-out prompts, before and after training, and an eighth of them at the evaluations in between; four
    programs are sampled for each"""
    control: bool = False
    """Judge every held-out program again, by the untrained model with other examples, and train a second run
    from the same start, rewarded for validity alone, to compare with; it takes as long again"""

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.control and not self.enabled:
            yield Conflict(
                "evaluation.control",
                "trains a control that nothing would measure; write false, or evaluation.enabled = true",
            )


class GrpoCodeGameParams(ProgramRunParams):
    """GRPO on programs that an opponent cannot predict; every default is the published setting."""

    output_dir: str = Field(default="outputs/grpo_code_game", min_length=1)
    """For checkpoints, metrics and the model"""
    game: GameParams = GameParams()
    opponent: OpponentParams = OpponentParams()
    reward: GameRewardParams = GameRewardParams()
    evaluation: GameEvaluationParams = GameEvaluationParams()

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        opponent = self.opponent
        if self.reward.preset == "graded" and opponent.kind == "endpoint":
            yield Conflict(
                "reward.preset",
                "needs probabilities, which a server (opponent.base_url) does not give; write required",
            )
        if opponent.refresh_steps > self.training.max_steps:
            yield Conflict(
                "opponent.refresh_steps",
                f"is more than training.max_steps = {self.training.max_steps}, so that no snapshot is "
                "taken; write fewer, or 0",
            )
