"""All that a self-play run needs to go on as if it had never stopped."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rlnb.machine import rank
from rlnb.params import dump_yaml
from rlnb.params.sections import NotebookParams
from rlnb.policy.adapters import AdapterValues, save_trained
from rlnb.runs import write_text
from rlnb.training.checkpoints import SHAPE_FILE, saved_step, shape_of, step_of
from rlnb.training.spiral import SelfPlayState
from rlnb.training.update import Learner

AVERAGE, MAGNET, REFERENCE, HEAD = (
    f"{name}.safetensors" for name in ("average", "magnet", "reference", "value")
)
PARAMS_FILE = "params.yaml"


def save_checkpoint(
    output_dir: str | Path, learner: Learner, state: Any, params: NotebookParams, *, keep: int
) -> Path:
    """Write checkpoints/checkpoint-N, whole or not at all, and delete all but the newest `keep`; by rank 0.

    state: a dataclass with the field step, whose other fields JSON can hold.
    The random states of play and of mini-batches follow from the seed and the step; torch's is kept for
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
    rest = {
        "optimizer": learner.optimizer.state_dict(),
        "scaler": learner.scaler.state_dict(),
        "random": torch.random.get_rng_state(),
    }
    if learner.terms.kl_target:  # else it is what the parameters say
        rest["kl_coef"] = learner.kl_coef
    torch.save(rest, unfinished / "optimizer.pt")
    write_text(unfinished / SHAPE_FILE, json.dumps(shape_of(params), indent=1) + "\n")
    write_text(unfinished / PARAMS_FILE, dump_yaml(params))  # by which it is measured, `rlnb eval`
    kept = {"global_step": state.step, **asdict(state)}
    write_text(unfinished / "trainer_state.json", json.dumps(kept, indent=1) + "\n")
    if directory.exists():  # of an attempt that was asked to begin anew
        shutil.rmtree(directory)
    unfinished.rename(directory)
    delete_others(directory, state.step, keep=keep)
    return directory


def delete_others(newest: Path, step: int, *, keep: int) -> None:
    """All but the newest `keep` complete checkpoints, and those of later steps.

    Later ones are of an attempt before this one, which was asked to begin anew.
    """
    found = kept_checkpoints(newest.parents[1])
    later = [path for path in found if step_of(path) > step]
    for path in later + [path for path in found if path not in later][:-keep]:
        shutil.rmtree(path)


def kept_checkpoints(output_dir: str | Path) -> list[str]:
    """The complete checkpoints of a run, the oldest first."""
    steps = {str(path): saved_step(path) for path in (Path(output_dir) / "checkpoints").glob("checkpoint-*")}
    return [path for _, path in sorted((step, path) for path, step in steps.items() if step is not None)]


def load_checkpoint(checkpoint: str | None, learner: Learner, *, output_dir: str | Path) -> SelfPlayState:
    """Put a checkpoint's weights and states into a fresh learner; the start of a run where there is none.

    Of another run, which `training.resume` names, only the weights are taken, and its value head where both
    have one: schedules, averages, baselines and optimizer begin anew.
    """
    return SelfPlayState(**restore(checkpoint, learner, output_dir=output_dir))


def restore(checkpoint: str | None, learner: Learner, *, output_dir: str | Path) -> dict[str, Any]:
    """`load_checkpoint` for any state: its fields as JSON has them, none where a run begins."""
    if checkpoint is None:
        return {}
    directory, policy = Path(checkpoint), learner.actor.policy
    load_weights(checkpoint, AdapterValues.of(policy)).put_into(policy)
    head = learner.actor.value_head
    if head is not None and (directory / HEAD).exists():
        head.load_state_dict(load_file(directory / HEAD))
    if not is_own(checkpoint, output_dir):
        for values in (learner.average, learner.magnet, learner.reference):
            if values:
                values.take(policy)
        return {}
    learner.average.load(directory / AVERAGE)
    if learner.magnet:
        learner.magnet.load(directory / MAGNET)
    if (directory / REFERENCE).exists():
        learner.reference = learner.reference or AdapterValues.of(policy)
        learner.reference.load(directory / REFERENCE)
    rest: dict[str, Any] = torch.load(directory / "optimizer.pt", weights_only=True, map_location="cpu")
    learner.optimizer.load_state_dict(rest["optimizer"])
    learner.scaler.load_state_dict(rest["scaler"])
    torch.random.set_rng_state(rest["random"])
    if learner.terms.kl_target and "kl_coef" in rest:
        learner.kl_coef = rest["kl_coef"]
    kept: dict[str, Any] = json.loads((directory / "trainer_state.json").read_text(encoding="utf-8"))
    kept.pop("global_step")
    return kept


def is_own(checkpoint: str | Path, output_dir: str | Path) -> bool:
    """Whether a checkpoint is of the run that writes to output_dir."""
    return Path(checkpoint).resolve().parent == (Path(output_dir) / "checkpoints").resolve()


def load_weights(checkpoint: str | Path, like: AdapterValues, *, average: bool = False) -> AdapterValues:
    """The trained weights of a checkpoint, or their average, as an opponent for instance."""
    values = AdapterValues(dict(like.values))
    if average:
        values.load(Path(checkpoint) / AVERAGE)
    else:
        values.load_trained(checkpoint)
    return values
