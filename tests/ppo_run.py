"""PPO runs of the tiny model, small enough for tests, with parameters and reward as the notebook has them."""

from collections.abc import Mapping
from pathlib import Path

from self_play_run import in_directory, notebook_reward, small_params

from rlnb.policy import load_policy
from rlnb.ppo.params import PpoOpenspielParams
from rlnb.ppo.training import PpoRun, load_playable_curriculum, make_ppo_run, train
from rlnb.run.checkpoints import latest_checkpoint
from rlnb.run.tracking import open_run_tracker, read_metrics


def params_of(cache_dir: Path, **sections) -> PpoOpenspielParams:
    """Return parameters of four updates of Kuhn poker, then of nim as well, changed by `sections`."""
    params = small_params("ppo_openspiel", cache_dir, **sections)
    assert isinstance(params, PpoOpenspielParams)
    return params


def make_run(params: PpoOpenspielParams) -> PpoRun:
    """Return a run, as at the start of a process."""
    policy = load_policy(params.model, seed=params.seed)
    reward = notebook_reward(params, "ppo_openspiel")
    return make_ppo_run(params, policy, load_playable_curriculum(params), reward=reward)


def measure(run: PpoRun) -> Mapping[str, float]:
    num_games = run.params.evaluation.interval_games
    return run.arena.measure(run.learner.average, num_games=num_games).metrics


def train_run(params: PpoOpenspielParams, output_dir: Path, **options) -> list[dict[str, float]]:
    """Train a run, or resume it, as the notebook does; return the rows of its metrics.jsonl.

    options: attributes of the run.
    """
    run = make_run(in_directory(params, output_dir))
    if latest_checkpoint(output_dir) is None:
        run.before = measure(run)
    run.measure_step = lambda _: measure(run)
    for name, value in options.items():
        setattr(run, name, value)
    train(run)
    with open_run_tracker(run.params, step=run.state.step) as tracker:
        tracker.report(run.state.step, measure(run))  # an earlier attempt may have been killed before this
    return read_metrics(output_dir / "metrics.jsonl")
