"""The first thing that runs in a sandboxed interpreter: limits itself, then becomes the program.

Started by path, it imports the standard library only. The parent hands over a JSON header line and the
program's source on stdin, and listens on a status descriptor. One letter goes there before any untrusted code
has run: "C" compiled, "S" syntax error, "X" the sandbox itself failed. Nothing the program does later can
change that letter, because the descriptor is closed by then.
"""

import builtins
import ctypes
import json
import os
import resource
import struct
import sys
import warnings

MEMORY_EXIT_CODE = 77
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_PDEATHSIG, SECCOMP_MODE_FILTER = 38, 22, 1, 2
ALLOW, ERRNO_EPERM, ERRNO_ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
CLONE_THREAD, SOCK_TYPE_MASK, SOCK_STREAM = 0x00010000, 0xF, 1
# {architecture: (its audit number, its column below)}
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
# System calls that start processes, reach the network, touch other processes or leave something behind:
# (x86-64, aarch64), -1 where absent.
DENIED = {
    "fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281), "socket": (41, 198),
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "ptrace": (101, 117),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "process_madvise": (440, 440), "move_pages": (279, 239),
    "migrate_pages": (256, 238), "setpriority": (141, 140), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "ioprio_set": (251, 30), "setsid": (112, 157), "unshare": (272, 97), "setns": (308, 268),
    "mount": (165, 40), "umount2": (166, 39), "chroot": (161, 51), "bpf": (321, 280),
    "io_uring_setup": (425, 425), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "reboot": (169, 142),
    "init_module": (175, 105), "finit_module": (313, 273), "chmod": (90, -1), "fchmod": (91, 52),
    "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, -1), "lchown": (94, -1), "fchown": (93, 55),
    "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "mq_open": (240, 180), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190),
}  # fmt: skip
# Allowed with an argument that keeps them harmless; see `deny_system_calls`.
GUARDED = {
    "clone": (56, 220), "clone3": (435, 435), "socketpair": (53, 199), "kill": (62, 129),
    "tgkill": (234, 131), "prlimit64": (302, 261),
}  # fmt: skip
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
# Landlock's rights that change files (ABI 1): write, remove and make of every kind; truncate came with ABI 3.
FILE_WRITE_RIGHTS, WRITE_FILE_RIGHT, TRUNCATE_RIGHT = 0b1111111110010, 1 << 1, 1 << 14
CAPABILITY_VERSION_3, KEPT_CAPABILITIES = 0x20080522, 0b110  # those with which root reads what others own


def limit_resources(limits: dict[str, int]) -> list[str]:
    """Apply the rlimits that the machine grants; never above its hard limits. Returns those refused."""
    refused = []
    wanted = [
        (resource.RLIMIT_AS, limits["memory_mib"] * 2**20),
        (resource.RLIMIT_CPU, int(limits["cpu_seconds"]) + 2),
        (resource.RLIMIT_FSIZE, limits["file_mib"] * 2**20),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_STACK, 64 * 2**20),
    ]
    for which, value in wanted:
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(which, (value, value))
        except (ValueError, OSError) as error:
            refused.append(f"rlimit {which}: {error}")
    return refused


def check(result: int, what: str) -> int:
    """The result of a C call; raises OSError where it is negative."""
    if result < 0:
        raise OSError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def drop_capabilities(libc: ctypes.CDLL) -> None:
    """Give up root's powers: raising limits, signalling and tracing others, administration."""
    header = ctypes.create_string_buffer(struct.pack("Ii", CAPABILITY_VERSION_3, 0))
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, of the lower and of the upper 32
    check(libc.capget(header, data), "capget")
    kept = data[1] & KEPT_CAPABILITIES
    check(libc.capset(header, (ctypes.c_uint32 * 6)(kept, kept)), "capset")


