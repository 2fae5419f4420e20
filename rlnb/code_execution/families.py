"""The built-in tasks: families of small functions, each task made from a one-line reference.

A family differs only in constants and wording. Levels: 1 one operation, 2 a loop or a condition, 3 two steps.
Pass rates of the untrained embedded model (SmolLM2-135M-Instruct) were the guide: most families lie between
0.05 and 0.6, where rewards within a group differ; a few easy ones teach the form.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Literal, NamedTuple

from rlnb.code_execution.tasks import Task, Test

Inputs = Literal["number", "small", "natural", "list", "text", "words"]
PARAMETERS: dict[Inputs, str] = {
    "number": "n", "small": "n", "natural": "n", "list": "xs", "text": "text", "words": "words",
}  # fmt: skip
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


class Family(NamedTuple):
    """The common part of a family's tasks.

    inputs: the kind of its one argument, see `draw`. statement: the task in words, `{}` for the constants.
    reference: the solution; takes the argument, then the constants.
    """

    name: str
    level: int
    inputs: Inputs
    statement: str
    reference: Callable[..., object]


# (constants, families): one task for each constant and family. Tasks are numbered in this order, and the
# number is part of the name that seeds their calls: append a family's new tasks after its old ones.
Group = tuple[Sequence[object], Sequence[Family]]
NO_CONSTANT = ((),)

# fmt: off
POWERS = (("squares", 2), ("cubes", 3), ("numbers", 1))

NUMBER_GROUPS: tuple[Group, ...] = (
    ((2, 3, 4, 5, 6, 7, 8, 9, 10, 12), [
        Family("multiply", 1, "number", "Return n multiplied by {}.", lambda n, k: n * k)]),
    ((1, 3, 5, 8, 10, 15, 20, 100), [
        Family("add", 1, "number", "Return the sum of n and {}.", lambda n, k: n + k)]),
    ((2, 3, 4, 5, 6, 7, 9, 10), [
        Family("divisible", 1, "number", "Return True if n is divisible by {}, else False.",
               lambda n, k: n % k == 0)]),
    ((0, 1, 5, 10, 20, 30, 50, 100), [
        Family("greater", 1, "number", "Return True if n is greater than {}, else False.",
               lambda n, k: n > k)]),
    ((3, 4, 5, 6, 7, 8, 9, 11), [
        Family("remainder", 1, "number", "Return the remainder of n divided by {}.", lambda n, k: n % k)]),
    ((1, 2, 3, 4, 5, 7, 10, 12), [
        Family("square_minus", 2, "number", "Return the square of n minus {}.", lambda n, k: n * n - k)]),
    (((2, 1), (2, 3), (3, 2), (3, 5), (4, 1), (5, 4), (6, 7), (7, 2), (10, 3), (9, 8)), [
        Family("affine", 2, "number", "Multiply n by {} and add {}.", lambda n, a, b: n * a + b)]),
    ((5, 8, 10, 12, 15, 20, 25, 50), [
        Family("smaller_of", 2, "number", "Return the smaller of n and {}.", lambda n, k: min(n, k))]),
    ((0, 5, 10, 12, 15, 18, 20, 30), [
        Family("larger_of", 2, "number", "Return the larger of n and {}.", lambda n, k: max(n, k))]),
    (((0, 10), (1, 5), (5, 20), (0, 100), (-5, 5), (10, 30), (2, 12), (3, 9)), [
        Family("clamp", 3, "number", "Return n, but at least {} and at most {}.",
               lambda n, low, high: max(low, min(n, high)))]),
    ((2, 3, 4, 5, 6, 7, 8, 10), [
        Family("multiples_sum", 3, "small", "Return the sum of all multiples of {0} from {0} up to n.",
               lambda n, k: sum(range(k, n + 1, k)))]),
    ([(*power, first) for power, first in product(POWERS, (1, 2, 3))], [
        Family("power_sum", 3, "small", "Return the sum of the {0} from {2} to n.",
               lambda n, _, power, first: sum(i**power for i in range(first, n + 1)))]),
    (NO_CONSTANT, [
        Family("digits", 3, "natural", "Return the number of digits of n.", lambda n: len(str(n))),
        Family("digits", 3, "natural", "Return the sum of the digits of n.", lambda n: sum(map(int, str(n)))),
        Family("digits", 3, "natural", "Return the last digit of n.", lambda n: n % 10),
        Family("digits", 3, "natural", "Return the largest digit of n.", lambda n: max(map(int, str(n)))),
        Family("digits", 3, "natural", "Return n as a string.", lambda n: str(n)),
        Family("digits", 3, "natural", "Return the digits of n as a list of integers.",
               lambda n: [int(d) for d in str(n)])]),
)

CONDITIONS = (
    ("even", lambda x: x % 2 == 0),
    ("odd", lambda x: x % 2 == 1),
    ("positive", lambda x: x > 0),
    ("negative", lambda x: x < 0),
    ("greater than 3", lambda x: x > 3),
    ("greater than 5", lambda x: x > 5),
    ("smaller than 4", lambda x: x < 4),
    ("smaller than 10", lambda x: x < 10),
    ("divisible by 3", lambda x: x % 3 == 0),
    ("smaller than 7", lambda x: x < 7),
)

LIST_GROUPS: tuple[Group, ...] = (
    ((2, 3, 4, 5, 6, 8, 9, 10), [
        Family("multiply_all", 2, "list", "Return a list with every number of xs multiplied by {}.",
               lambda xs, k: [x * k for x in xs])]),
    ((1, 2, 3, 5, 7, 10, 20, 100), [
        Family("add_to_all", 2, "list", "Return a list with {} added to every number of xs.",
               lambda xs, k: [x + k for x in xs])]),
    (CONDITIONS, [
        Family("filter_list", 2, "list", "Return a list of the numbers in xs that are {}.",
               lambda xs, _, holds: [x for x in xs if holds(x)]),
        Family("count_if", 2, "list", "Return how many numbers in xs are {}.",
               lambda xs, _, holds: sum(1 for x in xs if holds(x))),
        Family("filtered_sum", 3, "list", "Return the sum of the numbers in xs that are {}.",
               lambda xs, _, holds: sum(x for x in xs if holds(x)))]),
    ((0, 1, 2, 3, 4, 5, 7, 9), [
        Family("contains_number", 1, "list", "Return True if {} is in xs, else False.",
               lambda xs, k: k in xs),
        Family("without", 2, "list", "Return a list of the numbers in xs without {}.",
               lambda xs, k: [x for x in xs if x != k]),
        Family("count_number", 2, "list", "Return how often {} is in xs.", lambda xs, k: xs.count(k))]),
    ((1, 2, 3, 4), [
        Family("first_items", 2, "list", "Return the first {} elements of xs.", lambda xs, k: xs[:k]),
        Family("skip_items", 2, "list", "Return xs without its first {} elements.", lambda xs, k: xs[k:])]),
    (NO_CONSTANT, [
        Family("list_statistic", 1, "list", "Return the sum of the numbers in xs.", sum),
        Family("list_statistic", 1, "list", "Return the largest number in xs.", max),
        Family("list_statistic", 1, "list", "Return the smallest number in xs.", min),
        Family("list_statistic", 1, "list", "Return the number of elements of xs.", len),
        Family("list_statistic", 2, "list", "Return the largest number in xs minus the smallest.",
               lambda xs: max(xs) - min(xs)),
        Family("list_statistic", 2, "list", "Return the sum of the first and the last number in xs.",
               lambda xs: xs[0] + xs[-1]),
        Family("list_order", 1, "list", "Return xs sorted from small to large.", sorted),
        Family("list_order", 1, "list", "Return xs sorted from large to small.",
               lambda xs: sorted(xs, reverse=True)),
        Family("list_order", 1, "list", "Return xs in reverse order.", lambda xs: xs[::-1]),
        Family("list_order", 1, "list", "Return the first element of xs.", lambda xs: xs[0]),
        Family("list_order", 1, "list", "Return the last element of xs.", lambda xs: xs[-1]),
        Family("list_order", 2, "list", "Return every second element of xs, beginning with the first.",
               lambda xs: xs[::2]),
        Family("pair_list", 2, "list", "Return a list with the smallest and the largest number in xs.",
               lambda xs: [min(xs), max(xs)]),
        Family("pair_list", 2, "list", "Return a list with the first and the last number in xs.",
               lambda xs: [xs[0], xs[-1]]),
        Family("pair_list", 2, "list", "Return a list with the length and the sum of xs.",
               lambda xs: [len(xs), sum(xs)]),
        Family("pair_list", 2, "list", "Return a list with the sum and the largest number of xs.",
               lambda xs: [sum(xs), max(xs)])]),
)

REPLACED = (("a", "o"), ("e", "a"), ("o", "0"), ("r", "l"), ("n", "m"), ("t", "d"), ("p", "b"), ("e", "i"))
SEPARATORS = (("a dash", "-"), ("a comma", ","), ("a space", " "), ("a plus sign", "+"), ("a slash", "/"))

TEXT_GROUPS: tuple[Group, ...] = (
    ("aeotrnps", [
        Family("count_letter", 2, "text", "Return how often the letter '{}' is in text.",
               lambda text, letter: text.count(letter)),
        Family("contains_letter", 1, "text", "Return True if text contains the letter '{}', else False.",
               lambda text, letter: letter in text),
        Family("remove_letter", 2, "text", "Return text without the letter '{}'.",
               lambda text, letter: text.replace(letter, ""))]),
    (REPLACED, [
        Family("replace_letter", 2, "text", "Return text with every '{}' replaced by '{}'.",
               lambda text, old, new: text.replace(old, new))]),
    ((2, 3, 4, 5), [
        Family("repeat_text", 1, "text", "Return text repeated {} times.", lambda text, k: text * k),
        Family("prefix", 1, "text", "Return the first {} characters of text.", lambda text, k: text[:k]),
        Family("long_words", 3, "words", "Return a list of the words longer than {} letters.",
               lambda words, k: [word for word in words if len(word) > k]),
        Family("count_long", 3, "words", "Return how many words are longer than {} letters.",
               lambda words, k: sum(1 for word in words if len(word) > k))]),
    (SEPARATORS, [
        Family("join_words", 2, "words", "Return the words joined with {}.",
               lambda words, _, sign: sign.join(words))]),
    (NO_CONSTANT, [
        Family("text_case", 1, "text", "Return text in upper case.", str.upper),
        Family("text_case", 1, "text", "Return text with its first letter in upper case.", str.capitalize),
        Family("text_case", 1, "text", "Return text with every word beginning in upper case.", str.title),
        Family("text_parts", 1, "text", "Return text reversed.", lambda text: text[::-1]),
        Family("text_parts", 1, "text", "Return the first character of text.", lambda text: text[0]),
        Family("text_parts", 1, "text", "Return the last character of text.", lambda text: text[-1]),
        Family("text_parts", 1, "text", "Return the length of text.", len),
        Family("text_parts", 2, "text", "Return the number of words in text.",
               lambda text: len(text.split())),
        Family("text_parts", 2, "text", "Return the words of text as a list.", str.split),
        Family("text_parts", 2, "text", "Return the last word of text.", lambda text: text.split()[-1]),
        Family("word_list", 2, "words", "Return the words in alphabetical order.", sorted),
        Family("word_list", 2, "words", "Return the longest word.", lambda words: max(words, key=len)),
        Family("word_list", 2, "words", "Return a list of the words in upper case.",
               lambda words: [word.upper() for word in words]),
        Family("word_list", 2, "words", "Return a list of the lengths of the words.",
               lambda words: [len(word) for word in words]),
        Family("word_list", 2, "words", "Return a list of the first letters of the words.",
               lambda words: [word[0] for word in words]),
        Family("word_list", 1, "words", "Return the first word.", lambda words: words[0])]),
)
# fmt: on


def builtin_tasks(levels: tuple[int, ...] = (1, 2, 3)) -> list[Task]:
    """Return the built-in tasks of some levels, the same on every machine: a task's name seeds its calls.

    A task's tests reject every constant, its unchanged argument, and every other task's reference.
    """
    members = builtin_members()
    kinds: dict[Inputs, list[Member]] = {}
    for member in members:
        kinds.setdefault(member.family.inputs, []).append(member)
    tasks = {}
    for inputs, alike in kinds.items():
        calls = distinct_calls(inputs)
        results = [[member.result(argument) for argument in calls] for member in alike]
        printed = [[repr(result) for result in row] for row in results]
        for member, row, texts in zip(alike, results, printed, strict=True):
            if member.family.level in levels:
                wrong = [*(other for other in printed if other is not texts), [repr(call) for call in calls]]
                chosen = choose_tests(member.id, texts, wrong)
                example, *tests = (Test((calls[place],), row[place]) for place in chosen)
                tasks[member.id] = Task(
                    id=member.id,
                    family=member.family.name,
                    level=member.family.level,
                    function="f",
                    parameters=PARAMETERS[inputs],
                    statement=member.family.statement.format(*member.constants),
                    example=example,
                    tests=tuple(tests),
                )
    return [tasks[member.id] for member in members if member.id in tasks]


class Member(NamedTuple):
    """A built-in task before its tests are chosen."""

    id: str
    family: Family
    constants: tuple[object, ...]

    def result(self, argument: object) -> object:
        return self.family.reference(argument, *self.constants)


def builtin_members() -> list[Member]:
    """Return each built-in task as its family and its constants, in order."""
    members = []
    counts: Counter[str] = Counter()
    for constants, families in (*NUMBER_GROUPS, *LIST_GROUPS, *TEXT_GROUPS):
        for constant in constants:
            for family in families:
                counts[family.name] += 1
                values = constant if isinstance(constant, tuple) else (constant,)
                members.append(Member(f"{family.name}-{counts[family.name]:02d}", family, values))
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


def distinct_calls(inputs: Inputs) -> list[object]:
    """Return up to NUM_CALLS different arguments of a kind, the same on every machine."""
    generator = random.Random(inputs)
    calls: dict[str, object] = {}
    for _ in range(10 * NUM_CALLS):
        argument = draw(inputs, generator)
        calls.setdefault(repr(argument), argument)
    return list(calls.values())[:NUM_CALLS]


def draw(inputs: Inputs, generator: random.Random) -> object:
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
