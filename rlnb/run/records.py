"""metrics.jsonl and games.jsonl: rows with a step, a line of JSON each, read though lines may be damaged.

A crash of a machine leaves zeros, a full disk half a line. Such lines are left out with a warning.
"""

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlnb.run.disk import sync

TAIL_BYTES = 1 << 18  # of metrics.jsonl, some hundred steps


class DamagedRows(UserWarning):
    """A file of rows has lines that hold none."""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, none if it is missing; warn once of lines that are damaged."""
    rows, num_damaged = [], 0
    for line in _whole_lines(path):
        row = parse_row(line)
        rows += [] if row is None else [row]
        num_damaged += row is None
    if num_damaged:
        lines = f"{num_damaged} damaged line{'s' if num_damaged > 1 else ''}"
        warnings.warn(f"{path}: left out {lines}", DamagedRows, stacklevel=3)
    return rows


def read_last_step(directory: Path) -> int | None:
    """Return the step of the last row of a run's metrics.jsonl that is whole, None without one."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        rows = map(parse_row, reversed(file.read().splitlines()))
        return next((row["step"] for row in rows if row is not None), None)


def cut_rows(path: Path, *, after: int) -> None:
    """Drop the rows of steps after one, and damaged lines.

    A last line without an end is dropped: it is of a later step, since a step's rows are written before its
    checkpoint.
    """
    if not path.exists():
        return
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with part.open("wb") as file:
        for line in _whole_lines(path):
            if (row := parse_row(line)) is not None and row["step"] <= after:
                file.write(line)
    sync(part)
    part.replace(path)


def _whole_lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line, None for a damaged one."""
    try:
        row = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    has_step = isinstance(row, dict) and type(row.get("step")) is int
    return row if has_step else None
