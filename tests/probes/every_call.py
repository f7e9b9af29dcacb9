"""Makes every system call from 0 to 1023, each in a child of its own and with all
arguments zero, and prints what came of it: an errno, `ok`, `killed N`, `ended`
(it did not return, as exit does not) or `blocked`."""

import ctypes
import errno
import os
import select
import signal

PATIENCE_MS = 100
LOOKS_MAX = 100

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def call(number, answer):
    os.setpgid(0, 0)
    failed = libc.syscall(number, 0, 0, 0, 0, 0, 0) == -1
    os.write(answer, (errno.errorcode[ctypes.get_errno()] if failed else "ok").encode())
    os._exit(0)


def is_waiting(child):
    """Whether it sleeps in its call. One that did not run yet is not blocked."""
    with open(f"/proc/{child}/stat") as stat:
        return stat.read().rsplit(") ", 1)[1][0] not in "RD"


def came_of(number):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        call(number, writer)
    os.close(writer)
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    for _ in range(LOOKS_MAX):
        ready = poll.poll(PATIENCE_MS)
        if ready or is_waiting(child):
            break
    answer = os.read(reader, 64).decode() if ready else "blocked"
    os.close(reader)
    for whom in (child, -child):
        try:
            os.kill(whom, signal.SIGKILL) if answer else None
        except ProcessLookupError:
            pass
    status = os.waitpid(child, 0)[1]
    if answer:
        return answer
    return f"killed {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "ended"


for number in range(1024):
    print(number, came_of(number), flush=True)
