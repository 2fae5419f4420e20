"""MBPP+: MBPP with about a hundred further inputs per problem, by the rules of evalplus 0.3.1. But:

- Programs run in the sandbox and never see the expected values, which are compared in this process. Only
  plain data crosses, so a Decimal or a view of a dict is wrong even where it would be equal.
- Limits count CPU time, EvalPlus's wall time. Memory is the sandbox's; EvalPlus allows 4 GiB.
- An input is skipped, and reported, if the reference fails on it or its answer cannot be had within the
  limits: Mbpp/255 is called for lists of a million tuples, and a megabyte crosses.
- Nested numbers are close only in the same shape, where numpy would broadcast one; they may be ragged.
"""

import contextlib
import hashlib
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rlnb.errors import ParamsError, SandboxUnavailable
from rlnb.json_records import LineStore
from rlnb.mbpp.checking import Progress, Sample
from rlnb.mbpp.plus_problems import Arguments, PlusProblem, Value, format_call, load_plus
from rlnb.sandbox import FailureCount, Sandbox, _codec
from rlnb.sandbox.calls import Call, LoadedProgram
from rlnb.sandbox.executions import Status, describe
from rlnb.statistics import wilson_interval

MIN_SECONDS, REFERENCE_FACTOR = 1.0, 4.0  # a call's limit: the reference's seconds times four, at least one
RUN_SECONDS = 60.0  # half of the wall seconds that all base, or plus, calls may take together
ALL_CALLS = "time limit of all calls together"
OUTPUT_KIB = 4096  # of all calls together: EvalPlus discards what is printed
NOT_MAIN = "__name__ = 'builtins'\n"  # as in EvalPlus: code guarded for scripts does not run
RTOL, FLOAT_ATOL = 1e-7, 1e-6
NOT_PLAIN = (b'{"reference":', b'{"iterator":')  # as the codec writes them; inside a text quotes are escaped

# Of each input, base inputs first: the reference's value and its wall seconds, or why there is none.
Expected = Sequence[tuple[object, float] | str]


@dataclass(frozen=True)
class PlusVerdict:
    """base: every base input is right; plus: every base and plus input is. The first error ends the check.

    failing: that call as source, cut at 200 characters. status: "ok" if it returned or nothing failed, else
    how it ended; "sandbox_error" is not the program's fault. error: one line, untrusted.
    """

    base: bool
    plus: bool
    status: Status
    failing: str
    error: str


VERDICT = TypeAdapter(PlusVerdict)


@dataclass(frozen=True)
class PlusReport:
    """verdicts: one per sample, None if EvalPlus has no such problem, all its base inputs are skipped, or the
    sandbox failed.

    summary: rates over the samples that have a verdict, "base" and "plus", each with Wilson's interval, and
    how many inputs were skipped: of all, and under "Mbpp/N" of each problem, with the first and the reason.
    """

    verdicts: tuple[PlusVerdict | None, ...]
    summary: dict[str, object]


# Tasks whose text allows more than one value.
ANY_VALUE = (164,)
AS_SETS = (2, 7, 111, 140, 232, 249, 579, 769)
NONE_OR_NOT = (737, 787, 794)  # they return the match of a regular expression, or a bool
ALSO_RIGHT: dict[int, Callable[..., float]] = {
    295: lambda *_: 0,
    # The distance digit by digit from the units on, not of the difference's digits.
    558: lambda a, b: sum(
        abs(int(x) - int(y)) for x, y in zip_longest(str(a)[::-1], str(b)[::-1], fillvalue=0)
    ),
    # The area by the height of the pyramid, not by its slant height.
    581: lambda edge, height: round(edge**2 + 2 * edge * math.sqrt((edge / 2) ** 2 + height**2)),
}


def check_samples(
    samples: Sequence[Sample],
    plus_path: str,
    sandbox: Sandbox,
    *,
    cache_dir: str,
    progress: Progress | None = None,
) -> PlusReport:
    """Check samples against EvalPlus's file.

    cache_dir keeps what its references return and, until all are made, the verdicts: the same call goes on
    after an interruption. progress: called with (done, total), references first. Raises ParamsError if no
    problem is in both, and SandboxUnavailable.
    """
    task_ids = {sample.problem.task_id for sample in samples}
    problems = {task_id: problem for task_id, problem in load_plus(plus_path).items() if task_id in task_ids}
    if not problems:
        raise ParamsError(f"{plus_path}: has none of the evaluated problems; write mbpp.split = auto")
    expected = compute_expected(
        problems, sandbox, data_path=plus_path, cache_dir=cache_dir, progress=progress
    )
    is_checked = {task_id: has_values(problems[task_id], expected[task_id]) for task_id in problems}
    programs = json.dumps([[sample.problem.task_id, sample.program, sample.passed] for sample in samples])
    store = open_store(cache_dir, sandbox, Path(plus_path).read_bytes(), programs.encode())
    stored = store.read()
    failures, lock = FailureCount(), threading.Lock()

    def check(index: int) -> PlusVerdict | None:
        sample = samples[index]
        task_id = sample.problem.task_id
        if not is_checked.get(task_id) or sample.passed is None:
            return None
        if sample.program is None:
            return PlusVerdict(False, False, "ok", "", "no code in the completion")
        with contextlib.suppress(KeyError, ValidationError):
            return VERDICT.validate_python(stored[str(index)])
        verdict = check_plus(problems[task_id], expected[task_id], sample.program, sandbox)
        has_failed = verdict.status == "sandbox_error"
        with lock:
            failures.add(1, [verdict.error] if has_failed else [])
        if has_failed:
            return None
        append(str(index), asdict(verdict))
        return verdict

    verdicts: list[PlusVerdict | None] = []
    pool = ThreadPoolExecutor(sandbox.num_workers, thread_name_prefix="plus")
    with store.appending() as append:
        try:
            for verdict in pool.map(check, range(len(samples))):
                verdicts.append(verdict)
                if progress:
                    progress(len(verdicts), len(samples))
        finally:
            pool.shutdown(cancel_futures=True)
    store.path.unlink(missing_ok=True)
    return PlusReport(tuple(verdicts), summarize_plus(verdicts, problems, expected))


