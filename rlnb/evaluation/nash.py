"""How far a policy is from an equilibrium, exactly: by all its decisions, without a game being sampled.

For small two-player zero-sum games, also with hidden information: Kuhn poker has 12 information states, Leduc
936, liar's dice with one die each 24,576. The policy is asked once for each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyspiel
from numpy.typing import NDArray

from rlnb.errors import ParamsError

# (states) -> for each the probabilities of state.legal_actions(), in that order
Probabilities = Callable[[Sequence[pyspiel.State]], list[np.ndarray]]
# {information state: (action, probability) of each legal action}: what pyspiel.TabularPolicy is made of
PolicyTable = Mapping[str, Sequence[tuple[int, float]]]
MAX_HISTORIES = 1_000_000  # liar's dice with one die each has 294,883
TOLERANCE = 1e-3  # by which probabilities may miss 1 in all: those of a model in half precision do


def legal_probabilities(
    states: Sequence[pyspiel.State], probabilities: Probabilities
) -> list[NDArray[np.float64]]:
    """What the policy answers for each state, as float64 that sums to 1.

    Raises ValueError where that is no distribution over the legal actions.
    """
    answers = probabilities(states)
    if len(answers) != len(states):
        raise ValueError(f"{len(answers)} answers for {len(states)} states")
    checked = []
    for state, answer in zip(states, answers, strict=True):
        row = np.asarray(answer, np.float64)
        legal = state.legal_actions()
        is_distribution = row.shape == (len(legal),) and (row >= 0).all() and abs(row.sum() - 1) <= TOLERANCE
        if not is_distribution:
            raise ValueError(f"{row.tolist()} is no distribution over the legal actions {legal} of\n{state}")
        checked.append(row / row.sum())
    return checked


def information_states(game: pyspiel.Game, *, limit: int = MAX_HISTORIES) -> dict[str, pyspiel.State]:
    """{information state: one of its states}, of both players, in the order of a walk through all histories.

    Raises ParamsError for games with simultaneous moves, without information states or with more than
    `limit` histories.
    """
    kind = game.get_type()
    if kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
        raise ParamsError(f"{game} has simultaneous moves; use pyspiel.convert_to_turn_based(game)")
    if not kind.provides_information_state_string:
        raise ParamsError(f"{game} has no information states in OpenSpiel; NashConv cannot be computed")
    found: dict[str, pyspiel.State] = {}
    stack, num_histories = [game.new_initial_state()], 0
    while stack:
        state = stack.pop()
        num_histories += 1
        if num_histories > limit:
            raise ParamsError(
                f"{game} has more than {limit:,} histories, too many for an exact evaluation; "
                "use kuhn_poker, leduc_poker or liars_dice with one die each, or play in the arena"
            )
        if state.is_terminal():
            continue
        actions = state.legal_actions()
        if not state.is_chance_node():
            player = state.current_player()
            first = found.setdefault(state.information_state_string(player), state)
            if first.current_player() != player or first.legal_actions() != actions:
                raise ParamsError(f"{game} has information states that mean several things; it has no table")
        stack.extend(state.child(action) for action in reversed(actions))
    return found


def policy_table(game: pyspiel.Game, probabilities: Probabilities) -> dict[str, list[tuple[int, float]]]:
    """The policy at every information state of both players; one call of `probabilities` for all."""
    found = information_states(game)
    states = list(found.values())
    rows = legal_probabilities(states, probabilities)
    return {
        key: list(zip(state.legal_actions(), row.tolist(), strict=True))
        for key, state, row in zip(found, states, rows, strict=True)
    }


def nash_conv(game: pyspiel.Game, probabilities: Probabilities) -> float:
    """NashConv: what both players together could gain by a best response, in the game's returns.

    0 in an equilibrium only; **twice** what the literature calls exploitability.
    """
    return table_nash_conv(game, policy_table(game, probabilities))


def table_nash_conv(game: pyspiel.Game, table: PolicyTable) -> float:
    """`nash_conv` of a table, such as a mean of several policies'."""
    return float(pyspiel.nash_conv(game, pyspiel.TabularPolicy(table), True))


def expected_returns(
    game: pyspiel.Game, probabilities: Probabilities, *, opponent: pyspiel.Policy | None = None
) -> tuple[float, float]:
    """The policy's mean return in seat 0 and in seat 1, against `opponent` or, without one, against itself.

    Against an equilibrium (`games.opponents.equilibrium`) no policy gets more than the game's value.
    """
    policy = pyspiel.TabularPolicy(policy_table(game, probabilities))
    other = policy if opponent is None else opponent
    root = game.new_initial_state()
    first = pyspiel.expected_returns(root, [policy, other], -1, False)[0]
    second = pyspiel.expected_returns(root, [other, policy], -1, False)[1]
    return float(first), float(second)


@dataclass(frozen=True)
class KuhnRow:
    """One decision of Kuhn poker. learned, equilibrium: probabilities of betting (calling, after a bet)."""

    player: int
    card: str
    situation: str
    learned: float
    equilibrium: float

    @property
    def difference(self) -> float:
        return self.learned - self.equilibrium


@dataclass(frozen=True)
class KuhnFamily:
    """A policy of Kuhn poker beside the equilibrium of `alpha`, the share of Jacks that open with a bet."""

    alpha: float
    rows: tuple[KuhnRow, ...]


# (information state without its card, player, situation, probabilities of betting with Jack, Queen, King as
# (constant, factor of alpha)). Kuhn 1950: equilibria are one family, alpha from 0 to 1/3, in which only the
# first player's strategy varies. OpenSpiel writes the card, then "p" and "b" for what was done.
CARDS = ("Jack", "Queen", "King")
KUHN = (
    ("", 0, "to open", ((0, 1), (0, 0), (0, 3))),
    ("pb", 0, "passed, then the other bet", ((0, 0), (1 / 3, 1), (1, 0))),
    ("p", 1, "the other passed", ((1 / 3, 0), (0, 0), (1, 0))),
    ("b", 1, "the other bet", ((0, 0), (1 / 3, 0), (1, 0))),
)
BET = 1


def kuhn_family(probabilities: Probabilities) -> KuhnFamily:
    """The policy's twelve decisions in Kuhn poker beside the equilibrium nearest by its opening Jack."""
    return table_kuhn_family(policy_table(pyspiel.load_game("kuhn_poker"), probabilities))


def table_kuhn_family(table: PolicyTable) -> KuhnFamily:
    """`kuhn_family` of a table."""
    alpha = min(max(dict(table["0"])[BET], 0.0), 1 / 3)
    rows = tuple(
        KuhnRow(player, name, situation, dict(table[f"{card}{done}"])[BET], constant + factor * alpha)
        for done, player, situation, formulas in KUHN
        for card, (name, (constant, factor)) in enumerate(zip(CARDS, formulas, strict=True))
    )
    return KuhnFamily(alpha, rows)
