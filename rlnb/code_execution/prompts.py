"""Word a task as a prompt: a chat, a chat whose reply has begun, or a program to be continued."""

from collections.abc import Sequence

from datasets import Dataset
from trl import GRPOConfig

from rlnb.code_execution.tasks import Task
from rlnb.grpo.config import order_prompts
from rlnb.mbpp.prompts import chat_question
from rlnb.params.training import MAX_PROMPT_TOKENS
from rlnb.policy.loading import Policy
from rlnb.policy.prompts import Chat, Prompt, PromptForm, begin_answer, opened_thought

BODY_STARTS = ("    return", "    x", "    for", "    if", "    while", "    import", '    """', "    #")


def question(task: Task, *, printed_example: bool = True) -> str:
    """Return the task in words with one example; `printed_example` asks to print that example.

    Without it a task of MBPP is asked in the words of `mbpp.template = chat`.
    """
    call, result = task.example_call, task.example_result
    if task.family == "mbpp" and not printed_example:
        return chat_question(task.statement, f"assert {call} == {result}")
    example = f"For example, `{call}` gives `{result}`."
    if printed_example:
        printed = task.example.expected if isinstance(task.example.expected, str) else result
        example = f"Then call `print({call})`, which prints `{printed}`."
    signature = f"`{task.function}({task.parameters})`"
    if task.statement.lower().startswith(("write a ", "write an ")):
        return f"{task.statement} Name it {signature}. {example}"
    return f"Write a Python function {signature}. {task.statement} {example}"


def build_prompt(task: Task, form: PromptForm, chat: Chat, *, printed_example: bool = True) -> Prompt:
    """Return the prompt of a task: "prefilled" ends in its first line, "completion" in its head."""
    signature = f"def {task.function}({task.parameters}):"
    if form == "completion":
        example = f">>> {task.example_call}\n    {task.example_result}"
        words = f"{task.statement}\n\n    {example}\n    ".replace("\\", "\\\\").replace('"""', r"\"\"\"")
        head = f'{signature}\n    """{words}"""\n'
        return begin_answer("", head, chat.tokenizer, BODY_STARTS)
    text = chat.ask(question(task, printed_example=printed_example))
    if form == "chat":
        return Prompt(text, opened_thought(text))
    return begin_answer(text, f"```python\n{signature}\n", chat.tokenizer, BODY_STARTS)


def prompt_dataset(
    tasks: Sequence[Task], policy: Policy, config: GRPOConfig, *, form: PromptForm, printed_example: bool
) -> Dataset:
    """Return the prompts of the whole run in order, without those of more than MAX_PROMPT_TOKENS."""
    prompts = [build_prompt(task, form, policy.chat, printed_example=printed_example) for task in tasks]
    rows = [
        {"prompt": prompt.text, "task_id": task.id, "prefix": prompt.prefix, "function": task.function}
        for task, prompt in zip(tasks, prompts, strict=True)
        if len(policy.tokenizer(prompt.text)["input_ids"]) <= MAX_PROMPT_TOKENS
    ]
    return Dataset.from_list(order_prompts(rows, config))
