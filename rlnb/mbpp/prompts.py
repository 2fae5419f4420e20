"""The forms of asking MBPP, by name: what the model sees, and where an answer ends. The form moves scores."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rlnb.errors import ParamsError
from rlnb.mbpp.problems import Problem
from rlnb.source_code.extraction import CODE_START, STATEMENT, extract_program, is_complete_answer


@dataclass(frozen=True)
class Template:
    """One form of asking.

    shots: task_ids of solved examples before the question. asserts_shown: "all" or 1 of a problem's asserts.
    stops: an answer ends before the first of these; without any, which is a chat's form, after the first
    complete block with a program.
    """

    name: str
    shots: tuple[int, ...]
    asserts_shown: str | int
    stops: tuple[str, ...]

    def describe(self) -> dict[str, object]:
        """Return the form for a results file. stop_rule: the model's own end of text comes before it."""
        stops = "before the first of " + ", ".join(map(repr, self.stops))
        return {
            "template": self.name, "shots": len(self.shots), "asserts_shown": self.asserts_shown,
            "stop_rule": stops if self.stops else "after the first complete block with a program",
        }  # fmt: skip


INCODER_STOPS = ("\nclass", "\nassert", '\n"""', "\nprint", "\nif", "\n<|/", "\n```")
TEMPLATES: Mapping[str, Template] = {
    template.name: template
    for template in (
        # Austin et al. 2021, arXiv:2108.07732; the shots are tasks 2, 3 and 4 of the data.
        Template("paper", shots=(2, 3, 4), asserts_shown="all", stops=("[DONE]",)),
        # InCoder's form, Fried et al. 2022, arXiv:2204.05999, as in the bigcode harness.
        Template("docstring", shots=(), asserts_shown=1, stops=INCODER_STOPS),
        # A question in words, as EvalPlus asks chat models, without a prefilled reply.
        Template("chat", shots=(), asserts_shown=1, stops=()),
    )
}


class Question(NamedTuple):
    """text: to be continued, or a user's message. function: the name that the answer should define."""

    text: str
    function: str


def build_question(problem: Problem, template: Template, problems: Mapping[int, Problem]) -> str:
    """Return a text to be continued, or a user's message. Raises ParamsError if `problems` lack a shot."""
    if template.name == "docstring":
        return f'"""\n{problem.text}\n{problem.tests[0]}\n"""\n'
    if template.name == "chat":
        return chat_question(problem.text, problem.tests[0])
    if missing := [str(n) for n in template.shots if n not in problems or not problems[n].code]:
        raise ParamsError(
            f"mbpp.template = 'paper': its solved examples, task_id {', '.join(missing)}, are not in the "
            "data; add them, or write docstring or chat"
        )
    parts = []
    for task in (*(problems[task_id] for task_id in template.shots), problem):
        parts += [f"You are an expert Python programmer, and here is your task: {task.text} "]
        parts += ["Your code should pass these tests:\n\n", "\n".join(task.tests), "\n[BEGIN]\n"]
        parts += [task.code, "\n[DONE]\n\n"]
    return "".join(parts[:-2])


def chat_question(text: str, test: str) -> str:
    """Return a user's message that asks for a program, with one assert of its tests."""
    return (
        "Please provide a self-contained Python script that solves the following problem in a markdown "
        f"code block:\n```\n{text}\n{test}\n```"
    )


def is_complete(completion: str, template: Template, function: str = "") -> bool:
    """Return whether an answer has reached its end, so that later text does not count."""
    if template.stops and not is_fenced(completion):
        return any(stop in completion for stop in template.stops)
    return is_complete_answer(completion, function=function)


def read_program(completion: str, template: Template, function: str = "") -> str | None:
    """Return the program in an answer, or None. function: the name that it should define."""
    if not template.stops or is_fenced(completion):
        return extract_program(completion, function=function)
    ends = [completion.index(stop) for stop in template.stops if stop in completion]
    code = completion[: min(ends, default=len(completion))]
    return code.strip("\n") + "\n" if STATEMENT.search(code) else None


def is_fenced(completion: str) -> bool:
    """Return whether a text to be continued is answered as in a chat, with a block before any code."""
    before, fence, _ = completion.partition("```")
    return bool(fence) and not CODE_START.search(before)
