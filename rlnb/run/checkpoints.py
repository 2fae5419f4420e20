"""Choose the checkpoint that a run continues from, and say or refuse what has changed since it was saved.

A checkpoint holds the parameters of its run and the sizes of its files in RECIPE_FILE. That is written last,
when all other files are on the disk, so a checkpoint is whole if it has this file and the sizes are right. A
damaged one is passed over.

Fields of the task, the model and the saved state stay as they were; all others (learning rate, steps, batch
sizes, ...) may change between attempts.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue

from rlnb.errors import CheckpointUnreadable, ParamsError, see
from rlnb.machine import rank, world_size
from rlnb.params.problems import show
from rlnb.params.sections import NotebookParams, value_of
from rlnb.run.directory import say, write_text
from rlnb.run.disk import RECIPE_FILE, remove_half_written, sync

STATE_FILE = "trainer_state.json"
FILES, RANKS = "files", "ranks"  # in RECIPE_FILE: {name: bytes} of the other files, the number of ranks
RECORDS = ("metrics.jsonl", "games.jsonl", "train.log")

MODEL_FIELDS = ("id", "lora_rank", "lora_alpha", "lora_target_modules")
# Patterns of fields that may not change, with the reason that a refusal gives.
OF_WEIGHTS = dict.fromkeys((f"model.{name}" for name in MODEL_FIELDS), "the saved weights are of that model")
OF_OPTIMIZER = dict.fromkeys(
    ("training.optim", "training.weight_decay"), "the saved optimizer continues with its own"
)
OF_STATE = {
    "training.init_kl_coef": "the weight has been adapted since the first step",
    "training.magnet_coef": "0 keeps no weights to compare with; others may change",
    "advantage.kind": "the saved baselines and value head are of that kind",
    **dict.fromkeys(
        ("curriculum.stages", "curriculum.stages.*.games", "curriculum.stages.*.opponents"),
        "the saved stage and failures are of these",
    ),
}
OF_TASK = dict.fromkeys(
    (
        "seed", "model.adapters", "tasks.*", "board.*", "prompt.*", "game.*", "opponent.*", "reward.*",
        "advantage.*",
    ),
    "it defines the task and its measures",
)  # fmt: skip
# Fields of these sections that may change all the same.
FREE_FIELDS = ("game.temperature", "game.batch_size", "opponent.base_url", "opponent.batch_size")
SWITCHES = ("training.magnet_coef",)  # may change, but neither from 0 nor to 0
NOT_COMPARED = ("output_dir", "model.cache_dir", "training.resume")


class Change(NamedTuple):
    """A field with another value than before. reason: why it may not change, "" where it may."""

    field: str
    was: JsonValue
    now: JsonValue
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.field} {show(self.was)} -> {show(self.now)}"


def checkpoint_to_resume(params: NotebookParams, output_dir: str | Path) -> str | None:
    """Return the checkpoint whose whole state the run continues, None to start at step 0.

    auto: the run's newest, if any. latest: the newest, which must exist. never: none, and existing
    checkpoints are set aside. A directory: that one, until the run has checkpoints of its own. Says in a
    line, also in train.log, which parameters have changed since, and what is taken from another run.

    Raises ParamsError for a directory without a complete checkpoint, for an older checkpoint of this run,
    and for changes that do not fit the checkpoint.
    """
    resume: str = value_of(params, "training.resume")
    if resume == "never":
        set_aside(output_dir)
        return None
    latest = latest_checkpoint(output_dir)
    if latest is not None:
        changes = _check_latest(latest, params)
        remove_damaged(latest, output_dir)
        if changes:
            say(output_dir, f"changed since {Path(latest).name}: {', '.join(map(str, changes))}")
        if line := changed_ranks(latest):
            say(output_dir, line)
        if not holds_optimizer(latest):
            say(output_dir, f"{Path(latest).name} holds no optimizer's state: going on with a new optimizer")
        return latest
    _say_half_written(output_dir)
    for path, damage in list_damaged(output_dir).items():
        say(output_dir, f"{path}: {damage}; no whole checkpoint is left")
    changes = [] if resume == "auto" else _check_beginning(params, output_dir)
    if kept := set_aside(output_dir):
        say(output_dir, f"the run begins again; kept of it until here: {', '.join(map(str, kept))}")
    if resume == "auto":
        return None
    since = f"; changed since: {', '.join(map(str, changes))}" if changes else ""
    optimizer = "optimizer" if holds_optimizer(resume) else "a new optimizer, for it holds none"
    say(output_dir, f"taking the whole state of {resume}: step {checkpoint_step(resume)}, {optimizer}{since}")
    return resume


def check_resuming(params: NotebookParams, output_dir: str | Path) -> None:
    """Raise ParamsError where `checkpoint_to_resume` would; it writes nothing and reads no weights."""
    resume: str = value_of(params, "training.resume")
    if resume == "never":
        return
    # A name that is too long is refused where the directory is made.
    latest = latest_checkpoint(output_dir) if os.path.isdir(output_dir) else None
    if latest is not None:
        _check_latest(latest, params)
    elif resume != "auto":
        _check_beginning(params, output_dir)


def _check_latest(latest: str, params: NotebookParams) -> list[Change]:
    """Return what has changed since the newest checkpoint of this run. Raises ParamsError."""
    resume: str = value_of(params, "training.resume")
    given, newest = Path(resume).resolve(), Path(latest).resolve()
    if given != newest and given.parent == newest.parent and saved_step(resume) is not None:
        raise ParamsError(
            f"training.resume = {resume!r} is of this run, which has gone on to {latest}; give another "
            "output_dir to continue from it there, or delete the later ones to go back"
        )
    changes = check_recipe(latest, params, OF_WEIGHTS | of_state(latest) | OF_TASK)
    if checkpoint_step(latest) > value_of(params, "training.max_steps"):
        raise too_few_steps(latest, params, "give another output_dir")
    return changes


def _check_beginning(params: NotebookParams, output_dir: str | Path) -> list[Change]:
    """Return what has changed since the checkpoint that the run begins with. Raises ParamsError."""
    resume: str = value_of(params, "training.resume")
    if resume == "latest":
        raise ParamsError(
            f"training.resume = 'latest' finds no complete checkpoint in {Path(output_dir) / 'checkpoints'}; "
            "write auto, or a checkpoint's directory"
        )
    if damage := find_damage(resume):
        raise ParamsError(
            f"training.resume = {resume!r} holds no complete checkpoint: {damage}; write auto or never"
        )
    changes = check_recipe(resume, params, OF_WEIGHTS | of_state(resume))
    if checkpoint_step(resume) >= value_of(params, "training.max_steps"):
        raise too_few_steps(resume, params, "model.adapters = that directory to begin at step 0")
    return changes


def changed_ranks(checkpoint: str) -> str:
    """Return a line where another number of ranks goes on than saved the checkpoint, else ""."""
    was, now = saved_recipe(checkpoint).get(RANKS, 1), world_size()
    if was == now:
        return ""
    return f"{Path(checkpoint).name} was saved by {was} rank(s), and {now} go on: see docs/many_ranks.md"


def too_few_steps(checkpoint: str, params: NotebookParams, otherwise: str) -> ParamsError:
    """Return the error of a run whose last step is behind its checkpoint's."""
    return ParamsError(
        f"training.max_steps = {value_of(params, 'training.max_steps')} leaves nothing to train after the "
        f"{checkpoint_step(checkpoint)} steps of {checkpoint}; write more, or {otherwise}"
    )


