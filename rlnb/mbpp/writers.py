"""The writer of completions for MBPP: a policy in this process, or a server that speaks OpenAI's protocol."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlnb.mbpp.prompts import Question, Template, is_complete
from rlnb.mbpp.samples import Progress
from rlnb.policy import Completion, Policy, Received, generate
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
        self,
        questions: Sequence[Question],
        template: Template,
        progress: Progress | None = None,
        *,
        received: Received = lambda index, completion: None,
        rows: Sequence[int] | None = None,
        num_kept: int = 0,
    ) -> list[Completion]:
        """Return a completion for each question; progress counts them.

        received: called with (index of the question, completion) as soon as it is written. rows, num_kept: of
        an evaluation that goes on, which questions these are and how many it has; none is sampled as before.
        """
        thoughts = [""] * len(questions)  # which the prompt opens; they belong to the answer

        def is_at_end(index: int, text: str) -> bool:
            return is_complete(thoughts[index] + text, template, questions[index].function)

        def whole(index: int, completion: Completion) -> Completion:
            is_cut = completion.is_cut and not is_at_end(index, completion.text)
            return Completion(thoughts[index] + completion.text, is_cut)

        def receive(index: int, completion: Completion) -> None:
            received(index, whole(index, completion))

        if isinstance(self.source, Endpoint):
            seeds = [self.seed + row for row in rows or range(len(questions))]
            bodies = [
                self.make_request(question, template) | {"seed": seed}
                for question, seed in zip(questions, seeds, strict=True)
            ]
            path = TEXT if template.stops else CHAT
            written = self.source.answers(bodies, path=path, progress=progress, received=receive)
        else:
            prompts = [make_prompt(question, template, self.source) for question in questions]
            thoughts = list(map(opened_thought, prompts))
            written = generate(
                self.source, prompts, max_new_tokens=self.max_completion_length, temperature=self.temperature,
                seed=self.seed + num_kept, batch_size=self.batch_size, is_complete=is_at_end,
                progress=progress, received=receive,
            )  # fmt: skip
        return [whole(index, completion) for index, completion in enumerate(written)]

    def make_request(self, question: Question, template: Template) -> dict[str, Any]:
        """Return what a server is asked; it accepts few stops, and `read_program` cuts at the others."""
        settings = {"temperature": self.temperature, "max_tokens": self.max_completion_length}
        if template.stops:
            return settings | {"prompt": question.text, "stop": list(template.stops[:MAX_SERVER_STOPS])}
        return settings | {"messages": with_system([{"role": "user", "content": question.text}], self.system)}


def make_prompt(question: Question, template: Template, policy: Policy) -> str:
    if template.stops:
        return begin_answer("", question.text, policy.tokenizer, PROGRAM_STARTS).text
    return policy.chat.ask(question.text)


def keep_completions(write: Callable[..., list[Completion]], path: Path, *, settings: object) -> Write:
    """Return a writer that appends completions to a JSONL file, and goes on from those with its settings.

    settings: all that completions depend on, the questions too, as JSON. The rest of an interrupted
    evaluation is sampled in other batches: unless the temperature is 0 it is equivalent, but not equal.
    """
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()

    def go_on(
        questions: Sequence[Question], template: Template, progress: Progress | None = None
    ) -> list[Completion]:
        kept: dict[int, Completion] = {}
        for line in path.read_bytes().splitlines() if path.exists() else []:
            with contextlib.suppress(ValueError, TypeError):  # torn by a kill
                saved, row, text, is_cut = json.loads(line)
                kept |= {row: Completion(text, is_cut)} if saved == key else {}
        missing = [row for row in range(len(questions)) if row not in kept]
        num_kept = len(questions) - len(missing)

        def keep(index: int, completion: Completion) -> None:
            kept[missing[index]] = completion
            with path.open("a", encoding="utf-8") as file:  # the first line break ends a torn line
                file.write(f"\n{json.dumps([key, missing[index], *completion])}\n")

        def count(done: int, _: int) -> None:
            if progress:
                progress(num_kept + done, len(questions))

        count(0, 0)
        if missing:
            rest = [questions[row] for row in missing]
            write(rest, template, count, received=keep, rows=missing, num_kept=num_kept)
        return [kept[row] for row in range(len(questions))]

    return go_on
