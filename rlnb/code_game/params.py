"""Parameters of notebooks/grpo_code_game.ipynb."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rlnb.params import sections
from rlnb.params.sections import Conflict, NotebookParams, Section, ServerAddress, described
from rlnb.params.training import TrainingParams, VllmParams

NUM_HELD_OUT = 96  # questions
GameForm = Literal["seeded", "topic"]
MAX_OUTPUT_CHARS = {"seeded": 40, "topic": 200}  # of a valid program, by form; 40 are ample for one value


class GameParams(Section):
    form: GameForm = "topic"
    """seeded = a first line is given and the reply goes on at print(, for small models, topic = a chat
    that names a topic, whose reply has begun with the fence"""
    max_code_tokens: int = described(200, "Longest valid program (tokens)", ge=1)
    num_interpreters: int = Field(default=12, ge=2, le=64)
    """Interpreters with different hash seeds and clocks that must all print the same; fewer overlook more
    printed sets"""


class OpponentParams(Section):
    kind: Literal["base", "snapshot", "endpoint"] = "base"
    """Who predicts: base = the policy with its adapters off, snapshot = the policy as it was some steps
    ago, endpoint = a server with OpenAI's protocol (vLLM)"""
    refresh_steps: int = Field(default=20, ge=1)
    """Steps after which the policy's adapters are copied, for snapshot"""
    base_url: ServerAddress = described("", "Server's address, like http://host:port/v1, for endpoint")
    model_id: str = described("", "The model's name on that server, for endpoint")
    max_prediction_tokens: int = described(256, "Longest written prediction (tokens)", ge=1)
    batch_size: int = described(32, "Programs, or requests, at a time", ge=1, le=1024)

    def conflicts(self) -> Iterator[Conflict]:
        for name in ("base_url", "model_id"):
            if (self.kind == "endpoint") != bool(getattr(self, name)):
                reason = "is needed by opponent.kind = 'endpoint'; write it"
                if self.kind != "endpoint":
                    reason = (
                        f"does nothing with opponent.kind = {self.kind!r}; leave it out, or write endpoint"
                    )
                yield Conflict(f"opponent.{name}", reason, ("opponent.kind",))


class GameRewardParams(Section):
    preset: Literal["required", "graded", "validity"] = "required"
    """required = +1 when the opponent is wrong, -1 when it is right or the program invalid, graded = 1 - 2
    x mean probability of the output's tokens, validity = +1 for any valid program, the control"""


class GameEvaluationParams(sections.EvaluationParams):
    num_prompts: int = Field(default=50, ge=1, le=NUM_HELD_OUT)
    """Held-out prompts, before and after training, and an eighth of them at the evaluations in between; four
    programs are sampled for each"""
    batch_size: int = described(32, "Programs written side by side", ge=1)
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


class GrpoCodeGameParams(NotebookParams):
    """GRPO on programs that an opponent cannot predict; every default is the published setting."""

    output_dir: str = Field(default="outputs/grpo_code_game", min_length=1)
    """For checkpoints, metrics and the model"""
    model: sections.ModelParams = sections.ModelParams()
    game: GameParams = GameParams()
    opponent: OpponentParams = OpponentParams()
    reward: GameRewardParams = GameRewardParams()
    sandbox: sections.SandboxParams = sections.SandboxParams()
    training: TrainingParams = TrainingParams()
    evaluation: GameEvaluationParams = GameEvaluationParams()
    mbpp: sections.MbppInTrainingParams = sections.MbppInTrainingParams()
    vllm: VllmParams = VllmParams()
    tracking: sections.TrackingParams = sections.TrackingParams()

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        opponent = self.opponent
        if self.reward.preset == "graded" and opponent.kind == "endpoint":
            yield Conflict(
                "reward.preset",
                "needs probabilities, which a server does not give here; write required, or opponent.kind = "
                "base",
            )
        if opponent.kind == "snapshot" and opponent.refresh_steps > self.training.max_steps:
            yield Conflict(
                "opponent.refresh_steps",
                f"is more than training.max_steps = {self.training.max_steps}, so that no snapshot is "
                "taken; write fewer, or opponent.kind = base",
            )
        longest_output = MAX_OUTPUT_CHARS[self.game.form]
        if opponent.kind == "endpoint" and opponent.max_prediction_tokens < longest_output:
            yield Conflict(
                "opponent.max_prediction_tokens",
                f"may be too short for an output of {longest_output} characters, which would win unread; "
                f"write at least {longest_output}",
                ("opponent.kind",),
            )
        yield from self.vllm.find_lack_of_room(self.training)
