"""Measure how well a policy writes programs for held-out tasks, sampled and greedy."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from statistics import fmean

from rlnb.code_execution.params import GrpoCodeExecutionParams
from rlnb.code_execution.prompts import build_prompt
from rlnb.code_execution.reward import Judgement, RewardFunction, compute_reward, failures_of, judge
from rlnb.code_execution.tasks import Task, source_of
from rlnb.evaluations import measure_once
from rlnb.policy import Policy, Progress, generate
from rlnb.policy.prompts import Prompt
from rlnb.run.health import AnswerEnd, describe_ends
from rlnb.sandbox import FailureCount, Sandbox
from rlnb.source_code.extraction import ends_of_answers

MEASURES = (
    "reward", "output_rate_sampled", "output_rate_greedy", "pass_rate_sampled", "pass_rate_greedy",
    "cut_rate",
)  # fmt: skip


@dataclass(frozen=True)
class JudgedAnswer:
    """One judged completion. split: "known" or "new"; greedy: decoded at temperature 0.

    is_cut: by the limit of tokens.
    """

    task_id: str
    statement: str
    split: str
    greedy: bool
    completion: str
    is_cut: bool
    judgement: Judgement

    @property
    def end(self) -> AnswerEnd:
        return self.judgement.end._replace(is_cut=self.is_cut and not self.judgement.passed)


@dataclass(frozen=True)
class ProgramEvaluation:
    """An evaluation on held-out tasks by split, with the same tasks, prompts and seeds at each call.

    Each task gets `evaluation.num_samples` sampled completions, none at temperature 0, and a greedy one.
    """

    params: GrpoCodeExecutionParams
    splits: Mapping[str, Sequence[Task]]
    sandbox: Sandbox

    @property
    def tasks(self) -> list[tuple[str, Task]]:
        """The first tasks of each split, as many as `evaluation` says, with the name of the split."""
        num_prompts = self.params.evaluation.num_prompts
        return [(split, task) for split, tasks in self.splits.items() for task in tasks[:num_prompts]]

    def prompts(self, policy: Policy) -> list[Prompt]:
        form, printed_example = self.params.tasks.prompt, self.params.printed_example
        return [
            build_prompt(task, form, policy.chat, printed_example=printed_example) for _, task in self.tasks
        ]

    def measure(self, policy: Policy, label: str, *, progress: Progress | None = None) -> list[JudgedAnswer]:
        """Judge a policy in training, and keep the answers in tasks_<label>.json; see `measure_once`.

        label: "before", "step-20" or "after". Nothing without tasks, or where `evaluation.enabled` is false.
        """
        if not (self.tasks and self.params.evaluation.enabled):
            return []
        sections = {"model", "tasks", "sandbox", "evaluation"}
        return measure_once(
            Path(self.params.output_dir, f"tasks_{label}.json"),
            lambda: self(policy, progress=progress),
            kind=list[JudgedAnswer],
            policy=policy,
            params=self.params,
            settings={
                **self.params.model_dump(mode="json", include=sections),
                "prompts": [prompt.text for prompt in self.prompts(policy)],
                "tests": [[source_of(astuple(test)) for test in task.tests] for _, task in self.tasks],
                "max_completion_length": self.params.training.max_completion_length,
                "isolation": self.sandbox.level,
            },
            warn=lambda answers: describe_ends([answer.end for answer in answers]),
        )

    def __call__(self, policy: Policy, *, progress: Progress | None = None) -> list[JudgedAnswer]:
        """Judge the policy on `tasks`.

        Keeps the random state. progress: called with the number of completions written and their total.
        Raises SandboxUnavailable when more than 1% of the programs failed because of the sandbox.
        """
        sampling, tasks, prompts = self.params.evaluation, self.tasks, self.prompts(policy)
        modes = [(True, 1)] + ([(False, sampling.num_samples)] if sampling.temperature else [])
        total = sum(repeats for _, repeats in modes) * len(tasks)
        answers: list[JudgedAnswer] = []

        def count(num_done: int, _: int) -> None:
            if progress:
                progress(len(answers) + num_done, total)

        for greedy, repeats in modes:
            rows = [index for index in range(len(tasks)) for _ in range(repeats)]
            written = generate(
                policy,
                [prompts[row].text for row in rows],
                max_new_tokens=self.params.training.max_completion_length,
                temperature=0.0 if greedy else sampling.temperature,
                batch_size=sampling.batch_size,
                is_complete=ends_of_answers(
                    [prompts[row].prefix for row in rows], [tasks[row][1].function for row in rows]
                ),
                progress=count,
            )
            judgements = judge(
                [completion.text for completion in written],
                [tasks[row][1] for row in rows],
                [prompts[row].prefix for row in rows],
                self.sandbox,
                limits=replace(self.sandbox.limits, cpu_seconds=sampling.timeout_seconds),
            )
            for row, completion, judgement in zip(rows, written, judgements, strict=True):
                split, task = tasks[row]
                answers.append(JudgedAnswer(task.id, task.statement, split, greedy, *completion, judgement))
        FailureCount().add(len(answers), failures_of([answer.judgement for answer in answers]))
        return answers


def measure(
    answers: Sequence[JudgedAnswer], rewards: Sequence[RewardFunction]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return {measure: {split: {task id: mean}}} of MEASURES, for `rlnb.results.compare`.

    The reward, the sum of `rewards`, is that of sampled completions, of greedy ones where none was sampled;
    the output rate is the share that ran and printed, the cut rate that of all which the limit of tokens
    ended before they passed. Completions that the sandbox failed to run are left
    out, and so is a task without any other.
    """
    sampled_any = any(not answer.greedy for answer in answers)
    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for answer in answers:
        earned = compute_reward(answer.judgement, rewards)
        if earned is None:
            continue
        mode, place = "greedy" if answer.greedy else "sampled", (answer.split, answer.task_id)
        values[f"output_rate_{mode}", *place].append(answer.judgement.outcome == "ok_with_output")
        values[f"pass_rate_{mode}", *place].append(answer.judgement.passed)
        values["cut_rate", *place].append(answer.end.is_cut)
        if not (answer.greedy and sampled_any):
            values["reward", *place].append(earned)
    means: dict[str, dict[str, dict[str, float]]] = {name: {} for name in MEASURES}
    for (name, split, task), each in values.items():
        means[name].setdefault(split, {})[task] = fmean(each)
    return means


def heldout_metrics(answers: Sequence[JudgedAnswer], rewards: Sequence[RewardFunction]) -> dict[str, float]:
    """Return the means over tasks under their metric names, `heldout/<split>/<measure>`."""
    return {
        f"heldout/{split}/{name}": sum(tasks.values()) / len(tasks)
        for name, splits in measure(answers, rewards).items()
        for split, tasks in splits.items()
    }


def answer_record(answer: JudgedAnswer) -> dict[str, object]:
    """Return an answer as plain data for results.json."""
    return {
        "task": answer.task_id,
        "split": answer.split,
        "greedy": answer.greedy,
        "completion": answer.completion,
        "cut": answer.end.is_cut,
        "outcome": answer.judgement.outcome,
        "results": answer.judgement.results,
    }
