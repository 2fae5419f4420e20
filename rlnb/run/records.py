"""metrics.jsonl and games.jsonl: rows with a step, a line of JSON each, read though lines may be damaged.

A crash of a machine leaves zeros, a full disk half a line. Such lines are left out with a warning, and a run
that goes on moves them to a file of their own.
"""

import json
import warnings
from pathlib import Path
from typing import Any

from rlnb.run.directory import say, write_bytes

DAMAGED_SUFFIX = ".damaged"
TAIL_BYTES = 1 << 18  # of metrics.jsonl, some hundred steps


class DamagedRows(UserWarning):
    """A file of rows has lines that hold none."""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, none if it is missing; warn once of lines that are damaged."""
    rows = [parse_row(line) for line in _read_lines(path)]
    if num_damaged := rows.count(None):
        warnings.warn(f"{path}: left out {_count(num_damaged)}", DamagedRows, stacklevel=3)
    return [row for row in rows if row is not None]


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
    rows = [(line, parse_row(line)) for line in _read_lines(path)]
    if damaged := [line for line, row in rows if row is None]:
        aside = path.with_name(path.name + DAMAGED_SUFFIX)
        with aside.open("ab") as file:
            file.writelines(damaged)
        say(path.parent, f"warning: {path}: moved {_count(len(damaged))} to {aside}")
    kept = b"".join(line for line, row in rows if row is not None and row["step"] <= after)
    if path.exists() and path.stat().st_size > len(kept):
        write_bytes(path, kept)


def _read_lines(path: Path) -> list[bytes]:
    """Return the lines of a file that have an end."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [line + b"\n" for line in lines]


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
