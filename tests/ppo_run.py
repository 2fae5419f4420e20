"""PPO runs of the tiny model, small enough for tests: with parameters as the notebook has them."""

from pathlib import Path
from typing import Any

import torch
from self_play_run import CPU

from rlnb.machine import recommend
from rlnb.params import load_params, resolve
from rlnb.params.ppo_openspiel import PpoOpenspielParams
from rlnb.policy import load_policy
from rlnb.training import ppo_parts as parts

SMALL: dict[str, dict[str, Any]] = {
    "curriculum": {
        "stages": [
            {"name": "first", "games": ["kuhn_poker"], "threshold": 0.01, "window": 8, "min_episodes": 8},
            {
                "name": "second",
                "games": ["kuhn_poker", "nim"],
                "opponents": ["nash", "mcts:2"],
                "threshold": 0.5,
            },
        ]
    },
    "training": {"max_steps": 4, "games_per_step": 8, "save_steps": 2},
    "evaluation": {"opponents": ["random"], "interval_games": 2},
    "mbpp": {"enabled": False},
    "tracking": {"tensorboard": False},
}


def params_of(cache_dir: Path, *, profile: str = "tiny", seed: int = 42, **sections: dict[str, Any]):
    """Of four updates of eight games of Kuhn poker, then of nim as well, unless `sections` say otherwise."""
    torch.set_num_threads(1)
    names = {*SMALL, *sections, "model"}
    given: dict[str, Any] = {name: SMALL.get(name, {}) | sections.get(name, {}) for name in names}
    given["model"]["cache_dir"] = str(cache_dir)
    params = load_params("ppo_openspiel", profile=profile, overrides={"seed": seed, **given}, environ={})
    params = resolve(params, recommend(CPU))
    assert isinstance(params, PpoOpenspielParams)
    return params


def parts_of(params: PpoOpenspielParams):
    """The arenas, the learner and what is played, fresh as at the start of a process."""
    curriculum = parts.curriculum_of(params)
    arenas = parts.arenas_of(params, load_policy(params.model, seed=params.seed), curriculum)
    return arenas, parts.learner_of(params, arenas), parts.practice_of(params, arenas, curriculum)
