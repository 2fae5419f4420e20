"""Exact measures of a policy: from its probabilities at all decisions, without sampling a game.

NashConv for small two-player zero-sum games, also with hidden information: Kuhn poker has 12 information
states, Leduc 936, liar's dice with one die each 24,576. For tic-tac-toe also the results against perfect and
random play: dynamic programming over all 5,478 positions, level by level of marks, on arrays in the order of
`positions`. A policy is called once, with all its decisions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np
import pyspiel
from numpy.typing import NDArray

from rlnb.errors import ParamsError

# (states) -> for each state the probabilities of state.legal_actions(), in that order
Probabilities = Callable[[Sequence[pyspiel.State]], list[np.ndarray]]
Rows = NDArray[np.float64]
MAX_HISTORIES = 1_000_000  # liar's dice with one die each has 294,883
TOLERANCE = 1e-3  # of the sum of probabilities: a model in half precision misses 1 by as much
NUM_CELLS = 9
WIN, DRAW, LOSS = 0, 1, 2  # columns of outcomes, as X sees them


def legal_probabilities(states: Sequence[pyspiel.State], probabilities: Probabilities) -> list[Rows]:
    """Return the policy's probabilities of the legal actions of each state, as float64 that sum to 1.

    Raises ValueError where the policy gives no distribution over the legal actions.
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
            raise ValueError(
                f"{row.tolist()} is not a distribution over the legal actions {legal} of\n{state}"
            )
        checked.append(row / row.sum())
    return checked


def information_states(game: pyspiel.Game, *, limit: int = MAX_HISTORIES) -> dict[str, pyspiel.State]:
    """Return {information state: one of its states} of both players, in the order of a walk through the game.

    Raises ParamsError for games with simultaneous moves, without information states or with more than
    `limit` histories.
    """
    kind = game.get_type()
    if kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
        raise ParamsError(f"{game} has simultaneous moves; use pyspiel.convert_to_turn_based(game)")
    if not kind.provides_information_state_string:
        raise ParamsError(f"{game} has no information states in OpenSpiel; NashConv cannot be computed")
    first_states: dict[str, pyspiel.State] = {}
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
            first = first_states.setdefault(state.information_state_string(player), state)
            if first.current_player() != player or first.legal_actions() != actions:
                raise ParamsError(f"{game} has information states that mean several things; it has no table")
        stack.extend(state.child(action) for action in reversed(actions))
    return first_states


def policy_table(game: pyspiel.Game, probabilities: Probabilities) -> dict[str, list[tuple[int, float]]]:
    """Return {information state: (action, probability) pairs}, as pyspiel.TabularPolicy takes it."""
    states = information_states(game)
    rows = legal_probabilities(list(states.values()), probabilities)
    return {
        key: list(zip(state.legal_actions(), row.tolist(), strict=True))
        for (key, state), row in zip(states.items(), rows, strict=True)
    }


def nash_conv(game: pyspiel.Game, probabilities: Probabilities) -> float:
    """Return NashConv: what both players together could gain by a best response, in the game's returns.

    0 in an equilibrium only; **twice** what the literature calls exploitability.
    """
    return float(pyspiel.nash_conv(game, pyspiel.TabularPolicy(policy_table(game, probabilities)), True))


@dataclass(frozen=True)
class KuhnRow:
    """A decision of Kuhn poker. learned, equilibrium: probabilities of betting (calling, after a bet)."""

    player: int
    card: str
    situation: str
    learned: float
    equilibrium: float


@dataclass(frozen=True)
class KuhnFamily:
    """Each decision of a policy of Kuhn poker next to the equilibrium with the policy's own `alpha`.

    alpha: how often a Jack opens with a bet, clamped to [0, 1/3].
    """

    alpha: float
    rows: tuple[KuhnRow, ...]


# (information state without its card, player, situation, probabilities of betting with Jack, Queen, King as
# (constant, factor of alpha)). Kuhn 1950: the equilibria are a family with alpha from 0 to 1/3, in which only
# the first player's strategy varies. OpenSpiel writes the card, then "p" and "b" for the moves.
CARDS = ("Jack", "Queen", "King")
KUHN = (
    ("", 0, "to open", ((0, 1), (0, 0), (0, 3))),
    ("pb", 0, "passed, then the other bet", ((0, 0), (1 / 3, 1), (1, 0))),
    ("p", 1, "the other passed", ((1 / 3, 0), (0, 0), (1, 0))),
    ("b", 1, "the other bet", ((0, 0), (1 / 3, 0), (1, 0))),
)
BET = 1


