"""Opponents in text games: random, MCTS, perfect play, equilibria; and reference scores of the games.

All of an opponent's randomness comes from the generator of the game it plays, so that a game does not depend
on the other games that are played at the same time.
"""

import os
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import NamedTuple

import pyspiel

from rlnb.errors import ParamsError
from rlnb.games.exact import best_actions, board_cells
from rlnb.games.opponent_names import count_simulations, name_fault, opponent_kind
from rlnb.games.text_games import TextGame, load_game

# Rounds of CFR+ after which a best responder gains next to nothing. OpenSpiel 2.0.2: exploitability 4e-5 for
# Kuhn poker, 9e-4 for Leduc, 0.013 for liar's dice.
CFR_ITERATIONS: Mapping[str, int] = {"kuhn_poker": 2000, "leduc_poker": 500, "liars_dice": 60}
UCT_C, MCTS_MEMORY_MIB = 2.0, 1000


@dataclass(frozen=True)
class Opponent:
    """A player that chooses each move from the state, by the generator of the state's game.

    is_slow: many states are then searched side by side in threads, since MCTS releases Python's lock.
    """

    choose: Callable[[pyspiel.State, random.Random], int]
    is_slow: bool = False

    def act(self, states: Sequence[pyspiel.State], randoms: Sequence[random.Random]) -> list[int]:
        """Return a legal action for each state's player to move; randomness comes from randoms[i] only."""
        num_threads = min(len(states), os.cpu_count() or 1)
        if not self.is_slow or num_threads < 2:
            return list(map(self.choose, states, randoms))
        with ThreadPoolExecutor(num_threads) as pool:
            return list(pool.map(self.choose, states, randoms))


def choose_random(state: pyspiel.State, rng: random.Random) -> int:
    return rng.choice(state.legal_actions())


def choose_perfect(state: pyspiel.State, rng: random.Random) -> int:
    """Return a move of tic-tac-toe that keeps the position's value, any of them with the same probability."""
    return rng.choice(best_actions()[board_cells(state)])


def choose_nash(state: pyspiel.State, rng: random.Random) -> int:
    """Return a move of a policy near an equilibrium, which is solved at the first one."""
    policy = equilibrium(str(state.get_game())).get_state_policy(state.information_state_string())
    actions, probabilities = zip(*policy, strict=True)
    return int(rng.choices(actions, probabilities)[0])


def choose_by_search(state: pyspiel.State, rng: random.Random, *, num_simulations: int) -> int:
    """Return a move by Monte Carlo tree search (UCT) with one random rollout a simulation."""
    seed = rng.getrandbits(31)
    evaluator = pyspiel.RandomRolloutEvaluator(1, seed)
    # Without `solve`: a solved position would be settled for, though another move asks more of the other.
    bot = pyspiel.MCTSBot(
        state.get_game(), evaluator, UCT_C, num_simulations, MCTS_MEMORY_MIB, False, seed, False
    )
    return int(bot.step(state))


@cache
def equilibrium(game: str) -> pyspiel.TabularPolicy:
    """Return a policy of both seats near an equilibrium: the average policy of CFR+, solved once a process.

    game: OpenSpiel's name, of kuhn_poker, leduc_poker or liars_dice with one die each. Some 0.1, 5 and 10 s.
    """
    loaded = pyspiel.load_game(game)
    solver = pyspiel.CFRPlusSolver(loaded)
    for _ in range(CFR_ITERATIONS[loaded.get_type().short_name]):
        solver.evaluate_and_update_policy()
    return solver.tabular_average_policy()  # a copy: the solver's own policy ends with the solver