def deny_system_calls(libc: ctypes.CDLL) -> None:
    """Load a seccomp filter: DENIED fail with EPERM, GUARDED serve only a program's own threads and pipes."""
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise OSError("no system call table for " + machine)
    audit, column = ARCHITECTURES[machine]
    load, keep_bits, equal, greater_equal, any_bit, give = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
    first, second = (load, 0, 0, 16), (load, 0, 0, 24)  # the lower halves of a call's arguments
    deny = (give, 0, 0, ERRNO_EPERM)
    own = [first, (equal, 1, 0, os.getpid()), deny]
    guards = {
        "clone": [first, (any_bit, 1, 0, CLONE_THREAD), deny],
        "clone3": [
            (give, 0, 0, ERRNO_ENOSYS)
        ],  # its flags lie in memory, where no filter can look; clone's do not
        # asyncio starts with one. A stream's ends are connected already, other types could send anywhere.
        "socketpair": [second, (keep_bits, 0, 0, SOCK_TYPE_MASK), (equal, 1, 0, SOCK_STREAM), deny],
        "kill": own,
        "tgkill": own,
        "prlimit64": [first, (equal, 2, 0, 0), *own[1:]],
    }
    rules = [(load, 0, 0, 4), (equal, 1, 0, audit), (give, 0, 0, KILL), (load, 0, 0, 0)]
    if machine == "x86_64":  # the x32 numbers are a way around the list
        rules += [(greater_equal, 0, 1, 0x40000000), (give, 0, 0, KILL)]
    for numbers in DENIED.values():
        if numbers[column] >= 0:
            rules += [(equal, 0, 1, numbers[column]), deny]
    for name, guard in guards.items():
        allowed = [*guard, (give, 0, 0, ALLOW)]
        rules += [(equal, 0, len(allowed), GUARDED[name][column]), *allowed]
    rules.append((give, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("HL", len(rules), ctypes.addressof(code)))
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0), "seccomp")


def protect_files(libc: ctypes.CDLL, folder: str) -> None:
    """Forbid by Landlock every change of files outside `folder`; /dev/null may be written to."""
    abi = check(libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1), "Landlock")
    truncate = TRUNCATE_RIGHT if abi >= 3 else 0
    rights = FILE_WRITE_RIGHTS | truncate
    ruleset = check(libc.syscall(LANDLOCK_CREATE_RULESET, struct.pack("Q", rights), 8, 0), "Landlock")
    for path, granted in ((folder, rights), (os.devnull, WRITE_FILE_RIGHT | truncate)):
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", granted, opened)
        check(libc.syscall(LANDLOCK_ADD_RULE, ruleset, 1, rule, 0), "Landlock")
        os.close(opened)
    check(libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)


def lock_down(limits: dict[str, int]) -> dict[str, str]:
    """Apply every layer this machine has. Returns {layer: "on" or why it is off}."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)  # a parent gone before this line breaks the status pipe instead
    layers = {"limits": "; ".join(limit_resources(limits)) or "on"}
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return {
            **layers,
            "process": "on",
            "files": "no_new_privs refused",
            "system calls": "no_new_privs refused",
        }
    steps = {
        "process": lambda: drop_capabilities(libc),
        "files": lambda: protect_files(libc, os.getcwd()),
        "system calls": lambda: deny_system_calls(libc),
    }
    for layer, apply in steps.items():
        try:
            apply()
            layers[layer] = "on"
        except OSError as error:
            layers[layer] = str(error)
    return layers


def main() -> None:
    header, _, source = sys.stdin.buffer.read().partition(b"\n")
    limits = json.loads(header)
    status = limits["status_fd"]
    try:
        report = json.dumps(lock_down(limits)).encode()
    except Exception as error:
        os.write(status, b"X" + repr(error).encode())
        sys.exit(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # thousands of them would pass the output limit before the letter
            code = compile(source, "<program>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        message = f"{type(error).__name__}: {error}"
        os.write(status, b"S" + report + b"\n" + message.encode(errors="replace")[:2000])
        sys.exit(0)
    os.write(status, b"C" + report)
    os.close(status)
    become(code)


def become(code: object) -> None:
    """Run the program as the module `__main__`, as Python runs a script; then end as a script ends."""
    program = type(sys)("__main__")
    vars(program)["__builtins__"] = builtins
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # `-S` leaves them out, a script has them
    sys.modules["__main__"] = program
    sys.argv = ["program.py"]
    print_traceback = sys.excepthook
    try:
        exec(code, vars(program))  # type: ignore[arg-type]
    except SystemExit:
        raise
    except MemoryError:
        sys.exit(MEMORY_EXIT_CODE)
    except BaseException as error:
        frames = error.__traceback__ and error.__traceback__.tb_next  # without this one
        print_traceback(type(error), error.with_traceback(frames), frames)
        sys.exit(1)


if __name__ == "__main__":
    main()
