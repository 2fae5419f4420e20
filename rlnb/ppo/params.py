"""Parameters of notebooks/ppo_openspiel.ipynb."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from rlnb.errors import ParamsError
from rlnb.params.sections import Conflict, Names, Section, described
from rlnb.selfplay import params as play

if TYPE_CHECKING:
    from rlnb.games.text_games import TextGame

BASIC_GAMES = (
    "tic_tac_toe", "connect_four", "nim", "kuhn_poker", "breakthrough(rows=6,columns=6)", "hex(board_size=5)",
)  # fmt: skip
COMPLEX_GAMES = (
    "leduc_poker", "liars_dice", "goofspiel(num_cards=8)", "othello", "clobber", "dots_and_boxes",
)  # fmt: skip


class Stage(Section):
    """A stage of the curriculum: these games against these opponents, until they are played well enough."""

    name: str = Field(min_length=1, description="What the stage is called")
    games: Names = Field(min_length=1, description="Games of OpenSpiel for two players, with parameters")
    opponents: play.Opponents = Field(default=("random",), min_length=1)
    """Opponents: a game is played against the first of them that can play it honestly"""
    threshold: float = Field(gt=0, le=1)
    """Mean score (1, 0.5, 0) at which the next stage begins, fresh games alone"""
    window: int = described(2000, "The newest fresh games of which the mean is taken", ge=1)
    min_episodes: int = described(1000, "Fresh games before the stage may end", ge=1)
    final_score: float = Field(default=0.5, ge=0, le=1)
    """Mean score after training that a success exceeds with its whole 95% interval"""


Stages = Annotated[tuple[Stage, ...], Field(strict=False)]


class CurriculumParams(Section):
    stages: Stages = Field(
        default=(
            Stage(name="easy", games=BASIC_GAMES, threshold=0.6, final_score=0.55),
            Stage(name="medium", games=COMPLEX_GAMES, threshold=0.55),
            Stage(
                name="hard",
                games=BASIC_GAMES + COMPLEX_GAMES,
                opponents=("mcts:25", "nash", "random"),
                threshold=0.4,
                final_score=0.3,
            ),
        ),
        min_length=1,
    )
    """Stages from easy to hard, each with name, games, opponents, threshold, window, min_episodes,
    final_score"""

    def conflicts(self) -> Iterator[Conflict]:
        names = [stage.name for stage in self.stages]
        if len(set(names)) < len(names):
            yield Conflict("curriculum.stages", "names two stages alike; give each a name of its own")


class ReplayParams(Section):
    share: float = described(0.3, "Share of an update's games that play failures again; 0 = none", ge=0, lt=1)


class PpoTrainingParams(play.UpdateParams):
    value_learning_rate: float = Field(default=5e-5, gt=0, le=1)
    """Learning rate of the value head; it follows the policy's course"""
    detach_steps: int = Field(default=20, ge=0)
    """First updates in which the value's gradient stops at its head: it knows nothing yet"""
    games_per_step: int = Field(default=16, ge=2, multiple_of=2)
    """Games played for one update, on all devices; even"""
    weigh: Literal["turns", "games"] = "games"
    """What weighs the same in the loss: each turn, or each game, so that none leads"""
    target_kl: float = Field(default=0.02, ge=0)
    """An update ends early when the policy has moved this far in it (nats a token); 0 = never"""
    init_kl_coef: float = Field(default=0.05, ge=0)
    """Weight of KL(policy || untrained model) at the start; it then moves to hold a KL of 0.05; 0 = none"""

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.magnet_coef and self.init_kl_coef:
            yield Conflict(
                "training.magnet_coef",
                "and training.init_kl_coef hold the policy to two others at once; write 0 for one of them",
            )


class PpoOpenspielParams(play.GameRunParams):
    """PPO with LoRA and a value head on games of OpenSpiel; the first scripts' values: default.yaml."""

    curriculum: CurriculumParams = CurriculumParams()
    replay: ReplayParams = ReplayParams()
    training: PpoTrainingParams = PpoTrainingParams()

    def game_names(self) -> list[str]:
        return list(dict.fromkeys(name for stage in self.curriculum.stages for name in stage.games))

    def load_games(self) -> list[list[tuple["TextGame", str]]]:
        """Return the games of each stage of the curriculum, with their opponents.

        Raises ParamsError for an unknown game or opponent, and for a game that none of them can play.
        """
        # Imported here: pyspiel takes half a second, which whoever reads parameters need not wait for.
        from rlnb.games.opponents import playable_opponents

        field = "curriculum.stages"
        games = {name: self.game.load_game(name, field=field) for name in self.game_names()}
        stages = []
        for stage in self.curriculum.stages:
            opponents = {name: playable_opponents(games[name], stage.opponents) for name in stage.games}
            if hopeless := [name for name, playable in opponents.items() if not playable]:
                raise ParamsError(
                    f"{field}: stage {stage.name!r}: none of its opponents can play {hopeless[0]}; add random"
                )
            stages.append([(games[name], playable[0]) for name, playable in opponents.items()])
        return stages

    def check_files(self) -> None:
        super().check_files()
        self.load_games()

    def rank_conflicts(self, num_ranks: int) -> Iterator[Conflict]:
        yield from play.unshared_games(self.training.games_per_step, 2, num_ranks)
