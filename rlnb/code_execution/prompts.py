"""Word a task as a prompt: a chat, a chat whose reply has begun, or a program to be continued."""

from collections.abc import Sequence

from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from trl import GRPOConfig

from rlnb.code_execution.tasks import Task
from rlnb.grpo.training import order_prompts
from rlnb.params.training import MAX_PROMPT_TOKENS
from rlnb.policy.loading import Policy
from rlnb.policy.prompts import SYSTEM, Prompt, PromptForm, chat_text


def question(task: Task, *, printed_example: bool = True) -> str:
    """Return the task in words with one example; `printed_example` asks to print that example."""
    call, expected = task.example_call, task.example.expected
    example = f"For example, `{call}` gives `{expected!r}`."
    if printed_example:
        example = f"Then call `print({call})`, which prints `{expected}`."
    return f"Write a Python function. {task.statement} {example}"


def build_prompt(
    task: Task,
    form: PromptForm,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    printed_example: bool = True,
    thinking: bool = False,
) -> Prompt:
    """Return the prompt of a task. `tokenizer` renders the chat template; the form "completion" needs none.

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
    text = chat_text(messages, tokenizer, thinking=thinking)
    prefix = f"```python\n{signature}" if form == "prefilled" else ""
    return Prompt(text + prefix, prefix)


def prompt_dataset(
    tasks: Sequence[Task], policy: Policy, config: GRPOConfig, *, form: PromptForm, printed_example: bool
) -> Dataset:
    """Return the prompts of the whole run in order, without those of more than MAX_PROMPT_TOKENS."""
    wording = {"printed_example": printed_example, "thinking": policy.thinking}
    prompts = [build_prompt(task, form, policy.tokenizer, **wording) for task in tasks]
    rows = [
        {"prompt": prompt.text, "task_id": task.id, "prefix": prompt.prefix}
        for task, prompt in zip(tasks, prompts, strict=True)
        if len(policy.tokenizer(prompt.text)["input_ids"]) <= MAX_PROMPT_TOKENS
    ]
    return Dataset.from_list(order_prompts(rows, config))
