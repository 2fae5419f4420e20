"""Whatever a program does, its run ends, says how, and leaves nothing behind."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from waiting import run_python

from rlnb.errors import SandboxUnavailable
from rlnb.sandbox import Limits, Sandbox

FAST = Limits(cpu_seconds=0.5)


PROGRAMS = {
    "prints": ("print(6 * 7)", "ok", "42\n"),
    "is silent": ("x = 1", "ok", ""),
    "leaves by exit code 3": ("raise SystemExit(3)", "runtime_error", ""),
    "leaves with a message": ("import sys; sys.exit('so long')", "runtime_error", ""),
    "holds a lone surrogate": ("x = '\ud800'", "syntax_error", ""),
    "is a long sum": ("x = 1" + "+1" * 100_000, "syntax_error", ""),
    "prints a huge integer": ("print(10 ** 5000)", "runtime_error", ""),
    "prints a lone surrogate": ("print('\\ud800')", "ok", "\\ud800\n"),
    "reads all input": ("import sys; print(repr(sys.stdin.read()))", "ok", "''\n"),
    "replaces its output": ("import sys, io; sys.stdout = io.StringIO(); print(1)", "ok", ""),
    "leaves a thread working": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(.1), print(2))).start()", "ok", "2\n"),
    "leaves a thread without threading": (
        "import _thread, time\n_thread.start_new_thread(time.sleep, (.2,))\nprint(1)", "ok", "1\n"),
    "starts many threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(16) as pool: print(sum(pool.map(abs, range(-9, 0))))", "ok", "45\n"),
    "resolves its own annotations": (
        "from __future__ import annotations\nimport typing\nclass A: pass\n"
        "def f(a: A): pass\nprint(typing.get_type_hints(f)['a'].__name__)", "ok", "A\n"),
    "writes to its folder": ("open('a', 'w').write('x'); print(open('a').read())", "ok", "x\n"),
    "writes to /dev/null": ("import os\nwith open(os.devnull, 'w') as f: print(1, file=f)", "ok", ""),
    "leaves nested folders": ("import os\nfor _ in range(999): os.mkdir('d'), os.chdir('d')", "ok", ""),
    "leaves a folder that cannot be read": ("import os; os.mkdir('d', 0); print(1)", "ok", "1\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that(name, sandbox):
    program, status, stdout = PROGRAMS[name]
    execution = sandbox.run(program)
    assert (execution.status, execution.stdout) == (status, stdout), execution


def test_programs_that_only_sleep_do_not_wait_for_one_another():
    running, most = threading.Semaphore(12), []

    class Counting(Sandbox):
        def run_here(self, *job):
            with running:
                most.append(12 - running._value)
                return super().run_here(*job)

    with Counting(Limits(cpu_seconds=0.1), num_workers=2) as sandbox:
        executions = sandbox.run_many([f"import time; time.sleep({99 + n})" for n in range(12)])
    assert [execution.status for execution in executions] == ["timeout"] * 12
    assert max(most) > 2


def test_it_is_told_how_a_program_ended_that_closes_its_streams_or_compiles_for_ever(sandbox):
    closes = "import os, time\nos.close(1); os.close(2); time.sleep(.1); os._exit(3)"
    compiles = "x = [1, 2, y]\n" * 200_000
    closed, compiled = sandbox.run_many([closes, compiles], limits=Limits(cpu_seconds=0.2))
    assert (closed.status, closed.error) == ("runtime_error", "exit code 3")
    assert (compiled.status, compiled.error) == ("timeout", "time limit while compiling")


def test_output_just_over_the_limit_counts_although_the_program_has_ended(sandbox):
    execution = sandbox.run("print('x' * 1024, end='y')", limits=Limits(output_kib=1))
    assert (execution.status, execution.stdout) == ("output_exceeded", "x" * 1024)


def test_what_a_compiler_warns_of_is_no_output(sandbox):
    doubtful = "".join(f"x = {number} is {number}\n" for number in range(2000))
    execution = sandbox.run(doubtful + "print(x)", limits=Limits(output_kib=1))
    assert (execution.status, execution.stdout, execution.stderr) == ("ok", "True\n", "")


def test_a_program_sees_neither_the_environment_nor_the_packages_of_this_process(sandbox, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    execution = sandbox.run("import os, sys; print(sorted(os.environ), sys.argv, sys.path)")
    for text in ("WANDB_API_KEY", "site-packages", "rlnb/sandbox"):
        assert text not in execution.stdout


def test_a_traceback_shows_the_program_alone(sandbox):
    execution = sandbox.run("def f():\n    raise KeyError('k')\nf()")
    assert execution.stderr.splitlines() == [
        "Traceback (most recent call last):",
        '  File "<program>", line 3, in <module>',
        '  File "<program>", line 2, in f',
        "KeyError: 'k'",
    ]
    assert execution.error == "KeyError: 'k'"


def test_memory_is_the_programs_own_and_not_this_process(sandbox):
    ballast = bytearray(b"x") * (200 * 2**20)
    execution = sandbox.run("x = bytearray(b'x') * (40 * 2 ** 20)\nimport time; time.sleep(0.3)")
    assert len(ballast) / 2**20 == 200
    assert 40 < execution.peak_memory_mib < 100


def test_a_program_holds_no_descriptor_however_many_its_trainer_has():
    trainers = [os.open(os.devnull, os.O_RDONLY) for _ in range(200)]
    look = (
        "import os\nheld = []\nfor fd in range(2000):\n"
        "    try: os.fstat(fd); held.append(fd)\n    except OSError: pass\nprint(held)"
    )
    try:
        with Sandbox(num_workers=1) as later:
            assert later.run(look).stdout == "[0, 1, 2]\n"
    finally:
        for descriptor in trainers:
            os.close(descriptor)


def test_progress_is_told_in_this_thread(sandbox):
    told = []
    programs = [f"x = {number}" for number in (1, 2, 3, 4, 4)]
    sandbox.run_many(programs, progress=lambda *done: told.append((*done, threading.current_thread())))
    counts, totals, threads = zip(*told, strict=True)
    steps = [after - before for before, after in pairwise((0, *counts))]
    assert sorted(steps) == [1, 1, 1, 2]  # equal programs run once
    assert set(totals) == {5}
    assert set(threads) == {threading.current_thread()}


def test_threads_share_a_sandbox(sandbox):
    def use(number: int) -> list[str]:
        return [run.stdout for run in sandbox.run_many([f"print({number} * {i})" for i in range(10)])]

    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(use, range(4)))
    assert outputs == [[f"{number * i}\n" for i in range(10)] for number in range(4)]


def test_a_closed_sandbox_says_so():
    sandbox = Sandbox(num_workers=1)
    sandbox.close()
    sandbox.close()
    for act in (sandbox.run, sandbox.load):
        with pytest.raises(SandboxUnavailable, match="closed"):
            act("print(1)")


def test_a_job_of_a_cluster_uses_the_cores_that_it_was_given(monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    with Sandbox(require="none") as sandbox:
        assert sandbox.num_workers == 1


def test_a_large_limit_of_the_stack_leaves_a_programs_threads_room():
    code = (
        "import resource\nresource.setrlimit(resource.RLIMIT_STACK, (2**30, resource.RLIM_INFINITY))\n"
        "from rlnb.sandbox import Sandbox\nwith Sandbox(num_workers=1) as sandbox:\n"
        "    print(sandbox.run('import threading; threading.Thread(target=int).start()'))"
    )
    assert run_python(code, timeout=120).stdout.startswith("Execution(status='ok'")
