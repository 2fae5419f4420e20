"""What counts of the time on the wall, by what the kernel says in a folder such as /proc/PID."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlnb.sandbox import _clock


@pytest.mark.parametrize(
    ("schedstat", "state", "elapsed", "is_over"),
    [
        (None, "S", 1.9, False),
        (None, "S", 4.9, False),  # waits are not counted: 2 x 2 s + 1 s
        (None, "S", 5.1, True),
        ("0 0 0", "S", 4.9, False),  # a kernel that counts nothing
        ("0 0 0", "S", 5.1, True),
        ("1000000 0 9", "S", 1.9, False),
        ("1000000 0 9", "S", 2.1, True),
        ("1000000 3000000000 9", "S", 4.9, False),  # it has waited for 3 s
        ("1000000 3000000000 9", "S", 5.1, True),
        ("1000000 3000000000 9", "R", 200.9, False),  # it may be waiting now
        ("1000000 3000000000 9", "D", 200.9, False),
        ("1000000 3000000000 9", "R", 201.1, True),  # 100 limits and a second
    ],
)
def test_a_limit_of_two_seconds(tmp_path: Path, schedstat, state, elapsed, is_over):
    thread = tmp_path / "task" / "1"
    thread.mkdir(parents=True)
    (thread / "stat").write_text(f"1 (a b) c) {state} 0")
    if schedstat:
        (thread / "schedstat").write_text(f"{schedstat}\n")
    assert _clock.is_over(str(tmp_path), elapsed, 2.0) == is_over


HIDDEN = """
from rlnb.sandbox import Limits, Sandbox
with Sandbox(Limits(cpu_seconds=0.3), num_workers=1, require="none") as sandbox:
    with sandbox.load("import time\\ndef f(): time.sleep(30)") as program:
        print(program.ended is None, program.call("f").status)
    print(sandbox.run("import time; time.sleep(30)").status)
"""
MOUNT = (
    "mount -t proc -o hidepid=2,gid=1 proc /proc || exit 77; exec setpriv --bounding-set=-sys_ptrace "
    '--inh-caps=-sys_ptrace "$0" -c "$1"'
)


def test_where_proc_hides_the_programs_a_sleeper_ends_all_the_same():
    if os.geteuid() or not shutil.which("setpriv"):
        pytest.skip("only root can mount a /proc that hides processes")
    command = ["unshare", "--mount", "sh", "-c", MOUNT, sys.executable, HIDDEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode == 77 or done.stderr.startswith("unshare: "):
        pytest.skip(f"no /proc can be mounted here: {done.stderr}")
    assert done.stdout.split() == ["True", "timeout", "timeout"], done.stderr
