"""Makes system calls, one per argument: numbers separated by commas, @text for a
string, and prints the errno of each by name, `ok` where there was none."""

import ctypes
import errno
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def argument(text):
    if text.startswith("@"):
        return ctypes.c_char_p(text[1:].encode())
    return ctypes.c_ulong(int(text, 0))


for call in sys.argv[1:]:
    failed = libc.syscall(*map(argument, call.split(","))) == -1
    print(errno.errorcode[ctypes.get_errno()] if failed else "ok")
