"""Whether the games of a run can be played by those who are to play them; no model is needed to say so."""

from pathlib import Path

from rlnb.evaluation.many_games import able_opponents
from rlnb.games.opponents import load_opponent
from rlnb.games.text_games import TextGame, load_game
from rlnb.params.ppo_openspiel import PpoOpenspielParams
from rlnb.params.sections import NotebookParams
from rlnb.params.spiral_self_play import SpiralSelfPlayParams
from rlnb.policy.adapters import has_trained
from rlnb.training.curriculum import load_curriculum


def check_games(params: NotebookParams) -> None:
    """Raise ParamsError for games, opponents and thresholds that a run would refuse; where there are any."""
    if isinstance(params, PpoOpenspielParams):
        for game in load_curriculum(params).games.values():
            check_arena_opponents(game, able_opponents(game, params.evaluation.opponents))
    elif isinstance(params, SpiralSelfPlayParams):
        load_self_play(params)


def load_self_play(params: SpiralSelfPlayParams) -> TextGame:
    """The game of a self-play run, once its opponents are known to be able to play it; ParamsError else."""
    game = load_game(params.game.name, style=params.game.style)
    if params.game.opponent != "self":
        load_opponent(params.game.opponent, game, field="game.opponent")
    check_arena_opponents(game, params.evaluation.opponents)
    return game


def check_arena_opponents(game: TextGame, names: tuple[str, ...]) -> None:
    """Raise ParamsError for a name that is no opponent's at this game, nor a checkpoint's directory."""
    for name in names:
        if not has_trained(Path(name)):
            load_opponent(name, game, field="evaluation.opponents")