def refusal(name: str, game: TextGame) -> str:
    """Return why an opponent cannot play a game, "" if it can."""
    kind, sizes = opponent_kind(name), game.game.get_parameters()
    if kind == "mcts" and game.has_hidden_information:
        return "MCTS sees what the other player hides"
    if kind == "perfect" and game.short_name != "tic_tac_toe":
        return "only tic_tac_toe is solved"
    has_many_dice = game.short_name == "liars_dice" and (sizes["numdice"] > 1 or sizes["dice_sides"] > 6)
    if kind == "nash" and (game.short_name not in CFR_ITERATIONS or has_many_dice):
        return "only kuhn_poker, leduc_poker and liars_dice with one die each have a table"
    return ""


def load_opponent(name: str, game: TextGame, *, field: str = "opponent") -> Opponent:
    """Return an opponent: "random", "mcts:N" with N simulations a move ("mcts": 25), "perfect" or "nash".

    Raises ParamsError, which begins with `field`, for unknown names and for opponents that cannot play the
    game or would cheat in it.
    """
    if fault := name_fault(name):
        raise ParamsError(f"{field} = {name!r} {fault}.")
    if reason := refusal(name, game):
        raise ParamsError(f"{field} = {name!r} cannot play {game.name}: {reason}. Use 'random'.")
    if opponent_kind(name) == "mcts":
        choose = partial(choose_by_search, num_simulations=count_simulations(name))
        return Opponent(choose, is_slow=True)
    choices = {"random": choose_random, "perfect": choose_perfect, "nash": choose_nash}
    return Opponent(choices[name])


def playable_opponents(game: TextGame, names: Sequence[str]) -> tuple[str, ...]:
    """Return the opponents that can play the game without cheating, in their order."""
    return tuple(name for name in names if not refusal(name, game))


class Yardstick(NamedTuple):
    """Reference scores against an opponent in (seat 0, seat 1): wins and half the draws.

    random_score: of random play. best_score: of the best possible play, None where it is unknown.
    """

    random_score: tuple[float, float]
    best_score: tuple[float, float] | None = None


# By the names under which OpenSpiel loads the games, and the opponent. All are exact; those against nash are
# of the very table of `equilibrium`. In poker random play scores a half against it: an equilibrium gives
# small pots away, and what it holds down is returns.
KNOWN: Mapping[tuple[str, str], Yardstick] = MappingProxyType(
    {
        ("tic_tac_toe", "random"): Yardstick((0.64841, 0.35159), (0.99740, 0.96243)),
        ("tic_tac_toe", "perfect"): Yardstick((0.11126, 0.01609), (0.5, 0.5)),
        ("kuhn_poker", "random"): Yardstick((0.5625, 0.4375), (0.75, 0.625)),
        ("kuhn_poker", "nash"): Yardstick((0.52774, 0.49987)),
        ("leduc_poker", "random"): Yardstick((0.53385, 0.46615), (0.77778, 0.82986)),
        ("leduc_poker", "nash"): Yardstick((0.50197, 0.49601)),
        ("liars_dice", "random"): Yardstick((0.48380, 0.51620), (0.89775, 0.88300)),
        ("liars_dice", "nash"): Yardstick((0.18191, 0.16629)),
        ("nim", "random"): Yardstick((0.5, 0.5), (1.0, 1.0)),
        ("dots_and_boxes", "random"): Yardstick((0.49993, 0.50008), (1.0, 0.96387)),
    }
)


def has_usual_parameters(game: TextGame) -> bool:
    """Return whether the game has OpenSpiel's default parameters."""
    # By parameters: OpenSpiel writes "kuhn_poker(players=2)" and "kuhn_poker" each as it came.
    return bool(load_game(game.short_name).game.get_parameters() == game.game.get_parameters())


def yardstick(game: TextGame, opponent: str) -> Yardstick | None:
    """Return the reference scores of the game, None if KNOWN does not have it with these parameters."""
    known = KNOWN.get((game.short_name, opponent))
    return known if known and has_usual_parameters(game) else None


def best_scores(game: TextGame, opponent: str) -> tuple[float, float] | None:
    """Return the highest mean scores in (seat 0, seat 1) against an opponent, None where unknown."""
    known = yardstick(game, opponent)
    return known.best_score if known else None
