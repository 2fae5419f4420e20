"""Measure what the embedded model learns about writing programs, for several seeds.

    .venv/bin/python benchmarks/code_seeds.py --json                                   # ten seeds, an hour
    .venv/bin/python benchmarks/code_seeds.py --out outputs/tests_seeds --profile cpu_tests

Each seed is a run of notebooks/grpo_code_execution.ipynb, in a directory of its own, measured on all held-out
tasks without MBPP; finished ones are not run again, interrupted ones go on. The means over seeds have 95%
intervals by bootstrap over tasks, each task's difference averaged over the seeds first.
"""

import json
from collections.abc import Mapping, Sequence
from statistics import fmean

from notebook_seeds import run_seeds, seeds_parser

from rlnb.statistics import bootstrap_difference

Means = dict[tuple[str, str], dict[str, float]]  # {(measure, split): {task: mean}}


def task_means(answers: Sequence[Mapping[str, object]]) -> Means:
    """Return the shares of each task's answers that printed and that passed; answers: of results.json."""
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for answer in answers:
        mode, results = "greedy" if answer["greedy"] else "sampled", answer["results"]
        has_printed = answer["outcome"] == "ok_with_output"
        ran = has_printed or answer["outcome"] == "ok_without_output"
        passed = ran and isinstance(results, list) and bool(results) and all(results)
        for measure, value in ((f"prints, {mode}", has_printed), (f"passes, {mode}", passed)):
            for split in (str(answer["split"]), "all"):
                tasks = values.setdefault((measure, split), {})
                tasks.setdefault(str(answer["task"]), []).append(float(value))
    return {key: {task: fmean(each) for task, each in tasks.items()} for key, tasks in values.items()}


def main() -> None:
    options = seeds_parser(str(__doc__), seeds=list(range(1, 11)), out="code_seeds").parse_args()
    options.assignments[:0] = ["evaluation.num_questions=1000", "mbpp.enabled=false"]
    before, after = [], []
    for seed, results in run_seeds("grpo_code_execution", options):
        before.append(task_means(results["before"]))
        after.append(task_means(results["after"]))
        pairs = ((key, fmean(before[-1][key].values()), fmean(after[-1][key].values())) for key in after[-1])
        print(f"seed {seed}:", *(f"{key[0]}, {key[1]} {old:.2f} > {new:.2f};" for key, old, new in pairs))
    figures = {}
    for key in after[0]:
        old, new = (
            [fmean(run[key][task] for run in runs) for task in after[0][key]] for runs in (before, after)
        )
        gain = bootstrap_difference(old, new)
        figures[", ".join(key)] = {
            "before": fmean(old), "after": fmean(new), "gain": [gain.value, gain.low, gain.high],
            "seeds": [round(fmean(run[key].values()), 3) for run in after],
        }  # fmt: skip
    reached = [
        fmean(run["prints, greedy", "all"].values()) >= 0.9
        and fmean(run["prints, sampled", "all"].values()) >= 0.8
        for run in after
    ]
    if options.json:
        print(json.dumps({"seeds": options.seeds, "num_printing": sum(reached), "figures": figures}))


if __name__ == "__main__":
    main()
