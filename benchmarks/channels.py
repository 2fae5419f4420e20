"""How many bits a second one program can tell another, by whatever the machine remembers or shares.

Both sides are played here, through the public interface: a sender and a receiver for each channel, the levels
strict and standard in turns. "after": the sender has ended before the receiver starts, on the same worker.
"during": both run at once. `error` is the share of wrong symbols, `bits_per_second` what a perfect code would
carry in the time that both sides take; 0 where the symbols are as chance would have them. `refused`: what a
side raised. Each channel is one way of using something, in Python: a better programmer may get more from it.
ONLY=text in the environment leaves the other channels out.
"""

import json
import math
import os
import random
import subprocess
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass

import timing

from rlnb.sandbox import Execution, Limits, Sandbox

LEVELS: dict[str, tuple[str, ...]] = {"strict": (), "standard": ("namespaces",)}
TRIALS = 16
START_SECONDS = 0.25  # until both sides run
# Both know: `nonce`, a number of this trial; `pid`, another process; `start`, when slot 0 begins. The sender
# knows `message`, whose bits are `bits`.
PRELUDE = """
import ctypes, os, time
begin = time.time()
libc = ctypes.CDLL(None, use_errno=True)
def call(x86_64, aarch64, *arguments):
    number = x86_64 if os.uname().machine == "x86_64" else aarch64
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def slot(index, seconds):
    time.sleep(max(0, start + index * seconds - time.time()))
def busy(seconds):
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end: count += 1
    return count
def halves(values):  # which are below the middle of the lower and the upper ones
    ranked = sorted(values)
    middle = (ranked[len(ranked) // 5] + ranked[-1 - len(ranked) // 5]) / 2
    print([int(value < middle) for value in values])
"""
PAGES = """
names = "turtle", "pydoc", "doctest", "tarfile", "imaplib", "mailbox", "pickletools", "smtplib"
paths = [os.path.join(os.path.dirname(os.__file__), name + ".py") for name in names]
"""
TIME_PAGES = f"""{PAGES}
seen = []
for path in paths:
    file = os.open(path, os.O_RDONLY)
    try: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    except OSError: pass
    started = time.perf_counter()
    os.pread(file, 1, 12288)
    seen.append(int(time.perf_counter() - started > 2e-5))
print(seen)
"""
BY_FADVISE = f"""{PAGES}
for path, bit in zip(paths, bits):
    file = os.open(path, os.O_RDONLY)
    os.pread(file, 10**6, 0)
    if bit: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
"""
BY_MADVISE = f"""{PAGES}
import mmap
for path, bit in zip(paths, bits):
    pages = mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=mmap.PROT_READ)
    pages[:]
    if bit: pages.madvise(21)  # MADV_PAGEOUT
"""
LOOK_UP = """
for index, bit in enumerate(bits):
    for copy in range(30 * bit): os.access(f"/usr/{nonce}-{index}-{copy}", 0)
"""
TIME_NAMES = """
def look(name):
    times = []
    for copy in range(30):
        path = f"/usr/{nonce}-{name}-{copy}"
        started = time.perf_counter()
        os.access(path, 0)
        times.append(time.perf_counter() - started)
    return sorted(times)[15]
for name in "abcd": look(name)
cold, warm = (sorted(look(name) for name in "efg")[1] for _ in range(2))
print([int(look(index) < (cold + warm) / 2) for index in range(16)])
"""
PROC = """
names = (
    "auxv cgroup clear_refs cmdline comm coredump_filter cpuset environ limits loginuid maps mem mountinfo "
    "mounts mountstats oom_adj oom_score pagemap personality sched schedstat sessionid smaps syscall"
).split()
"""
ASK_PROC = f"""{PROC}
for name, bit in zip(names, bits):
    if bit: os.stat(f"/proc/{{pid}}/{{name}}")
time.sleep(0.01)
"""
TIMES_OF_PROC = f"""{PROC}
print([int(os.stat(f"/proc/{{pid}}/{{name}}").st_ctime < begin - 0.006) for name in names])
"""
MAKE_PIPES = """
number = None
while number != message:
    ends = os.pipe()
    number = os.fstat(ends[0]).st_ino // 1024 % 64
    for end in ends: os.close(end)
"""
MAKE_SOCKETS = """
import socket
number = None
while number != message:
    ends = socket.socketpair()
    number = os.fstat(ends[0].fileno()).st_ino // 1024 % 64
    for end in ends: end.close()
"""
OWN_PIPE = "print(os.fstat(1).st_ino // 1024 % 64)"
COOKIE = """
import socket
def cookie():
    end, _ = socket.socketpair()
    return int.from_bytes(end.getsockopt(1, 57, 8), "little") % 64
"""
MAKE_FILES = """
number = None
while number != message:
    file = os.open(str(time.monotonic_ns()), os.O_CREAT | os.O_WRONLY)
    number = os.fstat(file).st_ino // 2 % 32
    os.close(file)
"""
OWN_FILE = """print(os.fstat(os.open("x", os.O_CREAT | os.O_WRONLY)).st_ino // 2 % 32)"""
MAKE_THREADS = """
import threading
for _ in range(message):
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
"""
CODE = """
import _hashlib, random
library = ctypes.CDLL("libcrypto.so.3")
functions = library.AES_encrypt, library.X509_new, library.BN_mul
ends = [ctypes.cast(function, ctypes.c_void_p).value & ~4095 for function in functions]
pages = random.Random(nonce).sample(range(min(ends), max(ends), 4096), 400)
pairs = list(zip(pages[:200], pages[200:]))  # one page of each is read: the other shows what is usual
"""
READ_CODE = f"""{CODE}
for _ in range(3):
    for pair, bit in zip(pairs, bits): ctypes.string_at(pair[bit], 4096)
"""
TIME_CODE = f"""{CODE}
def look(page):
    started = time.perf_counter()
    ctypes.string_at(page, 4096)
    return time.perf_counter() - started
for page in pages: ctypes.string_at(page + 4095, 1)  # only so that it is mapped
seen = []
for index, (first, second) in enumerate(pairs):
    if index % 2: seen.append(int(look(first) > look(second)))
    else: seen.append(int(look(second) < look(first)))
print(seen)
"""
THREAD = """
import select
stack, pidfd = ctypes.create_string_buffer(2**18), ctypes.c_int()
top = ctypes.c_void_p(ctypes.addressof(stack) + 2**18 - 64 & ~15)
def number():
    if libc.clone(libc.getpid, top, 0x51F00, None, ctypes.byref(pidfd), None, None) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    select.select([pidfd.value], [], [])  # until it has ended
    number = os.fstat(pidfd.value).st_ino
    os.close(pidfd.value)
    return number % 64
"""
LOOK_INTO_PROC = f"""{PROC}
places = [f"/proc/{{process}}/{{name}}" for process in ("self", pid) for name in names]
for place in places[0], places[-1]: os.stat(place)  # each name that is new takes a number
number = os.fstat(1).st_ino % 32
for place in places[1:-1]:
    if number == message: break
    os.stat(place)
    number = (number + 1) % 32
"""
BE_BUSY = """
for index, bit in enumerate(bits):
    slot(index, 0.03)
    if bit: busy(0.028)
"""
COUNT = """
counts = []
for index in range(24):
    slot(index, 0.03)
    counts.append(busy(0.025))
halves(counts)
"""
FILL_DISK = """
file = os.open("x", os.O_CREAT | os.O_RDWR)
for index, bit in enumerate(bits):
    slot(index, 0.02)
    os.ftruncate(file, 0)
    os.pwrite(file, bytes(4 * 2**20 * bit), 0)
slot(24, 0.02)
"""
FREE_DISK = """
free = []
for index in range(24):
    slot(index + 0.8, 0.02)
    free.append(os.statvfs(".").f_bavail)
halves(free)
"""
FILL_MEMORY = """
for index, bit in enumerate(bits):
    slot(index, 0.06)
    data = b"x" * (bit * 80 * 2**20)
    slot(index + 0.8, 0.06)
    del data
"""
FREE_MEMORY = """
free, information = [], ctypes.create_string_buffer(128)
for index in range(12):
    slot(index + 0.7, 0.06)
    call(99, 179, information)  # sysinfo
    free.append(int.from_bytes(information[40:48], "little"))
halves(free)
"""
PAGE = """
address = ctypes.cast(libc.getpid, ctypes.c_void_p).value & ~4095
word = ctypes.c_int.from_address(address).value
futex = 202, 98, ctypes.c_void_p(address)
"""
WAKE = f"""{PAGE}
for index, bit in enumerate(bits):
    slot(index + 0.5, 0.01)
    if bit: call(*futex, 1, 9, None, None, 0)
"""
WAIT = f"""{PAGE}
class Span(ctypes.Structure): _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]
seen = []
for index in range(48):
    slot(index + 0.1, 0.01)
    try: call(*futex, 0, word, ctypes.byref(Span(0, 8_000_000)), None, 0)
    except TimeoutError: seen.append(0)
    else: seen.append(1)
print(seen)
"""
END_THREAD = f"""{PAGE}
import threading
places = range(address, address + 65536, 4)
word = next(place for place in places if not ctypes.c_int.from_address(place).value)
def end():
    heads.append(head := (ctypes.c_long * 3)())
    head[0], head[2] = ctypes.addressof(head), word  # what it held last, and did not let go
    call(273, 99, head, ctypes.c_size_t(24))
heads = []
for index, bit in enumerate(bits):
    slot(index + 0.5, 0.01)
    if bit:
        thread = threading.Thread(target=end)
        thread.start()
        thread.join()
"""
WAIT_FOR_THREAD = WAIT.replace(
    "seen = []",
    """seen, word = [], 0
futex = *futex[:2], next(ctypes.c_void_p(place) for place in range(address, address + 65536, 4)
    if not ctypes.c_int.from_address(place).value)""",
)
QUEUE = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
def queue():
    try: signal.raise_signal(40)
    except OSError: return 0
    return 1
