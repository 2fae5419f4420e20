"""What the time of one trivial program is made of: microseconds and page faults, part by part.

A copy of the zygote's scripts writes down the clock and its page faults after each part; medians are shown,
of one worker. `fork` reaches from the call to the child's first line, `outside` is what the caller waits for
beyond the child's parts: its exit, the wait, pipes, the answer, the trainer's own work. `floor` is a fork,
exit and wait in the same interpreter, which `fork` and `outside` contain. `layers` is what a program saves
in a sandbox without one of them. A child's first touch of a page costs a fault, so most parts are faults.
"""

import ast
import functools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import timing
from peers import Server
from sandbox import FLOOR, by_floor, check, programs

from rlnb.sandbox import Sandbox, zygotes

MARKS = """
import time as _time
_marks = []
def _mark(part):
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _marks.append((part, _time.perf_counter_ns(), usage.ru_minflt))
"""
# (script, a line of it, whether the mark goes before or after it, the part that ends there)
PLACES = (
    (
        "_zygote.py",
        "    (out_read, out_write), (error_read, error_write) = os.pipe(), os.pipe()\n",
        "after",
        "start",
    ),
    ("_child.py", "        for descriptor, stream in enumerate(streams, start=1):\n", "before", "fork"),
    ("_child.py", "        lock_down(zygote, job)\n", "before", "streams"),
    ("_child.py", '    _layers.limit_resources(job["rlimits"])\n', "after", "limits"),
    ("_child.py", "        lock_down(zygote, job)\n", "after", "seccomp"),
    ("_child.py", "        warnings.filters.remove(QUIET)", "before", "compile"),
    ("_child.py", "    gc.enable()\n", "after", "letter, descriptors"),
    ("_child.py", "        exec(code, vars(program))\n", "before", "module"),
    ("_child.py", "        exec(code, vars(program))\n", "after", "run"),
    ("_child.py", "        leave(exit_code)\n", "before", "end"),
)
LAYERS = ("namespaces", "process", "limits", "files", "system calls")


@contextmanager
def marked_scripts() -> Iterator[None]:
    """Let zygotes run copies of their scripts that print the marks as the last line of standard error."""
    original = zygotes.SCRIPT
    with tempfile.TemporaryDirectory() as folder:
        for script in Path(original).parent.glob("_*.py"):
            shutil.copy(script, folder)
        child = Path(folder, "_child.py")
        child.write_text(child.read_text().replace("import _codec\n", f"{MARKS}\nimport _codec\n", 1))
        for script, line, side, part in PLACES:
            path, indent = Path(folder, script), line[: len(line) - len(line.lstrip())]
            owner = "_child." if script == "_zygote.py" else ""
            mark = f"{indent}{owner}_mark({part!r})\n"
            if part == "start":
                mark = f"{indent}_child._marks.clear()\n{mark}"
            if part == "end":
                mark += f"{indent}os.write(2, repr(_marks).encode())\n"
            text = path.read_text()
            if line not in text:
                raise SystemExit(f"{script} has changed: it holds no line {line!r}; adapt PLACES")
            path.write_text(text.replace(line, mark + line if side == "before" else line + mark, 1))
        zygotes.SCRIPT = str(Path(folder, "_zygote.py"))
        try:
            yield
        finally:
            zygotes.SCRIPT = original


def parts(count: int) -> dict[str, dict[str, float]]:
    """Return the medians of each part of a program: {part: {"us": ..., "faults": ...}}."""
    with marked_scripts(), Sandbox(num_workers=1, require="none") as sandbox:
        sandbox.run_many(programs(20))
        executions = sandbox.run_many(programs(count))
    check([execution.stdout for execution in executions])
    seen: dict[str, list[tuple[float, int]]] = {}
    for execution in executions:
        marks = ast.literal_eval(execution.stderr.rpartition("\n")[2])
        for (_, before, faults_before), (part, after, faults) in zip(marks, marks[1:], strict=False):
            num_faults = (
                faults if part == "fork" else faults - faults_before
            )  # a child's count begins at zero
            seen.setdefault(part, []).append(((after - before) / 1e3, num_faults))
    return {
        part: {
            "us": statistics.median(us for us, _ in pairs),
            "faults": statistics.median(f for _, f in pairs),
        }
        for part, pairs in seen.items()
    }


def rate_of(sandbox: Sandbox, count: int) -> list[float]:
    started = time.perf_counter()
    executions = sandbox.run_many(programs(count))
    seconds = (time.perf_counter() - started) / count
    check([execution.stdout for execution in executions])
    return [seconds] * count


def main() -> None:
    with ExitStack() as stack:
        choices = {"whole": (), **{layer: (layer,) for layer in LAYERS}}
        sandboxes = {
            name: stack.enter_context(Sandbox(num_workers=1, require="none", without=without))
            for name, without in choices.items()
        }
        floor = Server(zygotes.INTERPRETER, "-P", "-s", "-S", "-c", FLOOR, os.path.dirname(zygotes.SCRIPT))
        contestants: dict[str, timing.Contestant] = {
            name: functools.partial(rate_of, sandbox, 100) for name, sandbox in sandboxes.items()
        }
        contestants["floor"] = functools.partial(by_floor, [floor], 200)
        results = timing.interleave(contestants, rounds=15)
    us = {name: 1e3 * result["p50_ms"] for name, result in results.items()}
    found = parts(400)
    found["outside"] = {"us": us["whole"] - sum(part["us"] for part in found.values()), "faults": 0}
    figures: dict[str, object] = {"program_us": round(us["whole"]), "floor_us": round(us["floor"])}
    figures["vs_floor"] = round(us["whole"] / us["floor"], 2)
    figures["parts"] = {
        name: {key: round(value) for key, value in part.items()} for name, part in found.items()
    }
    figures["layers"] = {layer: round(us["whole"] - us[layer]) for layer in LAYERS}
    timing.report(figures, description=__doc__ or "")


if __name__ == "__main__":
    main()
