"""Opens the program of every process it can see for writing, over and over while
new ones start, and also what it could still hold of one that has ended. Prints
the path of each that opened and then `tried` with whether any was seen at all."""

import os
import subprocess

ROUNDS = 40


def pids():
    return {int(name) for name in os.listdir("/proc") if name.isdigit()} | {1}


def attempt(path):
    try:
        os.close(os.open(path, os.O_WRONLY))
        print("opened", path, os.readlink(path))
    except OSError:
        pass


seen = set()
for _ in range(ROUNDS):
    child = subprocess.Popen(["/bin/true"])
    for pid in pids():
        program = f"/proc/{pid}/exe"
        try:
            held = os.open(program, os.O_PATH)
            seen.add(os.readlink(program))
        except OSError:
            continue
        attempt(program)
        child.wait()
        attempt(f"/proc/self/fd/{held}")
        os.close(held)
    child.wait()
print("tried", len(seen) > 0)
