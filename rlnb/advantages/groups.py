"""What the estimators share: means of groups, and the advantage of a trajectory for each of its turns."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rlnb.selfplay.rollouts import Trajectory


def gather_returns(trajectories: Sequence[Trajectory]) -> tuple[tuple[str, ...], np.ndarray, slice]:
    """Return the roles and returns of the trajectories of all ranks, and which of them are this rank's."""
    from accelerate import PartialState  # imports torch, which the estimators of numbers do not need
    from accelerate.utils import gather_object

    ranks = gather_object([[(each.role_name, each.reward) for each in trajectories]])
    pairs = [pair for rank in ranks for pair in rank]
    first = sum(map(len, ranks[: PartialState().process_index]))
    returns = np.array([reward for _, reward in pairs], dtype=float)
    return tuple(role for role, _ in pairs), returns, slice(first, first + len(trajectories))


def repeat_by_turn(values: np.ndarray, trajectories: Sequence[Trajectory]) -> np.ndarray:
    """Return float (num_turns,) for float (num_trajectories,)."""
    return np.repeat(values, [len(trajectory.turns) for trajectory in trajectories])


def group_means(values: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each value the size and the mean of its group."""
    counts = np.bincount(groups)
    sums = np.bincount(groups, weights=values)
    return counts[groups], (sums / np.maximum(counts, 1))[groups]


def as_groups(returns: ArrayLike, groups: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(returns, dtype=float), np.asarray(groups, dtype=np.int64)
