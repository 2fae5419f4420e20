"""Forms of prompts: a chat, a chat with a prefilled reply, or a program to be continued."""

from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedTokenizerBase

from rlnb.errors import ParamsError

PromptForm = Literal["chat", "prefilled", "completion"]
# An empty system message keeps a chat template from adding its own, whose tokens would slow down each pass.
SYSTEM = ""


@dataclass(frozen=True)
class Prompt:
    """text: what the model reads, chat markers included. prefix: the part of it that opens the answer."""

    text: str
    prefix: str


def chat_text(
    messages: list[dict[str, str]], tokenizer: PreTrainedTokenizerBase, *, thinking: bool, **options: object
) -> str:
    """Return a chat as text, up to where the reply begins, without a token that the tokenizer adds itself.

    thinking: whether a model with a thinking mode, such as Qwen3, may think. options: others of the template,
    such as `reasoning_effort`. Raises ParamsError for a tokenizer without a chat template.
    """
    if not tokenizer.chat_template:
        raise ParamsError(
            "model.id: its tokenizer has no chat template; take a model made for chat, or where the notebook "
            "has it tasks.prompt = 'completion', game.style = 'compact' or mbpp.template = 'paper'"
        )
    options |= {"add_generation_prompt": True, "tokenize": False, "enable_thinking": thinking}
    text = str(tokenizer.apply_chat_template(messages, **options))
    first = tokenizer.bos_token
    adds_it_itself = first and tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
    return text.removeprefix(first) if adds_it_itself else text


def question_text(question: str, *, tokenizer: PreTrainedTokenizerBase, thinking: bool) -> str:
    """Return a question, such as a game's full prompt, as a user's message in a chat."""
    return chat_text([{"role": "user", "content": question}], tokenizer, thinking=thinking)
