"""What tests start or look at from outside: processes, conditions, status.json and a disk."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def run_python(code: str, *options: str, **given: Any) -> "subprocess.CompletedProcess[str]":
    """Run code by this Python in a process of its own; `given` is of `subprocess.run`."""
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, **given)


def wait_for(condition: Callable[[], object], *, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


@contextmanager
def small_disk(directory: Path, num_bytes: int) -> Iterator[None]:
    """Mount a file system of this size there; skips the test where that cannot be done."""
    directory.mkdir()
    mount = f"mount -t tmpfs -o size={num_bytes} tmpfs {directory}"
    if os.geteuid() or not shutil.which("mount") or os.system(mount):
        pytest.skip("only root can mount a small file system, and not everywhere")
    yield
    os.system(f"umount -l {directory}")


def is_running(pid: int | str) -> bool:
    """Whether a process is there and not only waiting for somebody to notice its end."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def status_of(directory: Path) -> dict:
    return json.loads((directory / "status.json").read_text())
