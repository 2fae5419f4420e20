"""Tic-tac-toe solved: every position that can be reached, its value and its best moves.

The rules are OpenSpiel's; a position is known by its board, nine characters "x", "o" and "." row after row,
which say who is to move: X where the marks are equal in number. What is returned is shared by all callers:
a state is cloned before a move is made in it.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import pyspiel

NUM_CELLS = 9


def board_of(state: pyspiel.State) -> str:
    """The nine cells of a state."""
    return str(state).replace("\n", "")


@cache
def positions() -> Mapping[str, pyspiel.State]:
    """{board: a state of it} of all 5,478 positions, games that are over included, fewest marks first."""
    start = pyspiel.load_game("tic_tac_toe").new_initial_state()
    found = {board_of(start): start}
    level = list(found.values())
    while level:
        children = (state.child(action) for state in level for action in state.legal_actions())
        level = list({board_of(child): child for child in children}.values())
        found.update((board_of(state), state) for state in level)
    return MappingProxyType(found)


@cache
def decision_states() -> tuple[pyspiel.State, ...]:
    """A state of each of the 4,520 positions in which somebody is to move, fewest marks first."""
    return tuple(state for state in positions().values() if not state.is_terminal())


@cache
def values() -> Mapping[str, int]:
    """{board: what X gets when both play perfectly}, 1, 0 or -1, of all positions."""
    known: dict[str, int] = {}
    for board, state in reversed(
        list(positions().items())
    ):  # most marks first: children before their parents
        if state.is_terminal():
            known[board] = round(state.returns()[0])
        else:
            outcomes = [known[board_of(state.child(action))] for action in state.legal_actions()]
            known[board] = min(outcomes) if state.current_player() else max(outcomes)
    return MappingProxyType(known)


@cache
def best_actions() -> Mapping[str, tuple[int, ...]]:
    """{board: the actions that keep its value}, in rising order, of the positions with somebody to move."""
    best = {}
    for state in decision_states():
        board = board_of(state)
        outcomes = {action: values()[board_of(state.child(action))] for action in state.legal_actions()}
        best[board] = tuple(action for action, value in outcomes.items() if value == values()[board])
    return MappingProxyType(best)
