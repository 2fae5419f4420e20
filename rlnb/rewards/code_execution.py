"""Rewards for programs: what happened when the completion's code ran, and whether it is right.

A completion is judged twice: once as a script, as its writer meant it, and once with calls of its function
behind it, whose results are compared out here. The expected results are never sent to the program's process,
so nothing that it prints can make a wrong function right. At the sandbox's level "basic" its reads are not
restricted: a program that looks for them can find on the disk what they come from, `rlnb.tasks.families` or a
file of tasks; from "standard" on it cannot.
"""

import ast
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlnb.sandbox import Execution, FailureCount, Limits, Sandbox
from rlnb.tasks import Task, extract_code

Preset = Literal["execution", "tests"]
MARK = "#rlnb-result "

# Preset "execution": what the script did, never whether it is right.
EXECUTION_REWARDS: dict[str, float | None] = {
    "ok_with_output": 1.0,
    "ok_without_output": 0.5,
    "no_code": -0.5,
    "syntax_error": -0.5,
    "runtime_error": -1.0,
    "timeout": -1.0,
    "memory_exceeded": -1.0,
    "output_exceeded": -1.0,
    "killed": -1.0,
    "sandbox_error": None,  # nobody's fault: TRL leaves the completion out of its group
}
# Preset "tests": correctness pays, wrong code earns nothing, code that does not run less than nothing.
PASS_REWARD, WRONG_REWARD, ERROR_REWARD = 1.0, 0.0, -0.25
OUTCOMES = tuple(EXECUTION_REWARDS)


@dataclass(frozen=True)
class Judgement:
    """What became of one completion.

    code: its program, None where there is none. outcome: a key of EXECUTION_REWARDS. execution: of the
    script, None without code. results: for each test True, False (wrong) or None (error, or never reached).
    """

    code: str | None
    outcome: str
    execution: Execution | None
    results: tuple[bool | None, ...]

    @property
    def ran(self) -> bool:
        """The script, as it stands, ended well."""
        return self.outcome in ("ok_with_output", "ok_without_output")

    @property
    def passed(self) -> bool:
        """The script ran, and every test passed; there was one.

        Right results alone are not enough: calls behind a script can complete what is broken without them.
        """
        return self.ran and bool(self.results) and all(self.results)

    def reward(self, preset: Preset) -> float | None:
        """The reward under a preset; None when the sandbox failed."""
        if preset == "execution" or self.outcome == "sandbox_error":
            return EXECUTION_REWARDS[self.outcome]
        if self.passed:
            return PASS_REWARD
        return WRONG_REWARD if self.ran and self.results and None not in self.results else ERROR_REWARD


# Names by way of `builtins`, since a program may have its own `print` or `repr`. Subclasses of dict are shown
# as the dict that they equal.
CALLS = """

import builtins as __builtins
for __arguments in {arguments!r}:
    try:
        __result = {function}(*__arguments)
        __result = __builtins.dict(__result) if __builtins.isinstance(__result, __builtins.dict) else __result
        __result = " ".join(__builtins.repr(__result).splitlines())
    except __builtins.Exception:
        __result = ""
    __builtins.print({mark!r} + __result, file=__builtins.__import__("sys").__stdout__)
"""


def with_calls(code: str, task: Task) -> str:
    """The program, then a call of its function for each test, each result on a marked line of its own."""
    arguments = [test.arguments for test in task.tests]
    return code + CALLS.format(arguments=arguments, function=task.function, mark="\n" + MARK)


def compare_results(execution: Execution, task: Task) -> tuple[bool | None, ...]:
    """For each test whether the printed result is the expected one; None where no result was printed.

    The last marked lines count, so that marks printed by the program itself do not shift the others. A
    program that forges marks gains nothing: it knows the calls, as any function does, not the answers.
    """
    printed = [line[len(MARK) :] for line in execution.stdout.split("\n") if line.startswith(MARK)]
    printed = printed[-len(task.tests) :] if execution.status == "ok" else printed[: len(task.tests)]
    printed += [""] * (len(task.tests) - len(printed))
    return tuple(
        None if not text else equal_to(text, test.expected)
        for text, test in zip(printed, task.tests, strict=True)
    )


def equal_to(text: str, expected: Any) -> bool:
    """Whether `text` is the source of a plain value equal to `expected`.

    True is not 1, also in sets and keys; a list is no tuple; a whole float equals its integer.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of doubtful escapes in what a program printed
            tree = ast.parse(text.lstrip(" \t"), mode="eval")
            # Integers whose hashes are all alike take quadratic time to become a set, so larger ones than
            # could be right are never made.
            most = len(repr(expected))
            if any(_num_hashed(node) > most for node in ast.walk(tree)):
                return False
            value = ast.literal_eval(tree)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return False
    return same(value, expected)


def _num_hashed(node: ast.AST) -> int:
    """Elements of a set's source, keys of a dict's, else 0."""
    if isinstance(node, ast.Dict):
        return len(node.keys)
    return len(node.elts) if isinstance(node, ast.Set) else 0


def same(left: Any, right: Any) -> bool:
    """Equality of plain values; see `equal_to`. Elements of sets and keys of dicts get no tolerance."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, float) or isinstance(right, float):
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        # A tolerance would turn an integer too large for a float into an OverflowError.
        return numbers and (left == right or abs(left) < 1e300 and math.isclose(left, right, abs_tol=1e-12))
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        lefts, rights = ({_key(key): value for key, value in one.items()} for one in (left, right))
        return lefts.keys() == rights.keys() and all(same(lefts[key], rights[key]) for key in lefts)
    if isinstance(left, set | frozenset):
        return set(map(_key, left)) == set(map(_key, right))
    return bool(left == right)


