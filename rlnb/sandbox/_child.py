"""The first thing that runs in a sandboxed interpreter: limits itself, then becomes the program.

Started by path with `-I -S`, so it imports the standard library only. The parent hands over a JSON
header line and the program's source on stdin, and listens on a status descriptor. One letter goes there before any
untrusted code has run: "C" compiled, "S" syntax error, "X" the sandbox itself failed. Nothing the program does
later can change that letter, because the descriptor is closed by then.
"""

import builtins
import ctypes
import json
import os
import resource
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_PDEATHSIG, SECCOMP_MODE_FILTER = 38, 22, 1, 2
ALLOW, ERRNO_EPERM, ERRNO_ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
CLONE_THREAD = 0x00010000
# System calls that start processes, reach the network or touch other processes: (x86-64, aarch64), -1 where absent.
DENIED = {
    "fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281), "socket": (41, 198),
    "socketpair": (53, 199), "kill": (62, 129), "tkill": (200, 130), "ptrace": (101, 117), "unshare": (272, 97),
    "setns": (308, 268), "mount": (165, 40), "bpf": (321, 280), "io_uring_setup": (425, 425), "keyctl": (250, 219),
    "process_vm_writev": (311, 271), "pidfd_open": (434, 434), "chroot": (161, 51), "setsid": (112, 157),
    "process_vm_readv": (310, 270), "pidfd_send_signal": (424, 424), "add_key": (248, 217), "chmod": (90, -1),
    "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, -1), "fchown": (93, 55), "fchownat": (260, 54),
    "umount2": (166, 39), "reboot": (169, 142), "init_module": (175, 105), "finit_module": (313, 273),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "mq_open": (240, 180), "shmget": (29, 194),
}  # fmt: skip
ARCHES = {
    "x86_64": (0xC000003E, 0, 56, 435),
    "aarch64": (0xC00000B7, 1, 220, 435),
}  # audit id, column, clone, clone3
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
# Landlock's rights that change files (ABI 1): write, remove and make of every kind; truncate (ABI 3) is added if known.
FILE_WRITE_RIGHTS, TRUNCATE_RIGHT = 0b1111111110010, 1 << 14


def limit_resources(limits):
    """Apply the rlimits that the machine grants; never above its hard limits. Returns those refused."""
    refused = []
    memory = limits["memory_mib"] * 2**20
    wanted = [
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, int(limits["cpu_seconds"]) + 2),
        (resource.RLIMIT_FSIZE, limits["file_mib"] * 2**20),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_STACK, 64 * 2**20),
    ]
    if os.getuid() != 0:
        wanted.append((resource.RLIMIT_NPROC, limits["threads"]))
    for which, value in wanted:
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(which, (value, value))
        except (ValueError, OSError) as error:
            refused.append("rlimit %d: %s" % (which, error))
    return refused


def deny_system_calls(libc):
    """Load a seccomp filter under which DENIED fail with EPERM and clone may only start threads."""
    machine = os.uname().machine
    if machine not in ARCHES:
        raise OSError("no system call table for " + machine)
    audit, column, clone, clone3 = ARCHES[machine]
    load, equal, greater_equal, masked, give = 0x20, 0x15, 0x35, 0x45, 0x06
    rules = [(load, 0, 0, 4), (equal, 1, 0, audit), (give, 0, 0, KILL), (load, 0, 0, 0)]
    if machine == "x86_64":
        rules += [
            (greater_equal, 0, 1, 0x40000000),
            (give, 0, 0, KILL),
        ]  # the x32 numbers are a way around the list
    for numbers in DENIED.values():
        if numbers[column] >= 0:
            rules += [(equal, 0, 1, numbers[column]), (give, 0, 0, ERRNO_EPERM)]
    rules += [
        (equal, 0, 1, clone3),
        (give, 0, 0, ERRNO_ENOSYS),
    ]  # its flags lie in memory, where no filter can look
    rules += [(equal, 0, 3, clone), (load, 0, 0, 16), (masked, 1, 0, CLONE_THREAD), (give, 0, 0, ERRNO_EPERM)]
    rules.append((give, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("HL", len(rules), ctypes.addressof(code)))
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp: " + os.strerror(ctypes.get_errno()))


def protect_files(libc, folder):
    """Forbid by Landlock every change of files outside `folder`."""
    abi = libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1)
    if abi < 1:
        raise OSError(ctypes.get_errno(), "Landlock: " + os.strerror(ctypes.get_errno()))
    rights = FILE_WRITE_RIGHTS | (TRUNCATE_RIGHT if abi >= 3 else 0)
    ruleset = libc.syscall(LANDLOCK_CREATE_RULESET, struct.pack("Q", rights), 8, 0)
    parent = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    rule = struct.pack("=Qi", rights, parent)
    failed = libc.syscall(LANDLOCK_ADD_RULE, ruleset, 1, rule, 0) or libc.syscall(
        LANDLOCK_RESTRICT_SELF, ruleset, 0
    )
    os.close(parent)
    os.close(ruleset)
    if failed:
        raise OSError(ctypes.get_errno(), "Landlock: " + os.strerror(ctypes.get_errno()))


def lock_down(limits):
    """Apply every layer this machine has. Returns {layer: "on" or why it is off}."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)
    layers = {"process": "on"}
    refused = limit_resources(limits)
    layers["limits"] = "; ".join(refused) or "on"
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        layers["files"] = layers["system calls"] = "no_new_privs refused"
        return layers
    for layer, apply in [("files", lambda: protect_files(libc, os.getcwd())),
                         ("system calls", lambda: deny_system_calls(libc))]:  # fmt: skip
        try:
            apply()
            layers[layer] = "on"
        except OSError as error:
            layers[layer] = str(error)
    return layers


def main():
    header, _, source = sys.stdin.buffer.read().partition(b"\n")
    limits = json.loads(header)
    status = limits["status_fd"]
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    sys.stdin = open(0, encoding="utf-8")
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        layers = lock_down(limits)
    except Exception as error:
        os.write(status, b"X" + repr(error).encode())
        os._exit(0)
    report = json.dumps(layers).encode()
    try:
        code = compile(source, "<program>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        os.write(status, b"S" + report + b"\n" + ("%s: %s" % (type(error).__name__, error)).encode()[:2000])
        os._exit(0)
    os.write(status, b"C" + report)
    os.close(status)
    builtins.exit = builtins.quit = sys.exit  # `-S` leaves them out, a script has them
    leave, flush_out, flush_error = os._exit, sys.stdout.flush, sys.stderr.flush
    print_traceback = sys.excepthook
    result = 0
    try:
        exec(code, {"__name__": "__main__", "__builtins__": __builtins__})
    except SystemExit as stop:
        result = stop.code if isinstance(stop.code, int) else (0 if stop.code is None else 1)
    except MemoryError:
        result = 77
    except BaseException as error:
        result = 1
        print_traceback(type(error), error, error.__traceback__)
    try:
        flush_out()
        flush_error()
    except OSError:
        result = result or 1
    leave(result & 255)


if __name__ == "__main__":
    main()
