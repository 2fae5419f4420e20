"""The layers that isolate a program: one function each, applied once by the zygote or by every child.

Standard library only, since it runs in the zygote (`_zygote.py`), which imports nothing of rlnb. A layer that
cannot be had raises OSError with the kernel's reason.
"""

import ctypes
import os
import resource
import struct
from collections.abc import Callable, Mapping
from time import clock_gettime, monotonic, sleep  # bound here, before `_variation.py` shifts it for programs

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_GET_NAME = 1, 4, 15, 16
PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 36, 38, 2
ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
DO_NOTHING = 0x00050000  # the call returns 0, as if it had been done
X32_BIT = 0x40000000
# clone: how the C libraries (glibc's, musl's) start a thread, and no more: a descriptor of it, for one, has a
# number that counts the threads of the whole machine.
FLAGS_OF_A_THREAD = (0x3D0F00, 0x7D0F00)
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_NOATIME, MS_REC, MS_PRIVATE = 1024, 0x4000, 1 << 18
# {architecture: (its audit number, its column below, its O_DIRECT)}
ARCHITECTURES = {"x86_64": (0xC000003E, 0, 0x4000), "aarch64": (0xC00000B7, 1, 0x10000)}
# The system calls that a program may make: (x86-64, aarch64), -1 where absent. They start no process, reach
# no network, signal no other process, change no link, mode or time of a file, and share nothing: no pipes
# or sockets, which take numbers of the whole machine, no word of its memory, load and disks, nor its cache.
ALLOWED = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "stat": (4, -1), "fstat": (5, 80), "lstat": (6, -1),
    "poll": (7, -1), "lseek": (8, 62), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "pread64": (17, 67),
    "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66), "access": (21, -1), "select": (23, -1),
    "sched_yield": (24, 124), "mremap": (25, 216), "dup": (32, 23), "dup2": (33, -1), "pause": (34, -1),
    "nanosleep": (35, 101), "getitimer": (36, 102), "alarm": (37, -1), "setitimer": (38, 103),
    "getpid": (39, 172), "exit": (60, 93), "wait4": (61, 260), "uname": (63, 160), "ftruncate": (77, 46),
    "getdents": (78, -1), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "rename": (82, -1),
    "mkdir": (83, -1), "rmdir": (84, -1), "creat": (85, -1), "unlink": (87, -1), "readlink": (89, -1),
    "umask": (95, 166), "gettimeofday": (96, 169), "getrlimit": (97, 163), "getrusage": (98, 165),
    "times": (100, 153), "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175),
    "getegid": (108, 177), "getppid": (110, 173), "getpgrp": (111, -1), "getgroups": (115, 158),
    "getresuid": (118, 148), "getresgid": (120, 150), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132),
    "arch_prctl": (158, -1), "gettid": (186, 178), "time": (201, -1), "epoll_create": (213, -1),
    "getdents64": (217, 61), "restart_syscall": (219, 128), "exit_group": (231, 94), "epoll_wait": (232, -1),
    "epoll_ctl": (233, 21), "waitid": (247, 95), "mkdirat": (258, 34), "newfstatat": (262, 79),
    "unlinkat": (263, 35), "renameat": (264, 38), "readlinkat": (267, 78), "faccessat": (269, 48),
    "pselect6": (270, 72), "ppoll": (271, 73), "set_robust_list": (273, 99), "epoll_pwait": (281, 22),
    "eventfd": (284, -1), "eventfd2": (290, 19), "epoll_create1": (291, 20), "dup3": (292, 24),
    "renameat2": (316, 276), "getrandom": (318, 278), "rseq": (334, 293), "close_range": (436, 436),
    "faccessat2": (439, 439),
}  # fmt: skip
# Allowed with arguments that keep them harmless: see `guards`.
GUARDED = {
    "open": (2, -1), "mmap": (9, 222), "ioctl": (16, 29), "msync": (26, 227), "madvise": (28, 233),
    "clone": (56, 220), "kill": (62, 129), "fcntl": (72, 25), "flock": (73, 32), "fsync": (74, 82),
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fdatasync": (75, 83), "getpgid": (121, 155), "getsid": (124, 156), "getpriority": (140, 141),
    "sched_getparam": (143, 121), "sched_getscheduler": (145, 120), "prctl": (157, 167), "futex": (202, 98),
    "sched_getaffinity": (204, 123), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "tgkill": (234, 131), "openat": (257, 56), "prlimit64": (302, 261),
    "clone3": (435, 435),
}  # fmt: skip
OWN_PID = 0x7FFFFFF1  # more than any process number
FIRST_UNKNOWN = 452  # the C library takes ENOSYS of a newer call for an older kernel and asks otherwise
# fcntl: duplicate, read and set the flags of a descriptor and of its file. No leases, owners or signals.
# Locks do nothing: no other process may open the files that a program writes.
HARMLESS_FCNTLS, SET_FLAGS, LOCK_FCNTLS = (0, 1, 2, 3, 1030), 4, (6, 7, 37, 38)
O_TRUNC, ACCESS_MODE, O_WRONLY, O_RDWR = 0x200, 0x3, 1, 2
# How no file is opened: synchronously, with signals, past its access time, by path only, without a name.
REFUSED_FLAGS = 0x1000 | 0x2000 | 0x40000 | 0x100000 | 0x200000 | 0x400000  # and O_DIRECT
MAP_LOCKED, MAP_HUGETLB = 0x2000, 0x40000
# madvise: nothing special, forget own memory now or later, no huge pages. The C library needs no other.
HARMLESS_ADVICE = (0, 4, 8, 15)
FUTEX_PRIVATE = 128
CLOCK_OF_A_PROCESS = 0x80000000  # the number of a clock that belongs to a process has this bit
# ioctl: is it a terminal, its size, set close-on-exec, non-blocking, how much can be read
HARMLESS_IOCTLS = (0x5401, 0x5413, 0x5450, 0x5451, 0x5421, 0x541B)
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
READ_FILE, READ_FOLDER, WRITE_FILE, TRUNCATE, IOCTL_DEVICE = 1 << 2, 1 << 3, 1 << 1, 1 << 14, 1 << 15
RIGHTS_OF_ABI_1, REFER = (1 << 13) - 1, 1 << 13
MAKE_AND_REMOVE = 0b1111110110000  # remove, make: folders, files, fifos; no devices, sockets or links
# What the module `resource` does not name: signals of all processes of a user that wait with their data, and
# bytes in POSIX message queues.
RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE = 11, 12
CAPABILITY_VERSION_3, KEPT_CAPABILITIES = 0x20080522, 0b110  # those with which root reads what others own


