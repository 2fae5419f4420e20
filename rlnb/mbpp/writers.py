"""The writer of completions for MBPP: a policy in this process, or a server that speaks OpenAI's protocol."""

import contextlib
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from pydantic import JsonValue

from rlnb.json_records import keep, read_kept
from rlnb.mbpp.prompts import Template, is_complete
from rlnb.policy import Policy, generate
from rlnb.policy.endpoint import CHAT, MAX_SERVER_STOPS, TEXT, Endpoint, EndpointPath
from rlnb.policy.prompts import question_text

OnCompletion = Callable[[int, str], None]  # called with (index of the question, completion)
Write = Callable[[Sequence[str], Template, OnCompletion], None]  # writes one completion for each question


@dataclass(frozen=True)
class Writer:
    """A policy or a server that writes completions.

    A policy's sampling depends only on the seed, the questions and the batch size, and an answer ends where
    the model ends it: stops added for a training (a closing fence) do not apply. A server raises
    PolicyUnavailable. cache: a file of completions, from which an interrupted evaluation goes on; others
    than those of the same `description`, all that they depend on except the question, are not used. The rest
    is then sampled in other batches: unless the temperature is 0 a resumed run is equivalent, but not equal.
    """

    source: Policy | Endpoint
    temperature: float
    max_completion_length: int
    batch_size: int
    seed: int
    cache: Path | None = None
    description: Mapping[str, object] = field(default_factory=dict)

    def __call__(self, questions: Sequence[str], template: Template, on_completion: OnCompletion) -> None:
        cache = self.cache
        if cache is None:
            self.write(questions, template, on_completion)
            return
        keys, kept = self.make_keys(questions), read_kept(cache)
        for index, key in enumerate(keys):
            if key in kept:
                on_completion(index, str(kept[key]))
        missing = [index for index, key in enumerate(keys) if key not in kept]

        def keep_completion(missing_index: int, completion: str) -> None:
            keep(cache, keys[missing[missing_index]], completion)
            on_completion(missing[missing_index], completion)

        if missing:
            self.write([questions[index] for index in missing], template, keep_completion)

    def make_keys(self, questions: Sequence[str]) -> list[str]:
        """Return a key for each question; the samples of one problem are told apart by their order."""
        counts: defaultdict[str, count[int]] = defaultdict(count)
        rows = [[question, next(counts[question]), self.description] for question in questions]
        texts = [json.dumps(row, sort_keys=True) for row in rows]
        return [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]

    def write(self, questions: Sequence[str], template: Template, on_completion: OnCompletion) -> None:
        if isinstance(self.source, Endpoint):
            self.ask_server(self.source, questions, template, on_completion)
            return
        policy = self.source
        if template.is_chat:
            as_chat = partial(question_text, tokenizer=policy.tokenizer, thinking=policy.thinking)
            questions = list(map(as_chat, questions))
        generate(
            policy,
            questions,
            max_new_tokens=self.max_completion_length,
            temperature=self.temperature,
            seed=self.seed,
            batch_size=self.batch_size,
            ends=policy.end_token_ids,
            is_complete=partial(is_complete, template=template),
            received=on_completion,
        )

    def ask_server(
        self, server: Endpoint, questions: Sequence[str], template: Template, on_completion: OnCompletion
    ) -> None:
        options = {"temperature": self.temperature, "max_tokens": self.max_completion_length}
        bodies: list[dict[str, JsonValue]] = [
            {"messages": [{"role": "user", "content": question}]}
            if template.is_chat  # servers accept few stops; `extract_program` cuts at the others
            else {"prompt": question, "stop": list(template.stops[:MAX_SERVER_STOPS])}
            for question in questions
        ]
        bodies = [{**options, "seed": self.seed + index, **body} for index, body in enumerate(bodies)]
        path: EndpointPath = CHAT if template.is_chat else TEXT
        with contextlib.closing(server.answers(bodies, path=path)) as completions:
            for index, completion in completions:
                on_completion(index, completion)
