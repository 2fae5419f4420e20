"""Parameters of notebooks/gpt_oss_2048.ipynb."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator

from rlnb.game_2048.board import BoardKind
from rlnb.params import sections
from rlnb.params.sections import Conflict, ModelRunParams, Names, Section, described
from rlnb.params.training import TrainingParams, VllmParams

HARD_BOARDS = ("4x4/2048", "5x5/8192")  # on which two-move search is far from perfect; on 5x5/2048 it is not
SECRET_FILE = "board_secret"  # in a run's directory: the key of its board seeds


class GptOssModelParams(sections.ModelParams):
    id: str = described(
        "unsloth/gpt-oss-20b", str(sections.ModelParams.model_fields["id"].description), min_length=1
    )
    max_seq_length: int = described(768, "Longest prompt and completion together (tokens)", ge=16)


class BoardParams(Section):
    kinds: Names = Field(default=("6x6/2048",), min_length=1)
    """Boards played in training, size and the tile that wins: 4x4/2048; prompts alternate"""
    play_on: bool = described(False, "Go on beyond the winning tile until no move is left, for graded scores")

    @field_validator("kinds")
    @classmethod
    def _known_kinds(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            BoardKind.parse(kind)
        return kinds


class PromptParams(Section):
    preset: Literal["board", "api"] = "board"
    """board = four keys and the board, api = also six functions that answer questions about it, in four
    wordings; never compare figures of one with the other"""
    prefilled: bool = described(False, "The reply has begun with the fence and the function's first line")
    reasoning_effort: Literal["", "low", "medium", "high"] = "low"
    """How long GPT-OSS thinks first; empty for models that do not know it"""


class StrategyRewardParams(Section):
    preset: Literal["requirements", "graded"] = "requirements"
    """requirements = function works, no cheating, strategy succeeds; graded = how large the tiles became,
    against random play"""
    num_boards: int = described(1, "Games of one strategy, the same for a group", ge=1, le=1000)


class StrategySandboxParams(sections.SandboxParams):
    timeout_seconds: float = Field(default=5.0, gt=0, le=600)
    """Time of one game in all, without waiting for a processor (seconds); with the rewards requirements the
    only limit of time"""
    board_cpu_seconds: float = Field(default=4.0, gt=0, le=600)
    """CPU time of one game (seconds), of which one move may take an eighth; for graded"""


class StrategyEvaluationParams(Section):
    enabled: bool = described(True, "Measure held-out play before, during and after training")
    boards: Literal["trained", "hard"] = described(
        "trained", f"Boards measured: those of board.kinds, or hard = {' and '.join(HARD_BOARDS)}"
    )
    num_samples: int = described(24, "Sampled completions a kind of board, in a held-out wording", ge=1)
    temperature: float = described(1.0, "Sampling temperature", gt=0, le=2)
    eval_interval_steps: int = described(0, "Steps between evaluations; 0 = only before and after", ge=0)
    batch_size: int = described(24, "Completions generated at a time", ge=1)


class SaveParams(Section):
    formats: Annotated[tuple[Literal["lora", "merged_16bit", "mxfp4"], ...], Field(strict=False)] = ("lora",)
    """Formats saved at the end, then reloaded and tried: lora, merged_16bit, mxfp4"""


class GptOss2048Params(ModelRunParams):
    """Parameters of GRPO on 2048 strategies; every default is the published setting."""

    output_dir: str = Field(default="outputs/gpt_oss_2048", min_length=1)
    """Directory for checkpoints, metrics and the model"""
    model: GptOssModelParams = GptOssModelParams()
    board: BoardParams = BoardParams()
    prompt: PromptParams = PromptParams()
    reward: StrategyRewardParams = StrategyRewardParams()
    sandbox: StrategySandboxParams = StrategySandboxParams()
    training: TrainingParams = TrainingParams()
    evaluation: StrategyEvaluationParams = StrategyEvaluationParams()
    save: SaveParams = SaveParams()
    vllm: VllmParams = VllmParams()

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.training.max_completion_length >= self.model.max_seq_length:
            yield Conflict(
                "training.max_completion_length",
                f"leaves no room for a prompt in model.max_seq_length = {self.model.max_seq_length}; "
                "write a smaller one, or a larger model.max_seq_length",
            )
        if self.vllm.enabled and self.vllm.max_model_len < self.model.max_seq_length:
            reason = f"is below model.max_seq_length = {self.model.max_seq_length}; write at least that"
            yield Conflict("vllm.max_model_len", reason, ("vllm.enabled",))
