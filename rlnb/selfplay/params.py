"""Sections of notebooks whose policy plays games: its model, how it acts, updates and alarms, the arena."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from rlnb.params.problems import show_number
from rlnb.params.sections import Conflict, ModelParams, Names, SamplingParams, Section
from rlnb.params.training import ResumableParams


def some_of(*names: str) -> AfterValidator:
    """Return a validator of lists that hold some of these names."""

    def check(given: tuple[str, ...]) -> tuple[str, ...]:
        if not set(given) <= set(names) or len(set(given)) < len(given):
            listed = " and ".join(names) if len(names) == 2 else ", ".join(names)
            raise ValueError(f"may hold {listed}, each once")
        return given

    return AfterValidator(check)


Modes = Annotated[Names, some_of("constrained", "free")]


class PlayerModelParams(ModelParams):
    engine: Literal["transformers"] = "transformers"
    """What loads the model: transformers alone, for its hidden states are read as well"""
    lora_rank: int = Field(default=16, ge=0, le=1024)
    """Rank of the LoRA adapters; 0 = train every weight"""

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.lora_dropout:
            yield Conflict(
                "model.lora_dropout",
                "makes two passes over the same turns differ, and with them the first ratio; write 0",
            )
        if self.lora_rank == 0 and self.load_in_4bit is True:
            yield Conflict(
                "model.lora_rank",
                "trains weights that model.load_in_4bit has quantized; write 16, or false there",
            )


class ActingParams(Section):
    """How a policy acts in games."""

    style: Literal["full", "compact"] = "full"
    """full = rules, state and legal actions as a chat message, compact = some 16 bytes"""
    acting: Literal["free", "constrained"] = Field(
        default="free",
        description="free = reasoning, then an answer in \\boxed{}, constrained = the id of a legal action",
    )
    invalid: Literal["forfeit", "retry", "random"] = "forfeit"
    """Answer without legal move: forfeit = lost, retry = asked again, random = a random move"""
    num_retries: int = Field(default=2, ge=1, description="With retry: answers before the game is lost")
    max_new_tokens: int = Field(default=1024, ge=1, description="Longest answer in free play (tokens)")
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Sampling temperature, in play and in the loss"""
    max_prompt_tokens: int = Field(default=1024, ge=8)
    """A longer prompt ends the run with its length (tokens)"""
    num_parallel: int = Field(default=512, ge=1, description="Games played in parallel")
    batch_size: int = Field(default=64, ge=1, description="Free answers generated in one batch")


class UpdateParams(ResumableParams):
    """A policy update by the clipped surrogate, whatever the games."""

    learning_rate: float = Field(default=2e-5, gt=0, le=1, description="Learning rate of AdamW at the start")
    final_learning_rate: float = Field(default=2e-6, ge=0, le=1)
    """The same after the last update; linear in between"""
    warmup_steps: int = Field(default=5, ge=0, description="Updates in which the learning rate rises")
    max_steps: int = Field(default=400, ge=1, description="Policy updates of the whole run")
    games_per_step: int = Field(default=64, ge=1, description="Games played for one update, on all devices")
    num_epochs: int = Field(default=2, ge=1, description="Passes of an update over its games")
    num_mini_batches: int = Field(default=1, ge=1, description="Optimizer steps in each of these")
    clip: float = Field(default=0.2, gt=0, lt=1, description="Ratios beyond 1 +- this are clipped (PPO)")
    ratio: Literal["token", "turn"] = "token"
    """Unit of the ratio: a token, or an answer's product over its tokens"""
    loss_tokens: int = Field(default=0, ge=0)
    """Sums over an answer's tokens are divided by this, whatever its length; 0 = game.max_new_tokens, 1 in
    constrained play"""
    entropy_coef: float = Field(default=0.0, ge=0, description="Weight of the entropy bonus at the start")
    final_entropy_coef: float = Field(default=0.0, ge=0)
    """The same after the last update; geometric in between"""
    magnet_coef: float = Field(default=0.0, ge=0)
    """Weight of KL(policy || magnet), a moving average of the policy; 0 = no magnet"""
    magnet_rate: float = Field(default=0.05, gt=0, le=1)
    """Share by which the magnet moves to the policy in an update"""
    average_decay: float = Field(default=0.99, ge=0, lt=1)
    """Decay, an update, of the average of the weights that is evaluated as well"""
    drop_zero_advantages: bool = False
    """Leave out trajectories all of whose advantages are 0"""
    prompt_memo: bool = True
    """Pass equal prompts once: the same loss; mini-batches keep equal prompts together"""
    tokens_per_pass: int = Field(default=4096, ge=16)
    """Tokens in one pass of the model, padding included: memory"""
    adam_beta2: float = Field(default=0.99, ge=0, lt=1, description="AdamW's second decay")
    weight_decay: float = Field(default=0.0, ge=0, le=1, description="Weight decay of AdamW")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Gradients are clipped to this norm")

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.final_learning_rate > self.learning_rate:
            yield Conflict(
                "training.final_learning_rate",
                f"is above training.learning_rate = {show_number(self.learning_rate)}; write at most that",
            )


