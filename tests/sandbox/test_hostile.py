"""Hostile programs: each ends safely, at every level, and leaves a zygote that runs the next one."""

import os
from pathlib import Path

import hostile
import psutil
import pytest
from patched import patch_script
from processes import zygotes_children
from waiting import wait_for

from rlnb.sandbox import Limits, Sandbox


def open_sandbox(**options):
    return Sandbox(hostile.LIMITS, num_workers=1, **options)


@pytest.fixture(scope="module")
def standard():
    with open_sandbox(require="none") as sandbox:
        if sandbox.level not in ("standard", "strict"):
            pytest.skip(f"this machine lacks a layer: {sandbox.layers}")
        yield sandbox


@pytest.fixture(scope="module")
def basic():
    with open_sandbox(require="basic", without=("namespaces", "files", "system calls")) as sandbox:
        assert sandbox.level == "basic"
        yield sandbox


@pytest.mark.parametrize(
    ("level", "name"),
    [*(("standard", name) for name in hostile.STANDARD), *(("basic", name) for name in hostile.HOST_SAFETY)],
)
def test_at_its_level_a_program_ends_safely_that_tries(level, name, request):
    sandbox = request.getfixturevalue(level)
    program, safe = hostile.STANDARD[name]
    execution = sandbox.run(program)
    assert execution.status in safe, execution
    assert zygotes_children(sandbox) == []
    assert sandbox.run("print(1)").stdout == "1\n"


DAEMON = """
import os, signal, time
zygote = os.getppid()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {first}
        time.sleep(99)
    os._exit(0)
time.sleep(.2); print(1)
"""
KILL = "os.kill(zygote, signal.SIGKILL)"


def processes_of(folder):
    """The processes that were started for the programs of this folder; any process may end meanwhile."""
    listed = psutil.process_iter(["cmdline"])
    return {process.pid for process in listed if folder in " ".join(process.info["cmdline"] or [])}


@pytest.mark.parametrize("first", ["pass", KILL], ids=["leaves it", "kills its zygote"])
def test_at_level_basic_no_daemon_is_left_by_a_program_that(first, basic):
    """The zygote is the first process in a namespace of its own: there nothing kills it."""
    basic.run("print(1)")
    folder = basic._idle[-1].folder
    assert len(processes_of(folder)) == 2
    assert basic.run(DAEMON.format(first=first)).stdout == "1\n"
    wait_for(lambda: not processes_of(folder))


def test_without_a_namespace_the_keeper_ends_the_daemon_of_a_program_that_kills_its_zygote(
    monkeypatch, tmp_path
):
    patch_script(monkeypatch, tmp_path, "_zygote.py", "and _variation is None:", "and False:")
    with open_sandbox(require="basic", without=("namespaces", "files", "system calls")) as sandbox:
        assert sandbox.run(DAEMON.format(first=KILL)).status == "killed"
    assert processes_of(str(tmp_path)) == set()


def test_at_level_basic_shared_memory_and_messages_go_with_the_program(basic):
    def listed():
        return [Path(f"/proc/sysvipc/{kind}").read_text() for kind in ("shm", "sem", "msg")]

    share = (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "new = 0o3600\n"
        "shared = libc.shmget(99, 4096, new), libc.semget(99, 1, new), libc.msgget(99, new)\n"
        "print(min(shared) >= 0)"
    )
    queue = "import ctypes; print(ctypes.CDLL(None).mq_open(b'/rlnb', 0o102, 0o600, None))"
    before = listed()
    assert [basic.run(share).stdout for _ in range(2)] == ["True\n", "True\n"]  # the second one makes its own
    assert basic.run(queue).stdout == "-1\n"
    assert listed() == before


