"""Hostile programs: each ends safely, at every level, and leaves a zygote that runs the next one."""

import os
from pathlib import Path

import hostile
import pytest

from rlnb.sandbox import Limits, Sandbox

LIMITS = Limits(cpu_seconds=0.5, memory_mib=256)


def open_sandbox(**options):
    return Sandbox(LIMITS, num_workers=1, **options)


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


def zygotes_children(sandbox):
    """What runs below the zygote when it waits: nothing."""
    pid = sandbox._idle[0]._process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


@pytest.mark.parametrize("name", hostile.STANDARD)
def test_at_level_standard_a_program_that_tries(name, standard):
    program, safe = hostile.STANDARD[name]
    execution = standard.run(program)
    assert execution.status in safe, execution
    assert zygotes_children(standard) == ""
    assert standard.run("print(1)").stdout == "1\n"


@pytest.mark.parametrize("name", hostile.HOST_SAFETY)
def test_at_level_basic_a_program_that_tries(name, basic):
    program, safe = hostile.HOST_SAFETY[name]
    execution = basic.run(program)
    assert execution.status in safe, execution
    assert zygotes_children(basic) == ""
    assert basic.run("print(1)").stdout == "1\n"


def test_at_level_basic_what_a_program_starts_is_ended_with_it(basic):
    daemon = (
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(99)\n    os._exit(0)\n"
        "time.sleep(.1); print(1)"
    )
    assert basic.run(daemon).stdout == "1\n"
    assert zygotes_children(basic) == ""


def test_nothing_was_written_outside(standard):
    assert not os.path.exists("/tmp/rlnb-attack")


def test_a_verdict_cannot_be_looked_up(standard):
    # 78, 79: the frames and objects that a program can reach hold no limits, tests or letters.
    looks = (
        "import gc, sys\n"
        "frames = []\n"
        "frame = sys._getframe()\n"
        "while frame: frames.append(sorted(frame.f_locals)); frame = frame.f_back\n"
        "held = [o for o in gc.get_objects() if isinstance(o, dict) and 'memory_mib' in o]\n"
        "print(len(frames), [sorted(h) for h in held])"
    )
    execution = standard.run(looks)
    assert execution.status == "ok"
    assert "assert" not in execution.stdout


def test_the_environment_holds_no_secrets(standard, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert "HF_TOKEN" not in standard.run("import os; print(sorted(os.environ))").stdout
