"""Parameters of notebooks/spiral_self_play.ipynb."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from rlnb.params.sections import Conflict
from rlnb.selfplay import params as play

if TYPE_CHECKING:
    from rlnb.games.text_games import TextGame


GAMES_PER_GROUP = 8  # that share a deal and an opening, with advantage.kind = group


class PlayParams(play.ActingParams):
    name: str = Field(default="tic_tac_toe", min_length=1)
    """Game of OpenSpiel for two players, with parameters: breakthrough(rows=6,columns=6)"""
    max_opening_plies: int = Field(default=0, ge=0)
    """Random moves before the players' own, 0 to this many, each as likely"""
    random_move_share: float = Field(default=0.0, ge=0, le=0.5)
    """Share of training games' moves after the opening that are drawn at random; those teach nothing"""
    reward_scale: float = Field(default=1.0, gt=0)
    """Returns are divided by this, so that they are about 1 (2 for Kuhn)"""


class SpiralSelfPlayParams(play.GameRunParams):
    """SPIRAL: self-play with role-conditioned advantages; the defaults are the paper's, for one GPU."""

    output_dir: str = Field(default="outputs/spiral_self_play", min_length=1)
    """Directory for checkpoints, metrics and the model"""
    game: PlayParams = PlayParams()
    advantage: play.AdvantageParams = play.AdvantageParams()

    @property
    def loss_tokens(self) -> int:
        """The divisor of sums over an answer's tokens, whatever its length."""
        return 1 if self.game.acting == "constrained" else self.game.max_new_tokens

    @property
    def games_per_opening(self) -> int:
        return GAMES_PER_GROUP if self.advantage.kind == "group" else 1

    def game_names(self) -> list[str]:
        return [self.game.name]

    def load_game(self) -> "TextGame":
        """Return the game. Raises ParamsError for an unknown one, and for opponents that cannot play it."""
        from rlnb.games.opponents import load_opponent  # imports pyspiel, which takes half a second

        game = self.game.load_game(self.game.name)
        for name in self.evaluation.opponents:
            load_opponent(name, game, field="evaluation.opponents")
        return game

    def check_files(self) -> None:
        super().check_files()
        self.load_game()

    def rank_conflicts(self, num_ranks: int) -> Iterator[Conflict]:
        yield from play.unshared_games(self.training.games_per_step, self.games_per_opening, num_ranks)
