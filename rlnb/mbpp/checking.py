"""MBPP: completions are written, and then their programs checked, outside of their process."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rlnb.mbpp.evalplus import OUTPUT_KIB, REFERENCE_SECONDS
from rlnb.mbpp.problems import Problem, find_fault, interface
from rlnb.mbpp.prompts import Question, Template, build_question, read_program
from rlnb.mbpp.samples import Progress, Sample, WrittenSample
from rlnb.mbpp.writers import Write
from rlnb.policy import Completion
from rlnb.sandbox import FailureCount, Sandbox, Verdict, check_oracle, check_tests

MAX_ERROR_LENGTH = 300  # characters kept of what a program printed as its error


class WrittenAnswer(NamedTuple):
    """A completion for a problem, and the program in it, None where there is none."""

    problem: Problem
    completion: Completion
    program: str | None


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
    """Let a writer write `num_samples` completions of each problem, and check them.

    shots: the problems among which the template finds its solved examples. progress: counts written
    completions. Raises as `check_answers`, before anything is written where no verdict can be trusted.
    """
    check_oracle(sandbox)
    rows = [problem for problem in problems for _ in range(num_samples)]
    questions = [  # a function comes behind a class
        Question(build_question(problem, template, shots), max(interface(problem).functions, default=""))
        for problem in rows
    ]
    answers = [
        WrittenAnswer(problem, completion, read_program(completion.text, template, question.function))
        for problem, question, completion in zip(
            rows, questions, write(questions, template, progress), strict=True
        )
    ]
    return check_answers(answers, sandbox, timeout_seconds=timeout_seconds)


def evaluate_samples(
    problems: Sequence[Problem],
    written: Sequence[WrittenSample],
    sandbox: Sandbox,
    *,
    timeout_seconds: float = 10.0,
    progress: Progress | None = None,
) -> list[Sample]:
    """Check programs of the problems, for example from `read_samples`; progress counts them."""
    by_id = {problem.task_id: problem for problem in problems}
    answers = [
        WrittenAnswer(by_id[sample.task_id], Completion(sample.solution, False), sample.solution)
        for sample in sorted(written, key=lambda sample: sample.task_id)
        if sample.task_id in by_id
    ]
    return check_answers(answers, sandbox, timeout_seconds=timeout_seconds, progress=progress)


def check_answers(
    answers: Sequence[WrittenAnswer],
    sandbox: Sandbox,
    *,
    timeout_seconds: float,
    progress: Progress | None = None,
) -> list[Sample]:
    """Run each problem's asserts against its programs, which never see an assert; return samples in order.

    Raises SandboxUnavailable where no verdict can be trusted, or more than 1% of the programs cannot be run.
    """
    check_oracle(sandbox)
    limits = replace(sandbox.limits, cpu_seconds=timeout_seconds, output_kib=OUTPUT_KIB)

    def check(job: tuple[Problem, str | None]) -> Verdict:
        problem, program = job
        if program is None:
            return Verdict((None,) * len(problem.tests), "ok", "no code in the completion")
        program, names = f"{program}\n{problem.setup}", interface(problem)._asdict()
        return check_tests(sandbox, program, problem.tests, **names, limits=limits)

    verdicts = sandbox.map(
        check,
        [(answer.problem, answer.program) for answer in answers],
        groups=[answer.problem.task_id for answer in answers],
        progress=progress,
    )
    errors = [verdict.error for verdict in verdicts if verdict.status == "sandbox_error"]
    FailureCount().add(len(verdicts), errors)
    samples, num_samples = [], Counter[int]()
    for (problem, completion, program), verdict in zip(answers, verdicts, strict=True):
        status = "wrong" if verdict.status == "ok" else verdict.status
        outcome = "passed" if verdict.passed else "no_code" if program is None else status
        passed = None if outcome == "sandbox_error" else verdict.passed
        samples.append(
            Sample(
                problem.task_id, problem.text, num_samples[problem.task_id], outcome, passed, verdict.results,
                "" if passed else verdict.error[:MAX_ERROR_LENGTH], completion.text,
                completion.is_cut and not passed, program,
            )
        )  # fmt: skip
        num_samples[problem.task_id] += 1
    return samples


# With half the stack of a thread here: what is nested too deeply would end this process, too.
TRY_TESTS = """
import threading as _threading
def _try():
    for test in {tests!r}:
        try: exec(test, globals())
        except MemoryError: raise
        except BaseException: pass
_threading.stack_size(2**22)
_thread = _threading.Thread(target=_try)
_thread.start()
_thread.join()
"""


def make_trial(problem: Problem) -> str:
    """Return a program that tries each test on the problem's own solution, or on functions of None."""
    stubs = "\n".join(f"def {name}(*_, **__): pass" for name in interface(problem).functions)
    tests = (*problem.imports, *problem.tests)
    return f"{problem.code or stubs}\n{problem.setup}\n{TRY_TESTS.format(tests=tests)}"


def try_solutions(problems: Sequence[Problem], sandbox: Sandbox, *, timeout_seconds: float) -> dict[int, str]:
    """Return {task_id: why} of problems that tell nothing, because no program passes or every program does.

    Tests have to say only what a test may, and to end: they run in this process, where nothing limits them.
    Their own solution has to pass, and an empty program to fail: asserts may be in a function that nothing
    calls. Solutions get at least REFERENCE_SECONDS, so that a busy machine changes nothing. Problems without
    one are not tried.
    """
    left_out = {problem.task_id: fault for problem in problems if (fault := find_fault(problem))}
    seconds = max(timeout_seconds, REFERENCE_SECONDS)
    candidates = [problem for problem in problems if problem.task_id not in left_out]
    limits = replace(sandbox.limits, cpu_seconds=seconds)
    trials = sandbox.run_many(map(make_trial, candidates), limits=limits)
    for problem, execution in zip(candidates, trials, strict=True):
        ending = "memory_exceeded" if "MemoryError" in execution.stderr else execution.status
        if ending in ("timeout", "memory_exceeded", "killed"):
            left_out[problem.task_id] = f"its tests do not end ({ending})"
    written = [
        WrittenSample(task_id=problem.task_id, solution=program)
        for problem in problems
        if problem.task_id not in left_out
        for program in dict.fromkeys((problem.code, ""))
    ]
    for sample in evaluate_samples(problems, written, sandbox, timeout_seconds=seconds):
        if sample.program and sample.passed is False:
            left_out[sample.task_id] = f"own solution: {sample.error[:200]}"
        elif not sample.program and sample.passed:
            left_out[sample.task_id] = "its tests pass without a program"
    return left_out
