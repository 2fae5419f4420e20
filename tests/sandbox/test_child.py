"""The layers under a program: what a machine lacks is reported, and the tables agree with the kernel's."""

import importlib.util
import re
from pathlib import Path

import pytest

from rlnb.sandbox import Sandbox, runner

HEADERS = {  # the kernel's own tables, where its headers are installed
    0: ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    1: ("/usr/include/asm-generic/unistd.h",),
}
OLDER_THAN_HEADERS = {"fchmodat2"}


@pytest.fixture
def child():
    spec = importlib.util.spec_from_file_location("sandbox_child", runner.CHILD)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("column", "architecture"), [(0, "x86_64"), (1, "aarch64")])
def test_system_call_numbers_are_the_kernels(child, column, architecture):
    header = next((path for path in map(Path, HEADERS[column]) if path.exists()), None)
    if header is None:
        pytest.skip(f"the kernel's headers are not installed: none of {HEADERS[column]}")
    lines = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    kernel = {name: int(number) for name, number in lines}
    ours = {name: numbers[column] for name, numbers in {**child.DENIED, **child.GUARDED}.items()}
    assert child.ARCHITECTURES[architecture][1] == column
    assert {name: kernel.get(name, -1) for name in ours if name not in OLDER_THAN_HEADERS} == {
        name: number for name, number in ours.items() if name not in OLDER_THAN_HEADERS
    }


def test_this_machine_isolates_programs_fully():
    with Sandbox(num_workers=1) as sandbox:
        report = sandbox.report()
    if set(report.values()) != {"on"}:
        pytest.skip(f"this machine lacks a layer: {report}")
    assert report == {"process": "on", "limits": "on", "files": "on", "system calls": "on"}


def test_a_missing_layer_is_reported_and_fails_no_program(tmp_path, monkeypatch):
    # The real child, on a kernel without Landlock and a processor without a table.
    older = tmp_path / "older_machine.py"
    older.write_text(
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('child', {runner.CHILD!r})\n"
        "child = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(child)\n"
        "child.LANDLOCK_CREATE_RULESET = 9999\n"
        "child.ARCHITECTURES.clear()\n"
        "child.os.uname = lambda: type('', (), {'machine': 'riscv64'})\n"
        "child.main()\n"
    )
    monkeypatch.setattr(runner, "CHILD", str(older))
    with Sandbox(num_workers=1) as sandbox:
        assert sandbox.report() == {
            "process": "on",
            "limits": "on",
            "files": "Landlock: Function not implemented",
            "system calls": "no system call table for riscv64",
        }
        assert sandbox.run("print(1)").status == "ok"
        assert sandbox.run("import os\nif os.fork(): os.wait(); print(2)").stdout == "2\n"


def test_what_a_program_leaves_running_is_ended_with_it(tmp_path, monkeypatch):
    unguarded = tmp_path / "unguarded.py"
    unguarded.write_text(
        Path(runner.CHILD)
        .read_text()
        .replace('"aarch64": ', '"other": ', 1)
        .replace('"x86_64": (', '"another": (', 1)
    )
    monkeypatch.setattr(runner, "CHILD", str(unguarded))
    with Sandbox(num_workers=1) as sandbox:
        execution = sandbox.run("import os, time\nif os.fork() == 0: time.sleep(99)\nprint(1, flush=True)")
    assert (execution.status, execution.stdout) == ("ok", "1\n")
