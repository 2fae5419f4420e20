"""Advantages: how much better a trajectory or a turn went than expected.

`compute_advantages` takes finished games; the estimators below it take arrays and return arrays. In a
zero-sum game of two players who share their weights the mean of all returns is 0 in every batch, so one
baseline for both roles has no effect. Role-conditioned, leave-one-out and group baselines look at one role.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from accelerate import PartialState
from accelerate.utils import gather_object
from numpy.typing import ArrayLike

from rlnb.selfplay.params import AdvantageParams
from rlnb.selfplay.rollouts import FinishedGame, Trajectory, collect_trajectories, collect_turns

Array = np.ndarray
ROLE_DECAY = 0.95  # a trajectory, of a role's running mean, as in SPIRAL
GAE_LAMBDA = 0.9  # of self-play: 0 = one step, 1 = whole games


@dataclass(frozen=True)
class Advantages:
    """The advantage of each turn and the target of its value.

    advantages, targets: float (num_turns,), trajectory after trajectory. baselines: after this batch, the
    same on all ranks.
    """

    advantages: Array
    targets: Array
    baselines: dict[str, float]


def compute_advantages(
    games: Sequence[FinishedGame], baselines: Mapping[str, float], params: AdvantageParams
) -> Advantages:
    """Return the advantage of each turn of the learner, by `params.kind`. baselines: by "game/role".

    none = its return. rae = minus the role's running mean, leave_one_out = minus the mean of the role's other
    games, group = minus the mean of the role's games of the same opening: these give every turn of a
    trajectory the same. By the value head: gae from one own turn to the next, gae_plies over the plies of
    both seats.
    """
    trajectories = collect_trajectories(games)
    if params.kind in ("gae", "gae_plies"):
        if params.kind == "gae":
            return Advantages(*gae_of_turns(trajectories, lam=GAE_LAMBDA), dict(baselines))
        return Advantages(*gae_of_plies(games, lam=GAE_LAMBDA), dict(baselines))
    returns = np.array([trajectory.reward for trajectory in trajectories])
    roles = [f"{trajectory.game}/{trajectory.role}" for trajectory in trajectories]
    advantages, moved = returns, dict(baselines)
    if params.kind == "rae":
        advantages, moved = advantages_over_roles(roles, returns.tolist(), baselines, decay=ROLE_DECAY)
    elif params.kind == "leave_one_out":
        advantages = leave_one_out_over_ranks(roles, returns)
    elif params.kind == "group":
        groups = [f"{role}/{trajectory.group}" for role, trajectory in zip(roles, trajectories, strict=True)]
        advantages = group_advantages(returns, np.unique(groups, return_inverse=True)[1])
    lengths = [len(trajectory.turns) for trajectory in trajectories]
    return Advantages(np.repeat(advantages, lengths), np.repeat(returns, lengths), moved)


def advantages_over_roles(
    roles: Sequence[str], returns: Sequence[float], baselines: Mapping[str, float], *, decay: float
) -> tuple[Array, dict[str, float]]:
    """Return advantages over the baselines before this batch, and the baselines after all ranks' games."""
    everywhere = gather_object(list(zip(roles, returns, strict=True)))
    names = sorted({*baselines, *(role for role, _ in everywhere)})
    index = {name: row for row, name in enumerate(names)}
    before = np.array([baselines.get(name, 0.0) for name in names])
    advantages, _ = role_advantages(returns, [index[role] for role in roles], before, decay=decay)
    _, moved = role_advantages(
        [value for _, value in everywhere], [index[role] for role, _ in everywhere], before, decay=decay
    )
    return advantages, dict(zip(names, moved.tolist(), strict=True))


def leave_one_out_over_ranks(roles: Sequence[str], returns: Array) -> Array:
    """Return the leave-one-out advantages of this rank's trajectories among those of all ranks."""
    ranks = gather_object([(roles, returns)])
    every_role, every_return = (np.concatenate(arrays) for arrays in zip(*ranks, strict=True))
    advantages = leave_one_out(every_return, np.unique(every_role, return_inverse=True)[1])
    first = sum(len(values) for _, values in ranks[: PartialState().process_index])
    return advantages[first : first + len(returns)]


