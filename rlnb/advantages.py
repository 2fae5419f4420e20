"""Advantages: how much better a trajectory or a turn went than was to be expected. Arrays in, arrays out.

For two players of a zero-sum game who share their weights, the mean of all returns is 0 in every batch: one
baseline for both roles is no baseline. Role-conditioned, leave-one-out and group baselines look at a role.
"""

import numpy as np
from numpy.typing import ArrayLike

Array = np.ndarray


def role_advantages(
    returns: ArrayLike, roles: ArrayLike, baselines: ArrayLike, *, decay: float
) -> tuple[Array, Array]:
    """Advantage of each trajectory over the running mean of its role, and the new means.

    returns: float (num_trajectories,), in the game's reward units. roles: int (num_trajectories,), index into
    baselines (num_roles,). Baselines are read before this batch moves them; then a role with n trajectories
    moves to decay**n * b + (1 - decay**n) * mean, an absent one stays. SPIRAL (arXiv:2506.24119):
    A = R - b[game, role]. The paper's code moves b trajectory by trajectory; this keeps its time scale and is
    the same for any order and any number of ranks.
    """
    returns, roles = checked(returns, roles)
    baselines = np.asarray(baselines, dtype=float)
    counts = np.bincount(roles, minlength=len(baselines))
    sums = np.bincount(roles, weights=returns, minlength=len(baselines))
    kept = decay**counts
    moved = kept * baselines + (1 - kept) * sums / np.maximum(counts, 1)
    return returns - baselines[roles], moved


def leave_one_out(returns: ArrayLike, groups: ArrayLike) -> Array:
    """A_i = R_i minus the mean of the other returns of its group; 0 for one that is alone in its group.

    returns: float (num_trajectories,). groups: int >= 0 (num_trajectories,), here the role. Kool et al. 2019,
    "Buy 4 REINFORCE samples, get a baseline for free!"; RLOO, arXiv:2402.14740.
    """
    returns, groups = checked(returns, groups)
    counts, means = group_means(returns, groups)
    return np.asarray((returns - means) * counts / np.maximum(counts - 1, 1))


def group_advantages(returns: ArrayLike, groups: ArrayLike, *, scale: bool = False) -> Array:
    """A_i = R_i minus the mean of its group, divided by the group's standard deviation where `scale` is set.

    returns: float (num_trajectories,). groups: int >= 0 (num_trajectories,): games of one opening, seen from
    one role. With `scale` it is GRPO's advantage (arXiv:2402.03300), the deviation being the population's;
    without, Dr. GRPO's (arXiv:2503.20783). Groups that tie get 0.
    """
    returns, groups = checked(returns, groups)
    counts, means = group_means(returns, groups)
    centred = returns - means
    if not scale:
        return centred
    _, variances = group_means(centred**2, groups)
    deviations = np.sqrt(variances)
    return np.asarray(centred / np.where(deviations > 1e-8, deviations, 1.0))


def gae(
    rewards: ArrayLike,
    values: ArrayLike,
    is_last: ArrayLike,
    *,
    gamma: float,
    lam: float,
    bootstraps: ArrayLike | None = None,
) -> Array:
    """Generalised advantage estimates from one own turn to the next (arXiv:1506.02438, equation 16).

    rewards, values: float (num_turns,), trajectory after trajectory; values: V of the state before each turn.
    is_last: bool (num_turns,), whether a turn ends its trajectory; what follows it is worth 0, or
    bootstraps[i] (num_turns,) where a game was cut off there.
        delta_t = r_t + gamma * V_{t+1} - V_t,   A_t = delta_t + gamma * lam * A_{t+1}.
    Whatever the opponent and chance do in between belongs to the step. The returns that V learns are A + V.
    """
    return _estimates(rewards, values, is_last, None, gamma=gamma, lam=lam, bootstraps=bootstraps)


