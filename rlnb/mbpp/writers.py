"""What writes completions for MBPP: a policy, a server that speaks OpenAI's protocol, a cache, or a file."""

import contextlib
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, JsonValue, StrictInt, StrictStr

from rlnb.errors import ParamsError
from rlnb.json_records import check_record, read_records
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
            form = {"asked_by": f"mbpp.template = {template.name!r}", "instead": "paper or docstring"}
            tokenizer, role = self.policy.tokenizer, "user"
            questions = [chat_text([{"role": role, "content": q}], tokenizer, **form) for q in questions]
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
        keys, cache = self.make_keys(questions), self.read_cache()
        for index, key in enumerate(keys):
            if key in cache:
                on_completion(index, cache[key])
        missing = [index for index, key in enumerate(keys) if key not in cache]
        if not missing:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Each line is one write, so a kill leaves whole lines; an empty one follows what was torn.
        with self.path.open("ab", buffering=0) as file:
            if file.tell():
                file.write(b"\n")

            def append(missing_index: int, completion: str) -> None:
                line = json.dumps({"key": keys[missing[missing_index]], "completion": completion})
                file.write(line.encode() + b"\n")
                on_completion(missing[missing_index], completion)

            self.writer([questions[index] for index in missing], template, append)

    def make_keys(self, questions: Sequence[str]) -> list[str]:
        """Return a key for each question; the samples of one problem are told apart by their order."""
        counts: defaultdict[str, count[int]] = defaultdict(count)
        rows = [[question, next(counts[question]), self.description] for question in questions]
        texts = [json.dumps(row, sort_keys=True) for row in rows]
        return [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]

    def read_cache(self) -> dict[str, str]:
        """Return {key: completion}, without lines torn by a kill or a full disk."""
        cache = {}
        for line in self.path.read_bytes().splitlines() if self.path.exists() else []:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                cache[str(row["key"])] = str(row["completion"])
        return cache


@dataclass(frozen=True)
class WrittenSample:
    """A completion from a file. is_program: it is the whole program, to be run as it is."""

    task_id: int
    text: str
    is_program: bool


def parse_task_id(value: object) -> object:
    """Return the number in "Mbpp/11" or "11", other types unchanged. Raises ValueError."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(?:Mbpp/)?([0-9]{1,9})", value)
    if match is None:
        raise ValueError(f"task_id = {value[:80]!r} is not 'Mbpp/' and a number")
    return int(match[1])


TaskId = Annotated[StrictInt, BeforeValidator(parse_task_id)]


class SampleRecord(BaseModel):
    """A line of EvalPlus's form."""

    task_id: TaskId
    solution: StrictStr | None = None
    completion: StrictStr | None = None


def parse_sample(record: Mapping[str, object]) -> WrittenSample:
    fields = SampleRecord.model_validate(record)
    if fields.solution is not None:
        return WrittenSample(fields.task_id, fields.solution, is_program=True)
    if fields.completion is None:
        raise ValueError("the field 'completion' is missing")
    return WrittenSample(fields.task_id, fields.completion, is_program=False)


def read_samples(path: str, task_ids: Sequence[int]) -> list[WrittenSample]:
    """Return the completions of a file, in its order.

    EvalPlus's form: one line per sample, {"task_id": "Mbpp/11" or 11, "solution": program}, or "completion"
    instead of "solution", which is cut by the template's stop rule. bigcode's form: one list whose n-th entry
    is the list of programs for the n-th of `task_ids`. Raises ParamsError, also if a problem has no sample: a
    rate over some problems would be taken for a rate over all.
    """
    records = list(read_records(Path(path), what="sample"))
    if not records:
        raise ParamsError(f"{path}: holds no sample")
    samples = []
    if all(isinstance(record, list) for _, record in records):
        if len(records) != len(task_ids):
            raise ParamsError(
                f"{path}: holds {len(records)} lists of programs for {len(task_ids)} problems; write one for "
                "each, in the order of task_ids"
            )
        records = [
            (place, {"task_id": task_id, "solution": program})
            for task_id, (place, programs) in zip(task_ids, records, strict=True)
            for program in (programs if isinstance(programs, list) else [])
        ]
    for place, record in records:
        sample = check_record(parse_sample, place, record, what="sample")
        if sample.task_id not in task_ids:
            raise ParamsError(f"{place}: task_id {sample.task_id} is none of the problems that are evaluated")
        samples.append(sample)
    missing = sorted(set(task_ids) - {sample.task_id for sample in samples})
    if missing:
        raise ParamsError(
            f"{path}: holds no sample for {len(missing)} of {len(task_ids)} problems, task_id {missing[0]} "
            "for one; add them (an empty solution is a wrong one), or ask fewer: mbpp.split, mbpp.path"
        )
    return samples
