"""Choose the checkpoint that a run continues from, and say or refuse what has changed since it was saved.

A checkpoint holds the parameters of its run in RECIPE_FILE. Fields of the task, the model and the saved state
stay as they were; all others (learning rate, steps, batch sizes, ...) may change between attempts.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue

from rlnb.errors import ParamsError
from rlnb.machine import rank
from rlnb.params.problems import show
from rlnb.params.sections import NotebookParams, value_of
from rlnb.run.directory import log_line

INCOMPLETE_MARK = "checkpoint-is-incomplete.txt"  # transformers keeps this file while it writes
RECIPE_FILE = "rlnb.json"
FILES = "files"  # in RECIPE_FILE: {name: bytes} of the checkpoint's files
RECORDS = ("metrics.jsonl", "games.jsonl", "train.log")
SETTINGS = ("auto", "latest", "never")  # of training.resume; anything else is a directory

MODEL_FIELDS = ("id", "lora_rank", "lora_alpha", "lora_target_modules")
# Patterns of fields that may not change, with the reason that a refusal gives.
OF_WEIGHTS = dict.fromkeys((f"model.{name}" for name in MODEL_FIELDS), "the saved weights are of that model")
OF_OPTIMIZER = dict.fromkeys(
    ("training.optim", "training.weight_decay", "training.adam_beta2"),
    "the saved optimizer continues with its own",
)
OF_STATE = {
    "training.init_kl_coef": "the weight has been adapted since the first step",
    **dict.fromkeys(
        ("training.magnet_coef", "training.kl_coef"), "0 keeps no weights to compare with; others may change"
    ),
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
FREE_FIELDS = (
    "game.temperature", "game.batch_size", "game.num_parallel", "opponent.base_url", "opponent.batch_size",
)  # fmt: skip
SWITCHES = ("training.magnet_coef", "training.kl_coef")  # may change, but neither from 0 nor to 0
NOT_COMPARED = ("output_dir", "model.cache_dir", "training.resume", "training.resume_state")


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
    checkpoints are set aside. A directory: that one, until the run has checkpoints of its own; with
    `training.resume_state` = weights None, see `weights_to_begin_with`. Says in a line, also in train.log,
    which parameters have changed since, and what is taken from another run.

    Raises ParamsError for a directory without a complete checkpoint, for an older checkpoint of this run,
    and for changes that do not fit the checkpoint.
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
        changes = check_recipe(latest, params, OF_WEIGHTS | of_state(latest) | OF_TASK)
        if checkpoint_step(latest) > value_of(params, "training.max_steps"):
            raise too_few_steps(latest, params, "give another output_dir")
        if skipped := damaged_after(latest):
            say(output_dir, f"{', '.join(skipped)}: damaged or incomplete; resuming from {latest}")
        if changes:
            say(output_dir, f"changed since {Path(latest).name}: {', '.join(map(str, changes))}")
        if not holds_optimizer(latest):
            say(output_dir, f"{Path(latest).name} holds no optimizer's state: going on with a new optimizer")
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
    if value_of(params, "training.resume_state") == "weights":
        check_recipe(resume, params, OF_WEIGHTS)
        say(output_dir, f"taking the weights alone of {resume}: step 0, a new optimizer")
        return None
    changes = check_recipe(resume, params, OF_WEIGHTS | of_state(resume))
    if checkpoint_step(resume) >= value_of(params, "training.max_steps"):
        raise too_few_steps(resume, params, "training.resume_state = weights to start at step 0")
    since = f"; changed since: {', '.join(map(str, changes))}" if changes else ""
    optimizer = "optimizer" if holds_optimizer(resume) else "a new optimizer, for it holds none"
    say(output_dir, f"taking the whole state of {resume}: step {checkpoint_step(resume)}, {optimizer}{since}")
    return resume


def weights_to_begin_with(params: NotebookParams, output_dir: str | Path) -> str | None:
    """Return the other run's checkpoint of which a run takes the weights alone, None for no such run.

    It is that of `training.resume` with `training.resume_state` = weights, until the run has checkpoints of
    its own.
    """
    resume: str = value_of(params, "training.resume")
    takes_state = value_of(params, "training.resume_state") == "full"
    if resume in SETTINGS or takes_state or latest_checkpoint(output_dir) is not None:
        return None
    return resume


def too_few_steps(checkpoint: str, params: NotebookParams, otherwise: str) -> ParamsError:
    """Return the error of a run whose last step is behind its checkpoint's."""
    return ParamsError(
        f"training.max_steps = {value_of(params, 'training.max_steps')} leaves nothing to train after the "
        f"{checkpoint_step(checkpoint)} steps of {checkpoint}; write more, or {otherwise}"
    )