def _key(value: Any) -> str:
    """A text that two hashable plain values share only where they are the same: 1 and 1.0, not 1 and True.

    The hash of a text cannot be foreseen by a program, that of an integer can.
    """
    if isinstance(value, tuple):
        return f"({','.join(map(_key, value))})"
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(map(_key, value)))}}}"
    if isinstance(value, float) and math.isnan(value):
        return f"nan {id(value)}"  # equal to itself alone, as in Python's sets
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"int {value:x}" if type(value) is int else f"{type(value).__name__} {value!r}"


def judge(
    completions: Sequence[str],
    tasks: Sequence[Task],
    prefixes: Sequence[str],
    sandbox: Sandbox,
    *,
    limits: Limits | None = None,
) -> list[Judgement]:
    """Judge completions[i] as an answer to tasks[i] whose prompt ends in prefixes[i].

    Each distinct program runs once. Where the sandbox failed in either run, the outcome is "sandbox_error".
    """
    codes = [extract_code(text, prefix=prefix) for text, prefix in zip(completions, prefixes, strict=True)]
    called = [with_calls(code, task) if code else None for code, task in zip(codes, tasks, strict=True)]
    programs = list(dict.fromkeys(program for program in [*codes, *called] if program is not None))
    executions = dict(zip(programs, sandbox.run_many(programs, limits=limits), strict=True))
    judgements = []
    for code, program, task in zip(codes, called, tasks, strict=True):
        if code is None or program is None:
            judgements.append(Judgement(None, "no_code", None, (None,) * len(task.tests)))
            continue
        script, calls = executions[code], executions[program]
        blamed = calls if calls.status == "sandbox_error" else script
        judgements.append(Judgement(code, outcome_of(blamed), blamed, compare_results(calls, task)))
    return judgements


def outcome_of(execution: Execution) -> str:
    """The key of EXECUTION_REWARDS; output is standard output that is not blank."""
    if execution.status != "ok":
        return execution.status
    return "ok_with_output" if execution.stdout.strip() else "ok_without_output"


class CodeReward:
    """A reward function for TRL that judges completions in a sandbox.

    The dataset has the columns `task_id` and `prefix` beside `prompt`. `seconds` counts the time spent here.
    Raises SandboxUnavailable when more than 1% of the programs failed for the sandbox's sake.
    """

    __name__ = "code"

    def __init__(self, tasks: Sequence[Task], sandbox: Sandbox, *, preset: Preset) -> None:
        self.tasks: Mapping[str, Task] = {task.id: task for task in tasks}
        self.sandbox = sandbox
        self.preset = preset
        self.seconds = 0.0
        self.failures = FailureCount()
        self.last_outcomes: list[str] = []

    def __call__(
        self,
        *,
        completions: Sequence[Any],
        task_id: Sequence[str],
        prefix: Sequence[str],
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """One reward a completion. TRL's other columns are accepted and not used."""
        started = time.perf_counter()
        tasks = [self.tasks[name] for name in task_id]
        judgements = judge([text_of(completion) for completion in completions], tasks, prefix, self.sandbox)
        rewards = [judgement.reward(self.preset) for judgement in judgements]
        self.last_outcomes = [judgement.outcome for judgement in judgements]
        failed = [judgement for judgement in judgements if judgement.outcome == "sandbox_error"]
        self.failures.add(len(judgements), [one.execution.error if one.execution else "" for one in failed])
        self.seconds += time.perf_counter() - started
        if log_metric:
            for name, value in batch_metrics(judgements, rewards).items():
                log_metric(name, value)
            log_metric("time/reward_seconds", time.perf_counter() - started)
        if log_extra:
            log_extra("outcome", self.last_outcomes)
            log_extra("passed", [judgement.passed for judgement in judgements])
        return rewards


def text_of(completion: Any) -> str:
    """The text of a completion as TRL hands it over: a string, or messages for conversational prompts."""
    return completion if isinstance(completion, str) else str(completion[0]["content"])


def batch_metrics(judgements: Sequence[Judgement], rewards: Sequence[float | None]) -> dict[str, float]:
    """The metrics of a batch: mean reward, programs that ran, share that is right, share of each outcome."""
    given = [reward for reward in rewards if reward is not None]
    counts = Counter(judgement.outcome for judgement in judgements)
    shares = {f"status/{outcome}_share": counts[outcome] / len(judgements) for outcome in OUTCOMES}
    return {
        "reward/avg_batch_reward": sum(given) / len(given) if given else math.nan,
        "reward/successful_predictions_count": float(counts["ok_with_output"] + counts["ok_without_output"]),
        "reward/pass_rate": sum(judgement.passed for judgement in judgements) / len(judgements),
        **shares,
    }
