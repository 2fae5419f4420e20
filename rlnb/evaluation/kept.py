"""Completions kept as they come, so that an evaluation that was cut short goes on where it stopped."""

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlnb.evaluation.writers import Received, Writer
from rlnb.tasks.mbpp_prompts import Template


@dataclass(frozen=True)
class KeptWriter:
    """A writer that appends each completion to a file, and asks only for those that the file does not have.

    description: all that completions depend on beside the question; those of another one are not taken. What
    remains after an interruption is sampled in other batches, so a resumed run is as good as an uninterrupted
    one, not equal to it, unless the temperature is 0.
    """

    writer: Writer
    path: Path
    description: Mapping[str, Any]

    def __call__(self, questions: Sequence[str], template: Template, received: Received) -> None:
        keys = self.keys(questions)
        kept = self.read()
        missing = []
        for row, key in enumerate(keys):
            if key in kept:
                received(row, kept[key])
            else:
                missing.append(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:  # a line is one write, so a kill leaves whole ones

            def keep(number: int, completion: str) -> None:
                row = missing[number]
                file.write(json.dumps({"key": keys[row], "completion": completion}).encode() + b"\n")
                received(row, completion)

            if missing:
                self.writer([questions[row] for row in missing], template, keep)

    def keys(self, questions: Sequence[str]) -> list[str]:
        """A key a question; equal questions, samples of one problem, are told apart by their order."""
        counts: Counter[str] = Counter()
        keys = []
        for question in questions:
            asked = json.dumps([question, counts[question], self.description], sort_keys=True)
            counts[question] += 1
            keys.append(hashlib.sha256(asked.encode()).hexdigest()[:16])
        return keys

    def read(self) -> dict[str, str]:
        """{key: completion} of the file, without lines that a kill or a full disk has torn."""
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        if lines and not lines[-1].endswith(b"\n"):
            with self.path.open("ab") as file:
                file.write(b"\n")
        kept = {}
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                kept[str(row["key"])] = str(row["completion"])
        return kept