def say(output_dir: str | Path, line: str) -> None:
    """Print a line and append it to train.log; rank 0 only."""
    if rank() == 0:
        print(line, flush=True)
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        log_line(output_dir, line)


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
    """Return the step a checkpoint was saved at, None where it is missing, incomplete or damaged.

    Damaged: a file is missing or has another size than when it was saved; old checkpoints do not say.
    """
    directory = Path(checkpoint)
    if (directory / INCOMPLETE_MARK).exists():
        return None
    try:  # Written last, so a complete file means a complete checkpoint.
        step = int(json.loads((directory / "trainer_state.json").read_text())["global_step"])
        sizes = saved_recipe(directory).get(FILES, {})
        is_whole = isinstance(sizes, dict) and all(
            (directory / name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return step if is_whole else None


def damaged_after(checkpoint: str | Path) -> list[str]:
    """Return the directories of later checkpoints, which are no complete ones."""
    step = checkpoint_step(checkpoint)
    paths = Path(checkpoint).parent.glob("checkpoint-*")
    return sorted(
        str(path)
        for path in paths
        if path.name.split("-")[1].isdigit() and int(path.name.split("-")[1]) > step
    )


def checkpoint_step(checkpoint: str | Path | None) -> int:
    """Return the step a complete checkpoint was saved at, 0 for none."""
    return (saved_step(checkpoint) if checkpoint else None) or 0


def run_recipe(params: NotebookParams) -> dict[str, JsonValue]:
    """Return {"training.learning_rate": 1e-5, ...}: all parameters but those about where a run is kept."""
    recipe: dict[str, JsonValue] = {}
    for name, value in params.model_dump(mode="json").items():
        is_section = isinstance(value, dict)
        recipe |= {f"{name}.{field}": each for field, each in value.items()} if is_section else {name: value}
    return split_stages({name: value for name, value in recipe.items() if name not in NOT_COMPARED})


def split_stages(recipe: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the recipe with the fields of each stage by name: "curriculum.stages.easy.threshold"."""
    stages = recipe.get("curriculum.stages")
    if not isinstance(stages, list):
        return recipe
    names: list[JsonValue] = []
    fields: dict[str, JsonValue] = {}
    for stage in stages:
        names.append(stage["name"] if isinstance(stage, dict) else stage)  # a saved recipe is split already
        if isinstance(stage, dict):
            fields |= {f"curriculum.stages.{stage['name']}.{field}": value for field, value in stage.items()}
    return recipe | fields | {"curriculum.stages": names}


def recipe_text(params: NotebookParams, checkpoint: str | Path) -> str:
    """Return what a checkpoint's RECIPE_FILE holds: the parameters, and the sizes of the other files.

    Each rank writes its own random state, perhaps later than rank 0 writes this.
    """
    sizes = {
        path.name: path.stat().st_size
        for path in sorted(Path(checkpoint).iterdir())
        if path.is_file() and path.name != RECIPE_FILE and not path.name.startswith("rng_state")
    }
    return json.dumps({**run_recipe(params), FILES: sizes}, indent=1) + "\n"


def saved_recipe(checkpoint: str | Path) -> dict[str, JsonValue]:
    """Return what a checkpoint's RECIPE_FILE holds, {} without one. Raises ValueError where it is damaged."""
    path = Path(checkpoint) / RECIPE_FILE
    recipe = json.loads(path.read_text()) if path.exists() else {}
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} holds no parameters")
    return recipe


def holds_optimizer(checkpoint: str | Path) -> bool:
    """Return whether a checkpoint was saved with the optimizer's state, see `training.save_optimizer`."""
    return saved_recipe(checkpoint).get("training.save_optimizer") is not False


def of_state(checkpoint: str | Path) -> dict[str, str]:
    """Return the patterns of the fields that the state in a checkpoint fixes, with the reasons."""
    return OF_STATE | OF_OPTIMIZER if holds_optimizer(checkpoint) else OF_STATE


def check_recipe(checkpoint: str, params: NotebookParams, fixed: Mapping[str, str]) -> list[Change]:
    """Return what has changed since a checkpoint was saved; old ones may not record all.

    fixed: patterns of fields that may not change, with the reason. Raises ParamsError for these.
    """
    changes = list(compare(split_stages(saved_recipe(checkpoint)), run_recipe(params), fixed))
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
