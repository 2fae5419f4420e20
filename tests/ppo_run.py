"""PPO runs of the tiny model, small enough for tests, with parameters and reward as the notebook has them."""

from pathlib import Path

from self_play_run import notebook_reward, small_params

from rlnb.policy import load_policy
from rlnb.ppo import setup
from rlnb.ppo.params import PpoOpenspielParams


def params_of(cache_dir: Path, **sections) -> PpoOpenspielParams:
    """Return parameters of four updates of Kuhn poker, then of nim as well, changed by `sections`."""
    params = small_params("ppo_openspiel", cache_dir, **sections)
    assert isinstance(params, PpoOpenspielParams)
    return params


def make_run(params: PpoOpenspielParams) -> setup.PpoRun:
    """Return the parts of a run, as at the start of a process."""
    policy = load_policy(params.model, seed=params.seed)
    reward = notebook_reward(params, "ppo_openspiel")
    return setup.make_ppo_run(params, setup.load_playable_curriculum(params), policy, reward=reward)


def train_run(params: PpoOpenspielParams, output_dir: Path, **options) -> list[dict[str, float]]:
    return setup.run_ppo(params, output_dir, reward=notebook_reward(params, "ppo_openspiel"), **options)
