"""Choose the checkpoint that a run resumes from, and refuse one of another run."""

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from rlnb.errors import ParamsError
from rlnb.machine import rank
from rlnb.params.sections import NotebookParams, value_of

INCOMPLETE_MARK = "checkpoint-is-incomplete.txt"  # transformers keeps this file while it writes
RECIPE_FILE = "rlnb.json"
RECORDS = ("metrics.jsonl", "games.jsonl", "train.log")
MODEL_FIELDS = ("id", "lora_rank", "lora_target_modules")  # other values make saved adapters unusable
SECTIONS = (
    "tasks", "board", "prompt", "game", "opponent", "reward", "advantage", "curriculum", "replay", "training",
)  # fmt: skip
# Fields that say how long, where and how fast, not what is learned: they may change from attempt to attempt.
FREE_FIELDS = (
    "resume", "num_threads", "save_steps", "save_total_limit", "gradient_checkpointing",
    "base_url", "batch_size", "num_parallel", "tokens_per_pass", "prompt_memo",
)  # fmt: skip


def checkpoint_to_resume(params: NotebookParams, output_dir: str | Path) -> str | None:
    """Return the checkpoint that `training.resume` names, None to start from the beginning.

    auto: the run's newest, if any. latest: the newest, which must exist. never: none, and existing
    checkpoints are set aside. A directory: that one, until the run has checkpoints of its own. Raises
    ParamsError for a directory without a complete checkpoint, for an older checkpoint of this run, and for
    a checkpoint of other parameters.
    """
    resume: str = value_of(params, "training.resume")
    if resume == "never":
        set_aside(output_dir)
        return None
    latest = latest_checkpoint(output_dir)
    if latest is not None:
        given, newest = Path(resume).resolve(), Path(latest).resolve()
        if given != newest and given.parent == newest.parent and saved_step(resume) is not None:
            raise ParamsError(
                f"training.resume = {resume!r} is of this run, which has gone on to {latest}; give another "
                "output_dir to begin with its weights, or delete the later ones to go back"
            )
        check_recipe(latest, run_recipe(params))
        return latest
    if resume == "auto":
        return None
    if resume == "latest":
        raise ParamsError(
            f"training.resume = 'latest' finds no complete checkpoint in {Path(output_dir) / 'checkpoints'}; "
            "write auto, or a checkpoint's directory"
        )
    if saved_step(resume) is None:
        raise ParamsError(f"training.resume = {resume!r} holds no complete checkpoint; write auto or never")
    # Another run's recipe may differ, as in a curriculum; its adapters must fit.
    recipe = run_recipe(params)
    check_recipe(resume, {name: value for name, value in recipe.items() if name.startswith("model.")})
    return resume


def set_aside(output_dir: str | Path) -> None:
    """Rename checkpoints/ and the run's records to the first free suffix, so that a run starts afresh."""
    directory, suffix = Path(output_dir), 1
    if rank() != 0 or latest_checkpoint(directory) is None:
        return
    while (directory / f"checkpoints-{suffix}").exists():
        suffix += 1
    for name in (*RECORDS, "checkpoints"):
        path = directory / name
        if path.exists():
            path.rename(path.with_name(f"{path.stem}-{suffix}{path.suffix}"))


def latest_checkpoint(output_dir: str | Path) -> str | None:
    """Return the newest complete checkpoint of a run, or None; incomplete ones are skipped."""
    paths = (Path(output_dir) / "checkpoints").glob("checkpoint-*")
    complete = [(step, str(path)) for path in paths if (step := saved_step(path)) is not None]
    return max(complete)[1] if complete else None


def saved_step(checkpoint: str | Path) -> int | None:
    """Return the step a checkpoint was saved at, None where it is missing or incomplete."""
    directory = Path(checkpoint)
    if (directory / INCOMPLETE_MARK).exists():
        return None
    try:  # Written last, so a complete file means a complete checkpoint.
        return int(json.loads((directory / "trainer_state.json").read_text())["global_step"])
    except (OSError, ValueError, LookupError):
        return None


def checkpoint_step(checkpoint: str | Path | None) -> int:
    """Return the step a complete checkpoint was saved at, 0 for none."""
    return (saved_step(checkpoint) if checkpoint else None) or 0


def run_recipe(params: NotebookParams) -> dict[str, JsonValue]:
    """Return {"training.learning_rate": 1e-5, ...}: the values that decide what a run learns."""
    values = params.model_dump(mode="json")
    recipe = {"seed": values["seed"]}
    recipe |= {f"model.{name}": values["model"][name] for name in MODEL_FIELDS}
    for section in SECTIONS:
        fields = values.get(section, {})
        recipe |= {f"{section}.{name}": value for name, value in fields.items() if name not in FREE_FIELDS}
    return recipe


def recipe_text(params: NotebookParams) -> str:
    """Return what a checkpoint's RECIPE_FILE holds, so that no other run resumes from it."""
    return json.dumps(run_recipe(params), indent=1) + "\n"


def check_recipe(checkpoint: str, recipe: Mapping[str, JsonValue]) -> None:
    """Raise ParamsError where a checkpoint was saved under other values; old ones may not record all."""
    path = Path(checkpoint) / RECIPE_FILE
    saved = json.loads(path.read_text()) if path.exists() else {}
    changes = [
        f"{name} was {saved[name]!r} and is {value!r} now"
        for name, value in recipe.items()
        if name in saved and saved[name] != value
    ]
    if changes:
        raise ParamsError(
            f"{checkpoint}: belongs to another run: {'; '.join(changes)}. "
            "Give another output_dir, or write training.resume = never"
        )
