"""The built-in tasks: families of small functions, each task made from a one-line reference.

The families lie in families.jsonl. Those of one family differ only in constants and wording. Levels: 1 one
operation, 2 a loop or a condition, 3 two steps. Pass rates of the untrained embedded model
(SmolLM2-135M-Instruct) were the guide: most families lie between 0.05 and 0.6, where rewards within a group
differ; a few easy ones teach the form.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from rlnb.code_execution.tasks import Task, Test

PARAMETERS = {"number": "n", "small": "n", "natural": "n", "list": "xs", "text": "text", "words": "words"}
WORDS = (
    "go", "sun", "moon", "tree", "apple", "river", "stone", "paper", "letter", "banana", "python", "window",
)  # fmt: skip
NUM_CALLS = 150  # of each kind of inputs; a task's example and tests are chosen among them
MIN_TESTS, MAX_TESTS = 6, 10
# Families that are never trained: only general skill transfers to them.
NEW_FAMILIES = (
    "affine", "contains_number", "filtered_sum", "long_words", "replace_letter", "pair_list", "clamp",
    "digits",
)  # fmt: skip
FAMILY_FILE = Path(__file__).with_name("families.jsonl")


class Family(BaseModel):
    """A line of families.jsonl: what its tasks have in common.

    inputs: the kind of its one argument, see `draw`. statement, reference: the task in words and its solution
    as source, `{}` for the constants. constants: one list a task. Tasks of a family are numbered in the order
    of the file, and the number is part of the name that seeds their calls: append new tasks after old ones.
    development: these tasks are held out to choose parameters by, and appear in no report.
    """

    name: str
    level: int
    inputs: str
    statement: str
    reference: str
    constants: list[list[int | str]]
    development: bool = False


@dataclass(frozen=True)
class Member:
    """A built-in task before its tests are chosen."""

    id: str
    family: Family
    constants: Sequence[int | str]

    def results(self, arguments: Sequence[object]) -> list[object]:
        """Return what the reference returns for each argument."""
        source = self.family.reference.format(*self.constants)
        reference = eval(f"lambda {PARAMETERS[self.family.inputs]}: {source}")  # a text of this package
        return [reference(argument) for argument in arguments]


def builtin_tasks(*, development: bool = False) -> list[Task]:
    """Return the built-in tasks, the same on every machine; development: those of that split alone.

    A task's tests reject every constant, its unchanged argument, and every other task's reference.
    """
    members = builtin_members()
    calls = {inputs: distinct_calls(inputs) for inputs in PARAMETERS}
    results = {member.id: member.results(calls[member.family.inputs]) for member in members}
    printed = {name: list(map(repr, row)) for name, row in results.items()}
    tasks = []
    for member in members:
        family = member.family
        if family.development != development:
            continue
        alike = [other for other in members if other.family.inputs == family.inputs and other is not member]
        wrong = [*(printed[other.id] for other in alike), list(map(repr, calls[family.inputs]))]
        chosen = choose_tests(member.id, printed[member.id], wrong)
        example, *tests = (Test((calls[family.inputs][at],), results[member.id][at]) for at in chosen)
        tasks.append(
            Task(
                id=member.id,
                family=family.name,
                level=family.level,
                function="f",
                parameters=PARAMETERS[family.inputs],
                statement=family.statement.format(*member.constants),
                example=example,
                tests=tuple(tests),
            )
        )
    return tasks


def builtin_members() -> list[Member]:
    """Return each built-in task as its family and its constants, in order."""
    members = []
    counts: Counter[str] = Counter()
    for line in FAMILY_FILE.read_text(encoding="utf-8").splitlines():
        family = Family.model_validate_json(line)
        for constants in family.constants:
            counts[family.name] += 1
            members.append(Member(f"{family.name}-{counts[family.name]:02d}", family, constants))
    return members


def choose_tests(name: str, results: Sequence[str], wrong: Sequence[Sequence[str]]) -> list[int]:
    """Return the indices of the example and of the tests among the calls: random, then most telling first.

    results: what the reference returns for each call, printed. wrong: the same for programs that must fail.
    Raises ValueError where MAX_TESTS do not tell all of them from the reference.
    """
    order = random.Random(name).sample(range(len(results)), len(results))
    chosen = order[:MIN_TESTS]
    constants = [[value] * len(results) for value in dict.fromkeys(results)]
    passing = [row for row in (*wrong, *constants) if all(row[place] == results[place] for place in chosen)]
    while passing:
        tells = {place: sum(row[place] != results[place] for row in passing) for place in order}
        best = max(order, key=tells.__getitem__)
        if tells[best] == 0 or len(chosen) == MAX_TESTS:
            raise ValueError(f"{name}: {MAX_TESTS} tests do not tell it from {len(passing)} wrong programs")
        chosen.append(best)
        passing = [row for row in passing if row[best] == results[best]]
    example = next(place for place in reversed(order) if place not in chosen)
    return [example, *chosen]


def distinct_calls(inputs: str) -> list[object]:
    """Return up to NUM_CALLS different arguments of a kind, the same on every machine."""
    generator = random.Random(inputs)
    drawn = [draw(inputs, generator) for _ in range(10 * NUM_CALLS)]
    return list({repr(argument): argument for argument in drawn}.values())[:NUM_CALLS]


def draw(inputs: str, generator: random.Random) -> object:
    """Return one argument: a number (-10 to 200), small (3 to 20) or natural (10 to 99999), a list of 3 to 7
    numbers, a text of 1 to 3 words, or a list of 3 to 5 words."""
    if inputs == "number":
        ranges = ((-10, 60), (0, 30), (0, 200))
        return generator.choice([generator.randint(low, high) for low, high in ranges])
    if inputs == "small":
        return generator.randint(3, 20)
    if inputs == "natural":
        return generator.randint(10, 99999)
    if inputs == "list":
        return [generator.randint(-3, 10) for _ in range(generator.randint(3, 7))]
    if inputs == "words":
        return generator.sample(WORDS, generator.randint(3, 5))
    return " ".join(generator.sample(WORDS, generator.randint(1, 3)))
