"""Who writes completions for MBPP: a policy, a server that speaks OpenAI's protocol, or a file.

A writer is called with the questions of a template and hands over each completion as soon as it has it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rlnb.errors import ParamsError
from rlnb.policy import Policy, generate
from rlnb.policy.endpoint import CHAT, SERVER_STOPS, TEXT, Endpoint
from rlnb.tasks.mbpp_prompts import Template, is_complete
from rlnb.tasks.prompts import chat_text
from rlnb.tasks.records import checked, json_records, typed

Received = Callable[[int, str], None]


class Writer(Protocol):
    """Writes one completion a question, and calls received(number of the question, completion) for each."""

    def __call__(self, questions: Sequence[str], template: Template, received: Received) -> None: ...


@dataclass(frozen=True)
class PolicyWriter:
    """A policy in this process; sampling depends on the seed, the questions and the batch size alone.

    An answer ends where the model ends it: a training's further stops (a closing fence) are not MBPP's.
    """

    policy: Policy
    temperature: float
    max_completion_length: int
    batch_size: int
    seed: int

    def __call__(self, questions: Sequence[str], template: Template, received: Received) -> None:
        if template.is_chat:
            asked_by, instead = f"mbpp.template = {template.name!r}", "paper or docstring"
            questions = [
                chat_text(
                    [{"role": "user", "content": question}],
                    self.policy.tokenizer,
                    asked_by=asked_by,
                    instead=instead,
                )
                for question in questions
            ]
        generate(
            self.policy,
            questions,
            max_new_tokens=self.max_completion_length,
            temperature=self.temperature,
            seed=self.seed,
            batch_size=self.batch_size,
            ends=self.policy.own_ends,
            is_complete=partial(is_complete, template=template),
            received=received,
        )


@dataclass(frozen=True)
class EndpointWriter:
    """A server with OpenAI's protocol, vLLM's for instance: `/chat/completions`, or `/completions`.

    The arguments that are not about sampling are those of `Endpoint`. Raises PolicyUnavailable.
    """

    base_url: str
    model: str
    temperature: float
    max_completion_length: int
    seed: int
    num_parallel: int = 32
    num_retries: int = 5
    timeout_seconds: float = 600.0

    def __call__(self, questions: Sequence[str], template: Template, received: Received) -> None:
        endpoint = Endpoint(
            self.base_url, self.model, self.num_parallel, self.num_retries, self.timeout_seconds
        )
        bodies = [
            {
                **asked_as(question, template),
                "temperature": self.temperature,
                "max_tokens": self.max_completion_length,
                "seed": self.seed + number,
            }
            for number, question in enumerate(questions)
        ]
        with closing(endpoint.answers(bodies, path=CHAT if template.is_chat else TEXT)) as answers:
            for number, completion in answers:
                received(number, completion)


def asked_as(question: str, template: Template) -> dict[str, Any]:
    """What a request says of its question: a message of a chat, or a text with the strings that end it."""
    if template.is_chat:
        return {"messages": [{"role": "user", "content": question}]}
    # Where the template has more, the rest is cut off here, as all of it would be.
    return {"prompt": question, "stop": list(template.stops[:SERVER_STOPS])}


@dataclass(frozen=True)
class WrittenSample:
    """A completion from a file. is_program: it is the whole program, to be run as it stands."""

    task_id: int
    text: str
    is_program: bool


def read_samples(path: str, task_ids: Sequence[int]) -> list[WrittenSample]:
    """Completions from a file, in its order.

    EvalPlus's form: a line a sample, {"task_id": "Mbpp/11" or 11, "solution": program} or "completion" in
    place of it, which is cut by the template's stop rule. bigcode's form: one list, whose n-th entry is the
    list of programs for the n-th of `task_ids`. Raises ParamsError, also where a problem has no sample.
    """
    records = list(json_records(Path(path), what="sample"))
    if not records:
        raise ParamsError(f"{path}: holds no sample")
    if all(isinstance(record, list) for _, record in records):
        return with_all(list(bigcode_samples(records, path, task_ids)), path, task_ids)
    known = set(task_ids)
    samples = [checked(evalplus_sample, place, record, what="sample") for place, record in records]
    for (place, _), sample in zip(records, samples, strict=True):
        if sample.task_id not in known:
            raise ParamsError(f"{place}: task_id {sample.task_id} is none of the problems that are evaluated")
    return with_all(samples, path, task_ids)


def with_all(samples: list[WrittenSample], path: str, task_ids: Sequence[int]) -> list[WrittenSample]:
    """The samples, if there is one for each problem: a rate over some would pass for one over all."""
    missing = sorted(set(task_ids) - {sample.task_id for sample in samples})
    if missing:
        raise ParamsError(
            f"{path}: holds no sample for {len(missing)} of {len(task_ids)} problems, task_id {missing[0]} "
            "for one; add them (an empty solution is a wrong one), or ask fewer: mbpp.split, mbpp.path"
        )
    return samples


def evalplus_sample(record: Mapping[str, Any]) -> WrittenSample:
    number = record["task_id"]
    if isinstance(number, str):
        digits = re.fullmatch(r"(?:Mbpp/)?([0-9]{1,9})", number)
        if digits is None:
            raise ValueError(f"task_id = {number[:80]!r} is no 'Mbpp/' and a number")
        number = int(digits[1])
    is_program = "solution" in record
    name = "solution" if is_program else "completion"
    text = typed(record[name], str, name=name)
    return WrittenSample(typed(number, int, name="task_id"), text, is_program)


def bigcode_samples(
    records: Sequence[tuple[str, Any]], path: str, task_ids: Sequence[int]
) -> Iterable[WrittenSample]:
    if len(records) != len(task_ids):
        raise ParamsError(
            f"{path}: holds {len(records)} lists of programs for {len(task_ids)} problems; write one for "
            "each, in the order of task_ids"
        )
    for task_id, (place, programs) in zip(task_ids, records, strict=True):
        for program in programs:
            if not isinstance(program, str):
                raise ParamsError(f"{place}: no sample: {program!r} is no text")
            yield WrittenSample(task_id, program, is_program=True)
