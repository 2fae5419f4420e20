"""Sections of notebooks whose policy plays games: its model, how it acts, updates, the arena."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from rlnb.errors import see
from rlnb.games.opponent_names import canonical_name, name_fault
from rlnb.machine import installed_version
from rlnb.params.problems import show_number
from rlnb.params.sections import (
    Conflict,
    EvaluationParams,
    MbppInTrainingParams,
    ModelParams,
    ModelRunParams,
    Names,
    Section,
    described,
)
from rlnb.params.training import ResumableParams

if TYPE_CHECKING:
    from rlnb.games.text_games import TextGame


def check_opponents(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the canonical names, each once; whether they can play is found out where a game is loaded."""
    for name in names:
        if fault := name_fault(name):
            raise ValueError(f"holds {name!r}, which {fault}")
    return tuple(dict.fromkeys(map(canonical_name, names)))


Opponents = Annotated[Names, AfterValidator(check_opponents)]


class PlayerModelParams(ModelParams):
    engine: Literal["transformers"] = "transformers"
    """What loads the model: transformers alone, for its hidden states are read as well"""
    lora_rank: int = described(16, "Rank of the LoRA adapters; 0 = train every weight", ge=0, le=1024)

    @property
    def trains_all_weights(self) -> bool:
        return self.lora_rank == 0 and not self.adapters

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.dtype == "float16" and self.trains_all_weights:
            yield Conflict(
                "model.dtype",
                "has gradients that cannot be scaled, since model.lora_rank = 0 trains every weight; write "
                "float32 or auto, or model.lora_rank = 16",
            )
        if self.trains_all_weights and self.load_in_4bit is True:
            yield Conflict(
                "model.lora_rank",
                "trains weights that model.load_in_4bit has quantized; write 16, or false there",
            )


THOUGHT_TOKENS = 256  # of an answer that has room for reasoning: a small model's takes 100 to 300


class ActingParams(Section):
    """How a policy acts in games."""

    style: Literal["full", "compact"] = "full"
    """full = rules, state and legal actions as a chat message, compact = some 16 bytes"""
    acting: Literal["free", "constrained"] = Field(
        default="free",
        description="free = reasoning, then an answer in \\boxed{}, constrained = the id of a legal action",
    )
    invalid: Literal["forfeit", "random"] = "forfeit"
    """Answer without legal move: forfeit = lost, random = a random move"""
    max_new_tokens: int = described(1024, "Longest answer in free play (tokens)", ge=1)
    temperature: float = described(1.0, "Sampling temperature, in play and in the loss", gt=0, le=10)
    max_prompt_tokens: int = described(1024, "A longer prompt ends the run with its length (tokens)", ge=8)
    batch_size: int = described(64, "Free answers generated in one batch", ge=1)

    @property
    def asks_for_thoughts(self) -> bool:
        """Whether prompts ask for reasoning first: full ones, in free play that has room for it."""
        is_free = self.acting == "free" and self.style == "full"
        return is_free and self.max_new_tokens >= THOUGHT_TOKENS

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if installed_version("open-spiel") is None:
            reason = f"needs pyspiel, which is not installed; run ./setup.sh{see('pyspiel-missing')}"
            yield Conflict("game.style", reason)

    def load_game(self, name: str, *, field: str = "game.name") -> "TextGame":
        """Return a game, told in this style. Raises ParamsError for one that cannot be played."""
        # Imported here: pyspiel takes half a second, which whoever reads parameters need not wait for.
        from rlnb.games.text_games import load_game

        return load_game(name, style=self.style, asks_for_thoughts=self.asks_for_thoughts, field=field)


