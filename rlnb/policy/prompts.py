"""Prompts as a model reads them: a chat, a chat with a begun reply, or a program to be continued."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Literal

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from rlnb.errors import ParamsError
from rlnb.params.thoughts import BEGIN_THOUGHT, THINK, THOUGHT_MARKS

PromptForm = Literal["chat", "prefilled", "completion"]
# The day that templates write, such as GPT-OSS's and Llama 3's; by the clock, a run's prompts would change at
# midnight. It is that of the examples in OpenAI's description of GPT-OSS's format.
TODAY = date(2025, 6, 28)
# GPT-OSS begins each message by the name of its channel; what users read is in this one.
REPLY, FINAL_CHANNEL = "<|start|>assistant", "<|channel|>final<|message|>"


@dataclass(frozen=True)
class Prompt:
    """text: what the model reads, chat markers included. prefix: the part of it that opens the answer."""

    text: str
    prefix: str


@dataclass(frozen=True)
class Chat:
    """How a model is asked in a chat: in trainings, evaluations and on servers alike.

    thinking: whether a model with a thinking mode, such as Qwen3, may think. system: the system message, None
    for the one that the model's template writes by itself, if any.
    """

    tokenizer: PreTrainedTokenizerBase
    thinking: bool = False
    system: str | None = None

    def ask(self, question: str) -> str:
        """Return a question, such as a game's full prompt, as a user's message; see `write`."""
        return self.write([{"role": "user", "content": question}])

    def write(self, messages: list[dict[str, str]], **options: object) -> str:
        """Return a chat as text up to where the reply begins, without a token that the tokenizer adds itself.

        It depends on the messages alone, not on the day: a template that writes a date writes TODAY.

        options: others of the template, such as `reasoning_effort`. Where the template has no system role,
        the system message begins the user's. Raises ParamsError for a tokenizer without a chat template.
        """
        tokenizer = self.tokenizer
        if not tokenizer.chat_template:
            raise ParamsError(
                "model.id: its tokenizer has no chat template; take a model made for chat, or where the "
                "notebook has it tasks.prompt = completion, game.style = compact or mbpp.template = paper"
            )
        options |= {"add_generation_prompt": True, "tokenize": False}
        options |= {"enable_thinking": self.thinking, "thinking": self.thinking}  # Qwen's name, DeepSeek's
        options |= {"strftime_now": TODAY.strftime}
        try:
            text = str(tokenizer.apply_chat_template(with_system(messages, self.system), **options))
            if self.system and self.system.strip() not in text:  # as Phi 3's, which skips other roles
                raise TemplateError("the template drops a system message")
        except TemplateError:
            if self.system is None:
                raise
            first = {**messages[0], "content": f"{self.system}\n\n{messages[0]['content']}".lstrip("\n")}
            text = str(tokenizer.apply_chat_template([first, *messages[1:]], **options))
        if not self.thinking:
            text = close_thought(text)
        begin = tokenizer.bos_token
        adds_it_itself = begin and tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
        return text.removeprefix(begin) if adds_it_itself else text


def opened_thought(text: str) -> str:
    """Return the end of a prompt that opens a thought, with which the answer goes on; else ""."""
    # Gemma's token is followed by a word.
    opened = re.search(rf"(?:<{THINK}>|{BEGIN_THOUGHT})(?:thought)?\s*\Z", text, re.IGNORECASE)
    return opened[0] if opened else ""


def close_thought(text: str) -> str:
    """Return a prompt with the thought closed that its template opens, as DeepSeek-R1's does."""
    mark = opened_thought(text).strip()
    ends = (end for begin, end in THOUGHT_MARKS.items() if mark.lower().startswith(begin.lower()))
    return f"{text.rstrip()}\n\n{next(ends, f'</{mark[1:]}')}\n\n" if mark else text


def open_answer(text: str) -> str:
    """Return a prompt whose next token belongs to the answer itself, not to a thought or a channel's name."""
    return text + FINAL_CHANNEL if text.endswith(REPLY) else close_thought(text)


def with_system(messages: list[dict[str, str]], system: str | None) -> list[dict[str, str]]:
    """Return messages with the system message in front, None for none."""
    return messages if system is None else [{"role": "system", "content": system}, *messages]


def begin_answer(
    text: str, prefix: str, tokenizer: PreTrainedTokenizerBase, continuations: Sequence[str]
) -> Prompt:
    """Return a prompt that ends in the beginning of an answer, cut to where no token is cut.

    A model that is shown the first half of a token cannot write the second: Qwen, Llama 3 and GPT-OSS join
    signs with what follows ("):" with the end of the line, "(" with a letter), SmolLM2 the end of a line with
    the indentation of the next. continuations: how answers go on; what is cut off comes before them.
    """

    def encode(characters: str) -> list[int]:
        tokens: list[int] = tokenizer(characters, add_special_tokens=False)["input_ids"]
        return tokens

    text = open_answer(text)
    whole = text + prefix
    continued = [encode(whole + continuation) for continuation in continuations]
    for end in range(len(whole), len(text), -1):
        tokens = encode(whole[:end])
        if all(others[: len(tokens)] == tokens for others in continued):
            return Prompt(whole[:end], whole[len(text) : end])
    return Prompt(text, "")
