"""How a task is asked: a chat, a chat whose reply has begun, or a program to be continued."""

from dataclasses import dataclass
from typing import Any, Literal

from rlnb.errors import ParamsError
from rlnb.tasks.programming import Task

PromptForm = Literal["chat", "prefilled", "completion"]
# An empty system message keeps a chat template from adding its own: every token of a prompt is read again for
# each completion and in each training pass.
SYSTEM = ""


@dataclass(frozen=True)
class Prompt:
    """text: what the model reads, chat markers included. prefix: the part of it that opens the answer."""

    text: str
    prefix: str


def question(task: Task, *, printed_example: bool = True) -> str:
    """The task in words with one example. With `printed_example` output is earned by printing it."""
    example = f"`{task.example_call}` gives `{task.example.expected!r}`."
    if printed_example:
        example = f"At the end, `print({task.example_call})` gives `{task.example.expected!r}`."
        return f"Write a Python function. {task.statement} {example}"
    return f"Write a Python function. {task.statement} For example, {example}"


def build_prompt(task: Task, form: PromptForm, tokenizer: Any, *, printed_example: bool = True) -> Prompt:
    """The prompt of a task. `tokenizer` renders the chat template; "completion" needs none.

    "prefilled" ends in the function's first line without a newline: tokenizers join a newline and the
    indentation that follows into one token, so after a newline the model cannot indent (94% syntax errors,
    measured).
    """
    signature = f"def {task.function}({task.parameters}):"
    if form == "completion":
        example = f">>> {task.example_call}\n    {task.example.expected!r}"
        text = f'{signature}\n    """{task.statement}\n\n    {example}\n    """'
        return Prompt(text, text)
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question(task, printed_example=printed_example)},
    ]
    text = chat_text(
        messages, tokenizer, asked_by=f"tasks.prompt = {form!r}", instead="tasks.prompt = 'completion'"
    )
    prefix = f"```python\n{signature}" if form == "prefilled" else ""
    return Prompt(text + prefix, prefix)


def chat_text(
    messages: list[dict[str, str]], tokenizer: Any, *, asked_by: str, instead: str, **options: Any
) -> str:
    """A chat as text, up to where the reply begins, without a token that the tokenizer puts in front itself.

    options: what the chat template knows besides, such as `reasoning_effort`. Raises ParamsError for a
    tokenizer without a chat template: `asked_by` is the field, `instead` the remedy.
    """
    if not tokenizer.chat_template:
        raise ParamsError(
            f"{asked_by} needs a chat template, which this model's tokenizer does not have; "
            f"write {instead}, or take a model made for chat"
        )
    text = str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **options))
    first = tokenizer.bos_token
    puts_it_itself = first and tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
    return text.removeprefix(first) if puts_it_itself else text


def game_text(prompt: str, *, tokenizer: Any) -> str:
    """A game's full prompt as a user's message in a chat; Qwen3 is told not to think aloud first."""
    return chat_text(
        [{"role": "user", "content": prompt}], tokenizer, asked_by="game.style = 'full'",
        instead="game.style = 'compact'", enable_thinking=False,
    )  # fmt: skip


def stop_tokens(form: PromptForm, tokenizer: Any) -> list[int]:
    """Tokens that end an answer besides the model's own: the closing fence, where the prompt has opened it.

    Empty where the tokenizer splits the fence, or where the answer opens the fence itself.
    """
    ids = tokenizer("```", add_special_tokens=False)["input_ids"]
    return list(ids) if form == "prefilled" and len(ids) == 1 else []