FORK_SECONDS, FORK_LOOK_SECONDS = 5.0, 0.05


def load_libc() -> ctypes.CDLL:
    """Return the C library, with errno."""
    return ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """Return the result of a C call; raise OSError if it is negative."""
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{what}: {os.strerror(errno)}")
    return result


def cpu_seconds(pid: int) -> float:
    """CPU seconds a process has used so far, by its CPU clock (Linux); 0 when it is gone."""
    try:
        return clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def limit_resources(wanted: Mapping[int, int]) -> None:
    """Set rlimits, {resource: value}, never above the hard ones; raises OSError with those refused."""
    refused = []
    for which, value in wanted.items():
        try:
            try:
                resource.setrlimit(which, (value, value))
            except ValueError:  # above the hard limit
                hard = resource.getrlimit(which)[1]
                resource.setrlimit(which, (hard, hard))
        except (ValueError, OSError) as error:
            refused.append(f"rlimit {which}: {error}")
    if refused:
        raise OSError("; ".join(refused))


def fork() -> int:
    """Fork; wait for it where another program uses up the user's processes, until it is ended."""
    deadline = monotonic() + FORK_SECONDS
    while True:
        try:
            return os.fork()
        except BlockingIOError:
            if monotonic() > deadline:
                raise
            sleep(FORK_LOOK_SECONDS)


def in_a_child(act: Callable[[], object]) -> None:
    """Try in a child what might half succeed and could not be undone. Raise OSError where it fails."""
    read, write = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            act()
        except BaseException as error:
            os.write(write, str(error).encode(errors="replace")[:1000] or b"failed")
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as reader:
        failed = reader.read()
    os.waitpid(pid, 0)
    if failed:
        raise OSError(failed.decode(errors="replace"))


def drop_privileges(libc: ctypes.CDLL) -> None:
    """Give up root's powers (signals, tracing, administration) and every way up, as set-uid programs are.

    Nor may another process of the user trace this one.
    """
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    check(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "not dumpable")
    header = ctypes.create_string_buffer(struct.pack("Ii", CAPABILITY_VERSION_3, 0))
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, of the lower and of the upper 32
    check(libc.capget(header, data), "capget")
    kept = data[1] & KEPT_CAPABILITIES
    check(libc.capset(header, (ctypes.c_uint32 * 6)(kept, kept)), "capset")


def unshare(libc: ctypes.CDLL, flags: int) -> None:
    """Enter new namespaces. Raise OSError where this user may not.

    Root needs no user namespace; others get one, in which they are mapped to themselves.
    """
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(flags) < 0:
        check(libc.unshare(flags | CLONE_NEWUSER), "unshare")
        maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
        for name, text in maps.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def enter_process_namespace(libc: ctypes.CDLL) -> None:
    """Let the next process that is forked be the first of its own, which sees and signals no other.

    When it ends, the kernel ends all that descend from it; shared memory and message queues go with it.
    """
    unshare(libc, CLONE_NEWPID | CLONE_NEWIPC)


