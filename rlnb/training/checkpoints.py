"""Which checkpoint a run goes on from, and whether it is one of its own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlnb.errors import ParamsError
from rlnb.machine import rank
from rlnb.params.sections import NotebookParams, value_of
from rlnb.runs import write_text

INCOMPLETE_MARK = "checkpoint-is-incomplete.txt"  # transformers', while it writes
SHAPE_FILE = "rlnb.json"
RECORDS = ("metrics.jsonl", "games.jsonl")
MODEL_FIELDS = ("id", "lora_rank", "lora_target_modules")  # whose change makes adapters unusable
SECTIONS = (
    "tasks", "board", "prompt", "game", "opponent", "reward", "advantage", "curriculum", "replay", "training",
)  # fmt: skip
# Fields that say how long, where and how fast, not what is learned: they may change from attempt to attempt.
FREE_FIELDS = (
    "resume", "num_threads", "save_steps", "save_total_limit", "gradient_checkpointing",
    "base_url", "batch_size", "num_parallel", "tokens_per_pass", "prompt_memo",
)  # fmt: skip


def checkpoint_to_resume(params: NotebookParams, output_dir: str | Path) -> str | None:
    """The checkpoint that `training.resume` means, None for a new start.

    auto: the run's newest. latest: the same, which must be there. never: none, and those that are there are
    set aside. A directory: that one, until the run has checkpoints of its own. Raises ParamsError for a
    directory that is no checkpoint, for an older one of this run, and for a checkpoint of other parameters.
    """
    resume: str = value_of(params, "training.resume")
    if resume == "never":
        set_aside(output_dir)
        return None
    own = latest_checkpoint(output_dir)
    if own is not None:
        if resume not in ("auto", "latest") and Path(resume).resolve() != Path(own).resolve():
            check_not_superseded(resume, own)
        check_shape(own, shape_of(params))
        return own
    if resume == "auto":
        return None
    if resume == "latest":
        raise ParamsError(
            f"training.resume = 'latest' finds no complete checkpoint in {Path(output_dir) / 'checkpoints'}; "
            "write auto, or a checkpoint's directory"
        )
    if saved_step(resume) is None:
        raise ParamsError(f"training.resume = {resume!r} holds no complete checkpoint; write auto or never")
    # Another run's: its recipe may differ, as in a curriculum, its adapters may not.
    check_shape(
        resume, {name: value for name, value in shape_of(params).items() if name.startswith("model.")}
    )
    return resume


def set_aside(output_dir: str | Path) -> None:
    """Rename checkpoints/ and its run's records to the first free number: an attempt that is not resumed."""
    run, number = Path(output_dir), 1
    if rank() != 0 or latest_checkpoint(run) is None:
        return
    while (run / f"checkpoints-{number}").exists():
        number += 1
    for name in (*RECORDS, "checkpoints"):
        path = run / name
        if path.exists():
            path.rename(path.with_name(f"{path.stem}-{number}{path.suffix}"))


def check_not_superseded(resume: str, own: str) -> None:
    """Raise ParamsError for an older checkpoint of this very run: it would be passed over."""
    if Path(resume).resolve().parent == Path(own).resolve().parent and saved_step(resume) is not None:
        raise ParamsError(
            f"training.resume = {resume!r} is of this run, which has gone on to {own}; give another "
            "output_dir to begin with its weights, or delete the later ones to go back"
        )


def latest_checkpoint(output_dir: str | Path) -> str | None:
    """The newest complete checkpoint of a run, or None; one that a kill left half written is passed over."""
    paths = (Path(output_dir) / "checkpoints").glob("checkpoint-*")
    found = [(step, str(path)) for path in paths if (step := saved_step(path)) is not None]
    return max(found)[1] if found else None


def saved_step(checkpoint: str | Path) -> int | None:
    """The step a checkpoint was saved at, None for what is no complete checkpoint."""
    directory = Path(checkpoint)
    if (directory / INCOMPLETE_MARK).exists():
        return None
    try:  # written last of all, so whoever has it whole has the rest
        return int(json.loads((directory / "trainer_state.json").read_text())["global_step"])
    except (OSError, ValueError, LookupError):
        return None


def step_of(checkpoint: str | None) -> int:
    """The step a complete checkpoint was saved at, 0 for none."""
    return (saved_step(checkpoint) if checkpoint else None) or 0


def shape_of(params: NotebookParams) -> dict[str, Any]:
    """{"training.learning_rate": 1e-5, ...}: what decides what a run learns."""
    values = params.model_dump(mode="json")
    shape = {"seed": values["seed"]}
    shape |= {f"model.{name}": values["model"][name] for name in MODEL_FIELDS}
    for section in SECTIONS:
        fields = values.get(section, {})
        shape |= {f"{section}.{name}": value for name, value in fields.items() if name not in FREE_FIELDS}
    return shape


def check_shape(checkpoint: str, shape: Mapping[str, Any]) -> None:
    """Raise ParamsError where a checkpoint's run was asked for something else; it may not say."""
    path = Path(checkpoint) / SHAPE_FILE
    before = json.loads(path.read_text()) if path.exists() else {}
    changed = [
        f"{name} was {before[name]!r} and is {value!r} now"
        for name, value in shape.items()
        if name in before and before[name] != value
    ]
    if changed:
        raise ParamsError(
            f"{checkpoint}: belongs to another run: {'; '.join(changed)}. "
            "Give another output_dir, or write training.resume = never"
        )


class SaveShape(TrainerCallback):
    """Writes into each checkpoint what its run was asked for, so that no other run goes on from it."""

    def __init__(self, params: NotebookParams) -> None:
        self.text = json.dumps(shape_of(params), indent=1) + "\n"

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.is_world_process_zero:
            write_text(Path(args.output_dir, f"checkpoint-{state.global_step}", SHAPE_FILE), self.text)
