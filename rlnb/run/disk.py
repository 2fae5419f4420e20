"""The disk under a run: files that are there whole or not at all, and an answer where there is no room.

Whatever a run must not lose is written here: under another name first, then renamed. So the old or the new
file is there, also after a kill, a crash of the machine, or on a full disk.
"""

import errno
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlnb.errors import DiskFull, see
from rlnb.machine import rank

GIB = 2**30
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# What safetensors and torch.save say, which raise no OSError.
WORDS_OF_NO_ROOM = (
    "No space left on device",
    "Disk quota exceeded",
    "PytorchStreamWriter failed writing",
    "inline_container.cc",
)
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


def _unfinished(path: Path) -> Path:
    """Return a name that no other process takes, on whatever host: process ids may be equal there."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole, over an older one."""
    part = _unfinished(path)
    try:
        part.write_bytes(content)
        sync(part)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_once(path: Path, text: str) -> None:
    """Write a file whole that only its owner may read, unless another process has written it first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # with mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.link(part, path)
    except FileExistsError:
        return  # every rank reads the file of the first
    except OSError:  # a file system without hard links
        os.replace(part, path)
    finally:
        Path(part).unlink(missing_ok=True)


@contextmanager
def written_whole(directory: Path) -> Iterator[Path]:
    """Yield an empty directory that is given this name at the end, or removed after an error.

    An older directory of the name is removed at the end, unless another process has just made it.
    """
    unfinished, former = _unfinished(directory), _unfinished(directory)
    unfinished.mkdir(parents=True)
    is_older = directory.exists()
    try:
        yield unfinished
        if is_older:
            directory.rename(former)
        unfinished.rename(directory)
        sync(directory.parent)
    finally:
        if former.exists() and not directory.exists():
            former.rename(directory)
        for path in (unfinished, former):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def telling_full_disk(output_dir: str | Path) -> Iterator[None]:
    """Turn an error of a full disk into DiskFull, and remove checkpoints that were being written."""
    try:
        yield
    except Exception as error:
        if not lacks_room(error) or isinstance(error, DiskFull):
            raise
        sentence = describe_full_disk(output_dir)
        remove_half_written(output_dir)
        raise DiskFull(sentence) from error


def lacks_room(error: BaseException | None) -> bool:
    """Return whether an error, or one that it followed from, is that of a full disk or quota."""
    while error is not None:
        if isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in NO_ROOM):
            return True
        if not isinstance(error, OSError) and any(words in str(error) for words in WORDS_OF_NO_ROOM):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def describe_full_disk(output_dir: str | Path) -> str:
    """Return which file system is full, how much of it is free, and what to do."""
    path = Path(output_dir).absolute()
    existing = next(above for above in (path, *path.parents) if os.path.exists(above))
    mount = next(path for path in (existing, *existing.parents) if os.path.ismount(path))
    usage = shutil.disk_usage(existing)
    return (
        f"{output_dir}: no room is left on its disk or quota: the file system {mount} has "
        f"{usage.free / GIB:.2f} of {usage.total / GIB:.2f} GiB free. Make room there, then run the same "
        f"command again: it goes on from the last checkpoint{see('disk-full')}"
    )


def list_checkpoints(output_dir: str | Path) -> list[Path]:
    """Return what a run has saved, or begun to save, as checkpoints; copies of them have other names."""
    folder = Path(output_dir) / "checkpoints"
    # Unlike Path.is_dir it takes names that are too long; unlike glob, iterdir raises where it cannot list.
    paths = sorted(folder.iterdir()) if os.path.isdir(folder) else []
    return [path for path in paths if re.fullmatch(r"checkpoint-\d+", path.name)]


def remove_half_written(output_dir: str | Path) -> list[Path]:
    """Delete the checkpoints of a run that were being written, and return them; rank 0 only."""
    # Not by Path.exists, which from Python 3.14 on is False also where an error will pass.
    begun = [path for path in list_checkpoints(output_dir) if RECIPE_FILE not in os.listdir(path)]
    paths = sorted([*Path(output_dir).glob("checkpoints/.checkpoint-*"), *begun])
    for path in paths if rank() == 0 else ():
        shutil.rmtree(path, ignore_errors=True)
    return paths
