"""Runs of SPIRAL and PPO with the tiny model, small enough for tests, by the notebooks' parameters."""

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file

from rlnb.machine import Machine, recommend
from rlnb.notebook import load_cell
from rlnb.params import load_params, resolve
from rlnb.policy import Policy, load_policy
from rlnb.run.checkpoints import latest_checkpoint
from rlnb.run.tracking import open_run_tracker, read_metrics
from rlnb.selfplay.params import GameRunParams
from rlnb.selfplay.rollouts import RewardFunction
from rlnb.selfplay.run import GameRun
from rlnb.spiral.params import SpiralSelfPlayParams
from rlnb.spiral.training import SelfPlayRun, make_self_play_run, train

SomeParams = TypeVar("SomeParams", bound=GameRunParams)

CPU = Machine("cpu", "", None, 16.0, 4, "workstation", "reachable")
STAGES = [
    {"name": "first", "games": ["kuhn_poker"], "threshold": 0.01, "window": 8, "min_episodes": 8},
    {"name": "second", "games": ["kuhn_poker", "nim"], "opponents": ["nash", "mcts:2"], "threshold": 0.5},
]
TRAINING = {"max_steps": 4, "games_per_step": 8, "save_steps": 2}
SMALL: dict[str, dict[str, dict[str, Any]]] = {
    "spiral_self_play": {
        "game": {"name": "kuhn_poker"},
        "training": TRAINING,
        "evaluation": {"opponents": ["random"], "num_games": 2},
    },
    "ppo_openspiel": {
        "curriculum": {"stages": STAGES},
        "training": TRAINING,
        "evaluation": {"opponents": ["random"], "interval_games": 2},
        "mbpp": {"enabled": False},
    },
}


def small_params(notebook: str, cache_dir: Path, *, profile: str = "tiny", seed: int = 42, **sections: dict):
    """Return parameters of four updates of eight games, changed by `sections`."""
    torch.set_num_threads(1)
    small = SMALL[notebook]
    overrides: dict[str, Any] = {
        name: small.get(name, {}) | sections.get(name, {}) for name in {*small, *sections, "model"}
    }
    overrides["model"]["cache_dir"] = str(cache_dir)
    params = load_params(notebook, profile=profile, overrides={"seed": seed, **overrides}, environ={})
    return resolve(params, recommend(CPU))


def params_of(cache_dir: Path, **options: Any) -> SpiralSelfPlayParams:
    """Return parameters of a SPIRAL run of Kuhn poker, unless the options change them."""
    return small_params("spiral_self_play", cache_dir, **options)


def notebook_reward(params, notebook: str = "spiral_self_play") -> Callable[[str, float], float]:
    """Return the reward function of the notebook's cell."""
    return load_cell(notebook, "reward", {"params": params})["reward"]


def make_run(
    params: SpiralSelfPlayParams, *, policy: Policy | None = None, reward: RewardFunction | None = None
) -> SelfPlayRun:
    """Return a run, as at the start of a process, unless given with the notebook's policy and reward."""
    game = params.load_game()
    policy = policy or load_policy(params.model, seed=params.seed)
    return make_self_play_run(params, policy, game, reward=reward or notebook_reward(params))


def in_directory(params: SomeParams, output_dir: Path) -> SomeParams:
    return params.model_copy(update={"output_dir": str(output_dir)})


def train_run(
    params: SomeParams, output_dir: Path, *, make: Callable[..., GameRun] = make_run,
    train: Callable[..., object] = train, progress: Callable[[int, int], None] | None = None, **options: Any,
) -> list[dict[str, float]]:  # fmt: skip
    """Train a run, or resume it, as the notebook does; return the rows of its metrics.jsonl.

    It is evaluated before and after, also when it had finished: it may have been killed in between. progress:
    of the evaluations between. options: attributes of the run.
    """
    run = make(in_directory(params, output_dir))
    for name, value in options.items():
        setattr(run, name, value)

    def evaluate(step: int, progress: Callable[[int, int], None] | None = progress) -> Mapping[str, float]:
        num_games = params.evaluation.interval_games
        return run.arena.measure(run.learner.average, num_games=num_games, progress=progress).metrics

    if latest_checkpoint(output_dir) is None and params.training.resume == "auto":
        run.before = evaluate(0, None)
    run.measure_step = evaluate
    train(run)
    with open_run_tracker(run.params, step=run.state.step) as tracker:
        tracker.report(run.state.step, evaluate(run.state.step, None))
    return read_metrics(output_dir / "metrics.jsonl")


class Killed(Exception):
    """The end of a process between two updates."""


def kill_after(step: int) -> Callable[[int, int], None]:
    """Return a `show` that kills a run after this update and its checkpoint."""

    def show(done: int, max_steps: int) -> None:
        if done == step:
            raise Killed

    return show


def send_sigterm(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def rows_of(output_dir: Path) -> list[dict[str, float]]:
    """Return all reported metrics except times."""
    rows = read_metrics(output_dir / "metrics.jsonl")
    return [{name: value for name, value in row.items() if not name.startswith("time")} for row in rows]


def checkpoint_of(output_dir: Path, step: int) -> dict[str, Any]:
    """Return everything in a checkpoint as plain lists, so that equal means equal to the bit."""
    directory = output_dir / "checkpoints" / f"checkpoint-{step}"
    contents: dict[str, Any] = {path.name: plain(load_file(path)) for path in directory.glob("*.safetensors")}
    contents["optimizer"] = plain(torch.load(directory / "optimizer.pt", weights_only=True))
    contents["state"] = json.loads((directory / "trainer_state.json").read_text())
    return contents


def differing(first: Any, second: Any, place: str = "") -> list[str]:
    """Return the places where two of these differ; the weights themselves would fill pages."""
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return [path for name in first for path in differing(first[name], second[name], f"{place}/{name}")]
    return [] if first == second else [place]


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
