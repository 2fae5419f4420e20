"""Groups: a return minus the mean of its group, games of one opening seen from one role.

As Dr. GRPO (arXiv:2503.20783) has it, without a division: A_i = R_i - mean of the group. Tied groups get 0.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from rlnb.advantages.groups import group_means, repeat_by_turn
from rlnb.selfplay.rollouts import Trajectory


def advantages(
    trajectories: Sequence[Trajectory], baselines: Mapping[str, float]
) -> tuple[np.ndarray, dict[str, float]]:
    """Return each turn's advantage in its group, whose games one rank plays; baselines are not used."""
    groups = [f"{each.role_name}/{each.group}" for each in trajectories]
    rewards = np.array([each.reward for each in trajectories], dtype=float)
    _, means = group_means(rewards, np.unique(groups, return_inverse=True)[1])
    return repeat_by_turn(rewards - means, trajectories), dict(baselines)