class AdvantageParams(Section):
    kind: Literal["none", "rae", "leave_one_out", "group", "gae", "gae_plies"] = "rae"
    """What a return is compared with: none, rae = the role's running mean, leave_one_out = the role's
    other games, group = games of the same opening, gae, gae_plies = the value head"""
    decay: float = Field(default=0.95, ge=0, lt=1)
    """Decay, a trajectory, of a role's running mean"""
    scale_groups: bool = False
    """Divide by the group's standard deviation (GRPO), or not (Dr. GRPO)"""
    gamma: float = Field(default=1.0, gt=0, le=1, description="Discount, a turn of one's own")
    lam: float = Field(default=0.9, ge=0, le=1, description="GAE's lambda: 0 = one step, 1 = whole games")
    value_coef: float = Field(default=0.5, gt=0, description="Weight of the value head's squared error")

    @property
    def has_value(self) -> bool:
        """Whether a value head is trained."""
        return self.kind in ("gae", "gae_plies")


class AlarmParams(Section):
    patience: int = Field(default=5, ge=1)
    """Updates in a row with the same alarm after which the run is stopped"""
    invalid_share: float = Field(default=0.5, gt=0, le=1)
    """Alarm above this share of answers without a legal move; 1 = never"""
    entropy: float = Field(default=1e-4, ge=0)
    """Alarm below this entropy (nats a token); 0 = never"""
    length_share: float = Field(default=0.1, ge=0, lt=1)
    """Alarm if answers get shorter than this share of the first update's; 0 = never"""


class ArenaParams(SamplingParams):
    enabled: bool = Field(default=True, description="Measure play and MBPP before, during and after training")
    eval_interval_steps: int = Field(default=20, ge=0)
    """Updates between evaluations; 0 = only before and after"""
    opponents: Names = Field(default=("random",), min_length=1)
    """Opponents in the arena: random, mcts:N, perfect, nash, a checkpoint"""
    num_games: int = Field(default=200, ge=2, multiple_of=2)
    """Games against each opponent, before, after"""
    interval_games: int = Field(default=40, ge=2, multiple_of=2)
    """The same, at the evaluations in between"""
    cross_games: int = Field(default=100, ge=0, multiple_of=2)
    """Games between each two of the weights that were kept, even; 0 = none"""
    modes: Modes = Field(default=("constrained", "free"), min_length=1)
    """How the policy answers in the arena, before and after: constrained, free, or both"""
    exact: bool = True
    """Measure without sampling where it can be: Kuhn, Leduc, tic-tac-toe; constrained answers"""
    num_questions: int = Field(default=5, ge=1, description="Problems of MBPP, before and after training")
    interval_questions: int = Field(default=5, ge=1, description="The same, at the evaluations in between")

    def is_due(self, step: int) -> bool:
        """Return whether an evaluation during training follows this update."""
        return self.enabled and self.eval_interval_steps > 0 and step % self.eval_interval_steps == 0


def unmeasured_acting(game: ActingParams, evaluation: ArenaParams) -> Iterator[Conflict]:
    """Yield a conflict if evaluations leave out the way in which the policy is trained."""
    if evaluation.enabled and game.acting not in evaluation.modes:
        yield Conflict(
            "evaluation.modes", f"leaves out game.acting = {game.acting!r}, which the curve shows; add it"
        )
