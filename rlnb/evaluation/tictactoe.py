"""Tic-tac-toe measured exactly: from a policy's probabilities at all 4,520 positions, without sampled games.

One call gives the probabilities; the rest is dynamic programming over all 5,478 positions, level by level of
marks, on arrays. Arrays of positions are in the order of `rlnb.games.perfect_tictactoe.positions`.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from rlnb.evaluation.nash import Probabilities, legal_probabilities
from rlnb.games.perfect_tictactoe import NUM_CELLS, best_actions, board_of, decision_states, positions

Rows = NDArray[np.float64]
WIN, DRAW, LOSS = 0, 1, 2  # columns of outcomes, as X sees them


@dataclass(frozen=True)
class SeatResult:
    """A policy in one seat. win, draw, loss: shares of its games against perfect play, which is random among
    moves of equal value. score_against_random: wins and half the draws against random play.
    best_response_value: what a best responder leaves the policy, from -1 (always loses) to 0 (cannot be
    beaten). blunder_rate: share of its decisions against perfect play that lower the position's value.
    """

    win: float
    draw: float
    loss: float
    score_against_random: float
    best_response_value: float
    blunder_rate: float


@dataclass(frozen=True)
class TicTacToeResult:
    """A policy's exact measures. seats: as X and as O. first_moves: probabilities of the nine cells on the
    empty board. self_play_draw: share of drawn games against itself, which alone misleads.
    """

    seats: tuple[SeatResult, SeatResult]
    first_moves: tuple[float, ...]
    self_play_draw: float

    @property
    def nash_conv(self) -> float:
        """What both players together could gain by a best response: 0 for perfect play, 2 at most; twice
        what is called exploitability.
        """
        return 0.0 - sum(seat.best_response_value for seat in self.seats)


@dataclass(frozen=True)
class Positions:
    """All positions as arrays, read-only.

    after: int (num_positions, 9), the position after each action; is_legal: bool, of the same shape.
    outcomes: (num_positions, 3), one-hot of WIN, DRAW, LOSS where the game is over, else 0. mover: 0 for X,
    1 for O. decisions: indices of the positions in which somebody is to move. perfect, uniform: probabilities
    (num_positions, 9) of perfect and of random play. levels: the positions with 0, 1, .. 8 marks.
    """

    after: NDArray[np.intp]
    is_legal: NDArray[np.bool_]
    outcomes: Rows
    mover: NDArray[np.intp]
    decisions: NDArray[np.intp]
    perfect: Rows
    uniform: Rows
    levels: tuple[slice, ...]


@cache
def structure() -> Positions:
    """The game as arrays, made once a process."""
    index = {board: number for number, board in enumerate(positions())}
    shape = (len(index), NUM_CELLS)
    after, is_legal = np.zeros(shape, np.intp), np.zeros(shape, np.bool_)
    perfect, outcomes = np.zeros(shape), np.zeros((len(index), 3))
    for number, (board, state) in enumerate(positions().items()):
        if state.is_terminal():
            outcomes[number, 1 - round(state.returns()[0])] = 1
            continue
        for action in state.legal_actions():
            after[number, action] = index[board_of(state.child(action))]
            is_legal[number, action] = True
        perfect[number, list(best_actions()[board])] = 1 / len(best_actions()[board])
    num_marks = np.array([NUM_CELLS - board.count(".") for board in index])
    bounds = np.searchsorted(num_marks, np.arange(NUM_CELLS + 1))
    decisions = np.array([index[board_of(state)] for state in decision_states()])
    made = Positions(
        after=after,
        is_legal=is_legal,
        outcomes=outcomes,
        mover=num_marks % 2,
        decisions=decisions,
        perfect=perfect,
        uniform=is_legal / np.maximum(is_legal.sum(axis=1, keepdims=True), 1),
        levels=tuple(slice(*pair) for pair in zip(bounds, bounds[1:], strict=False)),
    )
    for name in ("after", "is_legal", "outcomes", "mover", "decisions", "perfect", "uniform"):
        getattr(made, name).flags.writeable = False
    return made


def probabilities_by_state(probabilities: Probabilities) -> Rows:
    """The policy at all positions in which somebody is to move, in one call of it.

    float (4520, 9), in the order of `decision_states`; 0 for cells that are taken. Raises ValueError where
    the policy gives no distribution.
    """
    states = decision_states()
    rows = np.zeros((len(states), NUM_CELLS))
    rows[structure().is_legal[structure().decisions]] = np.concatenate(
        legal_probabilities(states, probabilities)
    )
    return rows


def measure_tictactoe(probabilities: Probabilities, *, greedy: bool) -> TicTacToeResult:
    """Measure a policy exactly; greedy: as if it always took its most probable move, the lowest of equals."""
    return measure_rows(probabilities_by_state(probabilities), greedy=greedy)


def measure_rows(rows: Rows, *, greedy: bool) -> TicTacToeResult:
    """`measure_tictactoe` of what `probabilities_by_state` gave, for more than one look at one pass."""
    game = structure()
    policy = np.zeros(game.after.shape)
    policy[game.decisions] = np.eye(NUM_CELLS)[rows.argmax(axis=1)] if greedy else rows
    return TicTacToeResult(
        seats=(measure_seat(policy, 0), measure_seat(policy, 1)),
        first_moves=tuple(policy[0].tolist()),
        self_play_draw=float(outcome_shares(policy)[DRAW]),
    )


def measure_seat(policy: Rows, seat: int) -> SeatResult:
    """What the policy, (num_positions, 9), comes to as X (seat 0) or as O (1)."""
    game = structure()
    is_own = (game.mover == seat)[:, None]
    against_perfect = np.where(is_own, policy, game.perfect)
    win, draw, loss = outcome_shares(against_perfect)[:: -1 if seat else 1].tolist()
    wins, draws, _ = outcome_shares(np.where(is_own, policy, game.uniform))[:: -1 if seat else 1].tolist()
    visits = reach(against_perfect) * (game.mover == seat) * game.is_legal.any(axis=1)
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
    """Shares (3,) of WIN, DRAW and LOSS, as X sees them, of games in which both move as `joint` says."""
    game = structure()
    shares = game.outcomes.copy()
    for level in reversed(game.levels):
        shares[level] += np.einsum("pa,pak->pk", joint[level], shares[game.after[level]])
    return shares[0]


def reach(joint: Rows) -> Rows:
    """Probability (num_positions,) of each position to occur in a game in which both move as `joint` says."""
    game = structure()
    reached = np.zeros(len(joint))
    reached[0] = 1
    for level in game.levels:
        flow = reached[level, None] * joint[level]
        np.add.at(reached, game.after[level], flow)
    return reached


def best_response_value(policy: Rows, seat: int) -> float:
    """What the policy gets in a seat against who knows it and answers best."""
    game = structure()
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
