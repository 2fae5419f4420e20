"""Role-conditioned advantage estimation (RAE): a return minus the running mean of its role.

A run keeps the means in the state of rlnb/spiral/training.py, by which they are saved and resumed.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from rlnb.advantages.groups import as_groups, gather_returns, repeat_by_turn
from rlnb.selfplay.rollouts import Trajectory

ROLE_DECAY = 0.95  # a trajectory, of a role's running mean, as in SPIRAL


def advantages(
    trajectories: Sequence[Trajectory], baselines: Mapping[str, float]
) -> tuple[np.ndarray, dict[str, float]]:
    """Return each turn's advantage over the baselines, by "game/role", and the baselines after this batch."""
    roles, returns, of_this_rank = gather_returns(trajectories)
    names = sorted({*baselines, *roles})
    means = np.array([baselines.get(name, 0.0) for name in names])
    indices = [names.index(role) for role in roles]
    by_trajectory, means = role_advantages(returns, indices, means, decay=ROLE_DECAY)
    moved = dict(zip(names, means.tolist(), strict=True))
    return repeat_by_turn(by_trajectory[of_this_rank], trajectories), moved


def role_advantages(
    returns: ArrayLike, roles: ArrayLike, baselines: ArrayLike, *, decay: float
) -> tuple[np.ndarray, np.ndarray]:
    """Role-conditioned advantage estimation (RAE): return advantages over each role's mean, and new means.

    returns: float (num_trajectories,), in the units that are trained on (`Trajectory.reward`). roles: int
    (num_trajectories,), index into baselines (num_roles,). Baselines are read before this batch moves them;
    then a role with n trajectories moves to decay**n * b + (1 - decay**n) * mean, an absent one stays. SPIRAL
    (arXiv:2506.24119): A = R - b[game, role]. The paper's code moves b trajectory by trajectory; this keeps
    its time scale and is the same for any order and any number of ranks.
    """
    returns, roles = as_groups(returns, roles)
    baselines = np.asarray(baselines, dtype=float)
    counts = np.bincount(roles, minlength=len(baselines))
    sums = np.bincount(roles, weights=returns, minlength=len(baselines))
    kept = decay**counts
    moved = kept * baselines + (1 - kept) * sums / np.maximum(counts, 1)
    return returns - baselines[roles], moved
