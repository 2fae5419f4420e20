"""Judge programs: what happened when a completion's code ran, and whether it is right.

A completion is judged twice: once as a script, as its writer meant it, and once by calls of its function
after the script's end, whose results are compared in this process. The expected results are never sent to
the program's process, so nothing that it prints can make a wrong function right. At the sandbox's level
"basic" reads are not restricted: a program can search the disk for their source (a file of tasks); from
"standard" on it cannot. The notebook's cell `reward` says what a judgement earns.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlnb.code_execution.tasks import Task
from rlnb.errors import ParamsError
from rlnb.grpo.rewards import TrlReward, make_trl_rewards
from rlnb.mbpp.evalplus import REFERENCE_SECONDS
from rlnb.run.health import AnswerEnd
from rlnb.run.metrics import STATUSES
from rlnb.sandbox import Execution, FailureCount, Limits, Sandbox
from rlnb.sandbox.plain_values import equal_to
from rlnb.source_code.extraction import extract_program

MARK = "#rlnb-result "


@dataclass(frozen=True)
class Judgement:
    """What became of one completion.

    code: its program, None where there is none. outcome: one of `rlnb.run.metrics.STATUSES`. execution: of
    the script, None without code. results: for each test True, False (wrong) or None (error, or not reached).
    """

    code: str | None
    outcome: str
    execution: Execution | None
    results: tuple[bool | None, ...]

    @property
    def ran(self) -> bool:
        """Whether the script ended without an error."""
        return self.outcome in ("ok_with_output", "ok_without_output")

    @property
    def answered(self) -> bool:
        """Whether the script ran and its function returned something, right or wrong, in every test."""
        return self.ran and bool(self.results) and None not in self.results

    @property
    def passed(self) -> bool:
        """Whether the script ran and every test passed; there is at least one.

        Right results alone are not enough: the calls after a script can complete a script that is broken.
        """
        return self.answered and all(self.results)

    @property
    def end(self) -> AnswerEnd:
        """How the answer ended; "no_result" where the script ran and no call of the function returned."""
        has_no_result = self.ran and bool(self.results) and self.results.count(None) == len(self.results)
        reason = self.execution.error if self.execution else ""
        return AnswerEnd("no_result" if has_no_result else self.outcome, reason)


RewardFunction = Callable[[Judgement], float]


# Runs a program, whose function is called after its last line or its exit. `builtins` is imported because a
# program may define its own `repr`; results are written by number because it may close or replace its output.
# Subclasses of containers, such as Counter and named tuples, are written as the plain ones that they equal.
CALLS = """
def __run(source, function, calls):
    import builtins, contextlib, linecache, os, sys
    linecache.cache["<program>"] = len(source), None, source.splitlines(True), "<program>"
    sys.setrecursionlimit(sys.getrecursionlimit() + 2)  # the frames of this program's own
    program = globals()
    del program["__run"]
    def plain(value):
        if builtins.isinstance(value, builtins.dict):
            return {{plain(key): plain(each) for key, each in builtins.dict.items(value)}}
        for kind in (builtins.list, builtins.tuple, builtins.set, builtins.frozenset):
            if builtins.isinstance(value, kind):
                return kind(builtins.map(plain, value))
        return value
    with contextlib.suppress(SystemExit):
        exec(compile(source, "<program>", "exec", dont_inherit=True), program)
    for arguments in calls:
        try:
            result = " ".join(builtins.repr(plain(program[function](*arguments))).splitlines())
        except builtins.Exception:
            result = ""
        for stream in (sys.stdout, sys.__stdout__):
            with contextlib.suppress(builtins.Exception):
                stream.flush()
        os.write(1, ({mark!r} + result + "\\n").encode("utf-8", "backslashreplace"))
