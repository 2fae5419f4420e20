"""MBPP: a model writes programs, and their asserts are checked outside of the programs' process.

Checking overlaps writing: each completion goes to the sandbox as soon as it is written.
"""

import hashlib
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Protocol

from rlnb.errors import ParamsError, SandboxUnavailable
from rlnb.mbpp.data import choose_problems, load_data
from rlnb.mbpp.params import MbppEvaluationParams, WriterParams
from rlnb.mbpp.problems import Problem, ProblemSet, interface
from rlnb.mbpp.prompts import TEMPLATES, Template, build_question, extract_program
from rlnb.mbpp.samples import WrittenSample
from rlnb.mbpp.writers import PolicyWriter, Writer
from rlnb.params.resolving import resolve_mbpp
from rlnb.params.sections import EvaluationParams, MbppParams, ModelParams, SamplingParams
from rlnb.policy import Policy
from rlnb.sandbox import FailureCount, Limits, Sandbox, Verdict, check_tests

Progress = Callable[[int, int], None]  # called with (done, total)


@dataclass(frozen=True)
class Sample:
    """One checked completion. index: among the problem's samples. num_shown: asserts in the question."""

    problem: Problem
    index: int
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
        """Return whether all asserts hold, or None if the sandbox failed."""
        return None if self.outcome == "sandbox_error" else self.verdict.passed

    @property
    def passed_shown(self) -> bool:
        """Return whether the asserts that the question shows hold."""
        return all(self.verdict.results[: self.num_shown])

    @property
    def passed_held_out(self) -> bool | None:
        """Return whether the asserts that the question does not show hold, or None if it shows all."""
        results = self.verdict.results[self.num_shown :]
        return all(results) if results else None

    @property
    def failing_assertion(self) -> str:
        """Return the first assertion that does not hold, or ""."""
        pairs = zip(self.problem.tests, self.verdict.results, strict=True)
        return next((test for test, result in pairs if not result), "")


def check_program(problem: Problem, program: str, sandbox: Sandbox, *, limits: Limits) -> Verdict:
    """Run a problem's asserts against a program's functions; the program never sees an assert.

    Raises ParamsError if the imports of the problem's own code fail in this process.
    """
    names = interface(problem)
    try:
        exec(names.imports, {})
    except Exception as error:
        message = f"the imports of its code fail here: {error!r}; leave the problem out"
        raise ParamsError(f"task_id {problem.task_id}: {message}") from error
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
    progress: Progress | None = None,
) -> list[Sample]:
    """Let the writer write `num_samples` completions of each problem, and check them meanwhile.

    shots: the problems among which the template finds its solved examples. progress: counts written
    completions. Raises SandboxUnavailable if the sandbox fails for more than 1% of them.
    """
    rows = [(problem, index) for problem in problems for index in range(num_samples)]
    questions = [build_question(problem, template, shots) for problem, _ in rows]
    with CheckPool(sandbox, template, timeout_seconds) as pool:

        def check(row: int, completion: str) -> None:
            pool.start(row, *rows[row], completion, extract_program(completion, template))
            if progress:
                progress(len(pool.checks), len(rows))

        writer(questions, template, check)
        return pool.wait()


def evaluate_samples(
    problems: Sequence[Problem],
    template: Template,
    written: Sequence[WrittenSample],
    sandbox: Sandbox,
    *,
    timeout_seconds: float = 10.0,
    progress: Progress | None = None,
) -> list[Sample]:
    """Check completions that exist already, for example from `read_samples`."""
    by_id = {problem.task_id: problem for problem in problems}
    counts: defaultdict[int, count[int]] = defaultdict(count)
    with CheckPool(sandbox, template, timeout_seconds) as pool:
        for row, sample in enumerate(sorted(written, key=lambda sample: sample.task_id)):
            program = sample.text if sample.is_program else extract_program(sample.text, template)
            pool.start(row, by_id[sample.task_id], next(counts[sample.task_id]), sample.text, program)
        return pool.wait(progress)


class CheckPool(ThreadPoolExecutor):
    """Threads that check completions while others are written; leaving the context cancels the rest."""

    def __init__(self, sandbox: Sandbox, template: Template, timeout_seconds: float) -> None:
        super().__init__(sandbox.num_workers, thread_name_prefix="mbpp")
        self.sandbox, self.template = sandbox, template
        self.limits = replace(sandbox.limits, cpu_seconds=timeout_seconds)
        self.checks: dict[int, Future[Sample]] = {}  # by row
        self.failures, self.lock = FailureCount(), threading.Lock()
        self.error: SandboxUnavailable | None = None

    def __exit__(self, *_: object) -> None:
        self.shutdown(cancel_futures=True)

    def start(self, row: int, problem: Problem, index: int, completion: str, program: str | None) -> None:
        """Check a completion as soon as a worker is free. Raises the error that stopped an earlier check."""
        if self.error:
            raise self.error
        self.checks[row] = self.submit(self.check, problem, index, completion, program)

    def wait(self, progress: Progress | None = None) -> list[Sample]:
        """Return all samples by row, once they are checked."""
        samples = []
        for row in sorted(self.checks):
            samples.append(self.checks[row].result())
            if progress:
                progress(len(samples), len(self.checks))
        return samples

    def check(self, problem: Problem, index: int, completion: str, program: str | None) -> Sample:
        verdict = Verdict((None,) * len(problem.tests), "ok", "no code in the completion")
        try:
            if program is not None:
                verdict = check_program(problem, program, self.sandbox, limits=self.limits)
            num_shown = len(self.template.shown(problem))
            sample = Sample(problem, index, completion, program, verdict, num_shown)
            with self.lock:
                self.failures.add(1, [verdict.error] if sample.passed is None else [])
        except SandboxUnavailable as error:
            self.error = error
            raise
        return sample


