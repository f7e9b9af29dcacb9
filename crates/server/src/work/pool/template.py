# Follows `python.py` in a template: an interpreter that has imported its modules and makes boxes, each
# with a copy of itself. It reads orders from its standard input, a socket. With each order it makes K, the
# first process of a box, in new namespaces. K makes W, the copy, and executes the keeper. W waits for its
# keeper, confines itself in the order of `confine` in the keeper, and returns from `template`.
def template(modules):
    import os
    import sys

    check(os, modules)
    before = set(sys.modules)
    import _signal
    import _socket
    import ctypes
    import gc

    libc = ctypes.PyDLL(None, use_errno=True)
    for name in set(sys.modules) - before:
        del sys.modules[name]

    def call(number, *arguments):
        words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
        result = libc.syscall(ctypes.c_long(number), *words)
        if result < 0:
            errno = ctypes.get_errno()
            raise OSError(errno, os.strerror(errno))
        return result

    def receive(number):
        kind = _socket.SOCK_SEQPACKET
        socket = _socket.socket(_socket.AF_UNIX, kind, 0, number)
        data, ancillary, _, _ = socket.recvmsg(1 << 18, 4096, 0x40000000)
        socket.detach()
        passed = b"".join(part for _, _, part in ancillary)
        return data, [int.from_bytes(passed[at : at + 4], sys.byteorder) for at in range(0, len(passed), 4)]

    restore(os, _signal)
    gc.collect()
    gc.freeze()
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(1, b"\0")
    while True:
        order, passed = receive(0)
        if not order:
            os._exit(0)
        line, _, words = order.partition(b"\n")
        namespaces, joins = map(int, line.split())
        go = passed[0]
        try:
            # 0x8000: K is a child of this process's parent.
            flags = (ctypes.c_uint64 * 11)(namespaces | 0x8000)
            is_first = call(435, flags, ctypes.sizeof(flags)) == 0
        except OSError as error:
            is_first = False
            os.write(go, b"clone3: " + str(error).encode())
        if is_first:
            break
        for number in passed:
            os.close(number)

    try:
        clone, keeper = first_process(os, call, passed, joins)
    except BaseException as error:
        os.write(go, str(error).encode()[:200])
        os._exit(1)
    if clone is None:
        become_keeper(os, keeper, words)
    try:
        message, passed = receive(clone)
        confine(os, ctypes, call, clone, message, passed)
    except OSError as error:
        os.write(clone, str(error.errno).encode())
        os._exit(1)
    os.write(clone, b"0")
    os.close(clone)
    for name in THREADS:
        os.environ.pop(name, None)
    reseed(os, sys)


# Set in a template only: with more than one thread it could not be copied.
THREADS = ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"]


# A process that has other threads, open descriptors or other processes cannot be copied, and what its
# copies could write to the same memory is not theirs alone.
def check(os, modules):
    def refuse(why):
        os.write(2, ("it cannot be cloned: " + why + "\n").encode())
        os._exit(1)

    kinds = (
        (1, 1, "started a thread"),
        (2, 3, "keeps a descriptor open"),
        (3, 0, "has memory that its clones would share"),
    )
    for kind, most, what in kinds:
        if modules and modules[-1][kind] > most:
            name = next(module[0] for module in modules if module[kind] > most)
            refuse("the module " + name + " " + what)
    if os.getpid() <= 2:
        refuse("its process id is that of its clones")
    if any(name.isdigit() and int(name) not in (1, os.getpid()) for name in os.listdir("/proc")):
        refuse("a module started a process")


