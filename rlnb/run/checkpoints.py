"""Choose the checkpoint that a run continues from, and say or refuse what has changed since it was saved.

A checkpoint holds the parameters of its run and the sizes of its files in RECIPE_FILE. That is written last,
when all other files are on the disk, so a checkpoint is whole if it has this file and the sizes are right. A
damaged one is passed over.

Fields of the task, the model and the saved state stay as they were; all others (learning rate, steps, batch
sizes, ...) may change between attempts.
"""

import inspect
import json
import linecache
import shutil
import sys
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import JsonValue

from rlnb.errors import ParamsError, RlnbError
from rlnb.machine import rank, world_size
from rlnb.params.loading import notebook_name
from rlnb.params.problems import show
from rlnb.params.sections import NotebookParams, value_of
from rlnb.run.directory import say
from rlnb.run.disk import RECIPE_FILE, list_checkpoints, remove_half_written, sync, write_text

STATE_FILE = "trainer_state.json"
FILES, RANKS = "files", "ranks"  # in RECIPE_FILE: {name: bytes} of the other files, the number of ranks
RECORDS = ("metrics.jsonl", "games.jsonl", "train.log")

MODEL_FIELDS = ("id", "lora_rank", "lora_alpha", "lora_target_modules")
# Patterns of fields that the state in a checkpoint fixes: its weights, optimizer, adapted KL weight, magnet,
# baselines, value head and stage are of these.
OF_STATE = (
    "notebook",
    *(f"model.{name}" for name in MODEL_FIELDS),
    "training.optim", "training.weight_decay", "training.init_kl_coef", "training.magnet_coef",
    "advantage.kind", "curriculum.stages", "curriculum.stages.*.games", "curriculum.stages.*.opponents",
)  # fmt: skip
# Patterns of fields that define the task of a run and its measures.
OF_TASK = (
    "seed", "model.adapters", "tasks.*", "board.*", "prompt.*", "game.*", "opponent.*", "reward.*",
    "advantage.*",
)  # fmt: skip
# Fields of these sections that may change all the same.
FREE_FIELDS = ("game.temperature", "game.batch_size", "game.max_prompt_tokens", "opponent.base_url")
# {cell of a notebook: names of the functions, or the list of them, that a training takes from it}
CELLS = {"reward": ("reward", "rewards"), "estimator": ("estimate",), "recipe": ("loss", "evaluate")}
NOT_COMPARED = ("output_dir", "model.cache_dir", "training.resume")


def checkpoint_to_resume(params: NotebookParams, output_dir: str | Path) -> str | None:
    """Return the checkpoint whose whole state the run continues, None to start at step 0.

    auto: the run's newest, if any. latest: the newest, which must exist. never: none, and existing
    checkpoints are set aside. A directory: as `read_resume`, until the run has checkpoints of its own. Says
    in a line, also in train.log, what has changed since, what is damaged, and what is taken from another run.
    Damaged checkpoints are removed where an older one is whole. Rank 0 chooses for all ranks: a network file
    system may show another one an older directory. Raises as `check_resuming`, and RlnbError on a rank that
    does not see the chosen checkpoint whole.
    """
    from accelerate.utils import broadcast_object_list  # imports torch, for which a refusal need not wait

    (chosen,) = broadcast_object_list([_choose_checkpoint(params, output_dir) if rank() == 0 else None])
    if chosen is not None and (damage := find_damage(chosen)):
        raise RlnbError(
            f"{chosen}: rank 0 goes on from it, but for rank {rank()} {damage}. Let all ranks see the same "
            "directory, and run the same command again"
        )
    return chosen


def _choose_checkpoint(params: NotebookParams, output_dir: str | Path) -> str | None:
    changes = check_resuming(params, output_dir)
    resume = read_resume(params)
    if resume == "never":
        set_aside(output_dir)
        return None
    latest = latest_checkpoint(output_dir)
    for path in remove_half_written(output_dir):
        say(output_dir, f"{path}: it was being written when its run ended; removed")
    then = f"removed, going on from {latest}" if latest else "no whole checkpoint is left"
    for path in list_checkpoints(output_dir):
        if damage := find_damage(path):
            say(output_dir, f"{path}: {damage}; {then}")
            if latest:
                shutil.rmtree(path, ignore_errors=True)
    changed = ", ".join(f"{field} {change}" for field, change in changes.items())
    if changed:
        say(output_dir, f"changed since {Path(latest or resume).name}: {changed}")
    if latest:
        return latest
    if kept := set_aside(output_dir):
        say(output_dir, f"the run begins again; kept of it until here: {', '.join(map(str, kept))}")
    if resume == "auto":
        return None
    say(output_dir, f"taking the whole state of {resume}: step {checkpoint_step(resume)}")
    return resume