class UpdateParams(ResumableParams):
    """A policy update by the clipped surrogate, whatever the games."""

    learning_rate: float = described(2e-5, "Learning rate of AdamW at the start", gt=0, le=1)
    final_learning_rate: float = Field(default=2e-6, ge=0, le=1)
    """The same after the last update; linear in between"""
    warmup_steps: int = described(5, "Updates in which the learning rate rises", ge=0)
    max_steps: int = described(400, "Policy updates of the whole run", ge=1)
    games_per_step: int = described(64, "Games played for one update, on all devices", ge=1)
    num_epochs: int = described(2, "Passes of an update over its games", ge=1)
    num_mini_batches: int = described(1, "Optimizer steps in each of these", ge=1)
    clip: float = described(0.2, "Ratios beyond 1 +- this are clipped (PPO)", gt=0, lt=1)
    entropy_coef: float = described(0.0, "Weight of the entropy bonus at the start", ge=0)
    final_entropy_coef: float = Field(default=0.0, ge=0)
    """The same after the last update; geometric in between, linear where one of the two is 0"""
    magnet_coef: float = Field(default=0.0, ge=0)
    """Weight of KL(policy || magnet), a moving average of the policy; 0 = no magnet"""
    magnet_rate: float = Field(default=0.05, gt=0, le=1)
    """Share by which the magnet moves to the policy in an update"""
    average_decay: float = Field(default=0.99, ge=0, lt=1)
    """Decay, an update, of the average of the weights that is evaluated as well"""
    tokens_per_pass: int = described(4096, "Tokens in one pass of the model, padding included: memory", ge=16)
    weight_decay: float = described(0.0, "Weight decay of AdamW", ge=0, le=1)
    max_grad_norm: float = described(1.0, "Gradients are clipped to this norm", gt=0)

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.final_learning_rate > self.learning_rate:
            yield Conflict(
                "training.final_learning_rate",
                f"is above training.learning_rate = {show_number(self.learning_rate)}; write at most that",
            )

    def learning_rate_at(self, step: int) -> float:
        """Return the rate of the update after `step` updates: a linear warm-up, times a linear decay.

        Schedules count updates, not seconds, so a resumed run continues them.
        """
        done = step / max(1, self.max_steps - 1)
        warm = min(1.0, (step + 1) / (self.warmup_steps + 1))
        return warm * (self.learning_rate + done * (self.final_learning_rate - self.learning_rate))

    def entropy_coef_at(self, step: int) -> float:
        """Return the same of the entropy bonus: a geometric decay, or a linear one to 0."""
        done = step / max(1, self.max_steps - 1)
        start, end = self.entropy_coef, self.final_entropy_coef
        return start * (end / start) ** done if start and end else start + done * (end - start)


def unshared_games(games_per_step: int, unit: int, num_ranks: int) -> Iterator[Conflict]:
    """Yield a conflict if ranks cannot take equal numbers of units. unit: games that stay together."""
    if num_ranks > 1 and games_per_step % (unit * num_ranks):
        kind = {1: "games", 2: "pairs"}.get(unit, f"groups of {unit} games")
        yield Conflict(
            "training.games_per_step",
            f"cannot be shared by {num_ranks} ranks in {kind}; write a multiple of {unit * num_ranks}",
        )


class AdvantageParams(Section):
    kind: Literal["none", "rae", "leave_one_out", "group", "gae"] = "rae"
    """What a return is compared with: none, rae = the role's running mean, leave_one_out = the role's
    other games, group = games of the same opening, gae = the value head"""

    @property
    def has_value(self) -> bool:
        """Whether a value head is trained."""
        return self.kind == "gae"


class ArenaParams(EvaluationParams):
    enabled: bool = described(True, "Measure play and MBPP before, during and after training")
    opponents: Opponents = Field(default=("random",), min_length=1)
    """Opponents in the arena: random, mcts:N, perfect, nash"""
    num_games: int = Field(default=200, ge=2, multiple_of=2)
    """Games against each opponent in each game, before and after"""
    interval_games: int = described(40, "The same, at the evaluations in between", ge=2, multiple_of=2)
    exact: bool = True
    """Measure without sampling where it can be: Kuhn, Leduc, tic-tac-toe, with constrained answers"""

    def is_due(self, step: int) -> bool:
        """Return whether an evaluation during training follows this update."""
        return self.enabled and self.eval_interval_steps > 0 and step % self.eval_interval_steps == 0


class GameRunParams(ModelRunParams):
    """The parameters of a run whose policy plays games."""

    model: PlayerModelParams = PlayerModelParams()
    game: ActingParams = ActingParams()
    training: UpdateParams = UpdateParams()
    evaluation: ArenaParams = ArenaParams()
    mbpp: MbppInTrainingParams = MbppInTrainingParams()

    def game_names(self) -> list[str]:
        """Return the names of the games that are played, each once."""
        raise NotImplementedError
