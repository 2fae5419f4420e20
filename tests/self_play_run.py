"""Self-play runs of the tiny model, small enough for tests: with parameters as a notebook has them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rlnb.machine import Machine, recommend
from rlnb.metrics import read_metrics
from rlnb.params import load_params, resolve
from rlnb.params.spiral_self_play import SpiralSelfPlayParams
from rlnb.policy import load_policy
from rlnb.training import self_play_parts as parts

CPU = Machine("cpu", "", None, 16.0, 4, "workstation", "reachable")
SMALL: dict[str, dict[str, Any]] = {
    "game": {"name": "kuhn_poker"},
    "training": {"max_steps": 4, "games_per_step": 8, "save_steps": 2},
    "evaluation": {"opponents": ["random"], "num_games": 2},
    "ablation": {"enabled": False},
    "tracking": {"tensorboard": False},
}


def params_of(cache_dir: Path, *, profile: str = "tiny", seed: int = 42, **sections: dict[str, Any]):
    """Of four updates of eight games of Kuhn poker, unless `sections` say otherwise."""
    torch.set_num_threads(1)
    names = {*SMALL, *sections, "model"}
    given: dict[str, Any] = {name: SMALL.get(name, {}) | sections.get(name, {}) for name in names}
    given["model"]["cache_dir"] = str(cache_dir)
    params = load_params("spiral_self_play", profile=profile, overrides={"seed": seed, **given}, environ={})
    params = resolve(params, recommend(CPU))
    assert isinstance(params, SpiralSelfPlayParams)
    return params


def parts_of(params: SpiralSelfPlayParams):
    """The arena, the learner and what is played, fresh as at the start of a process."""
    game = parts.game_of(params)
    arena = parts.arena_of(params, load_policy(params.model, seed=params.seed), game)
    return arena, parts.learner_of(params, arena), parts.self_play_of(params, arena)


class Killed(Exception):
    """Stands for the end of a process between two updates."""


def killed_after(step: int):
    """To be told of the steps of a run, which it ends after one of them."""

    def say(line: str) -> None:
        if line.startswith(f"step {step}/"):
            raise Killed

    return say


def rows_of(output_dir: Path) -> list[dict[str, float]]:
    """All that was reported, but for times."""
    rows = read_metrics(output_dir / "metrics.jsonl")
    return [{name: value for name, value in row.items() if not name.startswith("time")} for row in rows]


def checkpoint_of(output_dir: Path, step: int) -> dict[str, Any]:
    """Everything in a checkpoint as plain lists, so that equal means equal to the bit."""
    directory = output_dir / "checkpoints" / f"checkpoint-{step}"
    found: dict[str, Any] = {path.name: plain(load_file(path)) for path in directory.glob("*.safetensors")}
    found["optimizer"] = plain(torch.load(directory / "optimizer.pt", weights_only=True))
    found["state"] = json.loads((directory / "trainer_state.json").read_text())
    return found


def differing(one: Any, other: Any, place: str = "") -> list[str]:
    """Where two of these differ; said in names, since the weights would fill pages."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [found for name in one for found in differing(one[name], other[name], f"{place}/{name}")]
    return [] if one == other else [place]


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value
