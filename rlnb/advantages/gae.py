"""Generalised advantage estimation over a player's own turns, by the value head."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rlnb.selfplay.rollouts import Trajectory, collect_turns


def gae(
    rewards: ArrayLike, values: ArrayLike, is_last: ArrayLike, *, lam: float, gamma: float = 1.0
) -> np.ndarray:
    """Return generalised advantage estimates from one own turn to the next (arXiv:1506.02438, equation 16).

    rewards, values: float (num_turns,), trajectory after trajectory; values: V of the state before each turn.
    is_last: bool (num_turns,), whether a turn ends its trajectory; what follows it is worth 0.
        delta_t = r_t + gamma * V_{t+1} - V_t,   A_t = delta_t + gamma * lam * A_{t+1}.
    Moves of the opponent and of chance in between are part of the step. V learns the returns A + V.
    """
    rewards, values = np.asarray(rewards, dtype=float), np.asarray(values, dtype=float)
    ends = np.asarray(is_last, dtype=bool)
    advantages = np.zeros(len(rewards))
    for turn in range(len(rewards) - 1, -1, -1):
        follows = not ends[turn]
        next_value, next_advantage = (values[turn + 1], advantages[turn + 1]) if follows else (0.0, 0.0)
        delta = rewards[turn] + gamma * next_value - values[turn]
        advantages[turn] = delta + gamma * lam * next_advantage
    return advantages


def turn_columns(trajectories: Sequence[Trajectory]) -> tuple[list[float], list[float], list[bool]]:
    """Return the rewards, the values and the ends of all turns, as `gae` takes them."""
    turns = collect_turns(trajectories)
    lengths = [len(trajectory.turns) for trajectory in trajectories]
    is_last = [k == length - 1 for length in lengths for k in range(length)]
    return [turn.reward for turn in turns], [turn.value for turn in turns], is_last