def gae_of_turns(trajectories: Sequence[Trajectory], *, lam: float) -> tuple[Array, Array]:
    """Return GAE over a player's own turns: advantages and targets of the value, each (num_turns,)."""
    turns = collect_turns(trajectories)
    values = np.array([turn.value for turn in turns])
    advantages = gae([turn.reward for turn in turns], values, mark_last_turns(trajectories), lam=lam)
    return advantages, advantages + values


def gae_of_plies(games: Sequence[FinishedGame], *, lam: float) -> tuple[Array, Array]:
    """Return GAE over the plies of both seats: advantages and targets of the value, each (num_turns,)."""
    trajectories = collect_trajectories(games)
    turns = collect_turns(trajectories)
    rewards = np.array([turn.reward for turn in turns])
    values = np.array([turn.value for turn in turns])
    lengths = [len(trajectory.turns) for trajectory in trajectories]
    seats = np.repeat([trajectory.seat for trajectory in trajectories], lengths)
    game_of = np.repeat(np.arange(len(games)), [len(collect_turns(game.trajectories)) for game in games])
    order = np.lexsort([[turn.ply for turn in turns], game_of.tolist()])
    is_last = np.append(np.diff(game_of[order]) != 0, True)[: len(order)]
    # A game's result is in the last turn of either seat; from ply to ply it counts once.
    is_counted_twice = mark_last_turns(trajectories)[order] & ~is_last
    rewards_by_ply = np.where(is_counted_twice, 0.0, rewards[order])
    advantages = np.zeros(len(turns))
    advantages[order] = gae(rewards_by_ply, values[order], is_last, lam=lam, seats=seats[order])
    return advantages, advantages + values


def mark_last_turns(trajectories: Iterable[Trajectory]) -> Array:
    """Return bool (num_turns,): whether a turn is the last of its trajectory."""
    lengths = [len(trajectory.turns) for trajectory in trajectories]
    return np.array([k == length - 1 for length in lengths for k in range(length)], dtype=bool)


def role_advantages(
    returns: ArrayLike, roles: ArrayLike, baselines: ArrayLike, *, decay: float
) -> tuple[Array, Array]:
    """Role-conditioned advantage estimation (RAE): return advantages over each role's mean, and new means.

    returns: float (num_trajectories,), in the units that are trained on (`Trajectory.reward`). roles: int
    (num_trajectories,), index into baselines (num_roles,). Baselines are read before this batch moves them;
    then a role with n trajectories moves to decay**n * b + (1 - decay**n) * mean, an absent one stays. SPIRAL
    (arXiv:2506.24119): A = R - b[game, role]. The paper's code moves b trajectory by trajectory; this keeps
    its time scale and is the same for any order and any number of ranks.
    """
    returns, roles = check_groups(returns, roles)
    baselines = np.asarray(baselines, dtype=float)
    counts = np.bincount(roles, minlength=len(baselines))
    sums = np.bincount(roles, weights=returns, minlength=len(baselines))
    kept = decay**counts
    moved = kept * baselines + (1 - kept) * sums / np.maximum(counts, 1)
    return returns - baselines[roles], moved


def leave_one_out(returns: ArrayLike, groups: ArrayLike) -> Array:
    """Return A_i = R_i minus the mean of the other returns of its group; 0 for a group of one.

    returns: float (num_trajectories,). groups: int >= 0 (num_trajectories,), here the role. Kool et al. 2019,
    "Buy 4 REINFORCE samples, get a baseline for free!"; RLOO, arXiv:2402.14740.
    """
    returns, groups = check_groups(returns, groups)
    counts, means = group_means(returns, groups)
    return np.asarray((returns - means) * counts / np.maximum(counts - 1, 1))


def group_advantages(returns: ArrayLike, groups: ArrayLike) -> Array:
    """Return A_i = R_i minus the mean of its group: Dr. GRPO's (arXiv:2503.20783).

    returns: float (num_trajectories,). groups: int >= 0 (num_trajectories,): games of one opening, seen from
    one role. Tied groups get 0.
    """
    returns, groups = check_groups(returns, groups)
    _, means = group_means(returns, groups)
    return np.asarray(returns - means)