def enter_namespaces(libc: ctypes.CDLL, folder: str, files: list[str]) -> str:
    """Enter namespaces without network, and with a root of its own in memory, mounted over `folder`.

    It holds `files`, two devices, and a folder for programs, bounded in size and files, whose path is
    returned. No other path can be looked up: the machine would remember it, and when.
    """

    def mount(source: str | None, target: str, kind: bytes | None, flags: int, options: str = "") -> None:
        names = source and source.encode(), target.encode(), kind, flags, options.encode()
        check(libc.mount(*names), f"mount on {target}")

    unshare(libc, CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWNET)
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", folder, b"tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
    for path in (os.devnull, "/dev/urandom", *files):
        os.makedirs(os.path.dirname(folder + path), exist_ok=True)
        os.close(os.open(folder + path, os.O_CREAT))
        mount(path, folder + path, None, MS_BIND)
    os.mkdir(folder + "/tmp")
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME
    mount("tmpfs", folder + "/tmp", b"tmpfs", flags, "size=64m,nr_inodes=1024,mode=0700")
    mount(None, folder, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chroot(folder)
    os.chdir("/tmp")
    return "/tmp"


def protect_files(libc: ctypes.CDLL, readable: list[str], *, writable: str) -> None:
    """By Landlock, allow only reading `readable`, and reading, listing and writing to `writable`.

    This holds for this process and all that it forks, for good. From ABI 4 on it denies TCP, from 6 on
    signals to and abstract sockets of others; before, only the filter of system calls denies them. Raise
    OSError where the kernel has no Landlock.
    """
    abi = check(libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1), "Landlock")
    files = RIGHTS_OF_ABI_1 | (REFER if abi >= 2 else 0) | (TRUNCATE if abi >= 3 else 0)
    files |= IOCTL_DEVICE if abi >= 5 else 0
    attributes = struct.pack("QQQ", files, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    attributes = attributes[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    ruleset = check(libc.syscall(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0), "Landlock")
    read, write = READ_FILE | READ_FOLDER, WRITE_FILE | (files & TRUNCATE)
    granted = dict.fromkeys((*readable, "/dev/urandom"), READ_FILE) | {os.devnull: READ_FILE | write}
    granted[writable] = read | write | (MAKE_AND_REMOVE & files) | (files & REFER)
    for path, rights in granted.items():
        if not os.path.exists(path):
            continue
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rights &= files if os.path.isdir(path) else READ_FILE | write
        rule = struct.pack("=Qi", rights, opened)
        check(libc.syscall(LANDLOCK_ADD_RULE, ruleset, 1, rule, 0), f"Landlock on {path}")
        os.close(opened)
    check(libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)


def guards(o_direct: int) -> dict[str, list[tuple[int, int, int, int]]]:
    """Return {call: BPF that looks at its arguments}: it ends in a verdict."""
    load, keep_bits, equal, greater_equal, any_bit, give = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
    allow, deny, do_nothing = ((give, 0, 0, verdict) for verdict in (ALLOW, EPERM, DO_NOTHING))

    def allow_only(*values: int) -> list[tuple[int, int, int, int]]:
        tests = [(equal, len(values) - i, 0, value) for i, value in enumerate(values)]
        return [*tests, deny, allow]

    first, second, third, fourth = ((load, 0, 0, 16 + 8 * i) for i in range(4))  # lower halves of arguments
    third_upper = (load, 0, 0, 16 + 8 * 2 + 4)
    refused_flags = REFUSED_FLAGS | o_direct
    # O_TRUNC empties a file that is opened for reading, too, which Landlock denies from ABI 3 on.
    opens_plainly = [
        (any_bit, 4, 0, refused_flags), (any_bit, 0, 4, O_TRUNC), (keep_bits, 0, 0, ACCESS_MODE),
        (equal, 2, 0, O_WRONLY), (equal, 1, 0, O_RDWR), deny, allow,
    ]  # fmt: skip
    own_process = [first, *allow_only(0, OWN_PID)]
    own_clock = [first, (greater_equal, 0, 1, CLOCK_OF_A_PROCESS), deny, allow]
    no_set_id = [(any_bit, 1, 0, 0o7000), do_nothing, deny]
    return {
        "open": [second, *opens_plainly],
        "openat": [third, *opens_plainly],
        "mmap": [fourth, (any_bit, 0, 1, MAP_LOCKED | MAP_HUGETLB), deny, allow],
        "madvise": [third, *allow_only(*HARMLESS_ADVICE)],
        # Nobody waits where a page is shared, as all of a library are: other programs could end that by a
        # call, or by a thread's end. The C library waits so for an ended thread to go: it asks again then.
        "futex": [second, (any_bit, 1, 0, FUTEX_PRIVATE), do_nothing, allow],
        "fcntl": [
            second, *[(equal, len(LOCK_FCNTLS) - i + 4, 0, value) for i, value in enumerate(LOCK_FCNTLS)],
            (equal, 0, 5, SET_FLAGS), third, (any_bit, 0, 1, refused_flags), deny, allow,
            do_nothing, *allow_only(*HARMLESS_FCNTLS),
        ],
        "flock": [do_nothing],
        # Nothing of a program outlives it, and who waits for a disk knows who else writes to it.
        "fsync": [do_nothing], "fdatasync": [do_nothing], "msync": [do_nothing],
        # shutil.copy and shelve set the rights of a file; they stay as they are.
        "chmod": [second, *no_set_id], "fchmod": [second, *no_set_id], "fchmodat": [third, *no_set_id],
        "ioctl": [second, *allow_only(*HARMLESS_IOCTLS)],
        "clone": [first, *allow_only(*FLAGS_OF_A_THREAD)],
        "clone3": [(give, 0, 0, ENOSYS)],  # its flags lie in memory, where no filter can look; clone's do not
        "kill": [first, *allow_only(OWN_PID)],
        "tgkill": [first, *allow_only(OWN_PID)],
        "prctl": [first, *allow_only(PR_SET_NAME, PR_GET_NAME)],
        "getpgid": own_process, "getsid": own_process,
        "sched_getparam": own_process, "sched_getscheduler": own_process,
        "sched_getaffinity": own_process,
        "getpriority": [second, *allow_only(0, OWN_PID)],
        "clock_gettime": own_clock, "clock_getres": own_clock, "clock_nanosleep": own_clock,
        # Reading its own limits only: no new ones.
        "prlimit64": [
            first, (equal, 2, 0, 0), (equal, 1, 0, OWN_PID), deny, third, (equal, 1, 0, 0), deny,
            third_upper, *allow_only(0),
        ],
    }  # fmt: skip


def make_filter(machine: str) -> bytes:
    """Return the seccomp filter as BPF: a binary search over the call's number. OWN_PID is a placeholder.

    It loads ten times faster than a list, since the kernel tries every number on it. Raise OSError for a
    processor without a table.
    """
    if machine not in ARCHITECTURES:
        raise OSError(f"no table of system calls for {machine}")
    audit, column, o_direct = ARCHITECTURES[machine]
    load, equal, greater_equal, give = 0x20, 0x15, 0x35, 0x06
    allow, deny, unknown = [(give, 0, 0, ALLOW)], [(give, 0, 0, EPERM)], [(give, 0, 0, ENOSYS)]
    verdicts = {numbers[column]: allow for numbers in ALLOWED.values()}
    verdicts |= {GUARDED[name][column]: code for name, code in guards(o_direct).items()}
    verdicts.pop(-1, None)
    # {first number of a range of calls: their rules}
    steps = {0: deny, FIRST_UNKNOWN: unknown}
    for call in sorted(verdicts):
        steps[call] = verdicts[call]
        steps.setdefault(call + 1, deny)
    starts = sorted(steps)
    starts = [n for i, n in enumerate(starts) if i == 0 or steps[n] is not steps[starts[i - 1]]]

    def search(low: int, high: int) -> list[tuple[int, int, int, int]]:
        if high - low == 1:
            return steps[starts[low]]
        middle = (low + high) // 2
        left = search(low, middle)
        return [(greater_equal, len(left), 0, starts[middle]), *left, *search(middle, high)]

    rules = [(load, 0, 0, 4), (equal, 1, 0, audit), (give, 0, 0, KILL), (load, 0, 0, 0)]
    if machine == "x86_64":  # the x32 numbers are a way around the list
        rules += [(greater_equal, 0, 1, X32_BIT), (give, 0, 0, KILL)]
    return b"".join(struct.pack("HBBI", *rule) for rule in rules + search(0, len(starts)))


class Filter:
    """A filter in memory, laid out for the kernel; a child only fills in its process number."""

    def __init__(self, bpf: bytes) -> None:
        self.code = ctypes.create_string_buffer(bpf, len(bpf))
        self.program = ctypes.create_string_buffer(
            struct.pack("HL", len(bpf) // 8, ctypes.addressof(self.code))
        )
        self.words = memoryview(self.code).cast("B").cast("I")
        self.places = [place for place, word in enumerate(self.words) if word == OWN_PID]


def deny_system_calls(libc: ctypes.CDLL, seccomp: Filter) -> None:
    """Load a filter, for this process."""
    for place in seccomp.places:
        seccomp.words[place] = os.getpid()
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, seccomp.program, 0, 0), "seccomp")