def read_resume(params: NotebookParams) -> str:
    """Return `training.resume`: of a run's directory its newest complete checkpoint."""
    resume: str = value_of(params, "training.resume")
    if resume in ("auto", "latest", "never"):  # also where a directory is called so
        return resume
    return latest_checkpoint(resume) or resume


def check_resuming(params: NotebookParams, output_dir: str | Path) -> dict[str, str]:
    """Return {field: "old -> new"} of what has changed since the checkpoint that the run goes on from.

    It writes nothing and reads no weights. Raises ParamsError for a directory without a complete checkpoint,
    for an older checkpoint of this run, and for changes that do not fit the checkpoint.
    """
    resume, latest = read_resume(params), latest_checkpoint(output_dir)
    if resume == "never" or (resume == "auto" and latest is None):
        return {}
    is_word = resume in ("auto", "latest")  # also where a directory is called so
    if latest is None and (damage := "none was saved" if is_word else find_damage(resume)):
        raise ParamsError(
            f"training.resume = {resume!r}: there is no complete checkpoint: {damage}; write a run's "
            "directory or its checkpoints/checkpoint-N"
        )
    given, newest = Path(resume).resolve(), Path(latest or resume).resolve()
    if not is_word and given != newest and given.parent == newest.parent and not find_damage(given):
        raise ParamsError(
            f"training.resume = {resume!r} is of this run, which has gone on to {latest}; give another "
            "output_dir to continue from it there, or delete the later ones to go back"
        )
    checkpoint = latest or resume
    fixed = OF_STATE + OF_TASK if latest else OF_STATE
    changes = check_changes(checkpoint, saved_recipe(checkpoint), params, fixed)
    step, max_steps = checkpoint_step(checkpoint), value_of(params, "training.max_steps")
    if step > max_steps or (step == max_steps and not latest):
        raise ParamsError(
            f"training.max_steps = {max_steps} leaves nothing to train after the {step} steps of "
            f"{checkpoint}; write more, or model.adapters = that directory in a new run, to begin at step 0"
        )
    return changes


def set_aside(output_dir: str | Path) -> list[Path]:
    """Rename checkpoints/ and the run's records to the first free suffix, so that a run starts afresh.

    Returns the new paths, none where the run has no checkpoint, not even a damaged one.
    """
    directory, suffix = Path(output_dir), 1
    if not list_checkpoints(directory):
        return []
    names = [Path(name) for name in (*RECORDS, "checkpoints")]
    while any((directory / f"{name.stem}-{suffix}{name.suffix}").exists() for name in names):
        suffix += 1
    paths = [path for name in names if (path := directory / name).exists()]
    return [path.rename(path.with_name(f"{path.stem}-{suffix}{path.suffix}")) for path in paths]


def latest_checkpoint(output_dir: str | Path) -> str | None:
    """Return the newest complete checkpoint of a run, or None; damaged ones are passed over."""
    return next(reversed(complete_checkpoints(output_dir)), None)


def complete_checkpoints(output_dir: str | Path) -> list[str]:
    """Return the complete checkpoints of a run, oldest first."""
    complete = [str(path) for path in list_checkpoints(output_dir) if not find_damage(path)]
    return sorted(complete, key=checkpoint_step)


def checkpoint_step(checkpoint: str | Path | None) -> int:
    """Return the step a complete checkpoint was saved at, 0 for none."""
    if checkpoint is None:
        return 0
    return int(json.loads((Path(checkpoint) / STATE_FILE).read_text(encoding="utf-8"))["global_step"])


def find_damage(checkpoint: str | Path) -> str:
    """Return what a checkpoint lacks or has in another size than when it was saved, "" for a whole one.

    Raises OSError where a file is there but cannot be read: a network file system's error may pass.
    """
    directory, name = Path(checkpoint), RECIPE_FILE
    try:
        for name, num_bytes in dict(saved_recipe(directory)[FILES]).items():  # type: ignore[arg-type]
            if (size := (directory / name).stat().st_size) != num_bytes:
                return f"{name} has {size} bytes instead of {num_bytes}"
        name = STATE_FILE
        checkpoint_step(directory)
    except (FileNotFoundError, NotADirectoryError):
        return f"{name} is missing"
    except (ValueError, LookupError, TypeError):
        return f"{name} is damaged"
    return ""