class MeasuredParams(Protocol):
    """The parts of a notebook's parameters that determine an evaluation on MBPP."""

    @property
    def seed(self) -> int: ...
    @property
    def model(self) -> ModelParams: ...
    @property
    def mbpp(self) -> MbppParams: ...
    @property
    def evaluation(self) -> EvaluationParams | MbppEvaluationParams: ...


@dataclass(frozen=True)
class MbppEvaluation:
    """An evaluation of policies before, during and after training: the same problems and seeds each time."""

    data: ProblemSet
    sandbox: Sandbox
    mbpp: MbppParams
    sampling: SamplingParams
    seed: int

    @classmethod
    def from_params(cls, params: MeasuredParams, sandbox: Sandbox) -> "MbppEvaluation":
        """Return the evaluation of the sections `mbpp` and `evaluation`, without problems if one is disabled.

        Raises ParamsError for data that cannot be read or that have no problem in the split.
        """
        mbpp, evaluation = resolve_mbpp(params) or params.mbpp, params.evaluation
        data = ProblemSet({}, "", "")
        if getattr(mbpp, "enabled", True) and getattr(evaluation, "enabled", True):
            data = load_data(mbpp, plus_path=getattr(evaluation, "plus_path", ""))
        return cls(data, sandbox, mbpp, evaluation, params.seed)

    @property
    def template(self) -> Template:
        return TEMPLATES[self.mbpp.template]

    def problems(self, num_questions: int) -> list[Problem]:
        """Return the problems that are asked; see `choose_problems`."""
        return choose_problems(self.data, self.mbpp, num_questions, seed=self.seed)

    def writer(self, policy: Policy) -> PolicyWriter:
        length, batch_size = self.mbpp.max_completion_length, self.mbpp.batch_size
        return PolicyWriter(policy, self.sampling.temperature, length, batch_size, self.seed)

    def describe_writing(self, params: MeasuredParams) -> dict[str, object]:
        """Return all that completions depend on except the questions; of a file's, only the file is known."""
        writer = getattr(params, "writer", None)
        is_file = isinstance(writer, WriterParams) and writer.kind == "file"
        return {
            "writer": describe_writer(params.model, writer),
            "temperature": None if is_file else self.sampling.temperature,
            "max_completion_length": None if is_file else self.mbpp.max_completion_length,
            "seed": None if is_file else self.seed,
        }

    def describe(self, params: MeasuredParams) -> dict[str, object]:
        """Return what a pass rate depends on: data, form of the question, sampling, limits, isolation."""
        return {
            "data": self.data.source,
            "sha256": self.data.sha256,
            "subset": self.mbpp.subset,
            "split": self.mbpp.split,
            "num_questions": len(self.problems(params.evaluation.num_questions)),
            **self.template.describe(),
            "num_samples": self.sampling.num_samples,
            "timeout_seconds": self.sampling.timeout_seconds,
            "isolation": self.sandbox.level,
            **self.describe_writing(params),
        }

    def __call__(
        self, writer: Writer | Policy, *, num_questions: int, progress: Progress | None = None
    ) -> list[Sample]:
        """Return checked samples of `num_questions` problems; the global random state stays as it was.

        progress: counts written completions. Without problems (mbpp.enabled = false) there are no samples.
        """
        return evaluate(
            self.problems(num_questions),
            self.template,
            self.writer(writer) if isinstance(writer, Policy) else writer,
            self.sandbox,
            shots=self.data.problems,
            num_samples=self.sampling.num_samples,
            timeout_seconds=self.sampling.timeout_seconds,
            progress=progress,
        )


def describe_writer(model: ModelParams, writer: WriterParams | None) -> Mapping[str, object]:
    """Return what wrote the completions: a server, a file or a model, the last two with a hash."""
    if writer is not None and writer.kind == "endpoint":
        return {"endpoint": writer.base_url, "model": writer.served_model}
    if writer is not None and writer.kind == "file":
        sha256 = hashlib.sha256(Path(writer.samples_path).read_bytes()).hexdigest()
        return {"file": writer.samples_path, "file_sha256": sha256}
    description = {"model": model.id, "dtype": model.dtype, "load_in_4bit": model.load_in_4bit}
    if model.adapters:
        weights = Path(model.adapters) / "adapter_model.safetensors"
        sha256 = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.exists() else ""
        description |= {"adapters": model.adapters, "adapters_sha256": sha256}
    return description
