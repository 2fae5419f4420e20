"""PPO runs of the tiny model, small enough for tests, with parameters and reward as the notebook has them."""

from functools import partial
from pathlib import Path

import self_play_run

from rlnb.policy import Policy, load_policy
from rlnb.ppo.params import PpoOpenspielParams
from rlnb.ppo.training import PpoRun, load_playable_curriculum, make_ppo_run, train
from rlnb.selfplay.rollouts import RewardFunction


def params_of(cache_dir: Path, **sections) -> PpoOpenspielParams:
    """Return parameters of four updates of Kuhn poker, then of nim as well, changed by `sections`."""
    params = self_play_run.small_params("ppo_openspiel", cache_dir, **sections)
    assert isinstance(params, PpoOpenspielParams)
    return params


def make_run(
    params: PpoOpenspielParams, *, policy: Policy | None = None, reward: RewardFunction | None = None
) -> PpoRun:
    """Return a run, as at the start of a process, unless given with the notebook's policy and reward."""
    policy = policy or load_policy(params.model, seed=params.seed)
    reward = reward or self_play_run.notebook_reward(params, "ppo_openspiel")
    return make_ppo_run(params, policy, load_playable_curriculum(params), reward=reward)


train_run = partial(self_play_run.train_run, make=make_run, train=train)
