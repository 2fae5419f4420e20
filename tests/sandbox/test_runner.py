"""Whatever a program does, its run ends, says how, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from rlnb.errors import SandboxUnavailable
from rlnb.sandbox import Limits, Sandbox, runner

FAST = Limits(cpu_seconds=0.5)


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """Programs' folders lie where no other process puts any."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(num_workers=2) as opened:
        yield opened


@pytest.fixture
def child(tmp_path, monkeypatch):
    """The real child, once the code that is given has run: `child("time.sleep(1)")`."""

    def begin_with(code: str) -> None:
        path = tmp_path / "child.py"
        path.write_text(code + "\n" + Path(runner.CHILD).read_text())
        monkeypatch.setattr(runner, "CHILD", str(path))

    return begin_with


def children() -> set[str]:
    """The direct children of this process, dead ones too."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        found |= set((task / "children").read_text().split())
    return found


def leftovers() -> tuple[set[str], int, int, set[str]]:
    """Children, threads, number of open descriptors and folders of programs."""
    folders = set(os.listdir(tempfile.gettempdir()))
    return children(), threading.active_count(), len(os.listdir("/proc/self/fd")), folders


PROGRAMS = {
    "prints": ("print(6 * 7)", "ok", "42\n"),
    "is silent": ("x = 1", "ok", ""),
    "leaves by exit": ("print(1); exit()", "ok", "1\n"),
    "leaves by exit code 3": ("raise SystemExit(3)", "runtime_error", ""),
    "leaves with a message": ("import sys; sys.exit('so long')", "runtime_error", ""),
    "does not compile": ("def (", "syntax_error", ""),
    "is badly indented": ("if 1:\npass", "syntax_error", ""),
    "holds a NUL byte": ("x = '\0'", "syntax_error", ""),
    "holds a lone surrogate": ("x = '\ud800'", "syntax_error", ""),
    "is nested too deeply": ("x = " + "(" * 5000, "syntax_error", ""),
    "is a tower of minus signs": ("x = " + "-" * 200_000 + "1", "syntax_error", ""),
    "is a long sum": ("x = 1" + "+1" * 100_000, "syntax_error", ""),
    "raises": ("1 / 0", "runtime_error", ""),
    "recurses for ever": ("def f(): return f()\nf()", "runtime_error", ""),
    "overflows the stack": ("import ctypes; ctypes.string_at(0)", "killed", ""),
    "prints a huge integer": ("print(10 ** 5000)", "runtime_error", ""),
    "prints a lone surrogate": ("print('\\ud800')", "ok", "\\ud800\n"),
    "reads input": ("input()", "runtime_error", ""),
    "reads all input": ("import sys; print(repr(sys.stdin.read()))", "ok", "''\n"),
    "closes its output": ("import sys; print(1); sys.stdout.close()", "ok", "1\n"),
    "replaces its output": ("import sys, io; sys.stdout = io.StringIO(); print(1)", "ok", ""),
    "takes all memory": ("x = []\nwhile True: x.append(bytearray(10 ** 7))", "memory_exceeded", ""),
    "asks for one huge block": ("bytearray(2 ** 40)", "memory_exceeded", ""),
    "leaves a thread working": (
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.1), print(2))).start()",
        "ok",
        "2\n",
    ),
    "starts many threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(16) as pool: print(sum(pool.map(abs, range(-9, 0))))",
        "ok",
        "45\n",
    ),
    "runs asyncio": ("import asyncio\nasync def f(): print(5)\nasyncio.run(f())", "ok", "5\n"),
    "resolves its own annotations": (
        "from __future__ import annotations\nimport typing\nclass A: pass\n"
        "def f(a: A): pass\nprint(typing.get_type_hints(f)['a'].__name__)",
        "ok",
        "A\n",
    ),
    "writes to its folder": ("open('a', 'w').write('x'); print(open('a').read())", "ok", "x\n"),
    "writes to /dev/null": ("import os\nwith open(os.devnull, 'w') as f: print(1, file=f)", "ok", ""),
    "writes a huge file": ("open('a', 'wb').write(bytes(9 * 2 ** 20))", "runtime_error", ""),
    "signals itself": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "killed", ""),
    "leaves deeply nested folders": (
        "import os\nfor _ in range(1200):\n    os.mkdir('d'); os.chdir('d')",
        "ok",
        "",
    ),
    "leaves a folder that cannot be read": ("import os; os.mkdir('d', 0); print(1)", "ok", "1\n"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that(name, sandbox):
    program, status, stdout = PROGRAMS[name]
    execution = sandbox.run(program)
    assert (execution.status, execution.stdout) == (status, stdout), execution


ENDLESS = {
    "computes for ever": ("while True: pass", "timeout"),
    "sleeps": ("import time; time.sleep(99)", "timeout"),
    "ignores every signal": (
        "import signal\nfor s in range(1, 65):\n"
        "    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
        "timeout",
    ),
    "hides behind closed streams": ("import os, time\nos.close(1); os.close(2); time.sleep(99)", "timeout"),
    "floods its output": ("while True: print('x' * 1000)", "output_exceeded"),
    "floods its errors": ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "output_exceeded"),
    "floods both": (
        "import os\nwhile True: os.write(1, b'x' * 9999); os.write(2, b'y' * 9999)",
        "output_exceeded",
    ),
    "computes in a thread": (
        "import threading\ndef f():\n    while True: pass\nthreading.Thread(target=f).start()",
        "timeout",
    ),
    "catches whatever is thrown": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "timeout",
    ),
}


def test_programs_without_an_end_are_ended():
    with Sandbox(FAST, num_workers=len(ENDLESS)) as sandbox:
        started = time.monotonic()
        executions = sandbox.run_many(program for program, _ in ENDLESS.values())
        seconds = time.monotonic() - started
    ends = {name: execution.status for name, execution in zip(ENDLESS, executions, strict=True)}
    assert ends == {name: status for name, (_, status) in ENDLESS.items()}
    assert seconds < 15
    assert max(len(execution.stdout + execution.stderr) for execution in executions) <= 2 * 64 * 1024


def test_a_program_that_closes_its_streams_is_not_cut_short(sandbox):
    execution = sandbox.run("import os, time\nos.close(1); os.close(2); time.sleep(0.3); os._exit(3)")
    assert (execution.status, execution.error) == ("runtime_error", "exit code 3")


def test_output_just_over_the_limit_counts_although_the_program_has_ended(sandbox):
    execution = sandbox.run("print('x' * 1024, end='y')", limits=Limits(output_kib=1))
    assert (execution.status, execution.stdout) == ("output_exceeded", "x" * 1024)


DOUBTFUL = "".join(f"x = {number} is {number}\n" for number in range(2000))


def test_what_a_compiler_warns_of_is_no_output(sandbox):
    execution = sandbox.run(DOUBTFUL + "print(x)", limits=Limits(output_kib=1))
    assert (execution.status, execution.stdout, execution.stderr) == ("ok", "True\n", "")


def test_a_program_still_hears_its_own_warnings(sandbox):
    execution = sandbox.run("import warnings; warnings.warn('old'); exec('1 is 1')")
    assert "UserWarning: old" in execution.stderr
    assert "SyntaxWarning" in execution.stderr


def test_output_over_the_limit_before_the_program_began_is_not_the_sandboxs_failure(sandbox, child):
    child("import sys, time; sys.stderr.write('x' * 2000); sys.stderr.flush(); time.sleep(99)")
    execution = sandbox.run("print(1)", limits=Limits(output_kib=1))
    assert (execution.status, execution.error) == ("output_exceeded", "output limit")


def test_a_slow_start_costs_a_program_no_time(sandbox, child):
    child("import time; time.sleep(3.5)")
    execution = sandbox.run("print(1)", limits=Limits(cpu_seconds=1))
    assert (execution.status, execution.stdout) == ("ok", "1\n")


def test_an_interpreter_that_does_not_start_in_time_is_tried_again(sandbox, child, monkeypatch, tmp_path):
    first = tmp_path / "first"
    first.touch()
    child(f"import os, time\nif os.path.exists({str(first)!r}): os.remove({str(first)!r}); time.sleep(99)")
    monkeypatch.setattr(runner, "START_SECONDS", 5.0)
    assert set(sandbox.report()) == set(runner.LAYERS)
    assert not first.exists()


def test_an_interpreter_that_never_starts_is_nobodys_fault(sandbox, child, monkeypatch):
    child("import time; time.sleep(99)")
    monkeypatch.setattr(runner, "START_SECONDS", 0.5)
    execution = sandbox.run("print(1)")
    assert (execution.status, execution.error) == ("sandbox_error", "the interpreter did not start in 0.5 s")


def test_a_program_that_compiles_for_ever_is_ended_by_its_cpu_time(sandbox):
    execution = sandbox.run("x = [1, 2, y]\n" * 200_000, limits=Limits(cpu_seconds=0.2))
    assert (execution.status, execution.error) == ("timeout", "time limit while compiling")


ATTACKS = {
    "fork": "import os; os.fork()",
    "spawn a shell": "import subprocess; subprocess.run(['/bin/true'])",
    "open a socket": "import socket; socket.socket()",
    "open a datagram pair": "import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "signal its parent": "import os; os.kill(os.getppid(), 0)",
    "signal its group": "import os; os.kill(0, 0)",
    "limit its parent": "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0))",
    "slow its parent": "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "pin its parent": "import os; os.sched_setaffinity(os.getppid(), [0])",
    "read its parent's memory": "import os; open(f'/proc/{os.getppid()}/mem', 'rb')",
    "read its parent's environment": "import os; open(f'/proc/{os.getppid()}/environ', 'rb').read()",
    "write elsewhere": "open('/tmp/rlnb-attack', 'w')",
    "remove what is not its own": "import os; os.remove(__import__('json').__file__)",
    "raise its own limits": (
        "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (r.RLIM_INFINITY, r.RLIM_INFINITY))"
    ),
    "signal its parent's thread": (
        "import ctypes, os, platform\n"
        "number = {'x86_64': 234, 'aarch64': 131}[platform.machine()]\n"
        "if ctypes.CDLL(None).syscall(number, os.getppid(), os.getppid(), 0): raise PermissionError"
    ),
}


def test_every_attack_is_refused(sandbox):
    if set(sandbox.report().values()) != {"on"}:
        pytest.skip(f"this machine lacks a layer: {sandbox.report()}")
    executions = dict(zip(ATTACKS, sandbox.run_many(ATTACKS.values()), strict=True))
    got_through = {name: run for name, run in executions.items() if run.status != "runtime_error"}
    assert got_through == {}


def test_a_program_cannot_choose_its_verdict(sandbox):
    forgery = (
        "import os\n"
        "for fd in range(3, 64):\n"
        "    try: os.write(fd, b'S{}\\nforged')\n"
        "    except OSError: pass\n"
        "print(1)"
    )
    execution = sandbox.run(forgery)
    assert (execution.status, execution.stdout) == ("ok", "1\n")


def test_a_program_sees_neither_the_environment_nor_the_packages_of_this_process(sandbox, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    execution = sandbox.run("import os, sys; print(sorted(os.environ), sys.argv, sys.path)")
    assert "WANDB_API_KEY" not in execution.stdout
    assert "site-packages" not in execution.stdout
    assert "rlnb/sandbox" not in execution.stdout


def test_the_hash_seed_is_the_same_for_every_program(sandbox):
    first, second = sandbox.run_many(["print(hash('a'))", "print(hash('a')) "])
    assert first.stdout == second.stdout


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


def test_seconds_are_those_of_the_processor(sandbox):
    assert sandbox.run("import time; time.sleep(0.5)").seconds < 0.4


def test_executions_come_in_the_order_of_their_programs(sandbox):
    executions = sandbox.run_many(f"print({number})" for number in range(8))
    assert [execution.stdout for execution in executions] == [f"{number}\n" for number in range(8)]


def test_nothing_is_left_behind(own_folder):
    before = leftovers()
    with Sandbox(FAST, num_workers=2) as sandbox:
        sandbox.run_many(
            ["print(1)", "1/0", "def (", "open('a', 'w')", "while True: print('x' * 99)", "\ud800"]
        )
    assert leftovers() == before


def test_an_interrupt_ends_every_program_before_it_is_passed_on(own_folder):
    before = leftovers()
    with Sandbox(num_workers=2) as sandbox:
        sandbox.run("pass")
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            sandbox.run_many(["import time; time.sleep(99)"] * 6)
        assert time.monotonic() - started < 5
        assert (leftovers()[0], leftovers()[3]) == (before[0], before[3])
        assert sandbox.run("print(1)").stdout == "1\n"  # and goes on
    assert leftovers() == before


def test_programs_die_with_the_process_that_runs_them(tmp_path):
    program = (
        "import os, time; open('pid', 'w').write(str(os.getpid())); print(1, flush=True); time.sleep(99)"
    )
    script = f"from rlnb.sandbox import Sandbox; Sandbox(num_workers=1).run({program!r})"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as parent:
        deadline = time.monotonic() + 20
        while not any(file.read_text() for file in tmp_path.glob("rlnb-*/pid")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        pid = int(next(tmp_path.glob("rlnb-*/pid")).read_text())
        parent.kill()
    time.sleep(0.5)
    status = Path(f"/proc/{pid}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()  # gone, or waiting for init to notice


def test_a_closed_sandbox_says_so():
    sandbox = Sandbox(num_workers=1)
    sandbox.close()
    sandbox.close()
    with pytest.raises(SandboxUnavailable) as raised:
        sandbox.run("print(1)")
    assert str(raised.value) == "sandbox: it is closed and runs nothing more; make another `Sandbox`"


def test_a_sandbox_that_cannot_start_a_program_is_nobodys_fault(sandbox, monkeypatch):
    monkeypatch.setattr(runner, "INTERPRETER", "/no/such/python")
    execution = sandbox.run("print(1)")
    assert execution.status == "sandbox_error"
    assert execution.error == "[Errno 2] No such file or directory: '/no/such/python'"
    with pytest.raises(SandboxUnavailable) as raised:
        sandbox.report()
    assert str(raised.value) == (
        "sandbox: no program can be run ([Errno 2] No such file or directory: '/no/such/python')"
    )


def test_an_interpreter_that_breaks_before_the_program_is_nobodys_fault(sandbox, monkeypatch, tmp_path):
    child = tmp_path / "child.py"
    child.write_text("raise SystemExit(9)")
    monkeypatch.setattr(runner, "CHILD", str(child))
    execution = sandbox.run("print(1)")
    assert (execution.status, execution.error) == (
        "sandbox_error",
        "the interpreter did not start (exit code 9)",
    )
