"""The layers under a program: tables agree with the kernel's, and what a machine lacks lowers the level."""

import re
import struct
from pathlib import Path

import hostile
import pytest
from patched import patch_script

from rlnb.errors import SandboxUnavailable
from rlnb.sandbox import Sandbox, _layers

HEADERS = {  # the kernel's own tables, where its headers are installed
    0: ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    1: ("/usr/include/asm-generic/unistd.h",),
}


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
    audit, column, _ = _layers.ARCHITECTURES[machine]
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
    "a thread": ("clone", (0x3D0F00,), _layers.ALLOW),
    "a thread with a descriptor": ("clone", (0x3D1F00,), _layers.EPERM),
    "a thread with files of its own": ("clone", (0x3D0B00,), _layers.EPERM),
    "a process": ("clone", (0x11,), _layers.EPERM),
    "a clone that cannot be looked at": ("clone3", (), _layers.ENOSYS),
    "a signal to itself": ("kill", (OWN, 15), _layers.ALLOW),
    "a signal to another": ("kill", (OWN + 1, 15), _layers.EPERM),
    "a signal to its group": ("kill", (0, 15), _layers.EPERM),
    "reading its limits": ("prlimit64", (0, 7, 0, 5), _layers.ALLOW),
    "reading its limits by number": ("prlimit64", (OWN, 7, 0, 5), _layers.ALLOW),
    "setting its limits": ("prlimit64", (0, 7, 5, 0), _layers.EPERM),
    "setting its limits from high memory": ("prlimit64", (0, 7, 1 << 40, 0), _layers.EPERM),
    "reading another's limits": ("prlimit64", (OWN + 1, 7, 0, 5), _layers.EPERM),
    "asking whether it is a terminal": ("ioctl", (0, 0x5401), _layers.ALLOW),
    "typing into a terminal": ("ioctl", (0, 0x5412), _layers.EPERM),
    "another's group": ("getpgid", (OWN + 1,), _layers.EPERM),
    "its own session": ("getsid", (0,), _layers.ALLOW),
    "another's scheduler": ("sched_getscheduler", (OWN + 1,), _layers.EPERM),
    "its own processors": ("sched_getaffinity", (OWN, 128, 1), _layers.ALLOW),
    "its own priority": ("getpriority", (0, 0), _layers.ALLOW),
    "another's priority": ("getpriority", (0, OWN + 1), _layers.EPERM),
    "the time": ("clock_gettime", (1,), _layers.ALLOW),
    "another's CPU time": ("clock_gettime", (((~1234 << 3) | 2) & 0xFFFFFFFF,), _layers.EPERM),
    "another's CPU time, by a long number": ("clock_gettime", (((~1234 << 3) | 2) % 2**64,), _layers.EPERM),
    "waiting for another's CPU time": ("clock_nanosleep", (((~1234 << 3) | 2) % 2**64,), _layers.EPERM),
    "duplicating a descriptor": ("fcntl", (0, 1030, 40), _layers.ALLOW),
    "opening without waiting": ("fcntl", (0, 4, 0o4000), _layers.ALLOW),
    "asking for signals": ("fcntl", (0, 4, 0o20000), _layers.EPERM),
    "asking for signals and more": ("fcntl", (0, 4, 0o24000), _layers.EPERM),
    "naming who gets signals": ("fcntl", (0, 8, OWN), _layers.EPERM),
    "naming the signal": ("fcntl", (0, 10, 9), _layers.EPERM),
    "naming a thread that gets signals": ("fcntl", (0, 15, 0), _layers.EPERM),
    "a lease": ("fcntl", (0, 1024, 1), _layers.EPERM),
    "watching a folder": ("fcntl", (0, 1026, 1), _layers.EPERM),
    "a lock": ("fcntl", (0, 6, 0), _layers.DO_NOTHING),
    "a lock that waits": ("fcntl", (0, 7, 0), _layers.DO_NOTHING),
    "a lock of an open file": ("fcntl", (0, 37, 0), _layers.DO_NOTHING),
    "a lock of a whole file": ("flock", (0, 2), _layers.DO_NOTHING),
    "looking for locks": ("fcntl", (0, 5, 0), _layers.EPERM),
    "reading a file": ("openat", (0, 0, 0o2000000), _layers.ALLOW),
    "emptying and writing a file": ("openat", (0, 0, 0o1101), _layers.ALLOW),
    "emptying a file while reading it": ("openat", (0, 0, 0o1000), _layers.EPERM),
    "emptying a file without opening it": ("openat", (0, 0, 0o1003), _layers.EPERM),
    "memory of huge pages": ("mmap", (0, 4096, 3, 0x40022), _layers.EPERM),
    "memory that stays": ("mmap", (0, 4096, 3, 0x2022), _layers.EPERM),
    "memory": ("mmap", (0, 4096, 3, 0x22), _layers.ALLOW),
    "waiting for its own thread": ("futex", (0, 128), _layers.ALLOW),
    "waking its own thread": ("futex", (0, 129), _layers.ALLOW),
    "waiting where others may wake": ("futex", (0, 0), _layers.DO_NOTHING),
    "waiting there with a mask": ("futex", (0, 9), _layers.DO_NOTHING),
    "waking another program": ("futex", (0, 1), _layers.DO_NOTHING),
    "handing waiting programs over": ("futex", (0, 3), _layers.DO_NOTHING),
    "waiting for the disk": ("fsync", (0,), _layers.DO_NOTHING),
    "naming a thread": ("prctl", (15,), _layers.ALLOW),
    "outliving its parent": ("prctl", (1, 0), _layers.EPERM),
}


