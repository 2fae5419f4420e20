"""MBPP: programs are checked, outside of their process, while a model writes the next ones."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from rlnb.mbpp.evalplus import OUTPUT_KIB, REFERENCE_SECONDS
from rlnb.mbpp.problems import Problem, find_fault, interface
from rlnb.mbpp.prompts import Question, Template, build_question, read_program
from rlnb.mbpp.samples import Progress, Sample, WrittenSample, count_up
from rlnb.mbpp.writers import Write
from rlnb.policy import Completion
from rlnb.sandbox import FailureCount, Limits, Sandbox, Verdict, check_oracle, check_tests

MAX_ERROR_LENGTH = 300  # characters kept of what a program printed as its error


def check_program(problem: Problem, program: str | None, sandbox: Sandbox, *, limits: Limits) -> Verdict:
    """Run a problem's asserts against a program's functions; the program never sees an assert."""
    if program is None:
        return Verdict((None,) * len(problem.tests), "ok", "no code in the completion")
    program, names = f"{program}\n{problem.setup}", interface(problem)._asdict()
    return check_tests(sandbox, program, problem.tests, **names, limits=limits)


def make_sample(
    problem: Problem, index: int, completion: Completion, program: str | None, verdict: Verdict
) -> Sample:
    """Return the record of a completion that was checked. index: among the samples of its problem."""
    status = "wrong" if verdict.status == "ok" else verdict.status
    outcome = "passed" if verdict.passed else "no_code" if program is None else status
    passed = None if outcome == "sandbox_error" else verdict.passed
    error = "" if passed else verdict.error[:MAX_ERROR_LENGTH]
    return Sample(
        problem.task_id, problem.text, index, outcome, passed, verdict.results, error, completion.text,
        completion.is_cut and not passed, program,
    )  # fmt: skip


def count_failures(failures: FailureCount, *verdicts: Verdict) -> None:
    failures.add(len(verdicts), [each.error for each in verdicts if each.status == "sandbox_error"])


def start_checks(sandbox: Sandbox, timeout_seconds: float) -> Limits:
    """Return the limits of programs. Raises SandboxUnavailable where no verdict can be trusted."""
    check_oracle(sandbox)
    return replace(sandbox.limits, cpu_seconds=timeout_seconds, output_kib=OUTPUT_KIB)


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
    questions = [  # a function comes behind a class
        Question(build_question(problem, template, shots), max(interface(problem).functions, default=""))
        for problem, _ in rows
    ]
    limits, failures = start_checks(sandbox, timeout_seconds), FailureCount()
    checks: dict[int, tuple[Completion, str | None, Future[Verdict]]] = {}
    running: deque[Future[Verdict]] = deque()
    pool = ThreadPoolExecutor(sandbox.num_workers, thread_name_prefix="mbpp")

    def check(row: int, completion: Completion) -> None:
        program = read_program(completion.text, template, questions[row].function)
        running.append(pool.submit(check_program, rows[row][0], program, sandbox, limits=limits))
        checks[row] = completion, program, running[-1]
        while running and running[0].done():
            count_failures(failures, running.popleft().result())
        if progress:
            progress(len(checks), len(rows))

    try:
        write(questions, template, check)
        count_failures(failures, *(each.result() for each in running))
    finally:
        pool.shutdown(cancel_futures=True)
    return [
        make_sample(*rows[row], completion, program, verdict.result())
        for row, (completion, program, verdict) in sorted(checks.items())
    ]


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
    written = sorted((w for w in written if w.task_id in by_id), key=lambda sample: sample.task_id)
    limits = start_checks(sandbox, timeout_seconds)
    verdicts = sandbox.map(
        lambda sample: check_program(by_id[sample.task_id], sample.solution, sandbox, limits=limits),
        written,
        groups=[sample.task_id for sample in written],
        progress=count_up(progress, len(written)),
    )
    count_failures(FailureCount(), *verdicts)
    samples, indices = [], Counter[int]()
    for sample, verdict in zip(written, verdicts, strict=True):
        completion = Completion(sample.solution, False)
        index, problem = indices[sample.task_id], by_id[sample.task_id]
        samples.append(make_sample(problem, index, completion, sample.solution, verdict))
        indices[sample.task_id] += 1
    return samples


TRY_TESTS = """
for test in {tests!r}:
    try: exec(test)
    except MemoryError: raise
    except BaseException: pass
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
    calls. Solutions get at least REFERENCE_SECONDS, lest a busy machine decide. Problems without one are not
    tried.
    """
    left_out = {problem.task_id: fault for problem in problems if (fault := find_fault(problem))}
    seconds = max(timeout_seconds, REFERENCE_SECONDS)
    candidates = [problem for problem in problems if problem.task_id not in left_out]
    limits = replace(sandbox.limits, cpu_seconds=seconds)
    trials = sandbox.run_many(map(make_trial, candidates), limits=limits)
    for problem, execution in zip(candidates, trials, strict=True):
        if execution.status in ("timeout", "memory_exceeded", "killed") or "MemoryError" in execution.stderr:
            left_out[problem.task_id] = f"its tests do not end ({execution.status})"
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
