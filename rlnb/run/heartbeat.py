"""The signs of life of a run: a file that a thread touches, and the last step in metrics.jsonl."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlnb.run.directory import HEARTBEAT_SECONDS, touch_heartbeat
from rlnb.run.records import parse_row

TAIL_BYTES = 1 << 18  # of metrics.jsonl, some hundred steps


def read_last_step(directory: Path) -> int | None:
    """Return the step of the last row of a run's metrics.jsonl that is whole, None without one."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        rows = map(parse_row, reversed(file.read().splitlines()))
        return next((row["step"] for row in rows if row is not None), None)


@contextmanager
def heartbeat(directory: Path) -> Iterator[None]:
    """Let a thread touch the run's heartbeat file every HEARTBEAT_SECONDS.

    A model that loads and an evaluation write no metrics, so their times would not do.
    """
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(HEARTBEAT_SECONDS):
            try:
                touch_heartbeat(directory)
            except OSError as error:  # it may pass, and without this thread a run looks dead elsewhere
                print(f"{directory}: the heartbeat cannot be written: {error!r}", file=sys.stderr)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