# Signals and umask are those of a new interpreter, whatever the modules did.
def restore(os, signal):
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        usual = {signal.SIGPIPE: signal.SIG_IGN, signal.SIGXFSZ: signal.SIG_IGN}
        usual[signal.SIGINT] = signal.default_int_handler
        signal.signal(number, usual.get(number, signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o022)


# In K. Returns the socket of W to its keeper in W, and the descriptors of the keeper in K.
def first_process(os, call, passed, joins):
    go, program, clone = passed[:3]
    # A change of the user clears the signal of the parent's death.
    call(157, 1, 9)
    for number in passed[3 : 3 + joins]:
        os.write(number, b"0")
    os.write(go, b"k")
    if os.read(go, 1) != b"g":
        os._exit(1)
    os.setresgid(0, 0, 0)
    os.setgroups([])
    os.setresuid(0, 0, 0)
    call(157, 1, 9)
    # A cgroup namespace: its root is where K is now.
    call(272, 0x2000000)
    if os.fork() == 0:
        for number in passed:
            if number != clone:
                os.close(number)
        return clone, None
    return None, [program] + passed[3 + joins :]


def become_keeper(os, descriptors, words):
    # First to numbers above all final ones, so that no move overwrites a source.
    base = max(descriptors) + len(descriptors) + 1
    for index, number in enumerate(descriptors):
        os.dup2(number, base + index, inheritable=False)
    for index in range(1, len(descriptors)):
        os.dup2(base + index, index - 1)
    arguments, _, env = words.partition(b"\0\0")
    variables = [word.partition(b"=") for word in env.split(b"\0") if word]
    try:
        os.execve(base, arguments.split(b"\0"), {key: value for key, _, value in variables})
    finally:
        os._exit(1)


def confine(os, ctypes, call, clone, message, passed):
    line, _, rest = message.partition(b"\n")
    uid, gid, length, *limits = map(int, line.split())
    workdir, program = rest[:length], rest[length:]
    os.setsid()
    for number in range(3):
        os.dup2(passed[number], number)
    pair = ctypes.c_uint64 * 2
    for resource, value in zip(limits[::2], limits[1::2]):
        present = pair()
        call(302, 0, resource, 0, present)
        value = min(value, present[1])
        call(302, 0, resource, pair(value, value), 0)
    # The bounding set, up to the last capability of this kernel.
    for capability in range(64):
        try:
            call(157, 24, capability, 0, 0, 0)
        except OSError:
            break
    # The ambient set, and the secure bits of `lock_out_root`.
    call(157, 47, 4, 0, 0, 0)
    call(157, 28, 0xEF, 0, 0, 0)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    call(126, (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
    # Dumpable, as after `execve`: it may open its own files in /proc. No new privileges.
    call(157, 4, 1, 0, 0, 0)
    call(157, 38, 1, 0, 0, 0)
    if len(passed) > 3:
        call(446, passed[3], 0)
    os.chdir(workdir)
    for number in passed:
        os.close(number)
    if program:
        filter = ctypes.create_string_buffer(program, len(program))
        call(317, 1, 0, pair(len(program) // 8, ctypes.addressof(filter)))


# `os.fork` has reseeded what registers itself for it, such as `random`.
def reseed(os, sys):
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:
        process = sys.modules["multiprocessing.process"]
        process.current_process().authkey = os.urandom(32)


# Runs the order and ends the clone. Python itself would take apart every object of the template at its
# end, and so copy all of its memory. This does what a program can notice: threads, exit functions, streams
# and the objects of the program.
def run_and_leave(os, sys):
    code = 0
    try:
        launch()
    except SystemExit as error:
        code = error.code
        if code is None:
            code = 0
        elif not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    import atexit
    import gc

    try:
        atexit._run_exitfuncs()
    except BaseException:
        pass
    is_flushed = flush(sys)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    names = vars(sys.modules["__main__"]) if "__main__" in sys.modules else {}
    for is_first in (True, False):
        for name in list(names):
            if name != "__builtins__" and (not is_first or (name[:1] == "_" and name[:2] != "__")):
                names[name] = None
    gc.collect()
    is_flushed = flush(sys) and is_flushed
    os._exit(code & 0xFF if is_flushed else 120)


def flush(sys):
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        return True
    except Exception:
        return False


template(preload())
run_and_leave(__import__("os"), __import__("sys"))
