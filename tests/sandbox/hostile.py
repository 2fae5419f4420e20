"""Programs that attack: {name: (program, the statuses that count as safe)}.

They follow section 6 of ../shared/sandbox.md; its numbers stand behind. HOST_SAFETY must hold at level basic
too, where neither system calls nor files are restricted: machine and verdict stay whole.
"""

from rlnb.sandbox import Limits

LIMITS = Limits(cpu_seconds=0.25, memory_mib=256)
ERROR = ("runtime_error",)
TIMEOUT = ("timeout",)
MEMORY = ("memory_exceeded", "runtime_error")
SYNTAX = ("syntax_error",)
OK = ("ok",)
OUTPUT = ("output_exceeded",)
NOT_OK = ("timeout", "memory_exceeded", "runtime_error", "killed", "output_exceeded")

TIME = {
    "a busy loop (1)": ("while True: pass", TIMEOUT),
    "a loop that catches everything (2)": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass", TIMEOUT),
    "ignores SIGALRM and SIGTERM (3)": (
        "import signal\nfor s in (signal.SIGALRM, signal.SIGTERM, signal.SIGXCPU):\n"
        "    signal.signal(s, signal.SIG_IGN)\nwhile True: pass", TIMEOUT),
    "blocks all signals (4)": (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass", TIMEOUT),
    "one huge power (5)": ("10 ** 10 ** 8", TIMEOUT),
    "regular expression that backtracks (6)": ("import re; re.match('(a+)+$', 'a' * 40 + 'b')", TIMEOUT),
    "a loop in C (7)": ("sum(range(10 ** 12))", TIMEOUT),
    "sleeps (8)": ("import time; time.sleep(99)", TIMEOUT),
    "an exception whose text takes for ever (9)": (
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E", TIMEOUT),
    "a thread that sleeps (10)": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()", TIMEOUT),
    "a daemon thread that is busy (11)": (
        "import threading\ndef f():\n    while True: pass\n"
        "threading.Thread(target=f, daemon=True).start()", OK),
}  # fmt: skip
MEMORY_CASES = {
    "one text of 4 GB (12)": ("'x' * (4 * 2 ** 30)", MEMORY),
    "a list that grows (13)": ("x = []\nwhile True: x.append(bytes(10 ** 7))", MEMORY),
    "catches MemoryError for ever (14)": (
        "while True:\n    try: bytearray(2 ** 40)\n    except MemoryError: pass", TIMEOUT),
    "maps 4 GB (15)": ("import mmap; mmap.mmap(-1, 4 * 2 ** 30)", ERROR),
    "a file in memory (16)": ("import os; os.memfd_create('x')", ERROR),
    "recursion (17)": ("def f(): return f()\nf()", ERROR),
    "recursion without a limit (18)": (
        "import sys; sys.setrecursionlimit(10 ** 8)\ndef f(): return f()\nf()", NOT_OK),
    "a null pointer (19)": ("import ctypes; ctypes.string_at(0)", ("killed",)),
    "abort (20)": ("import os; os.abort()", ("killed",)),
}  # fmt: skip
PARSER = {
    "what breaks the compiler": (
        "class D:\n    x = [(lambda: __class__)() for _ in range(1)]", (*SYNTAX, *ERROR)
    ),
    "5,000 brackets (21)": ("x = " + "(" * 5000, SYNTAX),
    "90 brackets (22)": ("x = " + "[" * 90 + "]" * 90, OK),
    "a literal of 5,000 digits (23)": ("x = " + "1" * 5000, SYNTAX),
    "a NUL byte (24)": ("x = '\0'", SYNTAX),
    "bad indentation (25)": ("if 1:\npass", SYNTAX),
    "a syntax error at run time (26)": ("exec('def (')", ERROR),
    "raises SyntaxError (27)": ("raise SyntaxError", ERROR),
    "prints a lone surrogate (28)": ("print('\\ud800')", OK),
}  # fmt: skip
STREAMS = {
    "floods its output (29)": ("while True: print('x' * 1000)", OUTPUT),
    "floods its errors (30)": ("import sys\nwhile True: sys.stderr.write('x' * 1000)", OUTPUT),
    "floods the descriptor (31)": ("import os\nwhile True: os.write(1, b'x' * 9999)", OUTPUT),
    "prints blanks (32)": ("print('  \\n\\t ')", OK),
    "closes its streams (33)": ("import os; os.close(1); os.close(2)", (*OK, *ERROR)),
    "reads input (34)": ("input()", ERROR),
    "prints at exit (35)": ("import atexit; atexit.register(print, 1)", OK),
}  # fmt: skip
PROCESSES = {
    "a fork bomb (36)": ("import os\nwhile True: os.fork()", ERROR),
    "a fork (37)": ("import os; os.fork()", ERROR),
    "a subprocess (38)": ("import subprocess; subprocess.run(['/bin/true'])", ERROR),
    "a shell (39)": (
        "import os, sys; sys.exit(os.system('echo hello > shell') == 0 or os.path.exists('shell'))", OK),
    "exec (40)": ("import os; os.execv('/bin/true', ['true'])", ERROR),
    "spawn (41)": ("import os; os.posix_spawn('/bin/true', ['true'], {})", ERROR),
    "multiprocessing (42)": (
        "import multiprocessing as m; m.get_context('fork').Process(target=print).start()", ERROR),
    "10,000 threads (43)": (
        "import threading, time\n"
        "for _ in range(10000): threading.Thread(target=time.sleep, args=(9,)).start()", NOT_OK),
    "4,000 small threads": (
        "import _thread, time\n_thread.stack_size(32768)\n"
        "for _ in range(4000): _thread.start_new_thread(time.sleep, (9,))\ntime.sleep(9)", ("killed",)),
    "kills its parent (44)": ("import os; os.kill(os.getppid(), 9)", ERROR),
    "kills everybody (45)": ("import os; os.kill(-1, 9)", ERROR),
}  # fmt: skip


def refused(act):
    """A program that raises where the call itself is refused. Where it is allowed, there is no such file."""
    path = "os.path.join(os.path.dirname(os.__file__), 'missing')"
    return f"import os\ntry: {act.format(path)}\nexcept FileNotFoundError: pass"


FILES = {
    "reads a module of the standard library": ("import json; open(json.__file__)", ERROR),
    "reads a file of the system": ("open('/usr/lib/os-release').read()", ERROR),
    "reads /etc/passwd (48)": ("open('/etc/passwd').read()", ERROR),
    "lists the home folder (49)": ("import os; os.listdir(os.path.expanduser('~root'))", ERROR),
    "writes above its folder (51)": ("open('../rlnb-attack', 'w')", ERROR),
    "writes to the standard library (52)": ("import json; open(json.__file__, 'a')", ERROR),
    "a symbolic link (53)": ("import os; os.symlink('/etc/passwd', 'x'); open('x').read()", ERROR),
    "a hard link (54)": ("import json, os; os.link(json.__file__, 'x')", ERROR),
    "copies its file": ("import shutil; open('x', 'w').close(); shutil.copy('x', 'y')", OK),
    "a set-uid file (55)": ("import os; open('x', 'w').close(); os.chmod('x', 0o4777)", ERROR),
    "goes to the root folder (56)": ("import os; os.chdir('/'); os.listdir()", ERROR),
    "fills the disk (57)": ("f = open('x', 'wb')\nwhile True: f.write(bytes(10 ** 6))", ERROR),
    "20,000 files (58)": ("for i in range(20000): open(str(i), 'w').close()", (*NOT_OK, *OK)),
    "its parent's environment (60)": ("import os; open(f'/proc/{os.getppid()}/environ').read()", ERROR),
    "its parent's memory (60b)": ("import os; open(f'/proc/{os.getppid()}/mem', 'rb')", ERROR),
    "empties what it may read": (refused("os.open({}, os.O_RDONLY | os.O_TRUNC)"), ERROR),
    "empties what it does not open": (refused("os.open({}, 3 | os.O_TRUNC)"), ERROR),
    "shortens a file": (refused("os.truncate({}, 0)"), ERROR),
    "sets the times of a file": (refused("os.utime({}, ns=(1, 2))"), ERROR),
    "sets the times of its own file": ("import os; open('x', 'w').close(); os.utime('x', ns=(1, 2))", ERROR),
    "a lease": ("import fcntl, os; fcntl.fcntl(os.open('x', os.O_CREAT), 1024, 0)", ERROR),
    "watches a folder": ("import fcntl, os; fcntl.fcntl(os.open('.', 0), 1026, 1)", ERROR),
    "locks, which do nothing": (
        "import fcntl, os\na, b = (os.open('x', os.O_CREAT | os.O_RDWR) for _ in 'ab')\n"
        "for fd in (a, b): fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "fcntl.lockf(a, fcntl.LOCK_SH | fcntl.LOCK_NB)", OK),
    "a database in its folder": (
        "import sqlite3\nd = sqlite3.connect('x.db')\nd.execute('create table t (a)')\n"
        "d.execute('insert into t values (3)')\nd.commit()\n"
        "assert sqlite3.connect('x.db').execute('select a from t').fetchall() == [(3,)]", OK),
    "its own descriptors (60c)": ("import os; os.listdir('/proc/self/fd')", ERROR),
}  # fmt: skip
NETWORK = {
    "a TCP connection (62)": ("import socket; socket.create_connection(('127.0.0.1', 80))", ERROR),
    "a local socket (63)": ("import socket; socket.socket(socket.AF_UNIX).connect('/run/x')", ERROR),
    "a name (64)": ("import socket; socket.getaddrinfo('example.org', 80)", ERROR),
    "a datagram pair": ("import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)", ERROR),
    "asyncio (65)": ("import asyncio\nasync def f(): print(5)\nasyncio.run(f())", OK),
}  # fmt: skip


def system_call(x86_64: int, aarch64: int, *arguments: int) -> str:
    """A program that makes a system call and raises when it is refused."""
    return (
        "import ctypes, os, platform\n"
        f"number = {{'x86_64': {x86_64}, 'aarch64': {aarch64}}}[platform.machine()]\n"
        f"result = ctypes.CDLL(None, use_errno=True).syscall(number, *{arguments})\n"
        "if result < 0: raise OSError(ctypes.get_errno(), 'refused')"
    )


OWNER = "import fcntl, os\na = 1\n"
KERNEL = {
    "its parent gets signals of a stream": (OWNER + "fcntl.fcntl(a, fcntl.F_SETOWN, os.getppid())", ERROR),
    "it gets signals of a stream": (OWNER + "fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC)", ERROR),
    "SIGKILL as the signal of a stream": (OWNER + "fcntl.fcntl(a, 10, 9)", ERROR),
    "its parent's CPU time": ("import os, time; time.clock_gettime((~os.getppid() << 3) | 2)", ERROR),
    "its parent's scheduler": ("import os; os.sched_getscheduler(os.getppid() or 1)", ERROR),
    "ptrace (66)": (system_call(101, 117, 0, 0, 0, 0), ERROR),
    "unshare (67)": (system_call(272, 97, 0x10000000), ERROR),
    "mount (68)": (system_call(165, 40, 0, 0, 0, 0, 0), ERROR),
    "io_uring (69)": (system_call(425, 425, 1, 0), ERROR),
    "keys (70)": (system_call(250, 219, 0, 0), ERROR),
    "bpf (70b)": (system_call(321, 280, 0, 0, 0), ERROR),
    "its parent's thread": ("import os\n" + system_call(234, 131, 1, 1, 0), ERROR),
    "raises its limits (72)": (
        "import resource as r; r.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY, r.RLIM_INFINITY))", ERROR),
    "limits its parent": ("import os, resource as r; r.prlimit(os.getppid(), r.RLIMIT_CORE, (0, 0))", ERROR),
    "takes precedence (73)": ("import os; os.nice(-20)", ERROR),
    "slows its parent": ("import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)", ERROR),
    "pins its parent": ("import os; os.sched_setaffinity(os.getppid(), [0])", ERROR),
    "another terminal's input": ("import fcntl; fcntl.ioctl(0, 0x5412, b'x')", ERROR),
}  # fmt: skip
# What the machine remembers, counts or measures for all programs.
SHARED = {
    "drops a file's pages": ("import os; os.posix_fadvise(os.open('x', os.O_CREAT), 0, 0, 4)", ERROR),
    "reads a file ahead": ("import os; os.posix_fadvise(os.open('x', os.O_CREAT), 0, 0, 3)", ERROR),
    "drops its pages": ("import mmap; mmap.mmap(-1, 4096).madvise(21)", ERROR),
    "merges equal pages": ("import mmap; mmap.mmap(-1, 4096).madvise(12)", ERROR),
    "a file past the cache": ("import os; os.open('x', os.O_CREAT | os.O_RDWR | os.O_DIRECT)", ERROR),
    "a file that waits for the disk": ("import os; os.open('x', os.O_CREAT | os.O_RDWR | os.O_SYNC)", ERROR),
    "a file without a name": ("import os; os.open('.', os.O_TMPFILE | os.O_RDWR)", ERROR),
    "a copy in the kernel": (
        "import os\na = os.open('x', os.O_CREAT | os.O_RDWR)\nos.write(a, b'x')\n"
        "os.sendfile(os.open('y', os.O_CREAT | os.O_RDWR), a, 0, 1)", ERROR),
    "the space of the disk": ("import os; os.statvfs('.')", ERROR),
    "the load": ("import os; os.getloadavg()", ERROR),
    "a pipe": ("import os; os.pipe()", ERROR),
    "a pair of sockets": ("import socket; socket.socketpair()", ERROR),
    "its processor": (system_call(309, 168, 0, 0, 0), ERROR),
    "a barrier of all processors": (system_call(324, 283, 0, 0), ERROR),
    "a signal that counts among its user's": (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [40])\nsignal.raise_signal(40)", ERROR),
    "a thread whose descriptor has the machine's next number": (
        "import ctypes\nlibc, pidfd = ctypes.CDLL(None), ctypes.c_int()\n"
        "stack = ctypes.create_string_buffer(2**18)\ntop = ctypes.addressof(stack) + 2**18 - 64 & ~15\n"
        "flags = 0x10000 | 0x1000 | 0x40F00\n"
        "id = libc.clone(libc.getpid, ctypes.c_void_p(top), flags, None, ctypes.byref(pidfd), None, None)\n"
        "if id < 0: raise OSError", ERROR),
}  # fmt: skip
VERDICT = {
    "writes its letter (74)": (
        "import os\nfor fd in range(3, 256):\n    try: os.write(fd, b'Cok')\n"
        "    except OSError: pass\n1 / 0", ERROR),
    "its own excepthook (75)": ("import os, sys; sys.excepthook = lambda *_: os._exit(0)\n1 / 0", ERROR),
    "another os._exit (76)": ("import os; os._exit = lambda code: None\n1 / 0", ERROR),
    "another traceback (77)": (
        "import os, traceback; traceback.print_exc = lambda *_: os._exit(0)\n"
        "traceback.print_exception = traceback.print_exc\n1 / 0", ERROR),
    "an exception whose text exits": (
        "import os\nclass E(Exception):\n    def __str__(self): os._exit(0)\nraise E", (*OK, *ERROR)),
    "patches builtins (80)": ("import builtins; builtins.print = builtins.len = None", OK),
    "another exit": ("import sys, threading\nthreading._shutdown = lambda: sys.exit(0)\n1 / 0", ERROR),
}  # fmt: skip
THREADS = {
    "threads that it waits for": (
        "import threading\nthreads = [threading.Thread(target=print) for _ in range(9)]\n"
        "for thread in threads: thread.start()\nfor thread in threads: thread.join()", OK),
    "a thread of the C library": (
        "import ctypes, sys\nlibc, thread = ctypes.CDLL(None), ctypes.c_ulong()\n"
        "sys.exit(libc.pthread_create(ctypes.byref(thread), None, libc.getpid, None)"
        " or libc.pthread_join(thread, None))", OK),
    "its own signals": (
        "import os, signal, time\ngot = []\n"
        "for number in (10, 14): signal.signal(number, lambda number, _: got.append(number))\n"
        "os.kill(os.getpid(), 10); signal.raise_signal(10); signal.setitimer(signal.ITIMER_REAL, 0.01)\n"
        "time.sleep(0.05)\nsignal.pthread_sigmask(signal.SIG_BLOCK, [12]); os.kill(os.getpid(), 12)\n"
        "assert got == [10, 10, 14] and signal.sigwaitinfo([12]).si_pid == os.getpid()", OK),
}  # fmt: skip
# What no kernel and no user may let through.
BOUNDARIES = {**PROCESSES, **FILES, **NETWORK, **KERNEL, **SHARED, **THREADS}
STANDARD = {**TIME, **MEMORY_CASES, **PARSER, **STREAMS, **VERDICT, **BOUNDARIES}
HOST_SAFETY = {
    **TIME, **PARSER, **STREAMS, **VERDICT,
    **{name: case for name, case in MEMORY_CASES.items() if "(16)" not in name},
}  # fmt: skip


def unsafe(executions, cases):
    """The programs that ended otherwise than is safe: {name: how}."""
    ends = zip(cases.items(), executions, strict=True)
    return {name: (end.status, end.error) for (name, (_, safe)), end in ends if end.status not in safe}
