"""Whole runs of the tiny model in float64, as numbers: what the test of recorded runs compares, and records.

Run as a script, with a folder, it writes recorded_runs.json again from the code of this checkout.
Plain gradient descent instead of Adam, so that weights show gradients as they are.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import ppo_run
import self_play_run
import torch
from accelerate import PartialState
from pytest import approx
from tiny_actor import DoubleActor
from two_ranks import run_on_two_ranks

from rlnb.ppo import training as ppo_training
from rlnb.run.tracking import read_metrics
from rlnb.selfplay import arena
from rlnb.spiral import training as spiral_training

RECORDED = Path(__file__).with_name("recorded_runs.json")
TRAINING = {
    "learning_rate": 0.02, "final_learning_rate": 0.01, "warmup_steps": 1, "max_steps": 3,
    "games_per_step": 8, "num_epochs": 2, "num_mini_batches": 2, "entropy_coef": 0.02,
    "final_entropy_coef": 0.01, "clip": 0.05, "tokens_per_pass": 512, "save_steps": 100,
}  # fmt: skip
FREE = {"acting": "free", "max_new_tokens": 3, "invalid": "random"}
WORDED = {**FREE, "name": "kuhn_poker", "style": "full", "max_prompt_tokens": 2048}
# Ids of one token, ids that begin others, and answers in free play to prompts in words; each with every
# estimator that suits it, with and without a value head.
SPIRAL = {
    "kuhn_rae": {"advantage": {"kind": "rae"}, "training": {"magnet_coef": 0.3}},
    "kuhn_none": {"advantage": {"kind": "none"}},
    "tic_tac_toe_gae": {
        "game": {"name": "tic_tac_toe", "max_opening_plies": 4},
        "advantage": {"kind": "gae"}, "training": {"magnet_coef": 0.1},
    },
    "nim_leave_one_out": {"game": {"name": "nim"}, "advantage": {"kind": "leave_one_out"}},
    "worded_group": {"game": WORDED, "advantage": {"kind": "group"}, "training": {"magnet_coef": 0.1}},
    "free_tic_tac_toe_gae": {"game": {**FREE, "name": "tic_tac_toe"}, "advantage": {"kind": "gae"}},
}  # fmt: skip
PPO = {
    "ppo": {"replay": {"share": 0.5}, "training": {"detach_steps": 1}},
    "ppo_free": {
        "game": {**FREE, "max_prompt_tokens": 2048}, "replay": {"share": 0.5},
        "training": {"weigh": "games", "target_kl": 0.5},
    },
}  # fmt: skip
ON_RANKS = ("kuhn_rae", "nim_leave_one_out", "free_tic_tac_toe_gae", "ppo")
CASES = [*SPIRAL, *PPO]
IGNORED = ("time", "update/num_passed_rows")  # seconds, and a count of packed rows
TOLERANCE = 1e-6


class Actor(DoubleActor):
    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        if self.value_head is not None:
            self.value_head.double()
            with torch.no_grad():
                self.value_head.weight.copy_(torch.linspace(-0.1, 0.1, self.value_head.in_features))

    def values(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(hidden)) if self.value_head is None else super().values(hidden)

    def check_logits(self) -> None:
        """The model's own are float32."""


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    precision, usual_actor = torch.get_default_dtype(), arena.ActorCritic
    torch.set_default_dtype(torch.float64)
    arena.ActorCritic = Actor
    try:
        yield
    finally:
        arena.ActorCritic = usual_actor
        torch.set_default_dtype(precision)


def load_double(params):
    policy = self_play_run.load_policy(params.model, seed=params.seed)
    with torch.no_grad():  # answers as uneven as after learning
        policy.model.get_output_embeddings().weight.mul_(4)
    return replace(policy, model=policy.model.double())


def measure(case: str, folder: Path) -> dict[str, object]:
    """Return what a run leaves: its games, its metrics, and two figures of each trained weight."""
    sections = SPIRAL.get(case) or PPO[case]
    output_dir = folder / case
    sections = {**sections, "training": {**TRAINING, **sections.get("training", {})}}
    module = self_play_run if case in SPIRAL else ppo_run
    params = self_play_run.in_directory(module.params_of(folder / "cache", **sections), output_dir)
    policy = load_double(params)
    with in_float64():
        run = module.make_run(params, policy=policy)
        descend_plainly(run.learner)
        run.measure_step = lambda _: {}
        if case in SPIRAL:
            kept = spiral_training.train(run).baselines
        else:
            state = ppo_training.train(run)
            kept = {"failures": len(state.replay.failures), "stage": state.curriculum.stage}
    rows = read_metrics(output_dir / "metrics.jsonl") if PartialState().is_main_process else []
    return {
        "kept": kept,
        "metrics": [
            {name: row[name] for name in sorted(row) if not name.startswith(IGNORED)} for row in rows
        ],
        "games": read_histories(output_dir / "games.jsonl"),
        "weights": [summarise(weight) for weight in run.learner.actor.parameters_to_train()],
        "average": [summarise(weight) for weight in run.learner.average.values.values()],
    }


def assert_same(actual: dict, recorded: dict) -> None:
    assert actual["games"] == recorded["games"]
    assert actual["kept"] == approx(recorded["kept"], abs=TOLERANCE)
    for row, expected in zip(actual["metrics"], recorded["metrics"], strict=True):
        assert {name: row.get(name) for name in expected} == approx(expected, abs=TOLERANCE, rel=TOLERANCE)
    for weights in ("weights", "average"):
        for figures, expected in zip(actual[weights], recorded[weights], strict=True):
            assert figures == approx(expected, abs=TOLERANCE)


def descend_plainly(learner) -> None:
    groups = [{"params": group["params"], "lr": group["lr"]} for group in learner.optimizer.param_groups]
    learner.optimizer = torch.optim.SGD(groups)


def read_histories(path: Path) -> list[str]:
    """Return each game's actions and returns, as text."""
    if not path.exists():
        return []
    games = [json.loads(line) for line in path.read_text().splitlines()]
    return [f"{game['game']} {game['history']} {game['returns']}" for game in games]


def summarise(weight: torch.Tensor) -> list[float]:
    """Return a weight's norm and its product with a fixed vector, in which no entry cancels another."""
    flat = weight.detach().flatten().double()
    direction = torch.cos(torch.arange(len(flat)) + 1.0).double()
    return [float(flat.norm()), float(flat @ direction)]


def measure_on_this_rank(folder: Path) -> None:
    """Measure the runs that are recorded on ranks; the first rank writes what they leave to ranks.json."""
    results = {case: measure(case, folder) for case in ON_RANKS}
    if PartialState().is_main_process:
        (folder / "ranks.json").write_text(json.dumps(results))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if "WORLD_SIZE" in os.environ:
        state = PartialState(cpu=True)
        measure_on_this_rank(folder)
        state.wait_for_everyone()  # a rank that leaves first can abort the other
        state.destroy_process_group()
    else:
        alone = {case: measure(case, folder / "alone") for case in CASES}
        (folder / "ranks").mkdir()
        run_on_two_ranks(Path(__file__), folder / "ranks")
        ranks = json.loads((folder / "ranks" / "ranks.json").read_text())
        RECORDED.write_text(json.dumps({"alone": alone, "ranks": ranks}) + "\n")
