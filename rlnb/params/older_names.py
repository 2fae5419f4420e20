"""The names of the older scripts, older_names.csv: keys, options, files and paths, and what they are here.

docs/from_the_scripts.md shows the same rows. An accepted name means exactly the same here and is read as the
new one; a refused one is answered with the new one.
"""

import csv
import os
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

OF_THE_SCRIPTS: Final = "of the older scripts"


class OlderName(NamedTuple):
    """A row of older_names.csv.

    document: the one that names it. kind: key, variable, option, file, command, path, metric, name (of a
    class or function) or setting (in words). here: what it is now, several with "; ", empty where there is
    nothing; of fields with " or " the first that a notebook has. notebooks: whose parameters a key is of.
    answer: accepted or refused, where a run answers.
    """

    document: str
    kind: str
    older: str
    here: str
    notebooks: str
    answer: str
    note: str

    @property
    def field(self) -> tuple[str, ...]:
        """The field that the older key is now, as a path."""
        return tuple(self.here.split("."))

    @property
    def is_moved(self) -> bool:
        """Whether its last part has changed too, so that the part alone leads to the new name."""
        return self.older.split(".")[-1] != self.field[-1]


with Path(__file__).with_name("older_names.csv").open(encoding="utf-8", newline="") as _file:
    OLDER_NAMES: Final = tuple(OlderName(**row) for row in csv.DictReader(_file))


def find_key(path: tuple[str, ...], notebook: str) -> OlderName | None:
    """Return the row of a key, that of this notebook before that of another, None for an unknown key."""
    older = ".".join(path)
    rows = [row for row in OLDER_NAMES if row.kind == "key" and row.older == older]
    return next((row for row in rows if notebook in row.notebooks.split()), rows[0] if rows else None)


def accepted_fields(notebook: str) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return {older: new path} of the keys that a notebook reads as if they had their new names."""
    return {
        tuple(row.older.split(".")): row.field
        for row in OLDER_NAMES
        if row.kind == "key"
        and row.answer == "accepted"
        and notebook in row.notebooks.split()
        and row.older != row.here
    }


def moved_fields(name: str, fields: Collection[tuple[str, ...]]) -> list[str]:
    """Return the fields that an older key is now; name: its last part, or its parts joined by "_"."""
    keys = [row for row in OLDER_NAMES if row.kind == "key"]
    rows = [row for row in keys if name in (row.older.split(".")[-1], row.older.replace(".", "_"))]
    return list(dict.fromkeys(row.here for row in rows if row.is_moved and row.field in fields))


def explain_key(path: tuple[str, ...], notebook: str, fields: Collection[tuple[str, ...]]) -> str:
    """Return what an older key is now, as a message without its place; empty for a key that no script had."""
    row = find_key(path, notebook)
    if row is None and len(path) == 2 and (section := find_key(path[:1], notebook)):
        if not section.here:
            row = section
        elif (section.here, path[1]) in fields:
            return f"{'.'.join(path)} {OF_THE_SCRIPTS} is {section.here}.{path[1]} here; write that"
    if row is None:
        return ""
    if not row.here:
        return f"{row.older} {OF_THE_SCRIPTS} has no counterpart here: {row.note}"
    note = f" ({row.note})" if row.note else ""
    if row.field in fields or row.here in {field[0] for field in fields}:
        return f"{row.older} {OF_THE_SCRIPTS} is {row.here} here{note}; write that"
    return f"{row.older} {OF_THE_SCRIPTS} is {row.here} of {' and '.join(row.notebooks.split())}{note}"


def explain_path(path: str) -> str:
    """Return what an older file or path is now, to follow a message; empty for any other."""
    given = os.path.normpath(path)
    for row in OLDER_NAMES:
        older = os.path.normpath(row.older)
        is_folder = row.older.endswith("/")
        is_moved = row.kind in ("file", "path") and row.older != row.here and not is_folder
        if is_moved and any(fnmatchcase(given, pattern) for pattern in (older, f"*/{older}")):
            note = f" ({row.note})" if row.note else ""
            return f"; {row.older} {OF_THE_SCRIPTS} is {row.here} here{note}"
    return ""


def explain_option(option: str, notebook: str) -> str:
    """Return what an older option, or a key written as an option, is now; empty for any other.

    notebook: the one of the command line, "" if it names none.
    """
    name = option.removeprefix("--").replace("-", "_")
    for row in OLDER_NAMES:
        if row.kind == "option" and row.older == f"--{name}":
            note = f" ({row.note})" if row.note else ""
            return f"is {row.here} here{note}; write that"
    rows = [
        row
        for row in OLDER_NAMES
        if row.kind == "key" and len(row.field) == 2 and name in (row.older, row.older.split(".")[-1])
    ]
    rows = [row for row in rows if notebook in row.notebooks.split()] or rows
    fields = list(dict.fromkeys(row.here for row in rows))
    return f"is --set {'=VALUE or --set '.join(fields)}=VALUE here; write that" if fields else ""
