"""The disk under a run: files that outlast a crash of the machine, and room for what the run will write."""

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rlnb.errors import ParamsError, see
from rlnb.machine import rank

if TYPE_CHECKING:
    from rlnb.params.training import ResumableParams

MIB, GIB = 2**20, 2**30
RECIPE_FILE = "rlnb.json"  # of a checkpoint: written last, so one without it was being written


def sync(path: Path) -> None:
    """Return once a file, or the names in a directory, are on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot sync directories
            raise
    finally:
        os.close(descriptor)


def show_size(num_bytes: float) -> str:
    """Return 3.2 GiB, or 25 MiB where that is less than one GiB."""
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / MIB:.1f} MiB"


def check_disk(output_dir: str | Path, num_bytes: int, training: "ResumableParams") -> None:
    """Raise ParamsError where a run's checkpoints of `num_bytes` each, and one being written, do not fit.

    Checkpoints that are already there count as written.
    """
    keep, existing = training.save_total_limit, _existing(Path(output_dir) / "checkpoints")
    num_written = len([*existing.glob("checkpoint-*")]) if existing.name == "checkpoints" else 0
    num_new = max(1, keep + 1 - num_written)
    usage, needed = shutil.disk_usage(existing), num_new * num_bytes
    if usage.total and usage.free < needed:  # /proc and /sys have no size
        what = f"{num_new} checkpoints take" if num_new > 1 else "a checkpoint takes"
        remedies = ["write another directory"]
        remedies += [f"less than training.save_total_limit = {keep}"] if keep > 1 else []
        remedies += ["training.save_optimizer = false"] if training.save_optimizer else []
        raise ParamsError(
            f"output_dir = {str(output_dir)!r} has {show_size(usage.free)} free, and {what} "
            f"{show_size(needed)}; {', or '.join(remedies)}{see('disk-full')}"
        )


def lacks_room(error: OSError) -> bool:
    """Return whether an error is that of a full disk or quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def remove_half_written(output_dir: str | Path) -> list[Path]:
    """Delete the checkpoints of a run that were being written, and return them; rank 0 only."""
    folder = Path(output_dir) / "checkpoints"
    begun = [path for path in folder.glob("checkpoint-*") if not (path / RECIPE_FILE).exists()]
    paths = sorted([*folder.glob(".checkpoint-*"), *begun])
    for path in paths if rank() == 0 else ():
        shutil.rmtree(path, ignore_errors=True)
    return paths


def _existing(directory: str | Path) -> Path:
    """Return the directory, or the nearest one above it that exists."""
    path = Path(directory).absolute()
    return next(above for above in (path, *path.parents) if os.path.exists(above))
