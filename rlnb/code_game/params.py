"""Parameters of notebooks/grpo_code_game.ipynb."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from rlnb.params import sections
from rlnb.params.sections import (
    Conflict,
    Names,
    NotebookParams,
    OpenAiAddress,
    Section,
    described,
    each_once,
    known,
)
from rlnb.params.training import TrainingParams, VllmParams

NUM_HELD_OUT = 96  # questions
GameForm = Literal["seeded", "topic"]
TOPICS = ("loops", "strings", "lists", "recursion", "big integers")
# Fields with the kind of opponent that needs them; no other kind reads them.
OWN_FIELDS = {"model_id": "model", "base_url": "endpoint", "model_name": "endpoint"}


class GameParams(Section):
    form: GameForm = "topic"
    """seeded = a first line is given and the reply goes on at print(, for small models, topic = a chat
    that names a topic, whose reply has begun with the fence"""
    topics: Annotated[Names, known(*TOPICS), each_once("topic")] = Field(
        default=TOPICS,
        min_length=1,
        description=f"Topics that prompts name in turn, for form topic: {', '.join(TOPICS)}",
    )
    max_output_chars: int = described(200, "Longest valid output (characters)", ge=1)
    max_code_tokens: int = described(200, "Longest valid program (tokens)", ge=1)
    num_interpreters: int = Field(default=12, ge=2, le=64)
    """Interpreters with different hash seeds and clocks that must all print the same; fewer overlook more
    printed sets"""
    two_sided: bool = described(False, "The policy predicts programs of earlier steps too")
    predictor_share: float = Field(default=0.5, gt=0, lt=1)
    """Share of a step's prompts for predictions, where two_sided"""
    max_prompt_tokens: int = described(512, "Longest prompt of a question (tokens)", ge=16)


class OpponentParams(Section):
    kind: Literal["base", "snapshot", "model", "endpoint"] = "base"
    """Who predicts: base = the policy with its adapters off, snapshot = the policy as it was some steps
    ago, model = another model, endpoint = a server with OpenAI's protocol (vLLM)"""
    refresh_steps: int = Field(default=20, ge=1)
    """Steps after which the policy's adapters are copied, for snapshot"""
    model_id: str = described("", "Hub id or directory, or embedded, for model")
    base_url: OpenAiAddress = described("", "Server's address, like http://host:port/v1")
    model_name: str = described("", "The model's name on that server")
    num_shots: int = described(6, "Solved examples before each program", ge=0, le=6)
    num_predictions: int = Field(default=1, ge=1, le=31)
    """1 = one pass judges, more = sampled, and the commonest counts"""
    temperature: float = described(0.7, "Of predictions, where there are several", gt=0, le=2)
    max_prediction_tokens: int = described(256, "Longest written prediction (tokens)", ge=1)
    batch_size: int = described(32, "Programs, or requests, at a time", ge=1, le=1024)

    def conflicts(self) -> Iterator[Conflict]:
        for name, kind in OWN_FIELDS.items():
            reason = f"is needed by opponent.kind = {kind!r}; write it"
            if kind != self.kind:
                reason = f"does nothing beside opponent.kind = {self.kind!r}; leave it out, or write {kind}"
            if (kind == self.kind) != bool(getattr(self, name)):
                yield Conflict(f"opponent.{name}", reason, ("opponent.kind",))
        if self.num_predictions % 2 == 0:
            yield Conflict(
                "opponent.num_predictions",
                f"is even, so that two predictions may tie; write {self.num_predictions + 1}",
            )


class GameRewardParams(Section):
    preset: Literal["required", "graded", "choice", "validity"] = "required"
    """required = +1 when the opponent is wrong, -1 when it is right or the program invalid, graded = 1 - 2
    x mean probability of the output's tokens, choice = +1 or -1 by whether it picks the output among
    those of mutants, validity = +1 for any valid program, the control"""
    num_choices: int = described(4, "Outputs to pick from, the true one included, for choice", ge=2, le=8)


class GameEvaluationParams(sections.EvaluationParams):
    enabled: bool = described(True, "Measure held-out programs and MBPP before, during and after training")
    num_prompts: int = described(50, "Held-out prompts, before and after training", ge=1, le=NUM_HELD_OUT)
    interval_prompts: int = described(5, "The same, at the evaluations in between", ge=1, le=NUM_HELD_OUT)
    num_programs: int = described(4, "Programs sampled for each of these prompts", ge=1)
    program_temperature: float = described(1.0, "Of these programs; 0 = greedy", ge=0, le=2)
    batch_size: int = described(32, "Programs written side by side", ge=1)
    second_judge: str = Field(default="choice", min_length=1)
    """Judge that is never trained against: choice = the untrained model picks among reward.num_choices
    outputs, none, or the hub id or directory of a model (embedded too)"""
    control: bool = False
    """Train a second run from the same start, rewarded for validity alone, to compare with; it takes as
    long again"""

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.program_temperature == 0 and self.num_programs > 1:
            yield Conflict(
                "evaluation.num_programs",
                "asks for equal programs, since evaluation.program_temperature = 0; write 1, or more "
                "than 0 there",
            )
        if self.control and not self.enabled:
            yield Conflict(
                "evaluation.control",
                "trains a control that nothing would measure; write false, or evaluation.enabled = true",
            )

    @property
    def names_model(self) -> bool:
        """Whether the second judge is a model of its own, to be loaded."""
        return self.enabled and self.second_judge not in ("choice", "none")


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

    def other_models(self) -> dict[str, str]:
        models = {}
        if self.opponent.kind == "model":
            models["opponent.model_id"] = self.opponent.model_id
        if self.evaluation.names_model:
            models["evaluation.second_judge"] = self.evaluation.second_judge
        return models

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        yield from self._opponent_conflicts()
        yield from self._judge_conflicts()
        if self.game.two_sided:
            yield from self._role_conflicts()
        yield from self.vllm.find_lack_of_room("game", self.game.max_prompt_tokens, self.training)

    def rank_conflicts(self, num_ranks: int) -> Iterator[Conflict]:
        if num_ranks > 1 and self.game.two_sided:
            reason = (
                f"keeps the programs in one process, and there are {num_ranks}; start one, or write false"
            )
            yield Conflict("game.two_sided", reason)

    def _opponent_conflicts(self) -> Iterator[Conflict]:
        """Rewards that need what the opponent does not show, and a snapshot that is never taken."""
        opponent, preset = self.opponent, self.reward.preset
        if preset in ("graded", "choice") and opponent.kind == "endpoint":
            yield Conflict(
                "reward.preset",
                "needs probabilities, which a server does not give here; write required, or opponent.kind = "
                "model",
            )
        if preset in ("graded", "choice") and opponent.num_predictions > 1:
            yield Conflict(
                "reward.preset",
                f"needs probabilities, and opponent.num_predictions = {opponent.num_predictions} counts "
                "votes; write required, or 1 prediction",
            )
        if opponent.kind == "snapshot" and opponent.refresh_steps > self.training.max_steps:
            yield Conflict(
                "opponent.refresh_steps",
                f"is more than training.max_steps = {self.training.max_steps}, so that no snapshot is "
                "taken; write fewer, or opponent.kind = base",
            )

        writes_out = opponent.kind == "endpoint" or opponent.num_predictions > 1
        if writes_out and opponent.max_prediction_tokens < self.game.max_output_chars:
            yield Conflict(
                "opponent.max_prediction_tokens",
                f"may be too short for an output of game.max_output_chars = {self.game.max_output_chars}, "
                f"which would win unread; write at least {self.game.max_output_chars}",
                ("opponent.kind", "opponent.num_predictions"),
            )
        if preset == "validity" and self.evaluation.control:
            yield Conflict(
                "evaluation.control",
                "is the same training as reward.preset = 'validity'; write false, or another preset",
            )
        if preset == "graded" and self.game.two_sided:
            yield Conflict(
                "game.two_sided",
                "mirrors a reward of +1 and -1, and reward.preset = 'graded' has others; write false, or "
                "preset required",
            )

    def _judge_conflicts(self) -> Iterator[Conflict]:
        """A second judge that cannot be, or is the opponent itself."""
        judge, kind = self.evaluation.second_judge, self.opponent.kind
        if not self.evaluation.enabled:
            return
        if judge == "choice" and kind == "endpoint":
            yield Conflict(
                "evaluation.second_judge",
                "needs probabilities, which a server does not give here; write none, or the hub id or "
                "directory of a model",
                ("opponent.kind",),
            )
        trained_against = {"base": self.model.id, "model": self.opponent.model_id}.get(kind)
        if self.evaluation.names_model and judge == trained_against and self.reward.preset != "choice":
            yield Conflict(
                "evaluation.second_judge",
                "is the opponent that is trained against; write choice, none, or another model",
                ("opponent.kind", "opponent.model_id", "model.id"),
            )

    def _role_conflicts(self) -> Iterator[Conflict]:
        """A step in which the two roles have no baselines of their own."""
        training = self.training
        if training.scale_rewards == "batch":
            yield Conflict(
                "training.scale_rewards",
                "is one scale for two roles, which need baselines of their own; write group or none",
                ("game.two_sided",),
            )
        completions = training.per_device_train_batch_size * training.gradient_accumulation_steps
        if completions < 2 * training.num_generations:
            yield Conflict(
                "game.two_sided",
                f"needs a prompt for each of two roles, and a step has {completions} completions in groups "
                f"of {training.num_generations}; write false, or more training.gradient_accumulation_steps",
                ("training.per_device_train_batch_size", "training.num_generations"),
            )
