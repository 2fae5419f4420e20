"""The state of a run of SPIRAL or PPO, and its checkpoints: all that it needs to continue bit for bit."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self, TypeVar

import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file

from rlnb.machine import rank
from rlnb.params import dump_yaml
from rlnb.policy.adapters import WeightSnapshot, save_trained
from rlnb.run.checkpoints import STATE_FILE, complete_checkpoint, remove_old_checkpoints
from rlnb.run.disk import write_text, written_whole
from rlnb.run.health import find_alarms
from rlnb.selfplay.batch import Learner
from rlnb.selfplay.params import GameRunParams, UpdateParams

PARAMS_FILE = "params.yaml"
HEAD_FILE, AVERAGE_FILE = "value.safetensors", "average.safetensors"


@dataclass
class RunState:
    """The progress of a run, apart from weights and optimizer: fields that JSON can hold.

    alarms: consecutive updates in which each alarm was raised. first_length: mean tokens of an answer at the
    first update, with which the alarms compare.
    """

    step: int = 0
    num_games: int = 0
    alarms: dict[str, int] = field(default_factory=dict)
    first_length: float = 0.0

    def advance(self, metrics: Mapping[str, float], training: UpdateParams) -> Self:
        """Return the state after an update."""
        first_length = self.first_length or metrics["play/completion_tokens"]
        alarms = find_alarms(metrics, first_length=first_length)
        return replace(
            self,
            step=self.step + 1,
            num_games=self.num_games + training.games_per_step,
            alarms={name: self.alarms.get(name, 0) + 1 for name in alarms},
            first_length=first_length,
        )


AnyState = TypeVar("AnyState", bound=RunState)


def save_checkpoint(output_dir: str | Path, learner: Learner, state: RunState, params: GameRunParams) -> Path:
    """Write checkpoints/checkpoint-N atomically, and delete all but the newest; rank 0 only.

    The random states of play and of mini-batches follow from the seed and the step; torch's is saved for
    dropout. Without `training.save_optimizer` the optimizer's own state is left out.
    """
    directory = Path(output_dir) / "checkpoints" / f"checkpoint-{state.step}"
    if rank() != 0:
        return directory
    with written_whole(directory) as unfinished:
        save_trained(learner.actor.policy, unfinished)
        for name, snapshot in learner.snapshots.items():
            snapshot.save(unfinished / f"{name}.safetensors")
        if learner.actor.value_head is not None:
            save_file(learner.actor.value_head.state_dict(), unfinished / HEAD_FILE)
        tensors = {"scaler": learner.scaler.state_dict(), "random": torch.random.get_rng_state()}
        if learner.training.save_optimizer:
            tensors["optimizer"] = learner.optimizer.state_dict()
        torch.save(tensors, unfinished / "optimizer.pt")
        write_text(unfinished / PARAMS_FILE, dump_yaml(params))  # read by `rlnb eval`
        fields = {"global_step": state.step, **asdict(state)}
        write_text(unfinished / STATE_FILE, json.dumps(fields, indent=1) + "\n")
        complete_checkpoint(unfinished, params)
    remove_old_checkpoints(output_dir, step=state.step, keep=params.training.save_total_limit)
    return directory


def restore(start: AnyState, checkpoint: str | None, learner: Learner) -> AnyState:
    """Put a checkpoint into a fresh learner and return its state; without one, a copy of the start's."""
    if checkpoint is None:
        return replace(start)
    policy, head, directory = learner.actor.policy, learner.actor.value_head, Path(checkpoint)
    weights = WeightSnapshot.take(policy)
    weights.load_trained(directory)
    weights.restore(policy)
    if head is not None:
        head.load_state_dict(load_file(directory / HEAD_FILE))
    for name, snapshot in learner.snapshots.items():
        snapshot.load(directory / f"{name}.safetensors")
    tensors = torch.load(directory / "optimizer.pt", weights_only=True, map_location="cpu")
    if "optimizer" in tensors:
        learner.optimizer.load_state_dict(tensors["optimizer"])
    if tensors["scaler"]:  # empty if saved under another model.dtype than float16
        learner.scaler.load_state_dict(tensors["scaler"])
    torch.random.set_rng_state(tensors["random"])
    fields = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
    fields.pop("global_step")
    return TypeAdapter(type(start)).validate_python(fields)
