"""Samples that have met MBPP's asserts meet EvalPlus's inputs as well."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from rlnb.errors import ParamsError
from rlnb.evaluation.compare import wilson_interval
from rlnb.evaluation.evalplus import PlusVerdict, check_plus, expected_outputs, load_plus
from rlnb.evaluation.mbpp import Sample
from rlnb.sandbox import FailureCount, Sandbox


@dataclass(frozen=True)
class PlusReport:
    """verdicts: one a sample, None where EvalPlus has no such problem or the sample no program.

    summary: rates over the samples of EvalPlus's problems, "base" and "plus", each with Wilson's interval.
    """

    verdicts: tuple[PlusVerdict | None, ...]
    summary: dict[str, Any]


def check_samples(
    samples: Sequence[Sample],
    plus_path: str,
    sandbox: Sandbox,
    *,
    cache_dir: str,
    progress: Callable[[int, int], None] | None = None,
) -> PlusReport:
    """Check samples against EvalPlus's file; what its references return is kept in `cache_dir`.

    progress: called with (done, all), references first. Raises ParamsError where no problem is in both.
    """
    wanted = {sample.problem.task_id for sample in samples}
    problems = {number: problem for number, problem in load_plus(plus_path).items() if number in wanted}
    if not problems:
        raise ParamsError(f"{plus_path}: holds none of the problems that were asked; write mbpp.split = all")
    expected = expected_outputs(
        problems, sandbox, data_path=plus_path, cache_dir=cache_dir, progress=progress
    )

    def check(sample: Sample) -> PlusVerdict | None:
        number = sample.problem.task_id
        if number not in problems or sample.passed is None:
            return None
        if sample.program is None:
            return PlusVerdict(False, False, "ok", "", "no code in the completion")
        return check_plus(problems[number], expected[number], sample.program, sandbox)

    verdicts, failures = [], FailureCount()
    pool = ThreadPoolExecutor(sandbox.num_workers, thread_name_prefix="plus")
    try:
        for verdict in pool.map(check, samples):
            failed = verdict is not None and verdict.status == "sandbox_error"
            failures.add(1, [verdict.error] if verdict is not None and failed else [])
            verdicts.append(None if failed else verdict)
            if progress:
                progress(len(verdicts), len(samples))
    finally:
        pool.shutdown(cancel_futures=True)
    return PlusReport(tuple(verdicts), summary_of(verdicts, len(problems)))


def summary_of(verdicts: Sequence[PlusVerdict | None], num_problems: int) -> dict[str, Any]:
    counted = [verdict for verdict in verdicts if verdict is not None]
    if not counted:  # the sandbox ran none of them: no rates
        return {"num_problems": num_problems, "num_samples": 0}
    rates = {
        "base": sum(verdict.base for verdict in counted) / len(counted),
        "plus": sum(verdict.plus for verdict in counted) / len(counted),
    }
    estimates = {name: asdict(wilson_interval(rate, num_problems)) for name, rate in rates.items()}
    return {"num_problems": num_problems, "num_samples": len(counted), **estimates}
