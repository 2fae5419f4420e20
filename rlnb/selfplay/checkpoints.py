"""Checkpoints of self-play and PPO: everything a run needs to continue bit for bit."""

import json
import shutil
from dataclasses import Field, asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from safetensors.torch import load_file, save_file

from rlnb.machine import rank
from rlnb.params import dump_yaml
from rlnb.params.sections import NotebookParams
from rlnb.policy.adapters import WeightSnapshot, save_trained
from rlnb.run.checkpoints import RECIPE_FILE, checkpoint_step, recipe_text, saved_step
from rlnb.run.directory import write_text
from rlnb.selfplay.update import Learner

AVERAGE, MAGNET, REFERENCE, HEAD = (
    f"{name}.safetensors" for name in ("average", "magnet", "reference", "value")
)
PARAMS_FILE = "params.yaml"


def checkpoint_bytes(learner: Learner) -> int:
    """Return the approximate size of a checkpoint: weights, their averages and AdamW's two moments."""
    trained = sum(
        parameter.numel() * parameter.element_size() for parameter in learner.actor.parameters_to_train()
    )
    copies = 4 + sum(snapshot is not None for snapshot in (learner.magnet, learner.reference))
    return copies * trained


class RunState(Protocol):
    """The progress of a run: a dataclass whose fields JSON can hold."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def step(self) -> int: ...


def save_checkpoint(
    output_dir: str | Path, learner: Learner, state: RunState, params: NotebookParams, *, keep: int
) -> Path:
    """Write checkpoints/checkpoint-N atomically, and delete all but the newest `keep`; rank 0 only.

    The random states of play and of mini-batches follow from the seed and the step; torch's is saved for
    dropout.
    """
    directory = Path(output_dir) / "checkpoints" / f"checkpoint-{state.step}"
    if rank() != 0:
        return directory
    unfinished = directory.with_name(f".{directory.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    save_trained(learner.actor.policy, unfinished)
    learner.average.save(unfinished / AVERAGE)
    if learner.magnet:
        learner.magnet.save(unfinished / MAGNET)
    if learner.reference:  # the first weights, or those that a warm-up left
        learner.reference.save(unfinished / REFERENCE)
    if learner.actor.value_head is not None:
        save_file(learner.actor.value_head.state_dict(), unfinished / HEAD)
    tensors = {
        "optimizer": learner.optimizer.state_dict(),
        "scaler": learner.scaler.state_dict(),
        "random": torch.random.get_rng_state(),
    }
    if learner.ppo.kl_target:  # otherwise it never moves from the value in the parameters
        tensors["kl_coef"] = learner.kl_coef
    torch.save(tensors, unfinished / "optimizer.pt")
    write_text(unfinished / RECIPE_FILE, recipe_text(params))
    write_text(unfinished / PARAMS_FILE, dump_yaml(params))  # read by `rlnb eval`
    fields = {"global_step": state.step, **asdict(state)}
    write_text(unfinished / "trainer_state.json", json.dumps(fields, indent=1) + "\n")
    if directory.exists():  # of an earlier attempt; this one started over
        shutil.rmtree(directory)
    unfinished.rename(directory)
    # Later steps are of an earlier attempt, before this one started over.
    complete = kept_checkpoints(output_dir)
    later = [path for path in complete if checkpoint_step(path) > state.step]
    for path in later + [path for path in complete if path not in later][:-keep]:
        shutil.rmtree(path)
    return directory


def kept_checkpoints(output_dir: str | Path) -> list[str]:
    """Return the complete checkpoints of a run, oldest first."""
    steps = {str(path): saved_step(path) for path in (Path(output_dir) / "checkpoints").glob("checkpoint-*")}
    return [path for _, path in sorted((step, path) for path, step in steps.items() if step is not None)]


def restore(checkpoint: str | None, learner: Learner, *, output_dir: str | Path) -> dict[str, object]:
    """Put a checkpoint into a fresh learner and return the fields of its state, as JSON has them.

    Without a checkpoint the fields are empty: the start of a run. From a checkpoint of another run, named by
    `training.resume`, only the weights are taken, and the value head if both have one; schedules, averages,
    baselines and optimizer start afresh.
    """
    if checkpoint is None:
        return {}
    directory, policy = Path(checkpoint), learner.actor.policy
    load_weights(checkpoint, WeightSnapshot.take(policy)).restore(policy)
    head = learner.actor.value_head
    if head is not None and (directory / HEAD).exists():
        head.load_state_dict(load_file(directory / HEAD))
    if not is_of_this_run(checkpoint, output_dir):
        for snapshot in (learner.average, learner.magnet, learner.reference):
            if snapshot:
                snapshot.copy_from(policy)
        return {}
    learner.average.load(directory / AVERAGE)
    if learner.magnet:
        learner.magnet.load(directory / MAGNET)
    if (directory / REFERENCE).exists():
        learner.reference = learner.reference or WeightSnapshot.take(policy)
        learner.reference.load(directory / REFERENCE)
    tensors = torch.load(directory / "optimizer.pt", weights_only=True, map_location="cpu")
    learner.optimizer.load_state_dict(tensors["optimizer"])
    learner.scaler.load_state_dict(tensors["scaler"])
    torch.random.set_rng_state(tensors["random"])
    if learner.ppo.kl_target and "kl_coef" in tensors:
        learner.kl_coef = tensors["kl_coef"]
    fields: dict[str, object] = json.loads((directory / "trainer_state.json").read_text(encoding="utf-8"))
    fields.pop("global_step")
    return fields


def is_of_this_run(checkpoint: str | Path, output_dir: str | Path) -> bool:
    """Return whether a checkpoint belongs to the run that writes to output_dir."""
    return Path(checkpoint).resolve().parent == (Path(output_dir) / "checkpoints").resolve()


def load_weights(checkpoint: str | Path, like: WeightSnapshot, *, average: bool = False) -> WeightSnapshot:
    """Return the trained weights of a checkpoint, or their average. like: a snapshot of the same model."""
    snapshot = WeightSnapshot(dict(like.values))
    if average:
        snapshot.load(Path(checkpoint) / AVERAGE)
    else:
        snapshot.load_trained(checkpoint)
    return snapshot
