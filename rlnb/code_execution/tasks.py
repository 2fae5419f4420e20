"""The task type, and the split into training and held-out tasks."""

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Test:
    """One call and what it must return: plain literals, so both can be passed between processes as text."""

    arguments: tuple[object, ...]
    expected: object


@dataclass(frozen=True)
class Task:
    """A function that the policy has to write.

    id: unique. family: shared by tasks that differ only in constants or wording. level: 1 (one step) to 3.
    function: its name. parameters: those of its signature, as source. statement: what it must do, in words.
    example: the call shown in the prompt, never among `tests`. solution: a program, "" where there is none.
    """

    id: str
    family: str
    level: int
    function: str
    parameters: str
    statement: str
    example: Test
    tests: tuple[Test, ...]
    solution: str = ""

    @property
    def example_call(self) -> str:
        """The example's call as source, such as `f(2, 3)`."""
        return f"{self.function}({', '.join(map(source_of, self.example.arguments))})"

    @property
    def example_result(self) -> str:
        """What the example's call returns, as source."""
        return source_of(self.example.expected)


def source_of(value: object) -> str:
    """Return a literal as source: `repr`, with sets sorted, whose order differs from run to run."""
    if isinstance(value, set | frozenset) and value:
        return "{" + ", ".join(sorted(map(source_of, value))) + "}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{source_of(key)}: {source_of(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(source_of, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(source_of, value)) + ("," if len(value) == 1 else "") + ")"
    return repr(value)


def split_tasks(tasks: Sequence[Task], *, known_share: float, seed: int) -> tuple[list[Task], list[Task]]:
    """Return tasks to train on, and those that are held out of the same families.

    known_share: share of each family that is held out, at least one task of every family of two or more.
    """
    generator = random.Random(seed)
    train: list[Task] = []
    known: list[Task] = []
    families: dict[str, list[Task]] = {}
    for task in tasks:
        families.setdefault(task.family, []).append(task)
    for members in families.values():
        members = generator.sample(members, len(members))
        held_out = max(1, round(known_share * len(members))) if len(members) > 1 else 0
        known += members[:held_out]
        train += members[held_out:]
    return generator.sample(train, len(train)), generator.sample(known, len(known))
