"""Names of opponents as users write them: "random", "mcts:25", "perfect", "nash"; read without OpenSpiel."""

import re

FEWEST_SIMULATIONS, MOST_SIMULATIONS = 2, 1_000_000  # MCTS with one plays at random
USUAL_SIMULATIONS = 25  # of "mcts" without a number


def opponent_kind(name: str) -> str:
    """Return "mcts:N" for "mcts" and "mcts:10", and other names as they are."""
    return "mcts:N" if re.match(r"mcts(:|$)", name) else name


def name_fault(name: str) -> str:
    """Return what is wrong with the name of an opponent in any game, "" if nothing is."""
    kind = opponent_kind(name)
    if kind not in ("random", "mcts:N", "perfect", "nash"):
        return "is not an opponent; write random, mcts:25, perfect or nash"
    if kind != "mcts:N" or name == "mcts":
        return ""
    digits = name.partition(":")[2]
    is_number = re.fullmatch(r"[0-9]{1,7}", digits) is not None
    if is_number and FEWEST_SIMULATIONS <= int(digits) <= MOST_SIMULATIONS:
        return ""
    return (
        f"names no number of simulations from {FEWEST_SIMULATIONS} to {MOST_SIMULATIONS:,}; write 'mcts:10' "
        "(a beginner), 'mcts:50' or 'mcts:200'"
    )


def count_simulations(name: str) -> int:
    """Return N of "mcts:N", USUAL_SIMULATIONS for "mcts"."""
    return int(name.partition(":")[2] or USUAL_SIMULATIONS)
