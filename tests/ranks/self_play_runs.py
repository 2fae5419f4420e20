"""Whole self-play runs of small models on this rank's share of the games.

Plain gradient descent instead of Adam, whose first step is the gradient's sign: where that is only
rounding, two correct programs move in opposite directions.
"""

from pathlib import Path

import ppo_run
import self_play_run
import torch

from rlnb.ppo.training import train as train_ppo
from rlnb.selfplay.batch import parameter_groups
from rlnb.spiral.training import train as train_spiral

LEARNING_RATE = 0.1
SMALL_STEPS = {
    "learning_rate": LEARNING_RATE, "final_learning_rate": LEARNING_RATE, "warmup_steps": 0, "max_steps": 3,
    "num_mini_batches": 1, "games_per_step": 8,
}  # fmt: skip
RUNS = {
    "rae": (self_play_run, train_spiral, {"advantage": {"kind": "rae"}}),
    "leave_one_out": (self_play_run, train_spiral, {"advantage": {"kind": "leave_one_out"}}),
    "ppo": (ppo_run, train_ppo, {"replay": {"share": 0.5}}),
}


def train_run(kind: str, folder: Path) -> dict[str, object]:
    """Return what three updates of a run of a notebook leave, with plain gradient descent."""
    module, train, sections = RUNS[kind]
    params = module.params_of(folder / "cache", training=SMALL_STEPS, **sections)
    run = module.make_run(self_play_run.in_directory(params, folder / kind))
    run.learner.optimizer = torch.optim.SGD(
        parameter_groups(run.learner.actor, run.learner.value_learning_rate)
    )
    run.measure_step = lambda _: {}
    state = train(run)
    if kind == "ppo":
        kept = {"failures": state.replay.failures, "curriculum": state.curriculum, "kl_coef": state.kl_coef}
    else:
        kept = {"baselines": state.baselines}
    weights = [parameter.detach() for parameter in run.learner.actor.parameters_to_train()]
    return {"weights": weights, "kept": kept, "num_games": state.num_games}
