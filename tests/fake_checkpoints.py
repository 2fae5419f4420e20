"""Checkpoints as far as resuming looks at them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import TrainerState

from rlnb.grpo.training import SaveRecipe
from rlnb.params.sections import NotebookParams


def save_checkpoint(run: Path, *, step: int, params: NotebookParams) -> Path:
    """A checkpoint as far as resuming looks at it."""
    folder = run / "checkpoints" / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (folder / "optimizer.pt").write_bytes(b"moments" * 1000)
    state = TrainerState(global_step=step, is_world_process_zero=True)
    arguments: Any = SimpleNamespace(output_dir=str(folder.parent))
    SaveRecipe(params).on_save(arguments, state, None)  # type: ignore[arg-type]
    return folder
