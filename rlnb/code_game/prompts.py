"""Prompts of the code game: values that a program begins with, and topics."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlnb.code_game.params import GameForm
from rlnb.policy.prompts import Chat, Prompt, begin_answer

# Each has a whole number, a word, a list or two numbers; topics take turns. The splits share no value.
QUESTION_FILE = Path(__file__).with_name("questions.jsonl")


@dataclass(frozen=True)
class GameQuestion:
    """A request for a program. first_line: source that gives it values. topic: "" in the form "seeded"."""

    id: str
    first_line: str
    topic: str = ""


def game_questions(form: GameForm) -> Mapping[str, list[GameQuestion]]:
    """Return {"train": ..., "held_out": ...}, the same for every run."""
    questions: dict[str, list[GameQuestion]] = {"train": [], "held_out": []}
    for record in map(json.loads, QUESTION_FILE.read_text(encoding="utf-8").splitlines()):
        members = questions[record["split"]]
        topic = record["topic"] if form == "topic" else ""
        members.append(GameQuestion(f"{record['split']}/{len(members)}", record["first_line"], topic))
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