def kuhn_family(probabilities: Probabilities) -> KuhnFamily:
    """Return the twelve decisions in Kuhn poker, each with its probability in one equilibrium.

    Equilibria differ in alpha, the probability of opening with a bet on a Jack; the one shown has that of
    the policy, clamped to [0, 1/3].
    """
    table = policy_table(pyspiel.load_game("kuhn_poker"), probabilities)
    alpha = min(max(dict(table["0"])[BET], 0.0), 1 / 3)
    rows = tuple(
        KuhnRow(player, name, situation, dict(table[f"{card}{moves}"])[BET], constant + factor * alpha)
        for moves, player, situation, formulas in KUHN
        for card, (name, (constant, factor)) in enumerate(zip(CARDS, formulas, strict=True))
    )
    return KuhnFamily(alpha, rows)


def board_cells(state: pyspiel.State) -> str:
    """Return the nine cells of a tic-tac-toe state, "x", "o" or "." row after row."""
    return str(state).replace("\n", "")


@cache
def positions() -> Mapping[str, pyspiel.State]:
    """Return {cells: a state} of all 5,478 positions of tic-tac-toe, also finished ones, fewest marks first.

    Callers share the states and clone them before they move.
    """
    start = pyspiel.load_game("tic_tac_toe").new_initial_state()
    states = {board_cells(start): start}
    level = list(states.values())
    while level:
        children = (state.child(action) for state in level for action in state.legal_actions())
        level = list({board_cells(child): child for child in children}.values())
        states.update((board_cells(state), state) for state in level)
    return MappingProxyType(states)


@cache
def decision_states() -> tuple[pyspiel.State, ...]:
    """Return a state of each of the 4,520 unfinished positions, fewest marks first."""
    return tuple(state for state in positions().values() if not state.is_terminal())


@dataclass(frozen=True)
class SolvedTicTacToe:
    """Tic-tac-toe solved: all positions as read-only arrays.

    after: int (num_positions, 9), the position after each action; is_legal: bool, of the same shape.
    outcomes: (num_positions, 3), one-hot of WIN, DRAW, LOSS where the game is over, else 0. mover: 0 for X,
    1 for O. decisions: indices of the unfinished positions. values: what X gets when both play perfectly.
    perfect, uniform: probabilities (num_positions, 9) of perfect play, which is random among the actions that
    keep the value, and of random play. levels: the positions with 0, 1, .. 8 marks.
    """

    after: NDArray[np.intp]
    is_legal: NDArray[np.bool_]
    outcomes: Rows
    mover: NDArray[np.intp]
    decisions: NDArray[np.intp]
    values: Rows
    perfect: Rows
    uniform: Rows
    levels: tuple[slice, ...]


@cache
def solve_tictactoe() -> SolvedTicTacToe:
    """Return the solved game, made once a process."""
    index = {cells: position for position, cells in enumerate(positions())}
    shape = (len(index), NUM_CELLS)
    after, is_legal = np.zeros(shape, np.intp), np.zeros(shape, np.bool_)
    outcomes = np.zeros((len(index), 3))
    for position, state in enumerate(positions().values()):
        if state.is_terminal():
            outcomes[position, 1 - round(state.returns()[0])] = 1
            continue
        for action in state.legal_actions():
            after[position, action] = index[board_cells(state.child(action))]
            is_legal[position, action] = True
    num_marks = np.array([NUM_CELLS - cells.count(".") for cells in index])
    bounds = np.searchsorted(num_marks, np.arange(NUM_CELLS + 1))
    levels = tuple(slice(*pair) for pair in zip(bounds, bounds[1:], strict=False))
    values = outcomes[:, WIN] - outcomes[:, LOSS]
    for num_moves, level in reversed(list(enumerate(levels))):
        sign = -1 if num_moves % 2 else 1
        best = sign * np.where(is_legal[level], sign * values[after[level]], -np.inf).max(axis=1)
        values[level] = np.where(is_legal[level].any(axis=1), best, values[level])
    keeps_value = is_legal & (values[after] == values[:, None])
    arrays = {
        "after": after,
        "is_legal": is_legal,
        "outcomes": outcomes,
        "mover": num_marks % 2,
        "decisions": np.flatnonzero(is_legal.any(axis=1)),
        "values": values,
        "perfect": keeps_value / np.maximum(keeps_value.sum(axis=1, keepdims=True), 1),
        "uniform": is_legal / np.maximum(is_legal.sum(axis=1, keepdims=True), 1),
    }
    for array in arrays.values():
        array.flags.writeable = False
    return SolvedTicTacToe(**arrays, levels=levels)


@cache
def best_actions() -> Mapping[str, tuple[int, ...]]:
    """Return {cells: the actions that keep the position's value}, in rising order; () after the end."""
    perfect = solve_tictactoe().perfect
    return MappingProxyType(
        {cells: tuple(np.flatnonzero(row).tolist()) for cells, row in zip(positions(), perfect, strict=True)}
    )


