"""Groups: a return minus the mean of its group, games of one opening seen from one role."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from rlnb.advantages.groups import as_groups, group_means, repeat_by_turn
from rlnb.selfplay.rollouts import Trajectory


def advantages(
    trajectories: Sequence[Trajectory], baselines: Mapping[str, float]
) -> tuple[np.ndarray, dict[str, float]]:
    """Return each turn's advantage in its group, whose games one rank plays; baselines are not used."""
    groups = [f"{each.role_name}/{each.group}" for each in trajectories]
    rewards = [each.reward for each in trajectories]
    by_trajectory = group_advantages(rewards, np.unique(groups, return_inverse=True)[1])
    return repeat_by_turn(by_trajectory, trajectories), dict(baselines)


def group_advantages(returns: ArrayLike, groups: ArrayLike) -> np.ndarray:
    """Return A_i = R_i minus the mean of its group: Dr. GRPO's (arXiv:2503.20783).

    returns: float (num_trajectories,). groups: int >= 0 (num_trajectories,). Tied groups get 0.
    """
    returns, groups = as_groups(returns, groups)
    _, means = group_means(returns, groups)
    return np.asarray(returns - means)