def gae(
    rewards: ArrayLike,
    values: ArrayLike,
    is_last: ArrayLike,
    *,
    lam: float,
    gamma: float = 1.0,
    seats: ArrayLike | None = None,
) -> Array:
    """Return generalised advantage estimates from one own turn to the next (arXiv:1506.02438, equation 16).

    rewards, values: float (num_turns,), trajectory after trajectory; values: V of the state before each turn.
    is_last: bool (num_turns,), whether a turn ends its trajectory; what follows it is worth 0.
        delta_t = r_t + gamma * V_{t+1} - V_t,   A_t = delta_t + gamma * lam * A_{t+1}.
    Moves of the opponent and of chance in between are part of the step. V learns the returns A + V.
    seats: int (num_turns,), to go from ply to ply instead, over both players of a zero-sum game who share a
    value function: turns are then in the order of play, game after game, and what follows changes its sign
    when the other seat is next to move.
    """
    rewards, values = np.asarray(rewards, dtype=float), np.asarray(values, dtype=float)
    ends = np.asarray(is_last, dtype=bool)
    if rewards.shape != values.shape or rewards.shape != ends.shape or rewards.ndim != 1:
        raise ValueError(
            f"rewards, values and is_last have the shapes {rewards.shape}, {values.shape} and {ends.shape}; "
            "give equal shapes"
        )
    if len(ends) and not ends[-1]:
        raise ValueError("is_last: the last turn does not end its trajectory")
    signs = np.ones(len(rewards))
    if seats is not None:
        signs[:-1] = np.where(np.diff(np.asarray(seats)) == 0, 1.0, -1.0)
    advantages = np.zeros(len(rewards))
    for turn in range(len(rewards) - 1, -1, -1):
        if ends[turn]:
            advantages[turn] = rewards[turn] - values[turn]
        else:
            delta = rewards[turn] + gamma * signs[turn] * values[turn + 1] - values[turn]
            advantages[turn] = delta + gamma * lam * signs[turn] * advantages[turn + 1]
    return advantages


def normalize_advantages(
    advantages: ArrayLike, weights: ArrayLike, *, among: tuple[ArrayLike, ArrayLike] | None = None
) -> Array:
    """Return advantages minus their weighted mean, over their weighted (population) standard deviation.

    advantages, weights: float (num_turns,), weights >= 0. among: the advantages and weights of all turns of
    an update, where these are only one rank's; (num_all_turns,) each, in any order. Equal advantages become
    0; without any weight they are returned unchanged.
        m = sum(w A) / sum(w),   A -> (A - m) / sqrt(sum(w (A - m)^2) / sum(w)).
    CleanRL normalizes each mini-batch; normalizing the update gives all mini-batches the same scale.
    """
    local, local_weights = np.asarray(advantages, dtype=float), np.asarray(weights, dtype=float)
    everywhere, shares = (np.asarray(array, dtype=float) for array in among or (local, local_weights))
    if local.ndim != 1 or local.shape != local_weights.shape or everywhere.shape != shares.shape:
        raise ValueError(
            f"advantages and weights have the shapes {local.shape} and {local_weights.shape}, those of all "
            f"turns {everywhere.shape} and {shares.shape}; give equal shapes"
        )
    total = shares.sum()
    if not total:
        return local.copy()
    mean = (shares * everywhere).sum() / total
    deviation = np.sqrt((shares * (everywhere - mean) ** 2).sum() / total)
    return np.asarray((local - mean) / (deviation if deviation > 1e-8 else 1.0))


def group_means(values: Array, groups: Array) -> tuple[Array, Array]:
    """Return for each value the size and the mean of its group."""
    counts = np.bincount(groups)
    sums = np.bincount(groups, weights=values)
    return counts[groups], (sums / np.maximum(counts, 1))[groups]


def check_groups(returns: ArrayLike, groups: ArrayLike) -> tuple[Array, Array]:
    """Return both as arrays. Raises ValueError for different shapes."""
    values, indices = np.asarray(returns, dtype=float), np.asarray(groups, dtype=np.int64)
    if values.ndim != 1 or values.shape != indices.shape:
        raise ValueError(
            f"returns and roles have the shapes {values.shape} and {indices.shape}; give one each"
        )
    return values, indices
