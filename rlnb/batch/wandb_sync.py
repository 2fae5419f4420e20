"""`rlnb sync`: upload what runs wrote while W&B was offline."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rlnb.errors import ParamsError, see
from rlnb.machine.facts import answers
from rlnb.params import load_dotenv
from rlnb.params.resolving import has_wandb_key

FAILED = 1  # exit code


def sync(directories: Sequence[Path]) -> int:
    """Upload the offline runs in and below the directories by `wandb sync`, and return 0 if all arrived.

    What has not changed since it was uploaded is left out. Raises ParamsError if there is nothing of W&B, or
    no key.
    """
    load_dotenv(Path.cwd())
    if absent := [str(directory) for directory in directories if not directory.is_dir()]:
        raise ParamsError(f"{', '.join(absent)}: no such directory in {os.getcwd()}")
    files = [file for directory in directories for file in find_offline_files(directory)]
    if not files:
        names = ", ".join(map(str, directories))
        raise ParamsError(f"{names}: no run here was tracked offline; set tracking.wandb = offline")
    waiting = [file for file in files if not is_uploaded(file)]
    for file in files:
        state = "to upload" if file in waiting else "uploaded before, unchanged"
        print(f"{file.parents[2]}: {state}", flush=True)
    if not waiting:
        return 0
    if not has_wandb_key(os.environ):
        raise ParamsError(
            f"WANDB_API_KEY: is not set; put it into .env, or run `wandb login`{see('wb-logs-nothing')}"
        )
    server = find_server()
    if not answers(server, seconds=10.0):  # else wandb would try for many minutes
        raise ParamsError(f"{server}: does not answer; run the same command on a machine with a network")
    command = [sys.executable, "-m", "wandb", "sync", "--include-synced", *(str(f.parent) for f in waiting)]
    with tempfile.TemporaryDirectory() as logs:  # else in a folder wandb/ of the working directory
        # WANDB_MODE is offline or disabled on many clusters, for the runs.
        settings = {"WANDB_MODE": "online", "WANDB_ERROR_REPORTING": "false", "WANDB_DIR": logs}
        code = subprocess.run(command, env={**os.environ, **settings}, check=False).returncode
    left = [file for file in waiting if not is_uploaded(file)]
    for file in left:
        print(f"{file.parents[2]}: not uploaded; run the same command again", file=sys.stderr)
    print(f"{len(waiting) - len(left)} of {len(waiting)} runs uploaded")
    return FAILED if left or code else 0


def find_server() -> str:
    """Return the address of W&B: WANDB_BASE_URL, that of `wandb login`, or the public one."""
    from wandb import Settings

    return os.environ.get("WANDB_BASE_URL") or str(Settings().base_url)


def find_offline_files(directory: Path) -> list[Path]:
    """Return the files of W&B's offline runs: RUN/wandb/offline-run-TIME-ID/run-ID.wandb."""
    return sorted(directory.glob("**/wandb/offline-run-*/*.wandb"))


def is_uploaded(file: Path) -> bool:
    """Return whether `wandb sync` has uploaded a file since it was last written."""
    mark = file.with_suffix(".wandb.synced")
    return mark.exists() and mark.stat().st_mtime >= file.stat().st_mtime
