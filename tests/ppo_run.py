"""PPO runs of the tiny model, small enough for tests, with parameters and reward as the notebook has them."""

from collections.abc import Mapping
from pathlib import Path

from self_play_run import notebook_reward, small_params

from rlnb.policy import load_policy
from rlnb.ppo import setup
from rlnb.ppo.params import PpoOpenspielParams
from rlnb.run.checkpoints import checkpoint_to_resume
from rlnb.run.tracking import read_metrics


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


def measure(run: setup.PpoRun) -> Mapping[str, float]:
    num_games = run.params.evaluation.interval_games
    return run.arena.measure(run.learner.average, num_games=num_games).metrics


def train_run(params: PpoOpenspielParams, output_dir: Path, **options) -> list[dict[str, float]]:
    """Train a run, or resume it, as the notebook does; return the rows of its metrics.jsonl."""
    run = make_run(params)
    state = run.restore(checkpoint_to_resume(params, output_dir), output_dir)
    before = measure(run) if state.step == 0 else None
    options = {"evaluate": lambda _: measure(run), **options}
    state = run.train(state, output_dir, before=before, **options)
    with run.open_tracker(output_dir, state) as tracker:
        tracker.report(state.step, measure(run))  # an earlier attempt may have been killed just before this
    return read_metrics(output_dir / "metrics.jsonl")
