"""From finished games to the advantage of each turn and the target of its value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from accelerate.utils import gather_object

from rlnb.advantages import gae, gae_plies, group_advantages, leave_one_out, role_advantages
from rlnb.trajectories import PlayedGame, Trajectory, last_turns, turns_of

Baselines = Mapping[str, float]  # by "game/role"


@dataclass(frozen=True)
class Credit:
    """advantages, targets: float (num_turns,), trajectory after trajectory. baselines: as this batch moved
    them, the same on all ranks."""

    advantages: np.ndarray
    targets: np.ndarray
    baselines: dict[str, float]


def credit(games: Sequence[PlayedGame], baselines: Baselines, settings: Any) -> Credit:
    """What each turn of the learner earns beyond what was to be expected, by `settings.kind`.

    none = its return. rae = minus the role's running mean, leave_one_out = minus the mean of the role's other
    games, group = minus the mean of the role's games of the same opening: these give every turn of a
    trajectory the same, times gamma ** (turns left). gae, gae_plies = by the value head.
    """
    trajectories = [trajectory for game in games for trajectory in game.trajectories]
    kind = settings.kind
    if kind in ("gae", "gae_plies"):
        return by_values(games, trajectories, baselines, settings)
    returns = np.array([one.reward for one in trajectories])
    moved = dict(baselines)
    if kind == "rae":
        each, moved = role_credit(trajectories, baselines, decay=settings.decay)
    elif kind == "leave_one_out":
        each = leave_one_out(returns, numbered([role_of(one) for one in trajectories]))
    elif kind == "group":
        groups = numbered([f"{role_of(one)}/{one.group}" for one in trajectories])
        each = group_advantages(returns, groups, scale=settings.scale_groups)
    else:
        each = returns
    lengths = [len(one.turns) for one in trajectories]
    left = np.concatenate([np.arange(length)[::-1] for length in lengths]) if lengths else np.zeros(0)
    advantages = np.repeat(each, lengths) * settings.gamma**left
    return Credit(advantages, np.repeat(returns, lengths) * settings.gamma**left, moved)


def role_credit(
    trajectories: Sequence[Trajectory], baselines: Baselines, *, decay: float
) -> tuple[np.ndarray, dict[str, float]]:
    """Advantages over the baselines from before this batch, and these as all ranks' games have moved them."""
    own = [(role_of(one), one.reward) for one in trajectories]
    everyone = gather_object(own)
    names = sorted({*baselines, *(role for role, _ in everyone)})
    index = {name: number for number, name in enumerate(names)}
    before = np.array([baselines.get(name, 0.0) for name in names])

    def credited(pairs: Sequence[tuple[str, float]]) -> tuple[np.ndarray, np.ndarray]:
        roles = [index[role] for role, _ in pairs]
        return role_advantages([reward for _, reward in pairs], roles, before, decay=decay)

    return credited(own)[0], dict(zip(names, credited(everyone)[1].tolist(), strict=True))


def turn_estimates(
    trajectories: Sequence[Trajectory], *, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """GAE over a player's own turns: advantages and targets of the value, each (num_turns,)."""
    turns = turns_of(trajectories)
    values = np.array([turn.value for turn in turns])
    advantages = gae(
        [turn.reward for turn in turns],
        values,
        last_turns(trajectories),
        gamma=gamma,
        lam=lam,
        bootstraps=np.repeat(
            [one.bootstrap for one in trajectories], [len(one.turns) for one in trajectories]
        ),
    )
    return advantages, advantages + values


def by_values(
    games: Sequence[PlayedGame], trajectories: Sequence[Trajectory], baselines: Baselines, settings: Any
) -> Credit:
    """Generalised advantage estimates over own turns, or over the plies of both seats."""
    options = {"gamma": settings.gamma, "lam": settings.lam}
    if settings.kind == "gae":
        return Credit(*turn_estimates(trajectories, **options), dict(baselines))
    turns = turns_of(trajectories)
    rewards = np.array([turn.reward for turn in turns])
    values = np.array([turn.value for turn in turns])
    order: list[tuple[int, int, int, int]] = []  # game, ply, number among all turns, seat
    for number, game in enumerate(games):
        for one in game.trajectories:
            start = len(order)
            order += [(number, turn.ply, start + k, one.seat) for k, turn in enumerate(one.turns)]
    order.sort()
    numbers = np.array([one for one, *_ in order])
    taken = np.array([place for _, _, place, _ in order], dtype=np.int64)
    is_last = np.append(numbers[1:] != numbers[:-1], True)[: len(numbers)]
    # A game's result is with the last turn of either seat; from ply to ply it counts once.
    counted_twice = last_turns(trajectories)[taken] & ~is_last
    earned = np.where(counted_twice, 0.0, rewards[taken])
    advantages = np.zeros(len(turns))
    advantages[taken] = gae_plies(earned, values[taken], is_last, [seat for *_, seat in order], **options)
    return Credit(advantages, advantages + values, dict(baselines))


def role_of(trajectory: Trajectory) -> str:
    """ "tic_tac_toe/X": what has a baseline of its own."""
    return f"{trajectory.game}/{trajectory.role}"


def numbered(names: Sequence[str]) -> np.ndarray:
    """int (len(names),): equal names have equal numbers."""
    return np.unique(names, return_inverse=True)[1] if names else np.zeros(0, dtype=np.int64)
