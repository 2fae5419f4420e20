"""What a run needs of its machine besides time: memory, room on the disk, and what to do for want of it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rlnb.errors import OutOfMemory, ParamsError
from rlnb.params.sections import value_of
from rlnb.training.update import Learner, trained_parameters

GIB = 2**30


@contextmanager
def memory_advice(params: Any) -> Iterator[None]:
    """Pass CUDA's lack of memory on as OutOfMemory: the settings to change in order, with present values."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        remedies = "; ".join(
            f"{number}. {field} = {value_of(params, field)}: {remedy}"
            for number, (field, remedy) in enumerate(ways_to_less_memory(params)[:3], 1)
        )
        raise OutOfMemory(f"the GPU's memory is used up. Change, in this order: {remedies}") from error


def ways_to_less_memory(params: Any) -> list[tuple[str, str]]:
    """(field, what to write), what costs least first; what is set already is left out."""
    training, game = params.training, params.game
    ways = [("training.tokens_per_pass", f"write {max(16, training.tokens_per_pass // 2)}")]
    if training.gradient_checkpointing is not True:
        ways.append(("training.gradient_checkpointing", "write true"))
    if params.model.load_in_4bit is not True and params.model.lora_rank:
        ways.append(("model.load_in_4bit", "write true"))
    ways.append(("game.batch_size", f"write {max(1, game.batch_size // 2)}, for free answers"))
    ways.append(("game.max_prompt_tokens", "write less, or game.style = compact"))
    return ways


def checkpoint_bytes(learner: Learner) -> int:
    """About the size of a checkpoint: weights, their averages and AdamW's two moments."""
    trained = sum(one.numel() * one.element_size() for one in trained_parameters(learner.actor))
    copies = 4 + sum(one is not None for one in (learner.magnet, learner.reference))
    return copies * trained


def check_disk(output_dir: str | Path, num_bytes: int, *, keep: int) -> None:
    """Raise ParamsError where `keep` checkpoints of `num_bytes`, and one being written, do not fit.

    Those that a run goes on from are there already.
    """
    num_new = max(1, keep + 1 - len([*Path(output_dir).glob("checkpoints/checkpoint-*")]))
    there = Path(output_dir).absolute()
    there = next(path for path in (there, *there.parents) if path.exists())
    free, needed = shutil.disk_usage(there).free, num_new * num_bytes
    if free < needed:
        raise ParamsError(
            f"output_dir = {str(output_dir)!r} has {free / GIB:.1f} GiB free, and {num_new} checkpoints "
            f"take {needed / GIB:.1f}; write another directory, or less than "
            f"training.save_total_limit = {keep}"
        )
