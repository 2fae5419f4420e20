"""Prompts of the code game: values that a program begins with, and topics."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from rlnb.code_game.params import NUM_HELD_OUT, GameForm
from rlnb.policy.prompts import Chat, Prompt, begin_answer

WORDS = (
    "apple", "basket", "candle", "desert", "engine", "forest", "garden", "hammer", "island", "jacket",
    "kettle", "ladder", "meadow", "needle", "orange", "pencil", "rabbit", "silver", "tunnel", "violet",
    "window", "yellow", "zebra", "bridge", "cotton", "dragon", "feather", "gravel", "harbor", "lantern",
)  # fmt: skip
TOPICS = ("loops", "strings", "lists", "recursion", "big integers")
NUM_TRAINED, NUM_KINDS = 160, 4
SPLIT_SEED = 20260  # the values, and so the held-out ones, are the same for every run


@dataclass(frozen=True)
class GameQuestion:
    """A request for a program. first_line: source that gives it values. topic: "" in the form "seeded"."""

    id: str
    first_line: str
    topic: str = ""


def first_lines(count: int, *, seed: int) -> list[str]:
    """Return distinct lines of source: a whole number, a word, a list or two numbers, in turn."""
    generator = random.Random(seed)
    kinds = (
        lambda: f"n = {generator.randint(2, 99)}",
        lambda: f"s = '{generator.choice(WORDS)}'",
        lambda: f"xs = {[generator.randint(1, 20) for _ in range(generator.randint(3, 4))]}",
        lambda: "a, b = {}, {}".format(*generator.sample(range(2, 40), 2)),
    )
    lines: dict[str, None] = {}
    tries = 0
    while len(lines) < count:
        kind = kinds[len(lines) % len(kinds)] if tries < 20 else kinds[2]  # words and small numbers run out
        line = kind()
        tries = tries + 1 if line in lines else 0
        lines[line] = None
    return list(lines)


def game_questions(form: GameForm) -> Mapping[str, list[GameQuestion]]:
    """Return {"train": ..., "held_out": ...}, which share no value; topics alternate, each with all kinds."""
    lines = first_lines(NUM_TRAINED + NUM_HELD_OUT, seed=SPLIT_SEED)
    # Of every eight in a row three are held out: each kind of value occurs in both.
    questions: dict[str, list[GameQuestion]] = {"train": [], "held_out": []}
    for index, line in enumerate(lines):
        split = "held_out" if index // 4 % 8 in (1, 4, 7) else "train"
        members = questions[split]
        topic = TOPICS[len(members) // NUM_KINDS % len(TOPICS)] if form == "topic" else ""
        members.append(GameQuestion(f"{split}/{len(members)}", line, topic))
    return questions


def build_game_prompt(question: GameQuestion, form: GameForm, chat: Chat) -> Prompt:
    """Return the prompt for a program.

    "seeded" gives the first line and goes on at `print(`, or at `print` where a tokenizer joins "(" with what
    follows: what remains is an expression, which a small model can write. "topic" opens the block and leaves
    the program to the model. Nothing asks for a program that is hard to guess: asked that way a small model
    imports random and breaks (measured), and the reward says it.
    """
    if form == "seeded":
        request = (
            f"Complete this Python program: after `{question.first_line}`, print one value that is computed "
            "from it."
        )
        prefix = f"```python\n{question.first_line}\nprint("
        variables = question.first_line.partition(" =")[0].split(", ")
        starts = [*variables, "len", "sum", "(", "[", "'", '"', "f'", "1"]
    else:
        request = (
            f"Write a short Python program about {question.topic}. It begins with `{question.first_line}` "
            "and prints one value that is computed from it. Answer with one Python code block."
        )
        prefix, starts = "```python\n", [question.first_line, "def f", "import math", "# a"]
    return begin_answer(chat.ask(request), prefix, chat.tokenizer, starts)
