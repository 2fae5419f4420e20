"""What writes completions for MBPP: a policy, a server that speaks OpenAI's protocol, or a cache."""

import contextlib
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from pydantic import JsonValue

from rlnb.json_records import LineStore
from rlnb.mbpp.prompts import Template, is_complete
from rlnb.policy import Policy, generate
from rlnb.policy.endpoint import CHAT, MAX_SERVER_STOPS, TEXT, Endpoint, EndpointPath
from rlnb.policy.prompts import chat_text

OnCompletion = Callable[[int, str], None]  # called with (index of the question, completion)
Writer = Callable[[Sequence[str], Template, OnCompletion], None]  # writes one completion for each question


@dataclass(frozen=True)
class PolicyWriter:
    """A policy in this process; sampling depends only on the seed, the questions and the batch size.

    An answer ends where the model ends it: stops added for a training (a closing fence) do not apply.
    """

    policy: Policy
    temperature: float
    max_completion_length: int
    batch_size: int
    seed: int

    def __call__(self, questions: Sequence[str], template: Template, on_completion: OnCompletion) -> None:
        if template.is_chat:
            asked_by = f"mbpp.template = {template.name!r}"
            questions = [
                chat_text(
                    [{"role": "user", "content": question}], self.policy.tokenizer, asked_by=asked_by,
                    instead="paper or docstring", thinking=self.policy.thinking,
                )
                for question in questions
            ]  # fmt: skip
        generate(
            self.policy,
            questions,
            max_new_tokens=self.max_completion_length,
            temperature=self.temperature,
            seed=self.seed,
            batch_size=self.batch_size,
            ends=self.policy.end_token_ids,
            is_complete=partial(is_complete, template=template),
            received=on_completion,
        )


@dataclass(frozen=True)
class EndpointWriter:
    """A server with OpenAI's protocol, for example vLLM. Raises PolicyUnavailable."""

    endpoint: Endpoint
    temperature: float
    max_completion_length: int
    seed: int

    def __call__(self, questions: Sequence[str], template: Template, on_completion: OnCompletion) -> None:
        options = {"temperature": self.temperature, "max_tokens": self.max_completion_length}
        bodies: list[dict[str, JsonValue]] = [
            {"messages": [{"role": "user", "content": question}]}
            if template.is_chat  # servers accept few stops; `extract_program` cuts at the others
            else {"prompt": question, "stop": list(template.stops[:MAX_SERVER_STOPS])}
            for question in questions
        ]
        bodies = [{**options, "seed": self.seed + index, **body} for index, body in enumerate(bodies)]
        path: EndpointPath = CHAT if template.is_chat else TEXT
        with contextlib.closing(self.endpoint.answers(bodies, path=path)) as completions:
            for index, completion in completions:
                on_completion(index, completion)


@dataclass(frozen=True)
class CachedWriter:
    """A writer that appends each completion to a file, and writes only those that the file does not have.

    description: all that completions depend on except the question; completions with another description are
    not used. After an interruption the rest is sampled in other batches, so unless the temperature is 0 a
    resumed run is equivalent to an uninterrupted one, but not equal.
    """

    writer: Writer
    path: Path
    description: Mapping[str, object]

    def __call__(self, questions: Sequence[str], template: Template, on_completion: OnCompletion) -> None:
        store = LineStore(self.path)
        keys, cache = self.make_keys(questions), store.read()
        for index, key in enumerate(keys):
            if key in cache:
                on_completion(index, str(cache[key]))
        missing = [index for index, key in enumerate(keys) if key not in cache]
        if not missing:
            return
        with store.appending() as append:

            def keep(missing_index: int, completion: str) -> None:
                append(keys[missing[missing_index]], completion)
                on_completion(missing[missing_index], completion)

            self.writer([questions[index] for index in missing], template, keep)

    def make_keys(self, questions: Sequence[str]) -> list[str]:
        """Return a key for each question; the samples of one problem are told apart by their order."""
        counts: defaultdict[str, count[int]] = defaultdict(count)
        rows = [[question, next(counts[question]), self.description] for question in questions]
        texts = [json.dumps(row, sort_keys=True) for row in rows]
        return [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
