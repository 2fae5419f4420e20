"""How well a policy writes programs for held-out tasks: sampled and greedy, known and new families."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlnb.evaluation.compare import Estimate, bootstrap_difference
from rlnb.machine import rank
from rlnb.params.grpo_code_execution import GrpoCodeExecutionParams
from rlnb.policy import Policy, generate
from rlnb.rewards.code_execution import Judgement, Preset, judge
from rlnb.runs import write_text
from rlnb.sandbox import Sandbox
from rlnb.tasks import Task
from rlnb.tasks.prompts import PromptForm, build_prompt


@dataclass(frozen=True)
class Answer:
    """One judged completion. split: "known" or "new"; greedy: decoded at temperature 0."""

    task: Task
    split: str
    greedy: bool
    completion: str
    judgement: Judgement


@dataclass(frozen=True)
class ProgramEvaluation:
    """What is asked of a policy at every evaluation; the same tasks, prompts and seeds each time.

    splits: held-out tasks by split. num_samples: sampled completions a task beside the greedy one.
    """

    splits: Mapping[str, Sequence[Task]]
    form: PromptForm
    sandbox: Sandbox
    preset: Preset
    printed_example: bool
    num_samples: int
    temperature: float
    max_completion_length: int
    timeout_seconds: float
    batch_size: int = 32
    seed: int = 0

    @classmethod
    def from_params(
        cls, params: GrpoCodeExecutionParams, splits: Mapping[str, Sequence[Task]], sandbox: Sandbox
    ) -> "ProgramEvaluation":
        """What a notebook's parameters ask for."""
        return cls(
            splits=splits,
            form=params.tasks.prompt,
            sandbox=sandbox,
            preset=params.reward.preset,
            printed_example=params.tasks.printed_example,
            num_samples=params.evaluation.num_samples,
            temperature=params.evaluation.temperature,
            max_completion_length=params.training.max_completion_length,
            timeout_seconds=params.evaluation.timeout_seconds,
        )

    def __call__(
        self, policy: Policy, *, num_questions: int, progress: Callable[[int, int], None] | None = None
    ) -> list[Answer]:
        """Judge the policy on the first `num_questions` tasks of each split; keeps the random state.

        progress: called with the number of completions written and their total.
        """
        tasks = [(split, task) for split, members in self.splits.items() for task in members[:num_questions]]
        prompts = [
            build_prompt(task, self.form, policy.tokenizer, printed_example=self.printed_example)
            for _, task in tasks
        ]
        answers: list[Answer] = []
        modes = [(True, 1)] + ([(False, self.num_samples)] if self.temperature else [])
        total = sum(repeats for _, repeats in modes) * len(tasks)
        for greedy, repeats in modes:
            rows = [index for index in range(len(tasks)) for _ in range(repeats)]
            done = len(answers)
            completions = generate(
                policy,
                [prompts[row].text for row in rows],
                max_new_tokens=self.max_completion_length,
                temperature=0.0 if greedy else self.temperature,
                seed=self.seed,
                batch_size=self.batch_size,
                progress=shifted(progress, done, total) if progress else None,
            )
            judged = judge(
                completions,
                [tasks[row][1] for row in rows],
                [prompts[row].prefix for row in rows],
                self.sandbox,
                limits=replace(self.sandbox.limits, cpu_seconds=self.timeout_seconds),
            )
            answers += [
                Answer(tasks[row][1], tasks[row][0], greedy, completion, judgement)
                for row, completion, judgement in zip(rows, completions, judged, strict=True)
            ]
        return answers


def shifted(progress: Callable[[int, int], None], done: int, total: int) -> Callable[[int, int], None]:
    """The progress of a part that begins when `done` of `total` are done."""

    def report(part: int, _: int) -> None:
        progress(done + part, total)

    return report


def measure(answers: Sequence[Answer], preset: Preset) -> dict[str, dict[str, dict[str, float]]]:
    """{measure: {split: {task id: mean}}} of "reward", "pass_rate_sampled" and "pass_rate_greedy".

    The reward is that of sampled completions, of greedy ones where none was sampled. Completions whose reward
    is None (the sandbox failed) are left out; a task without any other is missing.
    """
    measures: dict[str, dict[str, dict[str, list[float]]]] = {
        "reward": {},
        "pass_rate_sampled": {},
        "pass_rate_greedy": {},
    }
    sampled_any = any(not answer.greedy for answer in answers)
    for answer in answers:
        reward = answer.judgement.reward(preset)
        if reward is None:
            continue
        passed = float(answer.judgement.passed)
        names = (
            {"pass_rate_greedy": passed} if answer.greedy else {"reward": reward, "pass_rate_sampled": passed}
        )
        if answer.greedy and not sampled_any:
            names["reward"] = reward
        for name, value in names.items():
            measures[name].setdefault(answer.split, {}).setdefault(answer.task.id, []).append(value)
    return {
        name: {split: {task: sum(v) / len(v) for task, v in tasks.items()} for split, tasks in splits.items()}
        for name, splits in measures.items()
    }


def heldout_metrics(answers: Sequence[Answer], preset: Preset) -> dict[str, float]:
    """The means under their metric names, `heldout/<split>/<measure>`."""
    return {
        f"heldout/{split}/{name}": sum(tasks.values()) / len(tasks)
        for name, splits in measure(answers, preset).items()
        for split, tasks in splits.items()
    }


def compare(before: Sequence[Answer], after: Sequence[Answer], preset: Preset) -> list[dict[str, Any]]:
    """A row a measure and split, "all" splits first: before, after, difference and its interval.

    Only tasks that were measured both times count.
    """
    rows = []
    first, second = measure(before, preset), measure(after, preset)
    for name in first:
        splits = {split: list(tasks) for split, tasks in first[name].items()}
        for split in ["all", *splits]:
            pairs = [
                (first[name][part][task], second[name][part][task])
                for part in (splits if split == "all" else [split])
                for task in splits[part]
                if task in second[name].get(part, {})
            ]
            if not pairs:
                continue
            old, new = zip(*pairs, strict=True)
            difference: Estimate = bootstrap_difference(old, new)
            rows.append(
                {
                    "measure": name,
                    "split": split,
                    "num_tasks": len(pairs),
                    "before": sum(old) / len(old),
                    "after": sum(new) / len(new),
                    "difference": difference.value,
                    "low": difference.low,
                    "high": difference.high,
                }
            )
    return rows


def save_results(
    path: str | Path, params: GrpoCodeExecutionParams, before: Sequence[Answer], after: Sequence[Answer]
) -> None:
    """Write parameters, comparison and every answer as JSON, whole or not at all."""
    results = {
        "params": params.model_dump(mode="json"),
        "comparison": compare(before, after, params.reward.preset),
        "before": [answer_record(answer) for answer in before],
        "after": [answer_record(answer) for answer in after],
    }
    if rank() == 0:
        write_text(Path(path), json.dumps(results, indent=1) + "\n")


def answer_record(answer: Answer) -> dict[str, Any]:
    """An answer as plain data."""
    return {
        "task": answer.task.id,
        "split": answer.split,
        "greedy": answer.greedy,
        "completion": answer.completion,
        "outcome": answer.judgement.outcome,
        "results": answer.judgement.results,
    }
