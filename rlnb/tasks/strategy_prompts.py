"""How a strategy for 2048 is asked for: with the board alone, or with functions that answer about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlnb.tasks.prompts import SYSTEM, Prompt, chat_text

StrategyPreset = Literal["board", "api"]
PREFIX = "```python\ndef strategy(board):"  # how an answer begins, and a reply that has begun
# The last sentence of the question; the last wording is never trained on.
WORDINGS = (
    "Write a new, short strategy.",
    "Now write a strategy that reaches larger tiles.",
    "Your turn: write the best short strategy that you can.",
)
HELD_OUT_WORDING = len(WORDINGS) - 1
NUM_TRAINED_WORDINGS = HELD_OUT_WORDING
FOLLOW_UP = "Another one."
# Bodies shown as earlier answers. The last is legal and deliberately bad: a better strategy is one edit away.
EXAMPLES: Mapping[StrategyPreset, Sequence[str]] = {
    "board": ('    return "{up}"  # an example: this key at every board',),
    "api": (
        "    return legal_moves(board)[0]",
        "    return min(legal_moves(board), key=lambda key: merged(board, key))",
    ),
}


@dataclass(frozen=True)
class StrategyQuestion:
    """One question. size, target: of the board. keys: the names of the directions. wording: of WORDINGS.

    queries: calls of the functions offered by "api".
    """

    preset: StrategyPreset
    size: int
    target: int
    keys: Mapping[Any, str]
    wording: int
    queries: Sequence[str]

    def text(self) -> str:
        """The task in words, the mapping of keys included, without its last sentence."""
        keys = ", ".join(f'"{name}" {direction}' for direction, name in self.keys.items())
        text = (
            f"Write a Python function `strategy(board)` for 2048 on a {self.size}x{self.size} board, a list "
            f"of rows, 0 where empty. The tile {self.target} wins. It returns a key: {keys}."
        )
        if self.preset == "api":
            return f"{text} There are {', '.join(self.queries)} and random."
        example = fenced(EXAMPLES["board"][0].format(**self.keys))
        return (
            f"{text} A key that changes nothing, again and again, loses the game. Use plain Python only, all "
            f"in one function, in one block:\n{example}"
        )

    def messages(self) -> list[dict[str, str]]:
        """The chat; "api" has its examples as earlier answers, where a small model imitates them best."""
        last = WORDINGS[self.wording]
        if self.preset == "board":
            return [as_message("user", f"{self.text()}\n{last}")]
        messages = []
        for index, body in enumerate(EXAMPLES["api"]):
            question = self.text() if index == 0 else FOLLOW_UP
            messages.append(as_message("user", question))
            messages.append(as_message("assistant", fenced(body.format(**self.keys))))
        return [*messages, as_message("user", last)]


def fenced(body: str) -> str:
    """A strategy as an answer; body: the indented lines of the function."""
    return f"{PREFIX}\n{body}\n```"


def as_message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def build_strategy_prompt(
    question: StrategyQuestion, tokenizer: Any, *, prefilled: bool, reasoning_effort: str = ""
) -> Prompt:
    """The question as the model reads it.

    prefilled: the reply has begun with the fence and the function's first line. reasoning_effort: handed to
    the chat template (GPT-OSS knows low, medium and high), which then writes the system message itself.
    """
    messages = question.messages()
    options = {"reasoning_effort": reasoning_effort} if reasoning_effort else {}
    if not reasoning_effort:
        messages = [as_message("system", SYSTEM), *messages]
    text = chat_text(
        messages, tokenizer, asked_by="the prompt of a strategy", instead="a model made for chat", **options
    )
    prefix = PREFIX if prefilled else ""
    return Prompt(text + prefix, prefix)
