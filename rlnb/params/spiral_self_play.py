"""Parameters of notebooks/spiral_self_play.ipynb."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, field_validator

from rlnb.params.problems import show_number
from rlnb.params.sections import (
    Conflict,
    MbppInTrainingParams,
    ModelParams,
    Names,
    NotebookParams,
    SamplingParams,
    SandboxParams,
    Section,
    TrackingParams,
)
from rlnb.params.training import ResumableParams


class PlayerModelParams(ModelParams):
    engine: Literal["transformers"] = Field(
        default="transformers",
        description="What loads the model: transformers alone, for its hidden states are read as well",
    )
    lora_rank: int = Field(
        default=16, ge=0, le=1024, description="Rank of the LoRA adapters; 0 = train every weight"
    )


class PlayParams(Section):
    name: str = Field(
        default="tic_tac_toe",
        min_length=1,
        description="Game of OpenSpiel for two players, with parameters: breakthrough(rows=6,columns=6)",
    )
    style: Literal["full", "compact"] = Field(
        default="full",
        description="full = rules, state and legal actions as a chat message, compact = some 16 bytes",
    )
    acting: Literal["free", "constrained"] = Field(
        default="free",
        description="free = reasoning, then an answer in \\boxed{}, constrained = the id of a legal action",
    )
    opponent: str = Field(
        default="self",
        min_length=1,
        description="Who plays the other seat: self = the same weights, random, mcts:N, perfect, nash",
    )
    max_opening_plies: int = Field(
        default=0, ge=0, description="Random moves before the players' own, 0 to this many, each as likely"
    )
    games_per_opening: int = Field(
        default=1, ge=1, description="Games that share a deal and an opening; advantage.kind group needs 2"
    )
    reward_scale: float = Field(
        default=1.0, gt=0, description="Returns are divided by this, so that they are about 1 (2 for Kuhn)"
    )
    invalid: Literal["forfeit", "retry", "random"] = Field(
        default="forfeit",
        description="Answer without legal move: forfeit = lost, retry = asked again, random = a random move",
    )
    num_retries: int = Field(default=2, ge=1, description="With retry: answers before the game is lost")
    invalid_reward: float = Field(default=-1.5, le=0, description="Reward of an answer without a legal move")
    forfeit_reward: float = Field(default=0.5, ge=0, description="Reward of the other player, at a forfeit")
    max_new_tokens: int = Field(default=1024, ge=1, description="Longest answer in free play (tokens)")
    temperature: float = Field(
        default=1.0, gt=0, le=10, description="Sampling temperature, in play and in the loss"
    )
    warm_up_steps: int = Field(
        default=0,
        ge=0,
        description="Supervised steps on random legal play before free play, for a model that knows no games",
    )
    max_prompt_tokens: int = Field(
        default=1024, ge=8, description="A longer prompt ends the run with its length (tokens)"
    )
    num_parallel: int = Field(default=512, ge=1, description="Games played side by side")
    batch_size: int = Field(default=64, ge=1, description="Free answers written side by side")

    def conflicts(self) -> Iterator[Conflict]:
        if self.warm_up_steps and self.acting == "constrained":
            yield Conflict(
                "game.warm_up_steps",
                "teaches what game.acting = 'constrained' enforces anyway; write 0, or acting = free",
                ("game.acting",),
            )
        if self.opponent != "self" and self.games_per_opening > 1 and self.games_per_opening % 2:
            yield Conflict(
                "game.games_per_opening",
                "is odd, and each opening is played from both seats; write an even number",
                ("game.opponent",),
            )


class AdvantageParams(Section):
    kind: Literal["none", "rae", "leave_one_out", "group", "gae", "gae_plies"] = Field(
        default="rae",
        description="What a return is compared with: none, rae = the role's running mean, leave_one_out = "
        "the role's other games, group = games of the same opening, gae, gae_plies = the value head",
    )
    decay: float = Field(default=0.95, ge=0, lt=1, description="Of a role's running mean, a trajectory")
    scale_groups: bool = Field(
        default=False, description="Divide by the group's standard deviation (GRPO), or not (Dr. GRPO)"
    )
    gamma: float = Field(default=1.0, gt=0, le=1, description="Discount, a turn of one's own")
    lam: float = Field(default=0.9, ge=0, le=1, description="GAE's lambda: 0 = one step, 1 = whole games")
    value_coef: float = Field(default=0.5, gt=0, description="Weight of the value head's squared error")

    @property
    def has_value(self) -> bool:
        """Whether there is a value head to train."""
        return self.kind in ("gae", "gae_plies")


class SelfPlayTrainingParams(ResumableParams):
    learning_rate: float = Field(default=2e-5, gt=0, le=1, description="Learning rate of AdamW at the start")
    final_learning_rate: float = Field(
        default=2e-6, ge=0, le=1, description="The same after the last update; linear in between"
    )
    warmup_steps: int = Field(default=5, ge=0, description="Updates in which the learning rate rises")
    max_steps: int = Field(default=400, ge=1, description="Policy updates of the whole run")
    games_per_step: int = Field(default=64, ge=1, description="Games played for one update, on all devices")
    num_epochs: int = Field(default=2, ge=1, description="Times that an update goes through its games")
    num_mini_batches: int = Field(default=1, ge=1, description="Optimizer steps in each of these")
    clip: float = Field(default=0.2, gt=0, lt=1, description="Ratios beyond 1 +- this are clipped (PPO)")
    ratio: Literal["token", "turn"] = Field(
        default="token", description="Unit of the ratio: a token, or an answer's product over its tokens"
    )
    loss_tokens: int = Field(
        default=0,
        ge=0,
        description="Sums over an answer's tokens are divided by this, whatever its length; 0 = "
        "game.max_new_tokens, 1 in constrained play",
    )
    entropy_coef: float = Field(default=0.0, ge=0, description="Weight of the entropy bonus at the start")
    final_entropy_coef: float = Field(
        default=0.0, ge=0, description="The same after the last update; geometric in between"
    )
    kl_coef: float = Field(
        default=0.0, ge=0, description="Weight of KL(policy || untrained model); 0 = it is not asked"
    )
    magnet_coef: float = Field(
        default=0.0, ge=0, description="Weight of KL(policy || a slow average of itself); 0 = none is kept"
    )
    magnet_rate: float = Field(
        default=0.05, gt=0, le=1, description="Share by which that average follows, an update"
    )
    average_decay: float = Field(
        default=0.99,
        ge=0,
        lt=1,
        description="Of the average of the weights that is evaluated too, an update; it begins at the first",
    )
    drop_zero_advantages: bool = Field(
        default=False, description="Leave out trajectories all of whose advantages are 0"
    )
    prompt_memo: bool = Field(
        default=True,
        description="Pass equal prompts once: the same loss; mini-batches keep equal prompts together",
    )
    tokens_per_pass: int = Field(
        default=4096, ge=16, description="Tokens in one pass of the model, padding included: memory"
    )
    adam_beta2: float = Field(default=0.99, ge=0, lt=1, description="AdamW's second decay")
    weight_decay: float = Field(default=0.0, ge=0, le=1, description="Weight decay of AdamW")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Gradients are clipped to this norm")

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.final_learning_rate > self.learning_rate:
            yield Conflict(
                "training.final_learning_rate",
                f"is above training.learning_rate = {show_number(self.learning_rate)}; write at most that",
                ("training.learning_rate",),
            )


class AlarmParams(Section):
    patience: int = Field(
        default=5, ge=1, description="Updates in a row in which an alarm must ring before the run is stopped"
    )
    invalid_share: float = Field(
        default=0.5, gt=0, le=1, description="More answers without a legal move ring; 1 = never"
    )
    entropy: float = Field(
        default=1e-4, ge=0, description="Entropy below this rings (nats a token); 0 = never"
    )
    length_share: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Free answers shorter than this share of the first update's ring; 0 = never",
    )


class ArenaParams(SamplingParams):
    enabled: bool = Field(default=True, description="Measure play and MBPP before, during and after training")
    eval_interval_steps: int = Field(
        default=20, ge=0, description="Updates between evaluations; 0 = only before and after"
    )
    opponents: Names = Field(
        default=("random",),
        min_length=1,
        description="Opponents in the arena: random, mcts:N, perfect, nash, a checkpoint",
    )
    num_games: int = Field(
        default=200, ge=2, multiple_of=2, description="Games against each opponent, before, after"
    )
    interval_games: int = Field(
        default=40, ge=2, multiple_of=2, description="The same, at the evaluations in between"
    )
    cross_games: int = Field(
        default=100,
        ge=0,
        multiple_of=2,
        description="Games between each two of the weights that were kept, even; 0 = none",
    )
    modes: Names = Field(
        default=("constrained", "free"),
        min_length=1,
        description="How the policy answers in the arena, before and after: constrained, free, or both",
    )
    exact: bool = Field(
        default=True,
        description="Measure without sampling where it can be: Kuhn, Leduc, tic-tac-toe; constrained answers",
    )
    num_questions: int = Field(default=5, ge=1, description="Problems of MBPP, before and after training")
    interval_questions: int = Field(default=5, ge=1, description="The same, at the evaluations in between")

    @field_validator("modes")
    @classmethod
    def _known_modes(cls, modes: tuple[str, ...]) -> tuple[str, ...]:
        if any(mode not in ("constrained", "free") for mode in modes) or len(set(modes)) < len(modes):
            raise ValueError("may hold constrained and free, each once")
        return modes


class AblationParams(Section):
    enabled: bool = Field(
        default=False, description="Train the same game anew with other advantages, to compare; takes long"
    )
    kinds: Names = Field(
        default=("none", "rae", "leave_one_out", "gae"),
        min_length=2,
        description="Values of advantage.kind that are compared",
    )
    num_seeds: int = Field(default=3, ge=1, description="Runs of each, with the seeds 1, 2, 3 and so on")
    max_steps: int = Field(default=60, ge=1, description="Updates of each of these runs")

    @field_validator("kinds")
    @classmethod
    def _known_kinds(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        known = ("none", "rae", "leave_one_out", "gae", "gae_plies")
        if any(kind not in known for kind in kinds) or len(set(kinds)) < len(kinds):
            raise ValueError(f"may hold {', '.join(known)}, each once")
        return kinds


class SpiralSelfPlayParams(NotebookParams):
    """SPIRAL: self-play with role-conditioned advantages; the defaults are the paper's, for one GPU."""

    output_dir: str = Field(
        default="outputs/spiral_self_play",
        min_length=1,
        description="Directory for checkpoints, metrics and the model",
    )
    model: PlayerModelParams = PlayerModelParams()
    game: PlayParams = PlayParams()
    advantage: AdvantageParams = AdvantageParams()
    training: SelfPlayTrainingParams = SelfPlayTrainingParams()
    alarms: AlarmParams = AlarmParams()
    evaluation: ArenaParams = ArenaParams()
    ablation: AblationParams = AblationParams()
    sandbox: SandboxParams = SandboxParams()
    mbpp: MbppInTrainingParams = MbppInTrainingParams()
    tracking: TrackingParams = TrackingParams()

    @property
    def loss_tokens(self) -> int:
        """What sums over an answer's tokens are divided by."""
        default = 1 if self.game.acting == "constrained" else self.game.max_new_tokens
        return self.training.loss_tokens or default

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        yield from self._advantage_conflicts()
        game = self.game
        if self.evaluation.enabled and game.acting not in self.evaluation.modes:
            yield Conflict(
                "evaluation.modes",
                f"leaves out game.acting = {game.acting!r}, which the curve shows; add it",
                ("game.acting",),
            )
        if self.ablation.enabled and not self.evaluation.exact:
            yield Conflict(
                "ablation.enabled",
                "compares runs by exact measures; write evaluation.exact = true, or false here",
                ("evaluation.exact",),
            )
        if self.training.games_per_step % (2 if game.opponent != "self" else 1):
            yield Conflict(
                "training.games_per_step",
                "is odd, and the seats alternate against an opponent; write an even number",
                ("game.opponent",),
            )
        if self.training.games_per_step % game.games_per_opening:
            yield Conflict(
                "game.games_per_opening",
                f"does not divide training.games_per_step = {self.training.games_per_step}",
                ("training.games_per_step",),
            )
        if self.model.lora_dropout:
            yield Conflict(
                "model.lora_dropout",
                "makes two passes over the same turns differ, and with them the first ratio; write 0",
            )
        if self.model.lora_rank == 0 and self.model.load_in_4bit is True:
            yield Conflict(
                "model.lora_rank",
                "trains weights that model.load_in_4bit has quantized; write 16, or false there",
                ("model.load_in_4bit",),
            )

    def _advantage_conflicts(self) -> Iterator[Conflict]:
        """Ways of credit that the games asked for do not allow."""
        kind, game = self.advantage.kind, self.game
        least = 2 if game.opponent == "self" else 4  # a seat has half of the games
        if kind == "group" and game.games_per_opening < least:
            yield Conflict(
                "advantage.kind",
                "compares games of the same opening and seat, of which there is one by "
                f"game.games_per_opening = {game.games_per_opening}; write {least} or more there",
                ("game.games_per_opening", "game.opponent"),
            )
        if self.training.drop_zero_advantages and self.advantage.has_value:
            yield Conflict(
                "training.drop_zero_advantages",
                f"would hide from the value head of advantage.kind = {kind!r} what it knows; write false",
                ("advantage.kind",),
            )
        fields = {"advantage.kind": kind == "gae_plies"}
        fields["ablation.kinds"] = self.ablation.enabled and "gae_plies" in self.ablation.kinds
        for field in [field for field, is_asked in fields.items() if is_asked]:
            if game.opponent != "self" or game.acting != "constrained":
                yield Conflict(
                    field,
                    "asks for gae_plies, which follows the plies of both seats, so game.opponent must be "
                    "self and game.acting constrained: a forfeit is not zero-sum; write gae",
                    ("game.opponent", "game.acting"),
                )