PAIRS = {
    "a file's times": (
        "import os\ntry: os.utime({victim!r}, ns=(7, 7))\nexcept OSError: pass",
        "import os; print(os.path.exists({victim!r}) and os.stat({victim!r}).st_mtime_ns == 7)",
    ),
    "the flags of its input": (
        "import fcntl, os; fcntl.fcntl(0, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)",
        "import fcntl, os; print(bool(fcntl.fcntl(0, fcntl.F_GETFL) & (os.O_APPEND | os.O_NONBLOCK)))",
    ),
    "a name in its folder": ("open('left', 'w').close()", "import os; print(os.path.exists('left'))"),
    "the numbers of processes": (
        "import threading\nfor _ in range(42):\n"
        "    thread = threading.Thread(target=int)\n    thread.start()\n    thread.join()",
        "import os; print(os.getpid() > 20)",
    ),
    "the numbers of files": (
        "import os\nfor number in range(99):\n    open('x', 'w').close()\n    os.remove('x')",
        "import os; print(os.path.ismount('.') and os.fstat(os.open('y', os.O_CREAT)).st_ino > 50)",
    ),
    "the numbers of files without a name": (
        "import os\nfor number in range(99):\n    try: os.close(os.open('.', os.O_TMPFILE | os.O_RDWR))\n"
        "    except OSError: pass",
        "import os; print(os.path.ismount('.') and os.fstat(os.open('y', os.O_CREAT)).st_ino > 50)",
    ),
    "the length of its source": (
        "#" + "x" * 3_000_000,
        "import ctypes\nsbrk, data = ctypes.CDLL(None).sbrk, bytearray(2_000_000)\n"
        "sbrk.restype = ctypes.c_void_p\ntop = sbrk(0)\n"
        "print(top - 2**28 < ctypes.addressof(ctypes.c_char.from_buffer(data)) < top)",
    ),
    "having listed its folder": (
        "import os; os.listdir()",
        "import os; print(os.stat('.').st_atime_ns > os.stat('.').st_mtime_ns)",
    ),
    "the size of its folder": (
        "import os\nfor number in range(900):\n    open('x' * 200 + str(number), 'w').close()",
        "import os; print(os.stat('.').st_size > 4096)",
    ),
    "a umask": ("import os; os.umask(0)", "import os; print(os.umask(0) == 0)"),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("without", [(), ("namespaces",)], ids=["strict", "standard"])
def test_no_program_tells_the_next_one_anything_by(name, without, tmp_path):
    victim = tmp_path / "victim"
    victim.touch()
    tells, reads = (program.format(victim=str(victim)) for program in PAIRS[name])
    with Sandbox(num_workers=1, require="standard", without=without) as sandbox:
        assert sandbox.run(tells).status == "ok"
        assert sandbox.run(reads).stdout == "False\n"


def test_a_zygote_is_kept_as_long_as_programs_leave_nothing(standard):
    def numbers():
        return {idle._process.pid for idle in standard._idle}

    standard.run("print(1)")
    before = numbers()
    standard.run_many(["print(1)", "def f(): return 2\nprint(f())", "1 / 0", "import json; print(json)"])
    assert numbers() == before
    standard.run("open('x', 'w').close()")
    assert numbers() != before
    standard.run("print(1)")
    before = numbers()
    with standard.load("def f(): return 5") as program:
        assert program.call("f").value == 5
    assert numbers() == before
    with standard.load("import os\ndef f(): os.write(3, b'x' * 9)") as program:
        assert program.call("f").status == "runtime_error"
    assert numbers() != before


def test_a_program_that_makes_very_many_folders_is_ended_and_the_next_one_runs():
    flood = "import os\nfor number in range(10**6): os.mkdir(str(number))"
    with open_sandbox(require="standard", without=("namespaces",)) as sandbox:
        assert sandbox.run(flood, limits=Limits(cpu_seconds=0.1)).status == "timeout"
        assert sandbox.run("print(1)").stdout == "1\n"


def test_a_signal_to_its_group_reaches_nobody_else(basic):
    assert basic.run("import os, signal; os.kill(0, signal.SIGSTOP)").status == "timeout"


def test_nothing_was_written_outside(standard):
    assert not os.path.exists("/tmp/rlnb-attack")