def set_aside(output_dir: str | Path) -> list[Path]:
    """Rename checkpoints/ and the run's records to the first free suffix, so that a run starts afresh.

    Returns the new paths, none where the run has no checkpoint, not even a damaged one. Rank 0 only.
    """
    directory, suffix = Path(output_dir), 1
    if rank() != 0 or not _checkpoints(directory):
        return []
    while (directory / f"checkpoints-{suffix}").exists():
        suffix += 1
    paths = [path for name in (*RECORDS, "checkpoints") if (path := directory / name).exists()]
    return [path.rename(path.with_name(f"{path.stem}-{suffix}{path.suffix}")) for path in paths]


def latest_checkpoint(output_dir: str | Path) -> str | None:
    """Return the newest complete checkpoint of a run, or None; damaged ones are passed over."""
    return next(reversed(complete_checkpoints(output_dir)), None)


def complete_checkpoints(output_dir: str | Path) -> list[str]:
    """Return the complete checkpoints of a run, oldest first."""
    steps = {str(path): saved_step(path) for path in _checkpoints(output_dir)}
    return [path for _, path in sorted((step, path) for path, step in steps.items() if step is not None)]


def _checkpoints(output_dir: str | Path) -> list[Path]:
    """Return the checkpoints of a run, in any state; unlike glob, raise where they cannot be listed."""
    folder = Path(output_dir) / "checkpoints"
    try:
        return [path for path in folder.iterdir() if path.name.startswith("checkpoint-")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(folder, error) from error


def saved_step(checkpoint: str | Path) -> int | None:
    """Return the step a checkpoint was saved at, None where it is missing, incomplete or damaged."""
    return None if find_damage(checkpoint) else _read_step(Path(checkpoint))


def checkpoint_step(checkpoint: str | Path | None) -> int:
    """Return the step a complete checkpoint was saved at, 0 for none."""
    return (saved_step(checkpoint) if checkpoint else None) or 0


def find_damage(checkpoint: str | Path) -> str:
    """Return what a checkpoint lacks or has in another size than when it was saved, "" for a whole one.

    Raises CheckpointUnreadable where a file is there but cannot be read.
    """
    directory, name = Path(checkpoint), RECIPE_FILE
    try:
        for name, num_bytes in dict(json.loads(_read(directory / RECIPE_FILE))[FILES]).items():
            if not isinstance(num_bytes, int):
                raise CheckpointUnreadable(
                    f"{directory} was saved by an older version of rlnb: finish this run with that version, "
                    "or give another output_dir"
                )
            if (size := (directory / name).stat().st_size) != num_bytes:
                return f"{name} has {size} bytes instead of {num_bytes}"
        name = STATE_FILE
        _read_step(directory)
    except (FileNotFoundError, NotADirectoryError):
        return f"{name} is missing"
    except (ValueError, LookupError, TypeError):
        return f"{name} is damaged"
    except OSError as error:  # a network file system's may pass
        raise _unreadable(directory / name, error) from error
    return ""


def _unreadable(path: Path, error: OSError) -> CheckpointUnreadable:
    return CheckpointUnreadable(
        f"{path} cannot be read: {error.strerror}. It may be whole all the same, so nothing is passed over "
        f"or removed: run again once it can be read, or delete the checkpoint{see('damaged-files')}"
    )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _read_step(directory: Path) -> int:
    return int(json.loads(_read(directory / STATE_FILE))["global_step"])


def _step_in_name(checkpoint: Path) -> int:
    match = re.fullmatch(r"checkpoint-(\d+)", checkpoint.name)
    return int(match[1]) if match else -1


def list_damaged(output_dir: str | Path) -> dict[Path, str]:
    """Return {checkpoint: what is wrong} of a run's checkpoints that are damaged or half-written."""
    paths = sorted((path for path in _checkpoints(output_dir) if _step_in_name(path) >= 0), key=_step_in_name)
    return {path: damage for path in paths if (damage := find_damage(path))}


def remove_damaged(latest: str, output_dir: str | Path) -> None:
    """Delete half-written and damaged checkpoints, now that the run goes on from `latest`; rank 0 only."""
    if rank() != 0:
        return
    _say_half_written(output_dir)
    for path, damage in list_damaged(output_dir).items():
        shutil.rmtree(path)
        say(output_dir, f"{path}: {damage}; removed, going on from {latest}")


def _say_half_written(output_dir: str | Path) -> None:
    for path in remove_half_written(output_dir):
        say(output_dir, f"{path}: it was being written when its run ended; removed")


def complete_checkpoint(checkpoint: Path, params: NotebookParams) -> None:
    """Write RECIPE_FILE, once all other files of the checkpoint are on the disk."""
    for path in checkpoint.rglob("*"):
        sync(path)
    for name in RECORDS:  # of the steps that will not be repeated
        if (record := checkpoint.parents[1] / name).exists():
            sync(record)
    write_text(checkpoint / RECIPE_FILE, recipe_text(params, checkpoint))
    sync(checkpoint.parent)


def remove_old_checkpoints(output_dir: str | Path, *, step: int, keep: int) -> None:
    """Delete all complete checkpoints but the newest `keep` up to a step.

    Later steps are of an earlier attempt, before this one started over.
    """
    try:
        complete = complete_checkpoints(output_dir)
    except CheckpointUnreadable as error:  # no reason to end a training: the next save deletes them
        say(output_dir, f"warning: older checkpoints are kept for now: {error}")
        return
    up_to_now = [path for path in complete if checkpoint_step(path) <= step]
    for path in set(complete) - set(up_to_now[-keep:]):
        shutil.rmtree(path)


def run_recipe(params: NotebookParams) -> dict[str, JsonValue]:
    """Return {"training.learning_rate": 1e-5, ...}: all parameters but those about where a run is kept.

    The fields of stages go by the stage's name: "curriculum.stages.easy.threshold".
    """
    recipe: dict[str, JsonValue] = {}
    for name, value in params.model_dump(mode="json").items():
        is_section = isinstance(value, dict)
        recipe |= {f"{name}.{field}": each for field, each in value.items()} if is_section else {name: value}
    stages = recipe.get("curriculum.stages")
    if isinstance(stages, list):
        by_name = {str(stage["name"]): stage for stage in stages if isinstance(stage, dict)}
        recipe["curriculum.stages"] = list(by_name)
        for name, stage in by_name.items():
            recipe |= {f"curriculum.stages.{name}.{field}": value for field, value in stage.items()}
    return {name: value for name, value in recipe.items() if name not in NOT_COMPARED}


def recipe_text(params: NotebookParams, checkpoint: str | Path) -> str:
    """Return what a checkpoint's RECIPE_FILE holds: the parameters, and the sizes of the other files.

    Each of several ranks writes its own random state, perhaps later than rank 0 writes this.
    """
    directory = Path(checkpoint)
    files = {
        path.relative_to(directory).as_posix(): path.stat().st_size
        for path in sorted(directory.rglob("*"))
        # People edit the README.
        if path.is_file() and path.name not in (RECIPE_FILE, "README.md") and path.name[:3] != "rng"
    }
    return json.dumps({**run_recipe(params), RANKS: world_size(), FILES: files}, indent=1) + "\n"


def saved_recipe(checkpoint: str | Path) -> dict[str, JsonValue]:
    """Return what the RECIPE_FILE of a complete checkpoint holds."""
    recipe: dict[str, JsonValue] = json.loads(_read(Path(checkpoint) / RECIPE_FILE))
    return recipe


def holds_optimizer(checkpoint: str | Path) -> bool:
    """Return whether a checkpoint was saved with the optimizer's state, see `training.save_optimizer`."""
    return saved_recipe(checkpoint).get("training.save_optimizer") is not False


def of_state(checkpoint: str | Path) -> dict[str, str]:
    """Return the patterns of the fields that the state in a checkpoint fixes, with the reasons."""
    return OF_STATE | OF_OPTIMIZER if holds_optimizer(checkpoint) else OF_STATE


def check_recipe(checkpoint: str, params: NotebookParams, fixed: Mapping[str, str]) -> list[Change]:
    """Return what has changed since a checkpoint was saved.

    fixed: patterns of fields that may not change, with the reason. Raises ParamsError for these.
    """
    changes = list(compare(saved_recipe(checkpoint), run_recipe(params), fixed))
    if refused := describe_refused(changes):
        raise ParamsError(
            f"{checkpoint}: belongs to another run: {refused}. "
            "Give another output_dir, or write training.resume = never"
        )
    return changes


def compare(
    was: Mapping[str, JsonValue], now: Mapping[str, JsonValue], fixed: Mapping[str, str]
) -> Iterator[Change]:
    """Yield the fields that both have with different values. fixed: as in `check_recipe`."""
    for field, value in now.items():
        if field in was and was[field] != value:
            may_change = field in FREE_FIELDS or (field in SWITCHES and bool(was[field]) and bool(value))
            reasons = (reason for pattern, reason in fixed.items() if fnmatchcase(field, pattern))
            yield Change(field, was[field], value, "" if may_change else next(reasons, ""))


def describe_refused(changes: Iterable[Change]) -> str:
    """Return the changes that may not be, with their reasons; "" for none."""
    return "; ".join(
        f"{field} was {was!r} and is {now!r} now ({reason})" for field, was, now, reason in changes if reason
    )