def has_values(problem: PlusProblem, expected: Expected) -> bool:
    """Return whether an answer is known for any base input; else nothing could be wrong."""
    return any(not isinstance(answer, str) for answer in expected[: len(problem.base_input)])


def open_store(cache_dir: str | Path, sandbox: Sandbox, *contents: bytes) -> LineStore:
    """Return the store of what depends on these contents and on the memory that a program has."""
    digests = [hashlib.sha256(content).hexdigest()[:16] for content in contents]
    return LineStore(Path(cache_dir) / f"mbpp_plus_{'_'.join(digests)}_{sandbox.limits.memory_mib}mib.jsonl")


def summarize_plus(
    verdicts: Sequence[PlusVerdict | None],
    problems: Mapping[int, PlusProblem],
    expected: Mapping[int, Expected],
) -> dict[str, object]:
    checked = [verdict for verdict in verdicts if verdict is not None]
    num_problems = sum(has_values(problems[task_id], expected[task_id]) for task_id in problems)
    summary: dict[str, object] = {"num_problems": num_problems, "num_samples": len(checked)}
    for name in ("base", "plus") if checked else ():
        rate = sum(getattr(verdict, name) for verdict in checked) / len(checked)
        summary[name] = asdict(wilson_interval(rate, num_problems))
    summary["num_inputs"] = sum(map(len, expected.values()))
    skipped = {task_id: [isinstance(answer, str) for answer in expected[task_id]] for task_id in problems}
    summary["num_inputs_skipped"] = sum(map(sum, skipped.values()))
    for task_id, problem in problems.items():
        if not any(skipped[task_id]):
            continue
        first = skipped[task_id].index(True)
        call = format_call(problem, (problem.base_input + problem.plus_input)[first])
        counts = f"{sum(skipped[task_id])} of {len(skipped[task_id])} inputs skipped"
        not_checked = "" if has_values(problem, expected[task_id]) else ", so the problem is not counted"
        summary[f"Mbpp/{task_id}"] = f"{counts}{not_checked}: {call}: {expected[task_id][first]}"
    return summary


def compute_expected(
    problems: Mapping[int, PlusProblem],
    sandbox: Sandbox,
    *,
    data_path: str | Path,
    cache_dir: str | Path,
    progress: Progress | None = None,
) -> dict[int, Expected]:
    """Return what the canonical solutions return, by task_id: from the cache, or by running them.

    The cache has a line for each problem, written as soon as it is computed, and is named by the SHA-256 of
    the file at data_path and by the sandbox's memory limit. A line that is damaged or does not fit is
    computed again, one program at a time so that the seconds are right. Raises SandboxUnavailable.
    """
    store = open_store(cache_dir, sandbox, Path(data_path).read_bytes())
    stored, expected = store.read(), {}
    with store.appending() as append:
        for task_id, problem in problems.items():
            try:
                expected[task_id] = decode_answers(stored[str(task_id)], problem)
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                answers = run_reference(problem, sandbox, place=f"{data_path}: Mbpp/{task_id}")
                append(str(task_id), answers)
                expected[task_id] = decode_answers(answers, problem)
            if progress is not None:
                progress(len(expected), len(problems))
    return expected


def decode_answers(stored: Sequence[tuple[str, float] | str], problem: PlusProblem) -> Expected:
    """Return the answers of `run_reference`. Raises any error for damaged ones."""
    answers = [
        answer if isinstance(answer, str) else (_codec.loads(answer[0].encode()), float(answer[1]))
        for answer in stored
    ]
    if len(answers) != len(problem.base_input + problem.plus_input):
        raise ValueError(f"not an answer for each input of task {problem.task_id}")
    return answers


