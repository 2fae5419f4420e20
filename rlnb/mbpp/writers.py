"""The writer of completions for MBPP: a policy in this process, or a server that speaks OpenAI's protocol."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlnb.mbpp.prompts import Question, Template, is_complete
from rlnb.mbpp.samples import Progress
from rlnb.policy import Completion, Policy, generate
from rlnb.policy.endpoint import CHAT, MAX_SERVER_STOPS, TEXT, Endpoint
from rlnb.policy.prompts import begin_answer, opened_thought, with_system

Write = Callable[[Sequence[Question], Template, Progress | None], list[Completion]]
PROGRAM_STARTS = ("def f", "import math", "from math", "class A", "@cache", "x = 1", "# a")


@dataclass(frozen=True)
class Writer:
    """A policy, or a server (PolicyUnavailable), that writes completions.

    A policy's sampling depends only on the seed, the questions and the batch size. system: the message to a
    server; a policy knows its own.
    """

    source: Policy | Endpoint
    temperature: float
    max_completion_length: int
    batch_size: int
    seed: int
    system: str | None = None

    def __call__(
        self, questions: Sequence[Question], template: Template, progress: Progress | None = None
    ) -> list[Completion]:
        """Return a completion for each question; progress counts them."""
        if isinstance(self.source, Endpoint):
            return self.ask_server(self.source, questions, template, progress)
        policy = self.source
        if not template.stops:
            prompts = [policy.chat.ask(question.text) for question in questions]
        else:
            begun = (begin_answer("", text, policy.tokenizer, PROGRAM_STARTS) for text, _ in questions)
            prompts = [prompt.text for prompt in begun]
        thoughts = list(map(opened_thought, prompts))  # they belong to the answer

        def is_at_end(index: int, text: str) -> bool:
            return is_complete(thoughts[index] + text, template, questions[index].function)

        written = generate(
            policy, prompts, max_new_tokens=self.max_completion_length, temperature=self.temperature,
            seed=self.seed, batch_size=self.batch_size, is_complete=is_at_end, progress=progress,
        )  # fmt: skip
        return [
            completion._replace(text=thought + completion.text)
            for thought, completion in zip(thoughts, written, strict=True)
        ]

    def ask_server(
        self, server: Endpoint, questions: Sequence[Question], template: Template, progress: Progress | None
    ) -> list[Completion]:
        bodies: list[dict[str, Any]] = [
            {"messages": with_system([{"role": "user", "content": question.text}], self.system)}
            if not template.stops  # servers accept few stops; `read_program` cuts at the others
            else {"prompt": question.text, "stop": list(template.stops[:MAX_SERVER_STOPS])}
            for question in questions
        ]
        for index, body in enumerate(bodies):
            body |= {"temperature": self.temperature, "max_tokens": self.max_completion_length}
            body["seed"] = self.seed + index
        answers = server.answers(bodies, path=TEXT if template.stops else CHAT, progress=progress)
        return [
            Completion(text, is_cut and not is_complete(text, template, question.function))
            for (text, is_cut), question in zip(answers, questions, strict=True)
        ]
