"""What random play scores against an opponent: less than a threshold or a verdict has to ask for."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from rlnb.games.opponent_names import USUAL_SIMULATIONS, count_simulations, opponent_kind
from rlnb.games.opponents import load_opponent, yardstick
from rlnb.games.text_games import TextGame, load_game
from rlnb.selfplay.rollouts import LEARNER, paired_episodes, play_games

NUM_GAMES, NUM_LONG_GAMES = 400, 20  # 20 games of othello against mcts:25 take three seconds
LONG_GAME = 100  # moves at most; games that may be longer are played less often


# Against `equilibrium`, exact for that very table. In poker random play scores a half: an equilibrium gives
# small pots away, and what it holds down is returns.
AGAINST_NASH: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"kuhn_poker": (0.52774, 0.49987), "leduc_poker": (0.50197, 0.49601), "liars_dice": (0.18191, 0.16629)}
)


def score_random_play(game: TextGame, opponent: str) -> tuple[float, float] | None:
    """Return the scores (1, 0.5, 0) of uniformly random play in (seat 0, seat 1) against an opponent.

    They are exact where they are known, else the means of games with fixed seeds. None: against itself in a
    game that `yardstick` does not know; by symmetry the mean of both seats is a half.
    MCTS with more than USUAL_SIMULATIONS simulations is taken for MCTS
    with that many, since a game against it may take hours: random play scores no more against more of them.
    """
    kind = opponent_kind(opponent)
    known = yardstick(game)
    if kind == "random":
        return known.random_score if known else None
    if kind == "nash" and known:
        return AGAINST_NASH[game.short_name]
    if kind == "mcts":
        opponent = f"mcts:{min(count_simulations(opponent), USUAL_SIMULATIONS)}"
    return play_at_random(game.name, opponent)


@cache
def play_at_random(name: str, opponent: str) -> tuple[float, float]:
    """Play random play against the opponent, half of the games from each seat."""
    game = load_game(name)
    num_games = NUM_GAMES if game.game.max_game_length() <= LONG_GAME else NUM_LONG_GAMES
    episodes = paired_episodes(game, opponent, num_games, seed=0)
    players = {LEARNER: load_opponent("random", game), opponent: load_opponent(opponent, game)}
    games = play_games(episodes, players)
    first, second = (
        sum(played.score(seat) for played in games if played.players[seat] == LEARNER) / (num_games // 2)
        for seat in (0, 1)
    )
    return first, second
