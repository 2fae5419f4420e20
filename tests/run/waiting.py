"""What the tests of runs look at from outside: processes, conditions and status.json."""

import json
import time
from collections.abc import Callable
from pathlib import Path


def wait_for(condition: Callable[[], object], *, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def status_of(directory: Path) -> dict:
    return json.loads((directory / "status.json").read_text())