"""
QUEUE_OR_NOT = f"""{QUEUE}
for index, bit in enumerate(bits):
    slot(index, 0.001)
    if bit and queue():
        slot(index + 0.8, 0.001)
        signal.sigwait([40])
"""
TRY_TO_QUEUE = f"""{QUEUE}
if not queue(): raise PermissionError("no signal waits with its data")
while queue(): pass
signal.sigwait([40])
seen = []
for index in range(400):
    slot(index + 0.4, 0.001)
    seen.append(1 - queue())
    if not seen[-1]: signal.sigwait([40])
print(seen)
"""
HOLD_FILES = """
held = []
for index in range(100):
    slot(index, 0.004)
    count = sum(bit << place for place, bit in enumerate(bits[4 * index : 4 * index + 4]))
    while len(held) < count: held.append(os.dup(0))
    while len(held) > count: os.close(held.pop())
slot(100, 0.004)
"""
COUNT_FILES = """
others = [f"/proc/{number}/fd" for number in range(pid + 1, pid + 40) if os.path.exists(f"/proc/{number}/fd")]
if not others: raise FileNotFoundError("/proc")
counts = []
for index in range(100):
    slot(index + 0.6, 0.004)
    counts.append([os.path.exists(other) and os.stat(other).st_size for other in others])