__run({code!r}, {function!r}, {arguments!r})
"""


def with_calls(code: str, task: Task) -> str:
    """Return a program that runs another and then calls its function: a marked line for each test."""
    code = code.encode("utf-8", "backslashreplace").decode().removeprefix("\ufeff")  # as the sandbox does
    arguments = [test.arguments for test in task.tests]
    return CALLS.format(code=code, arguments=arguments, function=task.function, mark="\n" + MARK)


def check_results(execution: Execution, task: Task) -> tuple[bool | None, ...]:
    """Return for each test whether the printed result is the expected one; None where none was printed.

    The last marked lines count, so that marks printed by the program itself do not shift the others. A
    program that forges marks gains nothing: it knows the calls, as any function does, not the answers.
    """
    printed = [line[len(MARK) :] for line in execution.stdout.split("\n") if line.startswith(MARK)]
    printed = printed[-len(task.tests) :] if execution.status == "ok" else printed[: len(task.tests)]
    printed += [""] * (len(task.tests) - len(printed))
    return tuple(
        None if not text else equal_to(text, test.expected, is_assert=task.family == "mbpp")
        for text, test in zip(printed, task.tests, strict=True)
    )


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
    codes = [
        extract_program(text, prefix=prefix, function=task.function)
        for text, task, prefix in zip(completions, tasks, prefixes, strict=True)
    ]
    called = [with_calls(code, task) if code else None for code, task in zip(codes, tasks, strict=True)]
    answers = zip([*codes, *called], [*tasks, *tasks], strict=True)
    group_of = {program: task.id for program, task in answers if program is not None}
    programs, groups = list(group_of), group_of.values()
    executions = dict(zip(programs, sandbox.run_many(programs, groups=groups, limits=limits), strict=True))
    judgements = []
    for code, program, task in zip(codes, called, tasks, strict=True):
        if code is None or program is None:
            judgements.append(Judgement(None, "no_code", None, (None,) * len(task.tests)))
            continue
        calls = executions[program]
        script = calls if calls.status == "sandbox_error" else executions[code]
        outcome: str = script.status
        if outcome == "ok":
            outcome = "ok_with_output" if script.stdout.strip() else "ok_without_output"
        judgements.append(Judgement(code, outcome, script, check_results(calls, task)))
    return judgements


def try_solutions(
    splits: Mapping[str, Sequence[Task]], sandbox: Sandbox
) -> tuple[dict[str, list[Task]], dict[str, str]]:
    """Return the splits without tasks that no program could pass, and {id: why} of those; print them.

    A task's own solution is tried; without one, a function of its parameters, which must be callable. Both
    get at least REFERENCE_SECONDS, lest a busy machine decide. Raises ParamsError if none is left to train.
    """
    tasks = [task for members in splits.values() for task in members]
    stubs = [f"def {task.function}({task.parameters}): pass" for task in tasks]
    programs = [with_calls(task.solution or stub, task) for task, stub in zip(tasks, stubs, strict=True)]
    limits = replace(sandbox.limits, cpu_seconds=max(sandbox.limits.cpu_seconds, REFERENCE_SECONDS))
    left_out: dict[str, str] = {}
    for task, execution in zip(tasks, sandbox.run_many(programs, limits=limits), strict=True):
        results = check_results(execution, task)
        has_failed = not all(results) if task.solution else None in results
        if has_failed and execution.status != "sandbox_error":
            what = "its own solution fails" if task.solution else "its parameters do not fit its tests"
            left_out[task.id] = f"{what}: {execution.error or results}"
    for name, why in left_out.items():
        print(f"task {name} is left out: {why}")
    if untried := sum(not task.solution for task in tasks):
        print(f"{untried} of {len(tasks)} tasks have no solution that could be tried")
    kept = {split: [t for t in members if t.id not in left_out] for split, members in splits.items()}
    if left_out and not kept["train"]:
        raise ParamsError("tasks: all tasks of split 'train' are left out; correct their solutions or tests")
    return kept, left_out


@dataclass(eq=False)
class CodeRewards:
    """Makes the reward functions that TRL calls with a batch, which judge it once."""

    tasks: Sequence[Task]
    sandbox: Sandbox
    rewards: Sequence[RewardFunction]
    failures: FailureCount = field(default_factory=FailureCount)

    def for_trl(self) -> list[TrlReward]:
        """Return the functions for TRL. The dataset has the columns `prompt`, `task_id` and `prefix`."""
        return make_trl_rewards(
            self.rewards,
            self.judge_batch,
            is_failed=lambda judgement: judgement.outcome == "sandbox_error",
            measure=lambda judgements: batch_metrics(judgements, self.rewards),
            show=lambda judgements: {
                "outcome": [judgement.end.outcome for judgement in judgements],
                "reason": [judgement.end.reason for judgement in judgements],
                "passed": [judgement.passed for judgement in judgements],
            },
        )

    def judge_batch(
        self, completions: Sequence[str], *, task_id: Sequence[str], prefix: Sequence[str], **_: object
    ) -> list[Judgement]:
        """Return the judgements of a batch.

        Raises SandboxUnavailable when more than 1% of the programs failed because of the sandbox.
        """
        by_id = {task.id: task for task in self.tasks}
        judgements = judge(completions, [by_id[name] for name in task_id], prefix, self.sandbox)
        self.failures.add(len(completions), failures_of(judgements))
        return judgements


def failures_of(judgements: Sequence[Judgement]) -> list[str]:
    """Return the errors of the programs that the sandbox failed to run; equal ones were run once."""
    failed = {id(each.execution): each.execution for each in judgements if each.outcome == "sandbox_error"}
    return [execution.error for execution in failed.values() if execution]


def compute_reward(judgement: Judgement, rewards: Sequence[RewardFunction]) -> float | None:
    """Return the sum of what functions pay for a judgement.

    None where the sandbox failed: that is not the program's fault.
    """
    if judgement.outcome == "sandbox_error":
        return None
    return sum(reward(judgement) for reward in rewards)


def batch_metrics(judgements: Sequence[Judgement], rewards: Sequence[RewardFunction]) -> dict[str, float]:
    """Return a batch's mean reward, programs that ran, pass rate, and the share of each outcome."""
    earned = [compute_reward(judgement, rewards) for judgement in judgements]
    paid = [reward for reward in earned if reward is not None]
    num_best = sum(_earns_the_most(judgement, rewards) for judgement in judgements)
    counts = Counter(judgement.outcome for judgement in judgements)
    shares = {f"status/{outcome}_share": counts[outcome] / len(judgements) for outcome in STATUSES}
    return {
        "reward/avg_batch_reward": sum(paid) / len(paid) if paid else math.nan,
        "reward/successful_predictions_count": float(counts["ok_with_output"] + counts["ok_without_output"]),
        "reward/pass_rate": sum(judgement.passed for judgement in judgements) / len(judgements),
        "reward/best_share": num_best / len(judgements),
        **shares,
    }


def _earns_the_most(judgement: Judgement, rewards: Sequence[RewardFunction]) -> bool:
    """Return whether a program ran and would earn no more if it printed and passed all tests."""
    if not judgement.ran:
        return False
    perfect = replace(judgement, outcome="ok_with_output", results=(True,) * len(judgement.results))
    return sum(reward(judgement) for reward in rewards) >= sum(reward(perfect) for reward in rewards)
