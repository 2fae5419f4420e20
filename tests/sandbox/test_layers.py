"""The layers under a program: tables agree with the kernel's, and what a machine lacks lowers the level."""

import re
import struct
from pathlib import Path

import pytest

from rlnb.errors import SandboxUnavailable
from rlnb.sandbox import Sandbox, _layers, zygotes

HEADERS = {  # the kernel's own tables, where its headers are installed
    0: ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    1: ("/usr/include/asm-generic/unistd.h",),
}
ALL = ("namespaces", "files", "system calls", "process", "limits")


@pytest.mark.parametrize(("column", "architecture"), [(0, "x86_64"), (1, "aarch64")])
def test_system_call_numbers_are_the_kernels(column, architecture):
    header = next((path for path in map(Path, HEADERS[column]) if path.exists()), None)
    if header is None:
        pytest.skip(f"the kernel's headers are not installed: none of {HEADERS[column]}")
    lines = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    kernel = {name: int(number) for name, number in lines}
    kernel.setdefault("newfstatat", kernel.get("fstatat", -1))  # under this name in the generic table
    ours = {name: numbers[column] for name, numbers in {**_layers.ALLOWED, **_layers.GUARDED}.items()}
    assert _layers.ARCHITECTURES[architecture][1] == column
    assert {name: kernel.get(name, -1) for name in ours} == ours


def run_filter(bpf: bytes, number: int, *arguments: int, audit: int) -> int:
    """What a filter says of a system call: the kernel's classic BPF machine, as far as filters use it."""
    arguments = (*arguments, *[0] * 6)[:6]
    data = struct.pack("iIQ6Q", number, audit, 0, *arguments)
    code = [struct.unpack_from("HBBI", bpf, offset) for offset in range(0, len(bpf), 8)]
    accumulator, at = 0, 0
    while True:
        operation, if_true, if_false, operand = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("I", data, operand)
        elif operation == 0x54:
            accumulator &= operand
        elif operation == 0x06:
            return operand
        else:
            holds = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: accumulator & operand}
            at += if_true if holds[operation] else if_false


@pytest.mark.parametrize("machine", _layers.ARCHITECTURES)
def test_the_filter_allows_what_is_in_the_table_and_nothing_else(machine):
    audit, column = _layers.ARCHITECTURES[machine]
    bpf = _layers.make_filter(machine)
    allowed = {numbers[column] for numbers in _layers.ALLOWED.values()}
    guarded = {numbers[column] for numbers in _layers.GUARDED.values()}
    for number in set(range(_layers.FIRST_UNKNOWN)) - guarded:
        expected = _layers.ALLOW if number in allowed else _layers.EPERM
        assert run_filter(bpf, number, audit=audit) == expected, number
    assert run_filter(bpf, _layers.FIRST_UNKNOWN, audit=audit) == _layers.ENOSYS
    assert run_filter(bpf, 0, audit=audit + 1) == _layers.KILL
    assert machine != "x86_64" or run_filter(bpf, _layers.X32_BIT, audit=audit) == _layers.KILL


OWN = _layers.OWN_PID
JUDGED = {
    "a thread": ("clone", (_layers.CLONE_THREAD | 0x100,), _layers.ALLOW),
    "a process": ("clone", (0x11,), _layers.EPERM),
    "a clone that cannot be looked at": ("clone3", (), _layers.ENOSYS),
    "a signal to itself": ("kill", (OWN, 15), _layers.ALLOW),
    "a signal to another": ("kill", (OWN + 1, 15), _layers.EPERM),
    "a signal to its group": ("kill", (0, 15), _layers.EPERM),
    "a stream pair": ("socketpair", (1, 1 | 0o4000), _layers.ALLOW),
    "a datagram pair": ("socketpair", (1, 2), _layers.EPERM),
    "reading its limits": ("prlimit64", (0, 7, 0, 5), _layers.ALLOW),
    "reading its limits by number": ("prlimit64", (OWN, 7, 0, 5), _layers.ALLOW),
    "setting its limits": ("prlimit64", (0, 7, 5, 0), _layers.EPERM),
    "setting its limits from high memory": ("prlimit64", (0, 7, 1 << 40, 0), _layers.EPERM),
    "reading another's limits": ("prlimit64", (OWN + 1, 7, 0, 5), _layers.EPERM),
    "asking whether it is a terminal": ("ioctl", (0, 0x5401), _layers.ALLOW),
    "typing into a terminal": ("ioctl", (0, 0x5412), _layers.EPERM),
    "naming a thread": ("prctl", (15,), _layers.ALLOW),
    "outliving its parent": ("prctl", (1, 0), _layers.EPERM),
}


@pytest.mark.parametrize("machine", _layers.ARCHITECTURES)
@pytest.mark.parametrize("name", JUDGED)
def test_by_its_arguments_the_filter_judges(name, machine):
    call, arguments, expected = JUDGED[name]
    audit, column = _layers.ARCHITECTURES[machine]
    number = _layers.GUARDED[call][column]
    assert run_filter(_layers.make_filter(machine), number, *arguments, audit=audit) == expected


def test_a_processor_without_a_table_is_said():
    with pytest.raises(OSError, match="^no table of system calls for riscv64$"):
        _layers.make_filter("riscv64")


@pytest.mark.parametrize(
    ("without", "level"),
    [
        ((), "strict"),
        (("namespaces",), "standard"),
        (("files",), "basic"),
        (("system calls",), "basic"),
        (("limits",), "none"),
        (("process",), "none"),
    ],
)
def test_each_layer_that_is_missing_lowers_the_level_and_fails_no_program(without, level):
    with Sandbox(num_workers=1, require="none") as whole:
        if whole.level != "strict":
            pytest.skip(f"this machine lacks a layer: {whole.layers}")
    with Sandbox(num_workers=1, require="none", without=without) as sandbox:
        assert sandbox.level == level
        assert {layer: sandbox.layers[layer] for layer in without} == dict.fromkeys(without, "switched off")
        execution = sandbox.run("print(1)")
    assert (execution.status, execution.stdout, execution.isolation) == ("ok", "1\n", level)


def test_what_is_required_and_cannot_be_had_is_refused_with_the_remedy():
    with pytest.raises(SandboxUnavailable) as raised:
        Sandbox(num_workers=1, require="standard", without=("files", "namespaces"))
    assert str(raised.value) == (
        "sandbox: level 'standard' is required and 'basic' is all this machine has. files: switched off "
        "(Linux 5.13 with Landlock in its lsm= list, and a Docker profile of 2022 or later). Or accept less: "
        "sandbox.require = 'basic'"
    )


def test_a_layer_that_is_on_but_does_not_hold_does_not_count(monkeypatch, tmp_path):
    folder = Path(zygotes.SCRIPT).parent
    for name in ("_zygote.py", "_child.py", "_codec.py", "_layers.py"):
        text = (folder / name).read_text()
        restricts = 'check(libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0), "Landlock")'
        (tmp_path / name).write_text(text.replace(restricts, "pass"))
    monkeypatch.setattr(zygotes, "SCRIPT", str(tmp_path / "_zygote.py"))
    with Sandbox(num_workers=1, require="none") as sandbox:
        assert sandbox.layers["files"] == "what it forbids was done"
        assert sandbox.level == "basic"