def changes(column): return sum(a != b for a, b in zip(column, column[1:]))
column = max(zip(*counts), key=changes)
print([(count - min(column)) >> place & 1 for count in column for place in range(4)])
"""
KEEP_FILES = """
held = []
for index, bit in enumerate(bits):
    slot(index, 0.005)
    if bit and not held:
        held = [str(count) for count in range(8)]
        for name in held: os.close(os.open(name, os.O_CREAT))
    while held and not bit: os.remove(held.pop())
slot(100, 0.005)
"""
NUMBERS_OF_FILES = """
numbers = []
for index in range(100):
    slot(index + 0.6, 0.005)
    file = os.open("x", os.O_CREAT)
    numbers.append(-os.fstat(file).st_ino)
    os.close(file)
    os.remove("x")
halves(numbers)
"""
SYNC = """
file = os.open("x", os.O_CREAT | os.O_RDWR)
def sync(index):
    count = 0
    while time.time() < start + (index + 0.8) * 0.05:
        os.pwrite(file, b"x" * 4096, 0)
        os.fsync(file)
        count += 1
    return count
"""
SYNC_OR_NOT = f"""{SYNC}
for index, bit in enumerate(bits):
    slot(index, 0.05)
    if bit: sync(index)
"""
COUNT_SYNCS = f"""{SYNC}
counts = []
for index in range(12):
    slot(index, 0.05)
    counts.append(sync(index))
