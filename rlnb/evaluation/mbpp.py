"""MBPP: a model is asked, and its programs are checked from outside their process.

Checking overlaps writing: each completion goes to the sandbox as soon as it is there.
"""

import hashlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlnb.errors import ParamsError, SandboxUnavailable
from rlnb.evaluation.writers import PolicyWriter, Writer, WrittenSample
from rlnb.policy import Policy
from rlnb.sandbox import FailureCount, Limits, Sandbox, Verdict, check_tests
from rlnb.tasks.mbpp import Problem, ProblemSet, interface, load_mbpp
from rlnb.tasks.mbpp_prompts import TEMPLATES, Template, program_of, question


@dataclass(frozen=True)
class Sample:
    """One checked completion. num_shown: how many of the problem's asserts the question shows, the first."""

    problem: Problem
    number: int
    completion: str
    program: str | None
    verdict: Verdict
    num_shown: int

    @property
    def outcome(self) -> str:
        """ "passed", "wrong" (an assertion failed), "no_code", or how the program ended."""
        if self.verdict.passed:
            return "passed"
        if self.program is None:
            return "no_code"
        return "wrong" if self.verdict.status == "ok" else self.verdict.status

    @property
    def passed(self) -> bool | None:
        """All asserts hold; None where the sandbox failed, which is nobody's fault."""
        return None if self.outcome == "sandbox_error" else self.verdict.passed

    @property
    def passed_shown(self) -> bool:
        """The asserts that the question shows hold."""
        return all(self.verdict.results[: self.num_shown])

    @property
    def passed_held_out(self) -> bool | None:
        """The asserts that it does not show hold; None where it shows all."""
        results = self.verdict.results[self.num_shown :]
        return all(results) if results else None

    @property
    def failing_assertion(self) -> str:
        """The first that does not hold, "" where all do."""
        pairs = zip(self.problem.tests, self.verdict.results, strict=True)
        return next((test for test, result in pairs if not result), "")


def choose(problems: Sequence[Problem], num_questions: int, *, seed: int) -> list[Problem]:
    """`num_questions` of the problems drawn by the seed, all where that is 0, in the order of task_ids.

    A smaller number draws a part of what a larger one does, so that short and long evaluations overlap.
    """
    drawn = random.Random(seed).sample(list(problems), len(problems))[: num_questions or None]
    return sorted(drawn, key=lambda problem: problem.task_id)


def check_program(problem: Problem, program: str, sandbox: Sandbox, *, limits: Limits) -> Verdict:
    """Run a problem's asserts against a program's functions; the program never sees an assert.

    Raises ParamsError where the imports of the problem's own code fail in this process.
    """
    names = interface(problem)
    try:
        exec(names.imports, {})
    except Exception as error:
        raise ParamsError(
            f"task_id {problem.task_id}: the imports of its code fail here: {error!r}; leave the problem out"
        ) from error
    return check_tests(
        sandbox,
        f"{program}\n{problem.setup}",
        problem.tests,
        functions=names.functions,
        values=names.values,
        imports=names.imports,
        limits=limits,
    )


def evaluate(
    problems: Sequence[Problem],
    template: Template,
    writer: Writer,
    sandbox: Sandbox,
    *,
    shots: Mapping[int, Problem],
    num_samples: int = 1,
    timeout_seconds: float = 10.0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Sample]:
    """Ask for `num_samples` completions of each problem and check them while the next are written.

    shots: where the template finds its solved examples. progress: called with (written, all). Returns the
    samples in the order of the problems. Raises SandboxUnavailable when the sandbox fails above 1% of them.
    """
    rows = [(problem, number) for problem in problems for number in range(num_samples)]
    questions = [question(problem, template, shots) for problem, _ in rows]
    check = Checking(sandbox, template, timeout_seconds)
    num_written = 0

    def received(row: int, completion: str) -> None:
        nonlocal num_written
        num_written += 1
        check.start(row, *rows[row], completion, program_of(completion, template))
        if progress:
            progress(num_written, len(rows))

    with check:
        writer(questions, template, received)
        return check.samples()


def evaluate_samples(
    problems: Sequence[Problem],
    template: Template,
    written: Sequence[WrittenSample],
    sandbox: Sandbox,
    *,
    timeout_seconds: float = 10.0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Sample]:
    """Check completions that are there already; see `read_samples`. Several of a problem are its samples."""
    by_id = {problem.task_id: problem for problem in problems}
    numbers: Counter[int] = Counter()
    with Checking(sandbox, template, timeout_seconds) as check:
        for row, sample in enumerate(sorted(written, key=lambda sample: sample.task_id)):
            program = sample.text if sample.is_program else program_of(sample.text, template)
            check.start(row, by_id[sample.task_id], numbers[sample.task_id], sample.text, program)
            numbers[sample.task_id] += 1
        return check.samples(progress)


