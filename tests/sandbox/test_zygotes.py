"""Zygotes start, end and are replaced, and leave no process, descriptor, thread or folder."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from patched import patch_script
from processes import belongings, children_of, interrupted, programs
from waiting import is_running, run_python, wait_for

from rlnb.errors import SandboxUnavailable
from rlnb.sandbox import Limits, Reruns, Sandbox, zygotes

FAST = Limits(cpu_seconds=0.5)


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """Programs' folders lie where no other process puts any."""
    zygotes.load_library()  # which this process then keeps open
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def descendants_of(pid: str) -> set[str]:
    """The running children of a process, theirs, and so on: its zygotes' keepers, zygotes, programs.

    A keeper that has ended is there still, until its sandbox lets another zygote go.
    """
    running = filter(is_running, children_of(pid))
    return set().union(*({child, *descendants_of(child)} for child in running))


@pytest.fixture
def nothing_left(own_folder):
    """What the test leaves behind makes it fail; what earlier tests left may end meanwhile."""
    before, folders = belongings(), os.listdir(tempfile.gettempdir())
    yield
    assert belongings() - before == set()
    assert os.listdir(tempfile.gettempdir()) == folders


def test_nothing_is_left_behind(nothing_left):
    with Sandbox(FAST, num_workers=2) as sandbox:
        sandbox.run_many(["1/0", "def (", "open('a', 'w')", "while True: print('x' * 99)", "\ud800"])


def test_zygotes_that_start_together_leave_each_others_folders(own_folder, monkeypatch):
    make, removed = tempfile.mkdtemp, []

    def make_slowly(**options):
        folder = make(**options)
        time.sleep(0.02)  # it is not locked yet
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", make_slowly)
    monkeypatch.setattr(zygotes, "start_removal", lambda folder, _: removed.append(folder))
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: zygotes.make_folder(), range(8)))
    for _, lock in made:
        os.close(lock)
    assert removed == []


@pytest.mark.parametrize(("kind", "options"), [(Sandbox, {}), (Reruns, {"num_interpreters": 3})])
def test_an_interrupt_ends_every_program_before_it_is_passed_on(kind, options, nothing_left):
    with kind(num_workers=2, **options) as opened:
        with interrupted():
            opened.run_many([f"import time; time.sleep({90 + number})" for number in range(6)])
        assert programs() == set()
        (last,) = opened.run_many(["print(1)"])  # and goes on
        assert getattr(last, "execution", last).stdout == "1\n" and not getattr(last, "difference", "")


@pytest.mark.parametrize(
    ("kind", "owner", "name"), [(Sandbox, ThreadPoolExecutor, "submit"), (Reruns, threading.Thread, "start")]
)
def test_an_interrupt_while_a_worker_starts_ends_its_program_as_well(kind, owner, name, monkeypatch):
    """Only after its start is a thread listed, and only after its submission a worker."""
    act = getattr(owner, name)

    def act_and_interrupt(*args):
        act(*args)
        wait_for(programs)
        raise KeyboardInterrupt

    with kind(num_workers=1) as sandbox:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, name, act_and_interrupt)
            sandbox.run_many(["import time; time.sleep(90)"])
        assert programs() == set()