@pytest.mark.parametrize("machine", _layers.ARCHITECTURES)
def test_of_all_advice_about_memory_the_filter_allows_what_concerns_no_other_program(machine):
    """No eviction, no reading ahead, no merging of equal pages, no poison."""
    audit, column, _ = _layers.ARCHITECTURES[machine]
    bpf, number = _layers.make_filter(machine), _layers.GUARDED["madvise"][column]
    allowed = [n for n in range(130) if run_filter(bpf, number, 0, 0, n, audit=audit) == _layers.ALLOW]
    assert allowed == [0, 4, 8, 15]


@pytest.mark.parametrize("machine", _layers.ARCHITECTURES)
@pytest.mark.parametrize("call", ["openat", "fcntl"])
def test_no_flag_of_a_file_reaches_past_the_page_cache_or_waits_for_the_disk(call, machine):
    audit, column, o_direct = _layers.ARCHITECTURES[machine]
    refused = {o_direct, 0x1000, 0x2000, 0x40000, 0x100000, 0x200000, 0x400000}
    bpf, number = _layers.make_filter(machine), _layers.GUARDED[call][column]
    for bit in (1 << shift for shift in range(24)):
        verdict = run_filter(bpf, number, 0, 4, bit | 1, audit=audit)
        assert verdict == (_layers.EPERM if bit in refused else _layers.ALLOW), bit


def test_on_x86_64_open_is_judged_like_openat():
    bpf = _layers.make_filter("x86_64")
    audit, _, _ = _layers.ARCHITECTURES["x86_64"]
    for flags in (0, 0o1000, 0o1001, 0o1002, 0o1003, 0o102):
        by_name = run_filter(bpf, _layers.GUARDED["open"][0], 0, flags, audit=audit)
        assert by_name == run_filter(bpf, _layers.GUARDED["openat"][0], 0, 0, flags, audit=audit)


@pytest.mark.parametrize("machine", _layers.ARCHITECTURES)
@pytest.mark.parametrize("name", JUDGED)
def test_by_its_arguments_the_filter_judges(name, machine):
    call, arguments, expected = JUDGED[name]
    audit, column, _ = _layers.ARCHITECTURES[machine]
    number = _layers.GUARDED[call][column]
    assert run_filter(_layers.make_filter(machine), number, *arguments, audit=audit) == expected


def test_a_processor_without_a_table_is_said():
    with pytest.raises(OSError, match="riscv64"):
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
    with pytest.raises(SandboxUnavailable, match=r"files: switched off .* sandbox.require = 'basic'"):
        Sandbox(num_workers=1, require="standard", without=("files", "namespaces"))


def test_a_layer_that_is_on_but_does_not_hold_does_not_count(monkeypatch, tmp_path):
    restricts = 'check(libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0), "Landlock")'
    patch_script(monkeypatch, tmp_path, "_layers.py", restricts, "pass")
    with Sandbox(num_workers=1, require="none") as sandbox:
        assert sandbox.layers["files"] == "what it forbids was done"
        assert sandbox.level == "basic"


KERNELS = {"5.15": 1, "6.1": 2, "6.8": 4}  # their versions of Landlock's interface


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("without", [(), ("namespaces",)], ids=["strict", "standard"])
def test_nothing_that_is_denied_here_is_allowed_with_the_landlock_of_linux(
    kernel, without, monkeypatch, tmp_path
):
    """The namespace of processes, too, is missing here: a cluster may refuse it."""
    landlock = 'abi = check(libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1), "Landlock")'
    patch_script(monkeypatch, tmp_path, "_layers.py", landlock, f"abi = {KERNELS[kernel]}")
    script = tmp_path / "_zygote.py"
    script.write_text(script.read_text().replace("and _variation is None:", "and False:"))
    with Sandbox(hostile.LIMITS, num_workers=2, require="standard", without=without) as sandbox:
        executions = sandbox.run_many(program for program, _ in hostile.BOUNDARIES.values())
    assert hostile.unsafe(executions, hostile.BOUNDARIES) == {}


AS_ANOTHER_USER = """
import sys
sys.path.insert(0, {folder!r})
import hostile
from rlnb.sandbox import Sandbox

for without in {levels}:
    with Sandbox(hostile.LIMITS, num_workers=2, require="none", without=without) as sandbox:
        executions = sandbox.run_many(program for program, _ in hostile.BOUNDARIES.values())
        print(sandbox.level, hostile.unsafe(executions, hostile.BOUNDARIES))
"""


def test_a_user_who_is_not_root_is_protected_alike(as_another_user):
    script = AS_ANOTHER_USER.format(folder=str(Path(__file__).parent), levels=[(), ("namespaces",)])
    assert as_another_user(script).splitlines() == ["strict {}", "standard {}"]
