"""Role-conditioned advantage estimation (RAE): a return minus the running mean of its role."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from rlnb.advantages.groups import as_groups, repeat_by_turn
from rlnb.selfplay.rollouts import Trajectory

ROLE_DECAY = 0.95  # a trajectory, of a role's running mean, as in SPIRAL


def advantages(
    trajectories: Sequence[Trajectory], baselines: Mapping[str, float]
) -> tuple[np.ndarray, dict[str, float]]:
    """Return each turn's advantage over the baselines, by "game/role", and the baselines after this batch."""
    from accelerate.utils import gather_object  # imports torch, which `role_advantages` alone does not need

    everywhere = gather_object([(each.role_name, each.reward) for each in trajectories])
    names = sorted({*baselines, *(name for name, _ in everywhere)})
    before = np.array([baselines.get(name, 0.0) for name in names])
    all_roles = [names.index(name) for name, _ in everywhere]
    _, moved = role_advantages([reward for _, reward in everywhere], all_roles, before, decay=ROLE_DECAY)
    roles = [names.index(each.role_name) for each in trajectories]
    rewards = [each.reward for each in trajectories]
    by_trajectory, _ = role_advantages(rewards, roles, before, decay=ROLE_DECAY)
    return repeat_by_turn(by_trajectory, trajectories), dict(zip(names, moved.tolist(), strict=True))


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
