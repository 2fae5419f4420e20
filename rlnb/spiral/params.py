"""Parameters of notebooks/spiral_self_play.ipynb."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from rlnb.games.opponent_names import name_fault
from rlnb.params import sections
from rlnb.params.sections import Conflict, NotebookParams, described
from rlnb.selfplay import params as play
from rlnb.selfplay.params import unmeasured_acting

if TYPE_CHECKING:
    from rlnb.games.text_games import TextGame


def check_seat(name: str) -> str:
    if name != "self" and (fault := name_fault(name)):
        raise ValueError(f"{fault}, or self")
    return name


class PlayParams(play.ActingParams):
    name: str = Field(default="tic_tac_toe", min_length=1)
    """Game of OpenSpiel for two players, with parameters: breakthrough(rows=6,columns=6)"""
    opponent: Annotated[str, AfterValidator(check_seat)] = "self"
    """Who plays the other seat: self = the same weights, random, mcts:N, perfect, nash"""
    max_opening_plies: int = Field(default=0, ge=0)
    """Random moves before the players' own, 0 to this many, each as likely"""
    games_per_opening: int = Field(default=1, ge=1)
    """Games that share a deal and an opening; advantage.kind group needs 2"""
    reward_scale: float = Field(default=1.0, gt=0)
    """Returns are divided by this, so that they are about 1 (2 for Kuhn)"""
    invalid_reward: float = described(-1.5, "Reward of an answer without a legal move", le=0)
    forfeit_reward: float = described(0.5, "Reward of the other player, at a forfeit", ge=0)
    warm_up_steps: int = Field(default=0, ge=0)
    """Supervised steps on random legal play before free play, for a model that knows no games"""

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.warm_up_steps and self.acting == "constrained":
            yield Conflict(
                "game.warm_up_steps",
                "teaches what game.acting = 'constrained' enforces anyway; write 0, or acting = free",
            )
        if self.opponent != "self" and self.games_per_opening > 1 and self.games_per_opening % 2:
            yield Conflict(
                "game.games_per_opening",
                "is odd, and each opening is played from both seats; write an even number",
                ("game.opponent",),
            )


class SelfPlayTrainingParams(play.UpdateParams):
    kl_coef: float = described(0.0, "Weight of KL(policy || untrained model); 0 = not computed", ge=0)


class SpiralSelfPlayParams(NotebookParams):
    """SPIRAL: self-play with role-conditioned advantages; the defaults are the paper's, for one GPU."""

    output_dir: str = Field(default="outputs/spiral_self_play", min_length=1)
    """Directory for checkpoints, metrics and the model"""
    model: play.PlayerModelParams = play.PlayerModelParams()
    game: PlayParams = PlayParams()
    advantage: play.AdvantageParams = play.AdvantageParams()
    training: SelfPlayTrainingParams = SelfPlayTrainingParams()
    alarms: play.AlarmParams = play.AlarmParams()
    evaluation: play.ArenaParams = play.ArenaParams()
    sandbox: sections.SandboxParams = sections.SandboxParams()
    mbpp: sections.MbppInTrainingParams = sections.MbppInTrainingParams()
    tracking: sections.TrackingParams = sections.TrackingParams()

    @property
    def loss_tokens(self) -> int:
        """The divisor of sums over an answer's tokens."""
        default = 1 if self.game.acting == "constrained" else self.game.max_new_tokens
        return self.training.loss_tokens or default

    @property
    def games_per_opening(self) -> int:
        """The games of an opening; against an opponent both seats play it."""
        return max(1 if self.game.opponent == "self" else 2, self.game.games_per_opening)

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        yield from self._advantage_conflicts()
        game = self.game
        yield from unmeasured_acting(self.game, self.evaluation)
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
            )

    def load_game(self) -> "TextGame":
        """Return the game. Raises ParamsError for an unknown one, and for opponents that cannot play it."""
        # Imported here: pyspiel takes half a second, which whoever reads parameters need not wait for.
        from rlnb.games.opponents import check_opponents, load_opponent
        from rlnb.games.text_games import load_game

        game = load_game(self.game.name, style=self.game.style)
        if self.game.opponent != "self":
            load_opponent(self.game.opponent, game, field="game.opponent")
        check_opponents(game, self.evaluation.opponents)
        return game

    def check_files(self) -> None:
        super().check_files()
        self.load_game()

    def rank_conflicts(self, num_ranks: int) -> Iterator[Conflict]:
        yield from play.unshared_games(self.training.games_per_step, self.games_per_opening, num_ranks)

    def _advantage_conflicts(self) -> Iterator[Conflict]:
        """Yield the kinds of advantage that the chosen games do not allow."""
        kind, game = self.advantage.kind, self.game
        least = 2 if game.opponent == "self" else 4  # a seat has half of the games
        if kind == "group" and game.games_per_opening < least:
            yield Conflict(
                "advantage.kind",
                "compares games of the same opening and seat, of which there is one by "
                f"game.games_per_opening = {game.games_per_opening}; write {least} or more there",
                ("game.opponent",),
            )
        if self.training.drop_zero_advantages and self.advantage.has_value:
            yield Conflict(
                "training.drop_zero_advantages",
                f"would hide from the value head of advantage.kind = {kind!r} what it knows; write false",
            )
        if kind == "gae_plies" and (game.opponent != "self" or game.acting != "constrained"):
            yield Conflict(
                "advantage.kind",
                "asks for gae_plies, which follows the plies of both seats, so game.opponent must be "
                "self and game.acting constrained: a forfeit is not zero-sum; write gae",
            )