def complete_checkpoint(checkpoint: Path, params: NotebookParams) -> None:
    """Write RECIPE_FILE, once all other files of the checkpoint are on the disk.

    It holds the parameters, the number of ranks, and the sizes of the other files.
    """
    paths = sorted(checkpoint.rglob("*"))
    for path in paths:
        sync(path)
    for name in RECORDS:  # of the steps that will not be repeated
        if (record := checkpoint.parents[1] / name).exists():
            sync(record)
    files = {
        path.relative_to(checkpoint).as_posix(): path.stat().st_size
        for path in paths
        # People edit the README. Each rank writes its own random state, perhaps later than this.
        if path.is_file() and path.name not in (RECIPE_FILE, "README.md") and path.name[:3] != "rng"
    }
    write_text(checkpoint / RECIPE_FILE, json.dumps({**run_recipe(params), FILES: files}, indent=1) + "\n")
    sync(checkpoint.parent)


def remove_old_checkpoints(output_dir: str | Path, *, step: int, keep: int) -> None:
    """Delete all complete checkpoints but the newest `keep` up to a step.

    Later steps are of an earlier attempt, before this one started over.
    """
    complete = complete_checkpoints(output_dir)
    up_to_now = [path for path in complete if checkpoint_step(path) <= step]
    for path in set(complete) - set(up_to_now[-keep:]):
        shutil.rmtree(path, ignore_errors=True)  # NFS keeps what somebody reads, such as `rlnb eval`


def run_recipe(params: NotebookParams) -> dict[str, JsonValue]:
    """Return {"training.learning_rate": 1e-5, ...}: all parameters but those about where a run is kept.

    The number of ranks is among them, and in a notebook "reward cell" and so on, with their sources. The
    fields of stages go by the stage's name: "curriculum.stages.easy.threshold".
    """
    recipe: dict[str, JsonValue] = {"notebook": notebook_name(params), RANKS: world_size(), **_read_cells()}
    sections = params.model_dump(mode="json")
    for name, value in sections.items():
        is_section = isinstance(value, dict)
        recipe |= {f"{name}.{field}": each for field, each in value.items()} if is_section else {name: value}
    if stages := sections.get("curriculum", {}).get("stages"):
        recipe["curriculum.stages"] = [stage["name"] for stage in stages]
        for stage in stages:
            recipe |= {f"curriculum.stages.{stage['name']}.{field}": each for field, each in stage.items()}
    return {name: value for name, value in recipe.items() if name not in NOT_COMPARED}


def _read_cells() -> dict[str, str]:
    """Return the sources of the cells of a running notebook that define what it trains with."""
    ipython = sys.modules.get("IPython")  # not imported here: `rlnb run` needs none
    shell = ipython.get_ipython() if ipython else None
    namespace, sources = shell.user_ns if shell else {}, {}
    for cell, name in ((cell, name) for cell, names in CELLS.items() for name in names):
        value = namespace.get(name)
        for function in value if isinstance(value, list) else [value]:
            if inspect.isfunction(function) and function.__module__ == "__main__":
                sources[f"{cell} cell"] = "".join(linecache.getlines(function.__code__.co_filename)).strip()
    return sources


def saved_recipe(checkpoint: str | Path) -> dict[str, JsonValue]:
    """Return what the RECIPE_FILE of a complete checkpoint holds."""
    recipe: dict[str, JsonValue] = json.loads((Path(checkpoint) / RECIPE_FILE).read_text(encoding="utf-8"))
    return recipe


def check_changes(
    place: str | Path, was: Mapping[str, JsonValue], params: NotebookParams, fixed: Collection[str]
) -> dict[str, str]:
    """Return {field: "old -> new"} of the fields that both have with different values.

    place, was: what is compared with, and its recipe. Raises ParamsError for fields that match a pattern of
    `fixed`.
    """
    changes = {
        field: "was edited" if field.endswith(" cell") else f"{show(was[field])} -> {show(value)}"
        for field, value in run_recipe(params).items()
        if field in was and was[field] != value
    }
    refused = [
        f"{field} {change}"
        for field, change in changes.items()
        if field not in FREE_FIELDS and any(fnmatchcase(field, pattern) for pattern in fixed)
    ]
    if refused:
        raise ParamsError(
            f"{place}: {'; '.join(refused)} may not change in a run: its task or its saved state depends on "
            "it. Give another --out (output_dir), or the parameters of that run"
        )
    return changes
