"""What random play scores against each opponent: less than a threshold or a verdict has to ask for.

Exact where that is cheap, counted beforehand for the opponents of the shipped profiles, else played once a
process. Sampled scores have the same seeds every time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from rlnb.games.exact import measure_seat, solve_tictactoe
from rlnb.games.opponent_names import USUAL_SIMULATIONS, count_simulations, opponent_kind
from rlnb.games.opponents import RandomPlayer, load_opponent, same_game, yardstick
from rlnb.games.text_games import TextGame, load_game
from rlnb.selfplay.rollouts import LEARNER, FinishedGame, paired_episodes, play_games

MOST_GAMES = 2000
MOST_PLIES = 500_000  # of an opponent's rollouts, 0.5 to 3 seconds: 20 games of othello against mcts:25
SAMPLED_GAMES = 20  # from which the length of a game is known


@dataclass(frozen=True)
class RandomPlay:
    """The scores (1, 0.5, 0) of uniformly random play against an opponent.

    seats: mean score in (seat 0, seat 1); None where only the mean of both is known, against random play.
    num_games: games that were counted, 0 where the mean over both seats is exact.
    """

    seats: tuple[float, float] | None = None
    num_games: int = 0

    @property
    def mean(self) -> float:
        """Return the mean over both seats; against itself random play has 0.5 by symmetry."""
        return sum(self.seats) / 2 if self.seats else 0.5


# Against `equilibrium`, exact for that very table. In poker random play scores a half: an equilibrium gives
# small pots away, and what it holds down is returns.
AGAINST_NASH: Mapping[str, RandomPlay] = MappingProxyType(
    {
        "kuhn_poker": RandomPlay((0.52774, 0.49987)),
        "leduc_poker": RandomPlay((0.50197, 0.49601)),
        "liars_dice": RandomPlay((0.18191, 0.16629)),
    }
)
# By game and simulations a move: the opponents of the shipped profiles. OpenSpiel 2.0.2.
AGAINST_MCTS: Mapping[tuple[str, int], RandomPlay] = MappingProxyType(
    {
        ("tic_tac_toe", 2): RandomPlay((0.6472, 0.3545), 20_000),
        ("tic_tac_toe", 10): RandomPlay((0.2332, 0.0652), 20_000),
        ("tic_tac_toe", 25): RandomPlay((0.1626, 0.0315), 20_000),
        ("nim", 25): RandomPlay((0.1039, 0.0941), 20_000),
        ("dots_and_boxes", 25): RandomPlay((0.2252, 0.0809), 20_000),
        ("connect_four", 10): RandomPlay((0.1557, 0.0784), 10_000),
        ("connect_four", 25): RandomPlay((0.0812, 0.0347), 10_000),
        ("hex(board_size=5)", 25): RandomPlay((0.0718, 0.0452), 10_000),
        ("clobber", 25): RandomPlay((0.0840, 0.0870), 10_000),
        ("breakthrough(rows=6,columns=6)", 25): RandomPlay((0.0918, 0.0750), 10_000),
        ("othello", 25): RandomPlay((0.0460, 0.0600), 1_000),
    }
)


def score_random_play(game: TextGame, opponent: str, *, max_opening_plies: int = 0) -> RandomPlay:
    """Return the scores of random play against an opponent that can play the game.

    max_opening_plies: as in an Episode. MCTS with more than USUAL_SIMULATIONS simulations is taken for MCTS
    with that many, since a game against it may take hours: random play scores no more against more of them.
    """
    kind = opponent_kind(opponent)
    if kind == "random":
        known = None if max_opening_plies else yardstick(game)
        return RandomPlay(known.random_score) if known else RandomPlay()
    num_simulations = 0
    if kind == "mcts:N":
        num_simulations = min(count_simulations(opponent), USUAL_SIMULATIONS)
        opponent = f"mcts:{num_simulations}"
    if not max_opening_plies:
        if kind == "perfect":
            return solve_random_play()
        if kind == "nash" and yardstick(game):
            return AGAINST_NASH[game.short_name]
        counted = same_game(game, [name for name, per_move in AGAINST_MCTS if per_move == num_simulations])
        if counted:
            return AGAINST_MCTS[counted, num_simulations]
    return count_random_play(game.name, opponent, num_simulations, max_opening_plies)


@cache
def solve_random_play() -> RandomPlay:
    """Return the scores of random play against perfect play in tic-tac-toe."""
    first, second = (measure_seat(solve_tictactoe().uniform, seat) for seat in (0, 1))
    return RandomPlay((first.win + first.draw / 2, second.win + second.draw / 2))


@cache
def count_random_play(name: str, opponent: str, num_simulations: int, max_opening_plies: int) -> RandomPlay:
    """Play random play against the opponent, as many games as take some seconds.

    The number follows from the opponent's work and not from a clock, so that it is the same on all machines.
    """
    game = load_game(name)
    lengths = [len(played.moves) for played in play_at_random(game, "random", SAMPLED_GAMES)]
    length = sum(lengths) / len(lengths)
    # Half of the moves are the opponent's; a rollout is half as long as the game, in the mean.
    num_pairs = int(MOST_PLIES / (max(num_simulations, 1) * length**2 / 4)) // 2
    num_games = 2 * min(max(num_pairs, 1), MOST_GAMES // 2)
    games = play_at_random(game, opponent, num_games, max_opening_plies=max_opening_plies)
    first, second = (
        sum(played.score(seat) for played in games if played.players[seat] == LEARNER) / (num_games // 2)
        for seat in (0, 1)
    )
    return RandomPlay((first, second), num_games)


def play_at_random(
    game: TextGame, opponent: str, num_games: int, *, max_opening_plies: int = 0, seed: int = 0
) -> list[FinishedGame]:
    """Return games of random play against the opponent, half of them from each seat."""
    episodes = paired_episodes(game, opponent, num_games, seed=seed, max_opening_plies=max_opening_plies)
    return play_games(episodes, {LEARNER: RandomPlayer(), opponent: load_opponent(opponent, game)})