@dataclass(frozen=True)
class SeatResult:
    """A policy in one seat of tic-tac-toe.

    win, draw, loss: shares of its games against perfect play. score_against_random: wins and half the draws
    against random play. best_response_value: what a best responder leaves the policy, from -1 (always loses)
    to 0 (cannot be beaten). blunder_rate: share of its decisions against perfect play that lower the
    position's value.
    """

    win: float
    draw: float
    loss: float
    score_against_random: float
    best_response_value: float
    blunder_rate: float


@dataclass(frozen=True)
class TicTacToeResult:
    """Exact measures of a policy of tic-tac-toe.

    seats: as X and as O. first_moves: probabilities of the nine cells on the empty board. self_play_draw:
    share of drawn games against itself, which is misleading on its own.
    """

    seats: tuple[SeatResult, SeatResult]
    first_moves: tuple[float, ...]
    self_play_draw: float

    @property
    def nash_conv(self) -> float:
        """Return NashConv, as the function of that name: 0 for perfect play, 2 at most."""
        return 0.0 - sum(seat.best_response_value for seat in self.seats)


def probabilities_by_state(probabilities: Probabilities) -> Rows:
    """Return the policy at all unfinished positions: float (4520, 9), 0 for occupied cells.

    Rows are in the order of `decision_states`. Raises ValueError where the policy gives no distribution.
    """
    states = decision_states()
    rows = np.zeros((len(states), NUM_CELLS))
    game = solve_tictactoe()
    rows[game.is_legal[game.decisions]] = np.concatenate(legal_probabilities(states, probabilities))
    return rows


def measure_rows(rows: Rows, *, greedy: bool) -> TicTacToeResult:
    """Measure the result of `probabilities_by_state`; greedy: as if it always took the likeliest action."""
    game = solve_tictactoe()
    policy = np.zeros(game.after.shape)
    policy[game.decisions] = np.eye(NUM_CELLS)[rows.argmax(axis=1)] if greedy else rows
    return TicTacToeResult(
        seats=(measure_seat(policy, 0), measure_seat(policy, 1)),
        first_moves=tuple(policy[0].tolist()),
        self_play_draw=float(outcome_shares(policy)[DRAW]),
    )


def measure_seat(policy: Rows, seat: int) -> SeatResult:
    """Measure the policy, (num_positions, 9), as X (seat 0) or as O (1)."""
    game = solve_tictactoe()
    is_own = (game.mover == seat)[:, None]
    against_perfect = np.where(is_own, policy, game.perfect)
    win, draw, loss = outcome_shares(against_perfect)[:: -1 if seat else 1].tolist()
    wins, draws, _ = outcome_shares(np.where(is_own, policy, game.uniform))[:: -1 if seat else 1].tolist()
    visits = reach_probabilities(against_perfect) * (game.mover == seat) * game.is_legal.any(axis=1)
    blunders = (policy * (game.perfect == 0)).sum(axis=1)
    return SeatResult(
        win=win,
        draw=draw,
        loss=loss,
        score_against_random=wins + draws / 2,
        best_response_value=best_response_value(policy, seat),
        blunder_rate=float(visits @ blunders / visits.sum()),
    )


def outcome_shares(joint: Rows) -> Rows:
    """Return the shares (3,) of WIN, DRAW and LOSS for X, when both players move as `joint` says."""
    game = solve_tictactoe()
    shares = game.outcomes.copy()
    for level in reversed(game.levels):
        shares[level] += np.einsum("pa,pak->pk", joint[level], shares[game.after[level]])
    return shares[0]


def reach_probabilities(joint: Rows) -> Rows:
    """Return the probability (num_positions,) of reaching each position when both move as `joint` says."""
    game = solve_tictactoe()
    reached = np.zeros(len(joint))
    reached[0] = 1
    for level in game.levels:
        np.add.at(reached, game.after[level], reached[level, None] * joint[level])
    return reached


def best_response_value(policy: Rows, seat: int) -> float:
    """Return what the policy gets in a seat against the best response to it."""
    game = solve_tictactoe()
    sign = -1 if seat else 1
    values = sign * (game.outcomes[:, WIN] - game.outcomes[:, LOSS])  # to the policy
    for level in reversed(game.levels):
        after, is_legal = values[game.after[level]], game.is_legal[level]
        is_own = game.mover[level] == seat
        mean = (policy[level] * after).sum(axis=1)
        least = np.where(is_legal, after, np.inf).min(axis=1)
        is_over = ~is_legal.any(axis=1)
        values[level] = np.where(is_over, values[level], np.where(is_own, mean, least))
    return float(values[0]) + 0.0  # no negative zero