def gae_plies(
    rewards: ArrayLike, values: ArrayLike, is_last: ArrayLike, seats: ArrayLike, *, gamma: float, lam: float
) -> Array:
    """The same from ply to ply, over both players of a zero-sum game who share one value function.

    Arrays (num_turns,) hold the turns of both seats in the order of play, game after game; rewards and values
    are those of the player who moves, and is_last marks a game's last turn. What comes next is worth its
    value to who moves next: it changes its sign when that is the other seat.
    """
    return _estimates(rewards, values, is_last, seats, gamma=gamma, lam=lam, bootstraps=None)


def normalized(
    advantages: ArrayLike, weights: ArrayLike, *, among: tuple[ArrayLike, ArrayLike] | None = None
) -> Array:
    """Advantages minus their weighted mean, over their weighted standard deviation: the population's.

    advantages, weights: float (num_turns,), weights >= 0. among: the advantages and weights of all turns of
    an update, where these are only one rank's; (num_all_turns,) each, in any order. Where all are equal they
    become 0; where no turn has a weight they stay as they are.
        m = sum(w A) / sum(w),   A -> (A - m) / sqrt(sum(w (A - m)^2) / sum(w)).
    CleanRL does so by mini-batch; by update all mini-batches have the same scale.
    """
    own, known = np.asarray(advantages, dtype=float), np.asarray(weights, dtype=float)
    everyone, shares = (np.asarray(one, dtype=float) for one in among or (own, known))
    if own.ndim != 1 or own.shape != known.shape or everyone.shape != shares.shape:
        raise ValueError(
            f"advantages and weights: shapes {own.shape}, {known.shape}; of all turns {everyone.shape}, "
            f"{shares.shape}; equal ones"
        )
    total = shares.sum()
    if not total:
        return own.copy()
    mean = (shares * everyone).sum() / total
    deviation = np.sqrt((shares * (everyone - mean) ** 2).sum() / total)
    return np.asarray((own - mean) / (deviation if deviation > 1e-8 else 1.0))


def _estimates(
    rewards: ArrayLike,
    values: ArrayLike,
    is_last: ArrayLike,
    seats: ArrayLike | None,
    *,
    gamma: float,
    lam: float,
    bootstraps: ArrayLike | None,
) -> Array:
    rewards, values = np.asarray(rewards, dtype=float), np.asarray(values, dtype=float)
    ends = np.asarray(is_last, dtype=bool)
    if rewards.shape != values.shape or rewards.shape != ends.shape or rewards.ndim != 1:
        raise ValueError(
            f"rewards, values, is_last: shapes {rewards.shape}, {values.shape}, {ends.shape}; equal ones"
        )
    if len(ends) and not ends[-1]:
        raise ValueError("is_last: the last turn ends no trajectory")
    signs = np.ones(len(rewards))
    if seats is not None:
        mover = np.asarray(seats)
        signs[:-1] = np.where(mover[1:] == mover[:-1], 1.0, -1.0)
    after = np.zeros(len(rewards)) if bootstraps is None else np.asarray(bootstraps, dtype=float)
    advantages = np.zeros(len(rewards))
    for turn in range(len(rewards) - 1, -1, -1):
        if ends[turn]:
            advantages[turn] = rewards[turn] + gamma * after[turn] - values[turn]
        else:
            delta = rewards[turn] + gamma * signs[turn] * values[turn + 1] - values[turn]
            advantages[turn] = delta + gamma * lam * signs[turn] * advantages[turn + 1]
    return advantages


def group_means(values: Array, groups: Array) -> tuple[Array, Array]:
    """For each value the size and the mean of its group."""
    counts = np.bincount(groups)
    sums = np.bincount(groups, weights=values)
    return counts[groups], (sums / np.maximum(counts, 1))[groups]


def checked(returns: ArrayLike, groups: ArrayLike) -> tuple[Array, Array]:
    """As arrays; raises ValueError where they do not belong together."""
    values, numbers = np.asarray(returns, dtype=float), np.asarray(groups, dtype=np.int64)
    if values.ndim != 1 or values.shape != numbers.shape:
        raise ValueError(
            f"returns and roles have the shapes {values.shape} and {numbers.shape}; give one each"
        )
    return values, numbers