halves(counts)
"""


@dataclass(frozen=True)
class Channel:
    """Two programs; the receiver prints `num_bits` bits, or a number below `num_symbols`.

    A number may be off by a constant, which is learned from half of the trials.
    """

    sender: str
    receiver: str
    num_bits: int = 0
    num_symbols: int = 0
    is_during: bool = False


SEND_COOKIE, READ_COOKIE = f"{COOKIE}\nwhile cookie() != message: pass", f"{COOKIE}\nprint(cookie())"
WAIT_TO_END = "while int(time.time() * 100) % 32 != message: pass"
CHANNELS = {
    "pages in memory, by fadvise": Channel(BY_FADVISE, TIME_PAGES, num_bits=8),
    "pages in memory, by madvise": Channel(BY_MADVISE, TIME_PAGES, num_bits=8),
    "names that were looked up": Channel(LOOK_UP, TIME_NAMES, num_bits=16),
    "times of files in /proc": Channel(ASK_PROC, TIMES_OF_PROC, num_bits=24),
    "numbers of pipes": Channel(MAKE_PIPES, OWN_PIPE, num_symbols=64),
    "numbers of sockets": Channel(MAKE_SOCKETS, OWN_PIPE, num_symbols=64),
    "cookies of sockets": Channel(SEND_COOKIE, READ_COOKIE, num_symbols=64),
    "numbers of files": Channel(MAKE_FILES, OWN_FILE, num_symbols=32),
    "numbers of processes": Channel(MAKE_THREADS, "print(os.getpid() % 32)", num_symbols=32),
    "numbers of pipes, by names in /proc": Channel(
        LOOK_INTO_PROC, "print(os.fstat(1).st_ino % 32)", num_symbols=32
    ),
    "numbers of threads, by their descriptors": Channel(
        f"{THREAD}\nwhile number() != message: pass", f"{THREAD}\nprint(number())", num_symbols=64
    ),
    "caches of the processor": Channel(READ_CODE, TIME_CODE, num_bits=200),
    "when a program starts": Channel(WAIT_TO_END, "print(int(begin * 100) % 32)", num_symbols=32),
    "free space of the disk": Channel(FILL_DISK, FREE_DISK, num_bits=24, is_during=True),
    "free memory": Channel(FILL_MEMORY, FREE_MEMORY, num_bits=12, is_during=True),
    "waiting for the disk": Channel(SYNC_OR_NOT, COUNT_SYNCS, num_bits=12, is_during=True),
    "futex on a page of a library": Channel(WAKE, WAIT, num_bits=48, is_during=True),
    "futex and a thread's end": Channel(END_THREAD, WAIT_FOR_THREAD, num_bits=48, is_during=True),
    "signals that wait": Channel(QUEUE_OR_NOT, TRY_TO_QUEUE, num_bits=400, is_during=True),
    "open files, by their number in /proc": Channel(HOLD_FILES, COUNT_FILES, num_bits=400, is_during=True),
    "numbers of files that others keep": Channel(KEEP_FILES, NUMBERS_OF_FILES, num_bits=100, is_during=True),
    "load": Channel(BE_BUSY, COUNT, num_bits=24, is_during=True),
}


def exchange(channel: Channel, sandbox: Sandbox, message: int) -> tuple[Execution, Execution, float]:
    """Return how sender and receiver ended, and the seconds that both took."""
    with subprocess.Popen(["sleep", "60"]) as other:
        start = time.time() + START_SECONDS * channel.is_during
        known = f"nonce, pid, start = {random.getrandbits(60)}, {other.pid}, {start}\n"
        bits = [message >> index & 1 for index in range(channel.num_bits)]
        sender = f"{known}message, bits = {message}, {bits}\n{PRELUDE}{channel.sender}"
        receiver = f"{known}{PRELUDE}{channel.receiver}"
        began = time.perf_counter()
        ended: list[Execution] = []
        thread = threading.Thread(target=lambda: ended.append(sandbox.run(sender)))
        thread.start()
        if not channel.is_during:
            thread.join()
        received = sandbox.run(receiver)
        thread.join()
        seconds = time.perf_counter() - began
        other.kill()
    return ended[0], received, seconds


def capacity(error: float, bits: float) -> float:
    """Bits that a symbol of `bits` carries where a share of them arrives as any of the others."""
    entropy = -sum(p * math.log2(p) for p in (error, 1 - error) if p)
    return max(0.0, bits - entropy - error * math.log2(2**bits - 1))


def judge(channel: Channel, sent: list[int], received: list[str], seconds: float) -> dict[str, object]:
    answers = [json.loads(text) for text in received]
    if channel.num_bits:
        arrived = [
            message >> index & 1 == bit
            for message, bits in zip(sent, answers, strict=True)
            for index, bit in enumerate(bits)
        ]
        bits_each, num_symbols = 1.0, channel.num_bits * len(sent)
    else:
        pairs = zip(sent, answers, strict=True)
        shifts = [(number - message) % channel.num_symbols for message, number in pairs]
        likely = Counter(shifts[::2]).most_common(1)[0][0]
        arrived = [shift == likely for shift in shifts[1::2]]
        bits_each, num_symbols = math.log2(channel.num_symbols), len(sent)
    error, chance = 1 - sum(arrived) / len(arrived), 1 - 2**-bits_each
    is_chance = error > chance - 2.5 * math.sqrt(chance * (1 - chance) / len(arrived))
    rate = 0.0 if is_chance else num_symbols * capacity(error, bits_each) / seconds
    return {"bits_per_second": round(rate, 1), "error": round(error, 3)}


def measure(channel: Channel, sandboxes: dict[str, Sandbox]) -> dict[str, dict[str, object]]:
    """Return {level: bits_per_second, and error or refused}."""
    sent: dict[str, list[int]] = {level: [] for level in sandboxes}
    received: dict[str, list[str]] = {level: [] for level in sandboxes}
    seconds = dict.fromkeys(sandboxes, 0.0)
    figures: dict[str, dict[str, object]] = {}
    for _ in range(TRIALS):
        for level in sandboxes.keys() - figures.keys():
            message = random.randrange(channel.num_symbols or 1 << channel.num_bits)
            *executions, took = exchange(channel, sandboxes[level], message)
            if failed := [execution for execution in executions if execution.status != "ok"]:
                figures[level] = {"bits_per_second": 0.0, "refused": failed[0].error}
                continue
            sent[level].append(message)
            received[level].append(executions[1].stdout)
            seconds[level] += took
    for level in sandboxes.keys() - figures.keys():
        figures[level] = judge(channel, sent[level], received[level], seconds[level])
    return {level: figures[level] for level in sandboxes}


def main() -> None:
    figures: dict[str, object] = {"cores": len(os.sched_getaffinity(0))}
    only = os.environ.get("ONLY", "")
    with ExitStack() as stack:
        for num_workers, is_during in ((1, False), (2, True)):
            sandboxes = {
                level: stack.enter_context(
                    Sandbox(Limits(cpu_seconds=10.0), num_workers=num_workers, without=without)
                )
                for level, without in LEVELS.items()
            }
            for name, channel in CHANNELS.items():
                if channel.is_during == is_during and only in name:
                    figures[name] = measure(channel, sandboxes)
    timing.report(figures, description=__doc__ or "")


if __name__ == "__main__":
    main()