class Checking:
    """Checks of one evaluation, run beside what writes: a context that ends them when it is left early."""

    def __init__(self, sandbox: Sandbox, template: Template, timeout_seconds: float) -> None:
        self.sandbox = sandbox
        self.template = template
        self.limits = replace(sandbox.limits, cpu_seconds=timeout_seconds)
        self.failures = FailureCount()
        self._pool = ThreadPoolExecutor(sandbox.num_workers, thread_name_prefix="mbpp")
        self._checks: dict[int, Future[Sample]] = {}
        self._lock = threading.Lock()
        self._stopped: SandboxUnavailable | None = None

    def __enter__(self) -> "Checking":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def start(self, row: int, problem: Problem, number: int, completion: str, program: str | None) -> None:
        """Check a completion as soon as a worker is free. Raises what has stopped an earlier check."""
        if self._stopped:
            raise self._stopped
        self._checks[row] = self._pool.submit(self._check, problem, number, completion, program)

    def samples(self, progress: Callable[[int, int], None] | None = None) -> list[Sample]:
        """All of them by row, once they are checked; progress: called with (checked, all)."""
        samples = []
        for row in sorted(self._checks):
            samples.append(self._checks[row].result())
            if progress:
                progress(len(samples), len(self._checks))
        return samples

    def _check(self, problem: Problem, number: int, completion: str, program: str | None) -> Sample:
        verdict = Verdict((None,) * len(problem.tests), "ok", "no code in the completion")
        try:
            if program is not None:
                verdict = check_program(problem, program, self.sandbox, limits=self.limits)
            num_shown = len(self.template.shown(problem))
            sample = Sample(problem, number, completion, program, verdict, num_shown)
            with self._lock:
                self.failures.add(1, [verdict.error] if sample.passed is None else [])
        except SandboxUnavailable as error:
            self._stopped = error
            raise
        return sample


@dataclass(frozen=True)
class MbppEvaluation:
    """What is asked of a policy before, during and after training: the same problems and seeds each time."""

    data: ProblemSet
    split: str
    template: Template
    sandbox: Sandbox
    num_samples: int
    temperature: float
    max_completion_length: int
    timeout_seconds: float
    batch_size: int
    seed: int

    @classmethod
    def from_params(cls, params: Any, sandbox: Sandbox) -> "MbppEvaluation":
        """What the sections `mbpp` and `evaluation` of parameters ask for, nothing where one is not enabled.

        Raises ParamsError for data that cannot be read or that hold no problem of the split.
        """
        mbpp, asked = params.mbpp, params.evaluation
        data = ProblemSet({}, "", "")
        if is_wanted := getattr(mbpp, "enabled", True) and getattr(asked, "enabled", True):
            data = load_mbpp(mbpp.source, path=mbpp.path, subset=mbpp.subset)
        if is_wanted and not data.split(mbpp.split):
            raise ParamsError(f"{data.source}: holds no problem of mbpp.split = {mbpp.split!r}; write all")
        return cls(
            data=data,
            split=mbpp.split,
            template=TEMPLATES[mbpp.template],
            sandbox=sandbox,
            num_samples=asked.num_samples,
            temperature=asked.temperature,
            max_completion_length=mbpp.max_completion_length,
            timeout_seconds=asked.timeout_seconds,
            batch_size=mbpp.batch_size,
            seed=params.seed,
        )

    def problems(self, num_questions: int) -> list[Problem]:
        """The problems asked, `num_questions` of the split, 0 for all, never a shot; see `choose`."""
        asked = [one for one in self.data.split(self.split) if one.task_id not in self.template.shots]
        return choose(asked, num_questions, seed=self.seed)

    def writer(self, policy: Policy) -> PolicyWriter:
        """The policy as a writer."""
        return PolicyWriter(policy, self.temperature, self.max_completion_length, self.batch_size, self.seed)

    def writing(self, params: Any) -> dict[str, Any]:
        """All that completions depend on beside the questions; of those in a file nothing else is known."""
        writer = getattr(params, "writer", None)
        if writer is not None and writer.kind == "file":
            return {
                "writer": who_writes(params),
                "temperature": None,
                "max_completion_length": None,
                "seed": None,
            }
        return {
            "writer": who_writes(params),
            "temperature": self.temperature,
            "max_completion_length": self.max_completion_length,
            "seed": self.seed,
        }

    def describe(self, params: Any) -> dict[str, Any]:
        """What a figure on MBPP is worth nothing without: data, question, sampling, limits, isolation."""
        template = self.template
        return {
            "data": self.data.source,
            "sha256": self.data.sha256,
            "subset": params.mbpp.subset,
            "split": self.split,
            "num_questions": len(self.problems(params.evaluation.num_questions)),
            "template": template.name,
            "template_source": template.source,
            "shots": len(template.shots),
            "asserts_shown": "all" if template.asserts_shown is None else template.asserts_shown,
            "stop_rule": template.stop_rule,
            "num_samples": self.num_samples,
            "timeout_seconds": self.timeout_seconds,
            "isolation": self.sandbox.level,
            **self.writing(params),
        }

    def __call__(
        self,
        writer: Writer | Policy,
        *,
        num_questions: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Sample]:
        """Ask and check; keeps the random state. progress: called with (completions written, all).

        Returns nothing where MBPP is not asked for (mbpp.enabled).
        """
        return evaluate(
            self.problems(num_questions),
            self.template,
            self.writer(writer) if isinstance(writer, Policy) else writer,
            self.sandbox,
            shots=self.data.problems,
            num_samples=self.num_samples,
            timeout_seconds=self.timeout_seconds,
            progress=progress,
        )


def who_writes(params: Any) -> dict[str, Any]:
    """The writer that a notebook's parameters name, adapters by the hash of their weights too."""
    writer = getattr(params, "writer", None)
    if writer is not None and writer.kind == "endpoint":
        return {"endpoint": writer.base_url, "model": writer.served_model}
    if writer is not None and writer.kind == "file":
        digest = hashlib.sha256(Path(writer.samples_path).read_bytes()).hexdigest()
        return {"file": writer.samples_path, "file_sha256": digest}
    model = params.model
    said = {"model": model.id, "dtype": model.dtype, "load_in_4bit": model.load_in_4bit}
    if model.adapters:
        weights = Path(model.adapters) / "adapter_model.safetensors"
        digest = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.exists() else ""
        said |= {"adapters": model.adapters, "adapters_sha256": digest}
    return said