def run_reference(problem: PlusProblem, sandbox: Sandbox, *, place: str) -> list[tuple[str, float] | str]:
    """Return the encoded value and the seconds of the canonical solution for each input, or why it has none.

    A call may take 15 CPU seconds, so that four times as many are within the limit of all calls together,
    which is 120 s of wall time as for any program. After a call that ends the program it is loaded again.
    """
    answers: list[tuple[str, float] | str] = []
    for inputs in (problem.base_input, problem.plus_input):
        left, seconds_used = list(inputs), 0.0
        while left:
            with load_quietly(problem.solution, sandbox) as program:
                has_loaded = program.ended is None
                while left and not (has_loaded and program.ended):
                    call = call_reference(problem, program, left.pop(0), seconds_used=seconds_used)
                    seconds_used += call.seconds
                    if call.status == "sandbox_error":
                        raise SandboxUnavailable(f"{place}: the canonical solution did not run: {call.error}")
                    value = call.value is not None if problem.task_id in NONE_OR_NOT else call.value
                    encoded = _codec.dumps(value)
                    reason = " ".join(call.error.split())[:200] or call.status
                    if call.status == "ok" and any(mark in encoded for mark in NOT_PLAIN):
                        reason = f"{describe(value, repr)[:100]} is not plain data"
                    elif call.status == "ok":
                        answers.append((encoded.decode(), call.seconds))
                        continue
                    answers.append(reason)
    return answers


def call_reference(
    problem: PlusProblem, program: LoadedProgram, arguments: Arguments, *, seconds_used: float
) -> Call:
    if seconds_used > 2 * RUN_SECONDS:
        return Call("timeout", None, ALL_CALLS, 0.0)
    try:
        return program.call(problem.entry_point, *arguments, cpu_seconds=RUN_SECONDS / REFERENCE_FACTOR)
    except ValueError as error:
        return Call("runtime_error", None, f"its arguments are {error}", 0.0)


def load_quietly(program: str, sandbox: Sandbox) -> LoadedProgram:
    return sandbox.load(program, limits=replace(sandbox.limits, output_kib=OUTPUT_KIB))


def check_plus(problem: PlusProblem, expected: Expected, program: str, sandbox: Sandbox) -> PlusVerdict:
    """Check a program on the base inputs and then, loaded again, on the plus inputs.

    expected: from `compute_expected`; inputs without a value are skipped. A call may take max(1, 4 * the
    reference's) CPU seconds, the calls of either kind 120 s of wall time. A value is right if it is equal, if
    a rule of the task says so, or if it has the expected type and numbers within atol + 1e-7 * |expected|,
    given an atol. An expected float, or list of floats, raises an atol of 0 to 1e-6. It stays raised for
    later inputs of base, or of plus, as in EvalPlus: the order of inputs is part of the data, so that scores
    compare. Raises SandboxUnavailable.
    """
    if "__future__" not in program:  # which must come first
        program = NOT_MAIN + program
    has_base, num_base = False, len(problem.base_input)
    for inputs, outputs in (
        (problem.base_input, expected[:num_base]),
        (problem.plus_input, expected[num_base:]),
    ):
        atol, seconds_used = problem.atol, 0.0
        with load_quietly(program, sandbox) as loaded:
            for arguments, answer in zip(inputs, outputs, strict=False):
                if isinstance(answer, str):
                    continue
                output, reference_seconds = answer
                limit = max(MIN_SECONDS, REFERENCE_FACTOR * reference_seconds)
                call = loaded.call(problem.entry_point, *arguments, cpu_seconds=limit)
                seconds_used += call.seconds
                types = set(map(type, output if isinstance(output, list | tuple) else [output]))
                atol = FLOAT_ATOL if atol == 0 and types == {float} else atol
                is_ok = call.status == "ok" and is_right(problem.task_id, arguments, call.value, output, atol)
                if is_ok and seconds_used <= 2 * RUN_SECONDS:
                    continue
                if is_ok:
                    call = replace(call, status="timeout", error=ALL_CALLS)
                wrong = f"returned {describe(call.value, repr)[:100]}, not {describe(output, repr)[:100]}"
                error = " ".join((wrong if call.status == "ok" else call.error).split())
                return PlusVerdict(has_base, False, call.status, format_call(problem, arguments), error)
        has_base = True
    return PlusVerdict(True, True, "ok", "", "")


def is_right(task_id: int, arguments: Arguments, value: Value, expected: Value, atol: float) -> bool:
    """Return whether a value of plain data is right by `check_plus`; one that cannot be compared is not."""
    try:
        if task_id in AS_SETS:
            right = set(value) == set(expected)
        elif task_id in NONE_OR_NOT:
            right = (value if isinstance(value, bool) else value is not None) == expected
        else:
            right = task_id in ANY_VALUE or value == expected
            if not right and task_id in ALSO_RIGHT:
                right = abs(value - ALSO_RIGHT[task_id](*arguments)) <= (atol if task_id == 581 else 0)
        return right or (atol != 0 and type(value) is type(expected) and is_close(value, expected, atol))
    except Exception:  # unhashable, not a number, too large for a float
        return False


def is_close(value: Value, expected: Value, atol: float) -> bool:
    """numpy.allclose with rtol 1e-7, for nested lists and tuples. Raises TypeError for other types."""
    if isinstance(expected, list | tuple) and isinstance(value, list | tuple):
        return all(is_close(*pair, atol) for pair in zip(value, expected, strict=True))
    distance = abs(value - expected)
    return distance <= atol + RTOL * abs(expected) < math.inf or value == expected
