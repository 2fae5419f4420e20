"""Leave-one-out: a return minus the mean of the role's other returns of the batch."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from rlnb.advantages.groups import as_groups, gather_returns, group_means, repeat_by_turn
from rlnb.selfplay.rollouts import Trajectory


def advantages(
    trajectories: Sequence[Trajectory], baselines: Mapping[str, float]
) -> tuple[np.ndarray, dict[str, float]]:
    """Return each turn's advantage among the trajectories of all ranks; baselines are not used."""
    roles, returns, of_this_rank = gather_returns(trajectories)
    by_trajectory = leave_one_out(returns, np.unique(roles, return_inverse=True)[1])
    return repeat_by_turn(by_trajectory[of_this_rank], trajectories), dict(baselines)


def leave_one_out(returns: ArrayLike, groups: ArrayLike) -> np.ndarray:
    """Return A_i = R_i minus the mean of the other returns of its group; 0 for a group of one.

    returns: float (num_trajectories,). groups: int >= 0 (num_trajectories,), here the role. Kool et al. 2019,
    "Buy 4 REINFORCE samples, get a baseline for free!"; RLOO, arXiv:2402.14740.
    """
    returns, groups = as_groups(returns, groups)
    counts, means = group_means(returns, groups)
    return np.asarray((returns - means) * counts / np.maximum(counts - 1, 1))