@pytest.mark.parametrize("without", [(), ("namespaces",), ("namespaces", "files", "system calls")])
def test_programs_and_zygotes_die_with_the_process_that_runs_them(tmp_path, without):
    script = (
        "from rlnb.sandbox import Limits, Sandbox\n"
        f"sandbox = Sandbox(Limits(99), num_workers=1, require='none', without={without!r})\n"
        "print('ready', flush=True)\n"
        "sandbox.run('import time; time.sleep(99)')"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"ready\n"
        wait_for(lambda: len(descendants_of(str(parent.pid))) == 3)
        family = descendants_of(str(parent.pid))
        parent.kill()
    wait_for(lambda: not any(map(is_running, family)))
    wait_for(lambda: os.listdir(tmp_path) == [])


def test_a_folder_that_a_killed_process_left_goes_with_the_next_sandbox(own_folder, tmp_path):
    """Its zygote's keeper removes it, unless that was killed too."""
    left = tmp_path / f"{zygotes.FOLDER_PREFIX}abcdefgh"
    left.mkdir()
    with Sandbox(num_workers=1) as first:
        wait_for(lambda: not left.exists())
        with Sandbox(num_workers=1):
            assert first.run("open('a', 'w')").status == "ok"  # the other one's folder stays
    assert os.listdir(tmp_path) == []


def test_a_zygote_that_is_killed_while_it_waits_or_runs_a_program_is_replaced(own_folder):
    before = children_of("self")
    with Sandbox(num_workers=1) as sandbox:
        (zygote,) = children_of("self") - before
        os.kill(int(zygote), signal.SIGKILL)
        wait_for(lambda: not is_running(zygote))
        assert sandbox.run("print(1)").stdout == "1\n"
        (zygote,) = children_of("self") - before
        threading.Timer(0.5, os.kill, (int(zygote), signal.SIGKILL)).start()
        executions = sandbox.run_many(["import time; time.sleep(1); print(1)", "print(2)"])
    assert [execution.stdout for execution in executions] == ["1\n", "2\n"]


def test_a_program_that_kills_its_zygotes_has_itself_to_blame(monkeypatch, tmp_path):
    """Where it can, that is without a namespace of processes: there nothing can kill the first one."""
    kill = "import os; os.kill(os.getppid(), 9); print(1)"
    with Sandbox(num_workers=1, require="basic", without=("files", "system calls")) as sandbox:
        assert sandbox.run(kill).stdout == "1\n"
    patch_script(monkeypatch, tmp_path, "_zygote.py", "and _variation is None:", "and False:")
    with Sandbox(num_workers=1, require="basic", without=("files", "system calls")) as sandbox:
        execution = sandbox.run(kill)
    assert (execution.status, execution.error) == ("killed", "its zygote was lost: it ended")


def test_a_machine_that_starts_no_interpreter_is_named_and_nobodys_fault(monkeypatch, nothing_left):
    with Sandbox(num_workers=1) as sandbox:
        sandbox._idle.pop().close()
        monkeypatch.setattr(zygotes, "INTERPRETER", "/no/such/python")
        execution = sandbox.run("print(1)")
    assert execution.status == "sandbox_error" and "/no/such/python" in execution.error
    with pytest.raises(SandboxUnavailable, match="/no/such/python"):
        Sandbox(num_workers=1)


def test_removing_what_a_program_left_holds_no_worker(monkeypatch, tmp_path, own_folder):
    go = tmp_path / "go"
    (tmp_path / "scripts").mkdir()
    removes = 'os.execv("/bin/rm"'
    waits = f'while not os.path.exists("{go}"): time.sleep(0.05)\n        {removes}'
    patch_script(monkeypatch, tmp_path / "scripts", "_keeper.py", removes, waits)
    with Sandbox(num_workers=1, without=("namespaces",)) as sandbox:
        folder = sandbox._idle[-1].folder
        assert sandbox.run("open('left', 'w')").status == "ok"
        assert sandbox.run("import os; print(os.listdir())").stdout == "[]\n"
        assert os.listdir(folder) == ["left"]
        go.touch()
    assert not os.path.exists(folder)


NO_DESCRIPTORS = """
import contextlib, os, resource
from rlnb.errors import SandboxUnavailable
from rlnb.sandbox import Reruns, Sandbox, check_tests

acts = {
    "load": lambda: sandbox.load("def f(x): return x"),
    "check_tests": lambda: check_tests(sandbox, "def f(x): return x", ["assert f(2) == 2"], functions=["f"]),
    "run, of an idle one": lambda: sandbox.run("open('a', 'w')"),
    "run, of a new one": lambda: sandbox.run("print(1)"),
    "run_many": lambda: sandbox.run_many(["print(1)", "print(2)"]),
    "Sandbox": lambda: Sandbox(num_workers=1, require="none"),
    "Reruns": lambda: Reruns(num_interpreters=2, require="none"),
    "a folder": lambda: reruns.run_many(["open('a', 'w')", "open('b', 'w')"]),
}
with Sandbox(num_workers=1, require="none") as sandbox, Reruns(num_interpreters=2, require="none") as reruns:
    low = max(map(int, os.listdir("/proc/self/fd"))) + 99
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    for num_free in range(4):
        print(num_free, end=": ")
        held = []
        with contextlib.suppress(OSError):
            while True: held.append(os.dup(0))
        for _ in range(num_free): os.close(held.pop())
        for name, act in acts.items():
            try: act()
            except SandboxUnavailable as error: assert "ulimit -n" in str(error), error
        for descriptor in held: os.close(descriptor)
        print(sandbox.run("print(1)").stdout.strip(), len(sandbox._idle), end=" ")
        with sandbox.load("def f(x): return x") as program: print(program.call("f", 5).value)
"""


def test_when_no_descriptor_is_left_all_say_so_and_lose_no_zygote():
    done = subprocess.run([sys.executable, "-c", NO_DESCRIPTORS], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [f"{num_free}: 1 1 5" for num_free in range(4)], done.stderr
    assert done.stderr == ""


LITTLE = """
import os, resource, threading, time
from rlnb.sandbox import Limits, Sandbox

with Sandbox(Limits(cpu_seconds=1), num_workers=1, require="none") as sandbox:
    level = sandbox.level
    threads = len(os.listdir("/proc/self/task"))
    resource.setrlimit(resource.RLIMIT_NPROC, (400, 400))
    greedy = (
        "import _thread, time\\n_thread.stack_size(32768)\\nwhile True:\\n"
        "    try: _thread.start_new_thread(time.sleep, (9,))\\n    except RuntimeError: time.sleep(.01)"
    )
    print([sandbox.run(greedy).status for _ in range(3)], sandbox.run("print(1)").stdout.strip())
with Sandbox(num_workers=1, require="none") as sandbox:
    sandbox._pool.shutdown()
    sandbox._pool = type(sandbox._pool)(1)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    try:
        sandbox.run("print(1)")
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_user_who_may_start_few_threads_goes_on(as_another_user):
    lines = as_another_user(LITTLE).splitlines()
    assert lines[0] == "['killed', 'killed', 'killed'] 1"
    assert lines[1].startswith("SandboxUnavailable") and "taskset" in lines[1]


CLOSED = """
import itertools, os, sys
from rlnb.sandbox import Sandbox
answer = os.dup2(1, 50)
for closed in itertools.chain(*(itertools.combinations(range(3), count) for count in (1, 2, 3))):
    for descriptor in closed:
        os.close(descriptor)
    with Sandbox(num_workers=1, require="none") as sandbox:
        stdout = sandbox.run("import sys; print(sys.stdin.read() + 'read')").stdout
        with sandbox.load("def f(): return 7") as program:
            os.write(answer, f"{closed} {stdout.strip()} {program.call('f').value}\\n".encode())
"""


def test_closed_descriptors_of_standard_streams_close_nothing_else():
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert len(lines) == 7 and all(line.endswith(") read 7") for line in lines), done


def test_a_limit_of_open_files_that_is_too_low_is_named():
    script = (
        "import resource\nfrom rlnb.sandbox import Sandbox\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))\nSandbox(num_workers=1)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "ulimit -n" in done.stderr


MANY_WORKERS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 4096))
from rlnb.sandbox import Sandbox
with Sandbox(num_workers=24) as sandbox:
    print({execution.status for execution in sandbox.run_many(map("print({})".format, range(48)))})
"""
BY_THE_LOADER = """
import sys
from rlnb.sandbox import Sandbox, zygotes
zygotes.INTERPRETER = sys.argv[1]
with Sandbox(num_workers=1) as sandbox:
    print(sandbox.run("import os; print('LD_LIBRARY_PATH' in os.environ)").stdout)
"""


def test_many_workers_open_more_files_than_a_shells_limit():
    assert run_python(MANY_WORKERS, timeout=120).stdout == "{'ok'}\n"


def test_an_interpreter_finds_its_library_as_a_clusters_module_says(tmp_path):
    launcher = tmp_path / "python"
    launcher.write_text(f'#!/bin/sh\n[ "$LD_LIBRARY_PATH" ] || exit 127\nexec {sys.executable} "$@"\n')
    launcher.chmod(0o755)
    command, environ = [sys.executable, "-c", BY_THE_LOADER, launcher], os.environ | {"LD_LIBRARY_PATH": "/x"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["False"], done.stderr
