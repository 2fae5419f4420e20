"""Names of opponents as users write them: "random", "mcts:25", "perfect", "nash"; read without OpenSpiel."""

import re

NAME = re.compile(
    r"random|perfect|nash|mcts(:0*([2-9]|[1-9][0-9]{1,5}))?"
)  # with one simulation MCTS is random
USUAL_SIMULATIONS = 25  # of "mcts" without a number


def name_fault(name: str) -> str:
    """Return what is wrong with the name of an opponent in any game, "" if nothing is."""
    if NAME.fullmatch(name):
        return ""
    return "is no opponent; write random, perfect, nash, or mcts:N with 2 to 999,999 simulations, as mcts:25"


def canonical_name(name: str) -> str:
    """Return the one name of an opponent, by which results are compared: "mcts:25" for "mcts"."""
    return f"mcts:{count_simulations(name)}" if opponent_kind(name) == "mcts" else name


def opponent_kind(name: str) -> str:
    """Return "mcts" for "mcts" and "mcts:10", and other names as they are."""
    return name.partition(":")[0]


def count_simulations(name: str) -> int:
    """Return N of "mcts:N", USUAL_SIMULATIONS for "mcts"."""
    return int(name.partition(":")[2] or USUAL_SIMULATIONS)
