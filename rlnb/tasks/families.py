"""The built-in tasks: families of small functions, each member made from a one-line reference.

A family differs only in constants and wording. Levels: 1 one operation, 2 a loop or a condition, 3 two steps.
Pass rates of the untrained embedded model (SmolLM2-135M-Instruct) were the guide: most families lie between 0.05
and 0.6, where rewards within a group differ; a few easy ones teach the form.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

from rlnb.tasks.programming import Task, Test

# Families that are never trained: what is learned elsewhere must carry over to them.
NEW_FAMILIES = (
    "affine",
    "contains_number",
    "filtered_sum",
    "long_words",
    "replace_letter",
    "pair_list",
    "clamp",
    "digits",
)
NUM_TESTS = 6
WORDS = (
    "apple",
    "river",
    "moon",
    "stone",
    "letter",
    "banana",
    "green",
    "python",
    "summer",
    "paper",
    "tree",
    "window",
)

Reference = Callable[..., Any]
Spec = tuple[
    str, int, str, str, Reference, str
]  # family, level, parameters, statement, reference, kinds of inputs


def specs() -> Iterator[Spec]:
    """Every built-in task without its tests. The kinds of inputs: n int, s small positive int, l list of ints,
    t text of words, w list of words, c a letter of the text before it, m a member of the list before it or not."""
    yield from number_specs()
    yield from list_specs()
    yield from text_specs()


def number_specs() -> Iterator[Spec]:
    for k in (2, 3, 4, 5, 6, 7, 8, 9, 10, 12):
        yield "multiply", 1, "n", f"Return n multiplied by {k}.", lambda n, k=k: n * k, "n"
    for k in (1, 3, 5, 8, 10, 15, 20, 100):
        yield "add", 1, "n", f"Return the sum of n and {k}.", lambda n, k=k: n + k, "n"
    for k in (2, 3, 4, 5, 6, 7, 9, 10):
        yield (
            "divisible",
            1,
            "n",
            f"Return True if n is divisible by {k}, else False.",
            lambda n, k=k: n % k == 0,
            "n",
        )
    for k in (0, 1, 5, 10, 20, 30, 50, 100):
        yield (
            "greater",
            1,
            "n",
            f"Return True if n is greater than {k}, else False.",
            lambda n, k=k: n > k,
            "n",
        )
    for k in (3, 4, 5, 6, 7, 8, 9, 11):
        yield "remainder", 1, "n", f"Return the remainder of n divided by {k}.", lambda n, k=k: n % k, "n"
    for k in (1, 2, 3, 4, 5, 7, 10, 12):
        yield "square_minus", 2, "n", f"Return the square of n minus {k}.", lambda n, k=k: n * n - k, "n"
    for a, b in ((2, 1), (2, 3), (3, 2), (3, 5), (4, 1), (5, 4), (6, 7), (7, 2), (10, 3), (9, 8)):
        yield "affine", 2, "n", f"Multiply n by {a} and add {b}.", lambda n, a=a, b=b: n * a + b, "n"
    for k in (5, 8, 10, 12, 15, 20, 25, 50):
        yield "smaller_of", 2, "n", f"Return the smaller of n and {k}.", lambda n, k=k: min(n, k), "n"
    for k in (0, 5, 10, 12, 15, 18, 20, 30):
        yield "larger_of", 2, "n", f"Return the larger of n and {k}.", lambda n, k=k: max(n, k), "n"
    for low, high in ((0, 10), (1, 5), (5, 20), (0, 100), (-5, 5), (10, 30), (2, 12), (3, 9)):
        yield (
            *("clamp", 3, "n", f"Return n, but at least {low} and at most {high}."),
            *(lambda n, low=low, high=high: max(low, min(n, high)), "n"),
        )
    for k in (1, 2, 3, 4, 5, 6, 7, 10):
        yield (
            *("multiples_sum", 3, "n", f"Return the sum of all multiples of {k} from {k} up to n."),
            *(lambda n, k=k: sum(range(k, n + 1, k)), "s"),
        )
    for wording, power in (("squares", 2), ("cubes", 3), ("numbers", 1)):
        for first in (1, 2, 3):
            yield (
                *("power_sum", 3, "n", f"Return the sum of the {wording} from {first} to n."),
                *(lambda n, p=power, first=first: sum(i**p for i in range(first, n + 1)), "s"),
            )
    digit_tasks: list[tuple[str, Reference]] = [
        ("Return the number of digits of n.", lambda n: len(str(n))),
        ("Return the sum of the digits of n.", lambda n: sum(map(int, str(n)))),
        ("Return the last digit of n.", lambda n: n % 10),
        ("Return the largest digit of n.", lambda n: max(map(int, str(n)))),
        ("Return n as a string.", lambda n: str(n)),
        ("Return the digits of n as a list of integers.", lambda n: [int(d) for d in str(n)]),
    ]
    for statement, reference in digit_tasks:
        yield "digits", 3, "n", statement, reference, "b"


def list_specs() -> Iterator[Spec]:
    for k in (2, 3, 4, 5, 6, 8, 9, 10):
        yield (
            *("multiply_all", 2, "xs", f"Return a list with every number of xs multiplied by {k}."),
            *(lambda xs, k=k: [x * k for x in xs], "l"),
        )
    for k in (1, 2, 3, 5, 7, 10, 20, 100):
        yield (
            *("add_to_all", 2, "xs", f"Return a list with {k} added to every number of xs."),
            *(lambda xs, k=k: [x + k for x in xs], "l"),
        )
    kinds: list[tuple[str, Reference]] = [
        ("even", lambda x: x % 2 == 0),
        ("odd", lambda x: x % 2 == 1),
        ("positive", lambda x: x > 0),
        ("negative", lambda x: x < 0),
        ("greater than 3", lambda x: x > 3),
        ("greater than 5", lambda x: x > 5),
        ("smaller than 4", lambda x: x < 4),
        ("smaller than 10", lambda x: x < 10),
        ("divisible by 3", lambda x: x % 3 == 0),
        ("not zero", lambda x: x != 0),
    ]
    for words, test in kinds:
        yield (
            *("filter_list", 2, "xs", f"Return a list of the numbers in xs that are {words}."),
            *(lambda xs, test=test: [x for x in xs if test(x)], "l"),
        )
        yield (
            *("count_if", 2, "xs", f"Return how many numbers in xs are {words}."),
            *(lambda xs, test=test: sum(1 for x in xs if test(x)), "l"),
        )
        yield (
            *("filtered_sum", 3, "xs", f"Return the sum of the numbers in xs that are {words}."),
            *(lambda xs, test=test: sum(x for x in xs if test(x)), "l"),
        )
    for k in (0, 1, 2, 3, 4, 5, 7, 9):
        yield (
            "contains_number",
            1,
            "xs",
            f"Return True if {k} is in xs, else False.",
            lambda xs, k=k: k in xs,
            "l",
        )
        yield (
            *("without", 2, "xs", f"Return a list of the numbers in xs without {k}."),
            *(lambda xs, k=k: [x for x in xs if x != k], "l"),
        )
        yield "count_number", 2, "xs", f"Return how often {k} is in xs.", lambda xs, k=k: xs.count(k), "l"
    for k in (1, 2, 3, 4):
        yield "first_items", 2, "xs", f"Return the first {k} elements of xs.", lambda xs, k=k: xs[:k], "l"
        yield "skip_items", 2, "xs", f"Return xs without its first {k} elements.", lambda xs, k=k: xs[k:], "l"
    whole: list[tuple[str, int, str, Reference]] = [
        ("list_statistic", 1, "Return the sum of the numbers in xs.", sum),
        ("list_statistic", 1, "Return the largest number in xs.", max),
        ("list_statistic", 1, "Return the smallest number in xs.", min),
        ("list_statistic", 1, "Return the number of elements of xs.", len),
        (
            "list_statistic",
            2,
            "Return the largest number in xs minus the smallest.",
            lambda xs: max(xs) - min(xs),
        ),
        (
            "list_statistic",
            2,
            "Return the sum of the first and the last number in xs.",
            lambda xs: xs[0] + xs[-1],
        ),
        ("list_order", 1, "Return xs sorted from small to large.", sorted),
        ("list_order", 1, "Return xs sorted from large to small.", lambda xs: sorted(xs, reverse=True)),
        ("list_order", 1, "Return xs in reverse order.", lambda xs: xs[::-1]),
        ("list_order", 1, "Return the first element of xs.", lambda xs: xs[0]),
        ("list_order", 1, "Return the last element of xs.", lambda xs: xs[-1]),
        ("list_order", 2, "Return every second element of xs, beginning with the first.", lambda xs: xs[::2]),
        (
            "pair_list",
            2,
            "Return a list with the smallest and the largest number in xs.",
            lambda xs: [min(xs), max(xs)],
        ),
        (
            "pair_list",
            2,
            "Return a list with the first and the last number in xs.",
            lambda xs: [xs[0], xs[-1]],
        ),
        ("pair_list", 2, "Return a list with the length and the sum of xs.", lambda xs: [len(xs), sum(xs)]),
        (
            "pair_list",
            2,
            "Return a list with the sum and the largest number of xs.",
            lambda xs: [sum(xs), max(xs)],
        ),
    ]
    for family, level, statement, reference in whole:
        yield family, level, "xs", statement, reference, "l"


def text_specs() -> Iterator[Spec]:
    for letter in "aeotrnps":
        yield (
            *("count_letter", 2, "text", f"Return how often the letter '{letter}' is in text."),
            *(lambda text, c=letter: text.count(c), "t"),
        )
        yield (
            *(
                "contains_letter",
                1,
                "text",
                f"Return True if text contains the letter '{letter}', else False.",
            ),
            *(lambda text, c=letter: c in text, "t"),
        )
        yield (
            *("remove_letter", 2, "text", f"Return text without the letter '{letter}'."),
            *(lambda text, c=letter: text.replace(c, ""), "t"),
        )
    for old, new in (
        ("a", "o"),
        ("e", "a"),
        ("o", "0"),
        ("r", "l"),
        ("n", "m"),
        ("t", "d"),
        ("p", "b"),
        ("e", "i"),
    ):
        yield (
            *("replace_letter", 2, "text", f"Return text with every '{old}' replaced by '{new}'."),
            *(lambda text, old=old, new=new: text.replace(old, new), "t"),
        )
    for k in (2, 3, 4, 5):
        yield "repeat_text", 1, "text", f"Return text repeated {k} times.", lambda text, k=k: text * k, "t"
        yield (
            "prefix",
            1,
            "text",
            f"Return the first {k} characters of text.",
            lambda text, k=k: text[:k],
            "t",
        )
        yield (
            *("long_words", 3, "words", f"Return a list of the words longer than {k} letters."),
            *(lambda words, k=k: [word for word in words if len(word) > k], "w"),
        )
        yield (
            *("count_long", 3, "words", f"Return how many words are longer than {k} letters."),
            *(lambda words, k=k: sum(1 for word in words if len(word) > k), "w"),
        )
    for sign, name in (
        ("-", "a dash"),
        (",", "a comma"),
        (" ", "a space"),
        ("+", "a plus sign"),
        ("/", "a slash"),
    ):
        yield (
            "join_words",
            2,
            "words",
            f"Return the words joined with {name}.",
            lambda words, sign=sign: sign.join(words),
            "w",
        )
    simple: list[tuple[str, int, str, str, Reference, str]] = [
        ("text_case", 1, "text", "Return text in upper case.", str.upper, "t"),
        ("text_case", 1, "text", "Return text with its first letter in upper case.", str.capitalize, "t"),
        ("text_case", 1, "text", "Return text with every word beginning in upper case.", str.title, "t"),
        ("text_parts", 1, "text", "Return text reversed.", lambda text: text[::-1], "t"),
        ("text_parts", 1, "text", "Return the first character of text.", lambda text: text[0], "t"),
        ("text_parts", 1, "text", "Return the last character of text.", lambda text: text[-1], "t"),
        ("text_parts", 1, "text", "Return the length of text.", len, "t"),
        ("text_parts", 2, "text", "Return the number of words in text.", lambda text: len(text.split()), "t"),
        ("text_parts", 2, "text", "Return the words of text as a list.", str.split, "t"),
        ("text_parts", 2, "text", "Return the last word of text.", lambda text: text.split()[-1], "t"),
        ("word_list", 2, "words", "Return the words in alphabetical order.", sorted, "w"),
        ("word_list", 2, "words", "Return the longest word.", lambda words: max(words, key=len), "w"),
        ("word_list", 2, "words", "Return a list of the words in upper case.", lambda words: [w.upper() for w in words], "w"),
        ("word_list", 2, "words", "Return a list of the lengths of the words.", lambda words: [len(w) for w in words], "w"),
        ("word_list", 2, "words", "Return a list of the first letters of the words.", lambda words: [w[0] for w in words], "w"),
        ("word_list", 1, "words", "Return the first word.", lambda words: words[0], "w"),
    ]  # fmt: skip
    yield from simple


def draw(kind: str, generator: random.Random) -> tuple[Any, ...]:
    """Arguments of one call."""
    if kind == "n":
        return (
            generator.choice(
                [generator.randint(-10, 60), generator.randint(0, 30), generator.randint(0, 200)]
            ),
        )
    if kind == "s":
        return (generator.randint(3, 20),)
    if kind == "b":
        return (generator.randint(10, 99999),)
    if kind == "l":
        return ([generator.randint(-3, 10) for _ in range(generator.randint(3, 7))],)
    if kind == "w":
        return (generator.sample(WORDS, generator.randint(3, 5)),)
    return (" ".join(generator.sample(WORDS, generator.randint(1, 3))),)


def builtin_tasks(levels: tuple[int, ...] = (1, 2, 3)) -> list[Task]:
    """All built-in tasks of the levels, the same on every machine: inputs are drawn from a seed made of the task.

    The tests of a task have no two calls alike, none is the example's, and not all results are the same.
    """
    tasks = []
    counts: dict[str, int] = {}
    for family, level, parameters, statement, reference, kind in specs():
        counts[family] = counts.get(family, 0) + 1
        name = f"{family}-{counts[family]:02d}"
        if level in levels:
            tests = distinct_tests(name, kind, reference)
            tasks.append(Task(name, family, level, "f", parameters, statement, tests[0], tuple(tests[1:])))
    return tasks


def distinct_tests(name: str, kind: str, reference: Reference) -> list[Test]:
    """NUM_TESTS + 1 calls with their results, so different that no constant answers them all."""
    generator = random.Random(name)
    tests: list[Test] = []
    for _ in range(10_000):
        if len(tests) > NUM_TESTS and len({repr(test.expected) for test in tests[1:]}) > 1:
            return tests
        arguments = draw(kind, generator)
        if any(arguments == test.arguments for test in tests):
            continue
        tests.append(Test(arguments, reference(*arguments)))
        if len(tests) > NUM_TESTS + 1:  # all results alike so far: forget the oldest call and draw on
            del tests[1]
    raise ValueError(f"{name}: no two calls of kind {kind!r} have different results")
