"""What a program leaves for the next one in the interpreter that forks both: nothing."""

import base64
import ctypes
import struct
import zlib

import numpy as np
import pytest

from rlnb.code_execution.reward import judge
from rlnb.code_execution.tasks import Task
from rlnb.code_execution.tasks import Test as Case
from rlnb.sandbox import Limits, Sandbox

SEARCH = """
first, second = b"printed-by-", b"another-one"
third, fourth = b"written-by-", b"another-one"
found = []
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps.read().splitlines():
        span, rights = line.split()[:2]
        low, high = (int(end, 16) for end in span.split("-"))
        if rights[:2] != "rw" or "[v" in line:
            continue
        memory.seek(low)
        data = memory.read(high - low)
        for begin, end in ((first, second), (third, fourth)):
            at = data.find(begin)
            while at >= 0:
                if data[at + len(begin):].startswith(end):
                    found.append(begin)
                at = data.find(begin, at + 1)
print(found)
"""


def test_a_program_finds_nothing_of_earlier_ones_in_its_memory():
    """Neither what they printed nor their sources, which may be the right answers of its own task."""
    other = "x = 'written-by-another-one'\nfor n in range(2000): print('printed-by-' + 'another-one')"
    without = ("files", "system calls", "namespaces")
    with Sandbox(Limits(memory_mib=2048), num_workers=1, require="basic", without=without) as sandbox:
        sandbox.run_many([f"{other}\nx = {number}" for number in range(5)])
        assert sandbox.run(SEARCH).stdout == "[]\n"
        shared = "print([line for line in open('/proc/self/maps') if 'w' in line[:40] and 's ' in line[:50]])"
        assert sandbox.run(shared).stdout == "[]\n"
        with sandbox.load(f"{other}\ndef f(): return x") as program:
            assert program.call("f").value == "written-by-another-one"
        assert sandbox.run(SEARCH).stdout == "[]\n"


DUMP = """
import base64, gc, zlib
print([o for o in gc.get_objects() if type(o) is tuple and any(type(part) is float for part in o)])
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps.read().splitlines():
        span, rights = line.split()[:2]
        low, high = (int(end, 16) for end in span.split("-"))
        if rights[:2] == "rw" and "[v" not in line:
            memory.seek(low)
            print(base64.b64encode(zlib.compress(memory.read(high - low), 1)).decode())
"""


def test_a_program_finds_no_numbers_of_how_the_last_one_ended():
    """Its CPU time and how much it printed are what a program chooses."""
    limits = Limits(memory_mib=2048, output_kib=65536)
    without = ("files", "system calls", "namespaces")
    with Sandbox(limits, num_workers=1, require="basic", without=without) as sandbox:
        for size in (5_123_456, 7_654_321, 6_283_185):  # no usual numbers: none is there by chance
            before = sandbox.run(f"print('x' * {size - 1})")
            assert len(before.stdout) == size
            objects, *dumps = sandbox.run(DUMP).stdout.splitlines()
            assert objects == "[]"
            memory = b"".join(zlib.decompress(base64.b64decode(dump)) for dump in dumps)
            # As numbers of C and as an integer of Python; shorter ones are there by chance.
            patterns = struct.pack("<d", before.seconds), struct.pack("<Q", size), struct.pack("<QI", 1, size)
            assert [memory.count(pattern) for pattern in patterns] == [0, 0, 0], size


ENDS = {
    "an exit code": "import os; os._exit(3)",
    "an exception": "1 / 0",
    "no syntax": "def (",
    "a signal": "import os; os.abort()",
    "output": "print('x' * 9000)",
    "errors": "import sys; sys.stderr.write('x' * 9000)",
    "a long source": f"#{'x' * 9000}",
    "much memory": "bytearray(8_000_000)",
}
ADDR_NO_RANDOMIZE = 0x0040000


def memory_after(program):
    """{address: words} that a child inherits, after two programs that do nothing and this one."""
    without = ("files", "system calls", "namespaces")
    limits = Limits(memory_mib=2048, output_kib=65536)
    with Sandbox(limits, num_workers=1, require="basic", without=without) as sandbox:
        for before in ("pass", "pass", program):
            sandbox.run(before)
        lines = sandbox.run(DUMP.replace("print(base64", "print(low); print(base64")).stdout.splitlines()[1:]
    dumps = (zlib.decompress(base64.b64decode(dump)) for dump in lines[1::2])
    return dict(zip(lines[::2], (np.frombuffer(dump, np.uint64) for dump in dumps), strict=True))


@pytest.fixture(scope="module")
def usual():
    """Memories of zygotes whose addresses are the same, after a program that does nothing."""
    personality = ctypes.CDLL(None).personality
    before = personality(0xFFFFFFFF)
    personality(before | ADDR_NO_RANDOMIZE)
    try:
        yield [memory_after("pass") for _ in range(4)]
    finally:
        personality(before)


def count_traces(memory, usual):
    """Count the words that are the same in all usual memories and another in this one."""
    first, *others = usual
    if {low: words.size for low, words in memory.items()} != {
        low: words.size for low, words in first.items()
    }:
        return -1
    is_same = {low: np.all([words == other[low] for other in others], axis=0) for low, words in first.items()}
    return sum(int(np.sum(is_same[low] & (words != first[low]))) for low, words in memory.items())


@pytest.mark.parametrize("end", ENDS)
def test_how_a_short_program_ended_leaves_no_trace_in_the_memory_of_its_zygote(end, usual):
    """Each look at a program, every 50 ms, leaves some, and so does the time: a few short ones are tried."""
    counts = [count_traces(memory_after(ENDS[end]), usual)]
    while counts[-1] and len(counts) < 6:
        usual.append(memory_after("pass"))
        counts.append(count_traces(memory_after(ENDS[end]), usual))
    assert counts[-1] == 0, counts


PEEK = """
import ast, sys
frame, seen = sys._getframe(), []
while frame:
    for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
        for part in [value, *getattr(value, "__dict__", {}).values()]:
            try: lines = bytes(getattr(part, "buffer", part)).decode().split("\\n")
            except Exception: continue
            seen += [line for line in lines if line.startswith("#rlnb-result ")]
    frame = frame.f_back
def f(x): return ast.literal_eval(seen.pop(0).split(" ", 1)[1])
print("x")
"""


def test_one_right_program_does_not_make_the_others_of_its_group_right():
    task = Task("t", "t", 1, "f", "x", "Double it.", Case((1,), 2), (Case((3,), 6), Case((4,), 8)))
    with Sandbox(Limits(cpu_seconds=0.5), num_workers=1) as sandbox:
        programs = ["def f(x): return 2 * x\nprint(f(1))", PEEK, PEEK]
        completions = [f"```python\n{program}\n```" for program in programs]
        judgements = judge(completions, [task] * 3, [""] * 3, sandbox)
    assert [judgement.passed for judgement in judgements] == [True, False, False]
