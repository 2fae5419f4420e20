"""Prompts for 2048 strategies: with the board alone, or with functions that answer questions about it."""

from itertools import cycle
from typing import Literal

from rlnb.game_2048.board import KEYS, BoardKind
from rlnb.game_2048.params import GptOss2048Params
from rlnb.game_2048.queries import QUERIES
from rlnb.policy.prompts import Chat, Prompt, begin_answer, opened_thought

PREFIX = "```python\ndef strategy(board):"  # the beginning of an answer, and of a prefilled reply
# The last sentence of the question; the last wording is never used in training. Each names what to increase:
# asked only for a good strategy, or for a short one, a small model settles on the example or on the shortest.
WORDINGS = (
    "Now a good one: it reaches larger tiles.",
    "Now a good one: it merges as much as it can.",
    "Now a good one: it has the highest score.",
    "Now a good one: it makes the largest tile.",
    "Now a good one: it scores more points.",
)
HELD_OUT_WORDING = len(WORDINGS) - 1
EXAMPLE = '    return "é"  # an example: this key at every board'
# Shown as an earlier answer to the request for a bad one; a better strategy is one edit away.
EARLIER_ANSWER = "    return min(legal_moves(board), key=lambda key: merged(board, key))"


def build_messages(preset: Literal["board", "api"], kind: BoardKind, wording: int) -> list[dict[str, str]]:
    """Return the chat; "api" shows its example as an earlier answer, which a small model imitates best.

    wording: an index into WORDINGS.
    """
    named = ", ".join(f'"{name}" {direction}' for direction, name in KEYS.items())
    task = (
        f"Write a Python function `strategy(board)` for 2048 on a {kind.size}x{kind.size} board, a list of "
        f"rows, 0 where empty. The tile {kind.target} wins. It returns a key: {named}."
    )
    if preset == "api":
        task += f" There are {', '.join(QUERIES)} and random. First write a bad strategy, "
        task += "which merges as little as it can."
        texts = [task, fence_strategy(EARLIER_ANSWER), WORDINGS[wording]]
    else:
        task += " A key that changes nothing, again and again, loses the game. Use plain Python only, all "
        task += f"in one function, in one block:\n{fence_strategy(EXAMPLE)}\n{WORDINGS[wording]}"
        texts = [task]
    roles = cycle(("user", "assistant"))
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


def fence_strategy(body: str) -> str:
    """Return a strategy as an answer. body: the indented lines of the function."""
    return f"{PREFIX}\n{body}\n```"


def build_strategy_prompt(params: GptOss2048Params, kind: BoardKind, wording: int, chat: Chat) -> Prompt:
    """Return the question for a kind of board as the model reads it.

    Where `prompt.reasoning_effort` is set, the chat template (of GPT-OSS) writes the system message itself.
    """
    messages = build_messages(params.prompt.preset, kind, wording)
    effort = params.prompt.reasoning_effort
    text = chat.write(messages, **({"reasoning_effort": effort} if effort else {}))
    if not params.prompt.prefilled:
        return Prompt(text, opened_thought(text))
    return begin_answer(text, f"{PREFIX}\n", chat.tokenizer, ["    return", "    for", '    """', "    x"])
