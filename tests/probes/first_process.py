"""Attacks on process 1 from a process beside it, and on what it could have left to
find. Prints a line for each: its name and the errno, or `done` where it worked.
Nothing here changes process 1 where it works: the control runs it as root."""

import ctypes
import errno
import os
import signal

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
PIDFD_GETFD, PROCESS_VM_READV, KCMP = 438, 310, 312


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def checked(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result


def seize():
    checked(libc.ptrace(PTRACE_SEIZE, 1, None, None))
    libc.ptrace(PTRACE_DETACH, 1, None, None)


def take_descriptor():
    os.close(checked(libc.syscall(PIDFD_GETFD, os.pidfd_open(1), 0, 0)))


def read_memory():
    # Its first mapping, where /proc says so; a static program's place otherwise.
    try:
        address = int(open("/proc/1/maps").read().split("-")[0], 16)
    except OSError:
        address = 0x400000
    buffer = ctypes.create_string_buffer(16)
    here = Iovec(ctypes.addressof(buffer), 16)
    there = Iovec(address, 16)
    checked(libc.syscall(PROCESS_VM_READV, 1, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))


def compare():
    checked(libc.syscall(KCMP, 1, os.getpid(), 0, 0, 0))


def write_program():
    # Without truncating; a program that runs is busy, which is an answer too.
    os.close(os.open("/proc/1/exe", os.O_WRONLY))


def limit():
    import resource

    resource.prlimit(1, resource.RLIMIT_CORE, (0, 0))


ATTACKS = {
    "signal": lambda: os.kill(1, 0),
    "signal by pidfd": lambda: signal.pidfd_send_signal(os.pidfd_open(1), 0),
    "ptrace": seize,
    "pidfd_getfd": take_descriptor,
    "process_vm_readv": read_memory,
    "kcmp": compare,
    "limit": limit,
    "list": lambda: os.stat("/proc/1"),
    "status": lambda: open("/proc/1/status").close(),
    "cmdline": lambda: open("/proc/1/cmdline").close(),
    "environ": lambda: open("/proc/1/environ").read(),
    "maps": lambda: open("/proc/1/maps").read(),
    "memory": lambda: open("/proc/1/mem", "rb").close(),
    "descriptors": lambda: os.listdir("/proc/1/fd"),
    "root": lambda: os.listdir("/proc/1/root/"),
    "working directory": lambda: os.listdir("/proc/1/cwd/"),
    "program": lambda: os.readlink("/proc/1/exe"),
    "read program": lambda: open("/proc/1/exe", "rb").close(),
    "namespaces": lambda: os.readlink("/proc/1/ns/mnt"),
    "mounts": lambda: open("/proc/1/mountinfo").close(),
}

for name, attack in ATTACKS.items():
    try:
        attack()
        print(f"{name}: done")
    except OSError as error:
        print(f"{name}: {errno.errorcode[error.errno]}")
