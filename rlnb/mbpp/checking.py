"""MBPP: programs are checked, outside of their process, while a model writes the next ones."""

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import count

from rlnb.errors import SandboxUnavailable
from rlnb.mbpp.evalplus import OUTPUT_KIB, REFERENCE_SECONDS
from rlnb.mbpp.problems import Problem, interface
from rlnb.mbpp.prompts import Question, Template, build_question, read_program
from rlnb.mbpp.samples import Progress, Sample, WrittenSample
from rlnb.mbpp.writers import Write
from rlnb.policy import Completion
from rlnb.sandbox import FailureCount, Limits, Sandbox, Verdict, check_oracle, check_tests


def check_program(problem: Problem, program: str, sandbox: Sandbox, *, limits: Limits) -> Verdict:
    """Run a problem's asserts against a program's functions; the program never sees an assert."""
    program, names = f"{program}\n{problem.setup}", interface(problem)._asdict()
    return check_tests(sandbox, program, problem.tests, **names, limits=limits)


def asked_function(problem: Problem) -> str:
    """Return the name that an answer should define; functions come behind classes."""
    return max(interface(problem).functions, default="")


def evaluate(
    problems: Sequence[Problem],
    template: Template,
    write: Write,
    sandbox: Sandbox,
    *,
    shots: Mapping[int, Problem],
    num_samples: int = 1,
    timeout_seconds: float = 10.0,
    progress: Progress | None = None,
) -> list[Sample]:
    """Let a writer write `num_samples` completions of each problem, and check them meanwhile.

    shots: the problems among which the template finds its solved examples. progress: counts written
    completions. Raises SandboxUnavailable if the sandbox fails for more than 1% of them.
    """
    rows = [(problem, index) for problem in problems for index in range(num_samples)]
    questions = [
        Question(build_question(problem, template, shots), asked_function(problem)) for problem, _ in rows
    ]
    with CheckPool(sandbox, template, timeout_seconds) as pool:

        def check(row: int, completion: Completion) -> None:
            program = read_program(completion.text, template, questions[row].function)
            pool.start(row, *rows[row], completion, program)
            if progress:
                progress(len(pool.checks), len(rows))

        write(questions, template, check)
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
    """Check programs of the problems, for example from `read_samples`; progress counts them."""
    by_id = {problem.task_id: problem for problem in problems}
    written = [sample for sample in written if sample.task_id in by_id]
    counts: defaultdict[int, count[int]] = defaultdict(count)
    with CheckPool(sandbox, template, timeout_seconds) as pool:
        for row, sample in enumerate(sorted(written, key=lambda sample: sample.task_id)):
            problem, index = by_id[sample.task_id], next(counts[sample.task_id])
            pool.start(row, problem, index, Completion(sample.solution, False), sample.solution)
        return pool.wait(progress)


def try_solutions(
    problems: Sequence[Problem], template: Template, sandbox: Sandbox, *, timeout_seconds: float
) -> dict[int, str]:
    """Return {task_id: why} of problems that tell nothing, because no program passes or every program does.

    Their own solution has to pass, and an empty program to fail: asserts may be in a function that nothing
    calls. Solutions get at least REFERENCE_SECONDS, lest a busy machine decide. Problems without one are not
    tried.
    """
    written = [
        WrittenSample(task_id=problem.task_id, solution=program)
        for problem in problems
        for program in dict.fromkeys((problem.code, ""))
    ]
    seconds = max(timeout_seconds, REFERENCE_SECONDS)
    left_out = {}
    for sample in evaluate_samples(problems, template, written, sandbox, timeout_seconds=seconds):
        if sample.program and sample.passed is False:
            left_out[sample.problem.task_id] = f"own solution: {sample.verdict.error[:200]}"
        elif not sample.program and sample.passed:
            left_out[sample.problem.task_id] = "its tests pass without a program"
    return left_out


class CheckPool(ThreadPoolExecutor):
    """Threads that check completions while others are written; leaving the context cancels the rest.

    Raises SandboxUnavailable where right and wrong programs cannot be told apart.
    """

    def __init__(self, sandbox: Sandbox, template: Template, timeout_seconds: float) -> None:
        check_oracle(sandbox)
        super().__init__(sandbox.num_workers, thread_name_prefix="mbpp")
        self.sandbox, self.template = sandbox, template
        self.limits = replace(sandbox.limits, cpu_seconds=timeout_seconds, output_kib=OUTPUT_KIB)
        self.checks: dict[int, Future[Sample]] = {}  # by row
        self.failures, self.lock = FailureCount(), threading.Lock()
        self.error: SandboxUnavailable | None = None

    def __exit__(self, *_: object) -> None:
        self.shutdown(cancel_futures=True)

    def start(
        self, row: int, problem: Problem, index: int, completion: Completion, program: str | None
    ) -> None:
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

    def check(self, problem: Problem, index: int, completion: Completion, program: str | None) -> Sample:
        verdict = Verdict((None,) * len(problem.tests), "ok", "no code in the completion")
        try:
            if program is not None:
                verdict = check_program(problem, program, self.sandbox, limits=self.limits)
            num_shown = len(self.template.shown(problem))
            sample = Sample(problem, index, *completion, program, verdict, num_shown)
            with self.lock:
                self.failures.add(1, [verdict.error] if sample.passed is None else [])
        except SandboxUnavailable as error:
            self.error = error
            raise
        return sample
