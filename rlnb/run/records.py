"""metrics.jsonl and games.jsonl: rows with a step, a line of JSON each, read though lines may be damaged.

A crash of a machine leaves zeros, a full disk half a line. Such lines are left out with a warning, and a run
that goes on moves them to a file of their own.
"""

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlnb.run.directory import say
from rlnb.run.disk import sync

DAMAGED_SUFFIX = ".damaged"
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
        warnings.warn(f"{path}: left out {_count(num_damaged)}", DamagedRows, stacklevel=3)
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
    """Drop the rows of steps after one, and move damaged lines to a file of their own, with a warning.

    A last line without an end is dropped: it is of a later step, since a step's rows are written before its
    checkpoint.
    """
    if not path.exists():
        return
    damaged: list[bytes] = []
    end = position = 0  # end: of the rows to keep, as long as nothing else lies between them
    is_prefix = True
    for line in _whole_lines(path):
        row = parse_row(line)
        damaged += [line] if row is None else []
        if row is not None and row["step"] <= after:
            is_prefix &= position == end
            end += len(line)
        position += len(line)
    if damaged:
        aside = path.with_name(path.name + DAMAGED_SUFFIX)
        with aside.open("ab") as file:
            file.writelines(damaged)
        say(path.parent, f"warning: {path}: moved {_count(len(damaged))} to {aside}")
    if not is_prefix:
        part = path.with_name(f".{path.name}.{os.getpid()}")
        with part.open("wb") as file:
            file.writelines(line for line in _whole_lines(path) if _is_kept(line, after))
        sync(part)
        part.replace(path)
    elif path.stat().st_size > end:
        os.truncate(path, end)


def _is_kept(line: bytes, after: int) -> bool:
    row = parse_row(line)
    return row is not None and bool(row["step"] <= after)


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


def _count(num_lines: int) -> str:
    return f"{num_lines} damaged line{'s' if num_lines > 1 else ''}"
