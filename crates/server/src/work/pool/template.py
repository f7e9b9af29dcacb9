# Follows `python.py` in a template: an interpreter that has imported its modules and makes boxes, each
# with a copy of itself. Its native part (`native.rs` of the kernel crate) reads orders from the standard
# input, a socket. It makes K, the first process of a box, in new namespaces, and W, the copy. K executes
# the keeper. W confines itself and returns from `template`, with the module that collects garbage: W does not
# import it again, because an import writes to much memory.
def template(modules):
    import os
    import sys

    check(os, modules)
    before = set(sys.modules)
    import _signal
    import _socket
    import ctypes
    import gc

    python = ctypes.PyDLL(None)
    native = load(os, sys, _socket, ctypes)
    for name in set(sys.modules) - before:
        del sys.modules[name]

    def address(name):
        return ctypes.cast(getattr(python, name), ctypes.c_void_p).value

    try:
        # The C library's area for restartable sequences, from glibc 2.35 on.
        offset = ctypes.c_ssize_t.in_dll(python, "__rseq_offset").value
        size = ctypes.c_uint.in_dll(python, "__rseq_size").value
    except ValueError:
        offset = size = 0
    functions = [address(name) for name in ("PyOS_BeforeFork", "PyOS_AfterFork_Child", "fork")]
    native.serve.restype = None
    sys.stdout.flush()
    sys.stderr.flush()
    restore(os, _signal)
    for name in TEMPLATE_ENV:
        os.environ.pop(name, None)
    written = prepare(os, sys, gc)
    pages = (ctypes.c_int64 * len(written))(*written)
    words = [*functions, offset, size, ctypes.addressof(pages), len(written) // 2]
    interpreter = (ctypes.c_int64 * len(words))(*words)
    os.write(1, b"\0")
    native.serve(interpreter)
    reseed(os, sys)
    return gc


# Loads the native part from the descriptor that comes first on the standard input.
def load(os, sys, _socket, ctypes):
    socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, 0)
    _, ancillary, _, _ = socket.recvmsg(64, 64, 0x40000000)
    socket.detach()
    if not ancillary:
        os._exit(0)
    number = int.from_bytes(ancillary[0][2][:4], sys.byteorder)
    native = ctypes.PyDLL("/proc/self/fd/" + str(number))
    os.close(number)
    return native


# Set in a template only, while it imports its modules. The first four keep libraries from starting threads: a
# process with threads cannot be copied. LD_BIND_NOW resolves symbols once, in the template.
TEMPLATE_ENV = [
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "LD_BIND_NOW",
]

# Python adapts a function to its arguments after a few calls, and writes to its memory for that.
REHEARSALS = 16


# Makes clones fast. Returns the memory that they write; none if that cannot be found out.
def prepare(os, sys, gc):
    try:
        rehearse(os, sys, gc, REHEARSALS)
        gc.collect()
        gc.freeze()
        return needed_pages(os, sys, gc)
    except OSError:
        gc.collect()
        gc.freeze()
        return []


# Runs a small program as a clone would, or with `is_last` to the end of the clone. What Python caches meanwhile, clones
# need not make.
def rehearse(os, sys, gc, times, is_last=False):
    def word(text):
        return b"%d\n%s" % (len(text), text)

    path = "/work/main.py"
    words = [b"0", b"1", path.encode(), b"0", b"3", path.encode(), b"0", b"print(1)\n"]
    order = b"".join(map(word, words))
    argv, orig_argv, paths = sys.argv, getattr(sys, "orig_argv", None), list(sys.path)
    main = sys.modules["__main__"]
    null, streams = os.open("/dev/null", os.O_RDWR), [os.dup(0), os.dup(1)]
    os.dup2(null, 1)
    try:
        for _ in range(times):
            reads, writes = os.pipe()
            os.write(writes, b"%016x%s" % (len(order), order))
            os.dup2(reads, 0)
            os.close(reads)
            os.close(writes)
            launch()
            if is_last:
                finish(sys, gc)
            sys.argv, sys.path[:], sys.modules["__main__"] = argv, paths, main
            if orig_argv is not None:
                sys.orig_argv = orig_argv
        os.unlink(path)
    finally:
        sys.stdout.flush()
        for number in (0, 1):
            os.dup2(streams[number], number)
        for number in [null] + streams:
            os.close(number)


# Returns the memory that a clone writes, as the native part takes it, by the rehearsal of a copy: from its
# start to its end. A clone that gets it at once has few page faults. Another copy looks, which shares with
# this process what the first one has not written: what either writes by looking and waiting does not count.
def needed_pages(os, sys, gc):
    (found, answer), (named, name), (rehearsed, ready), (held, hold) = [os.pipe() for _ in range(4)]
    looker = os.fork()
    if looker == 0:
        try:
            os.close(ready)
            os.close(name)
            copy = int(os.read(named, 16))
            if os.read(rehearsed, 1):
                pages = written_pages(os, copy)
                os.write(answer, b" ".join(b"%d" % number for number in pages))
        finally:
            os._exit(0)
    try:
        copy = os.fork()
    except OSError:
        # The looker ends when it reads the end of its pipes.
        for number in (found, answer, named, name, rehearsed, ready, held, hold):
            os.close(number)
        os.waitpid(looker, 0)
        raise
    if copy == 0:
        try:
            # Exit functions of modules may wait, or act on what clones need. Those of this copy are its own.
            if "atexit" in sys.modules:
                sys.modules["atexit"]._clear()
            reseed(os, sys)
            rehearse(os, sys, gc, 1, is_last=True)
            os.write(ready, b".")
            os.close(hold)
            os.read(held, 1)
        finally:
            os._exit(0)
    os.write(name, b"%d" % copy)
    for number in (answer, named, name, rehearsed, ready, held, hold):
        os.close(number)
    with open(found, "rb") as answers:
        pages = [int(number) for number in answers.read().split()]
    os.waitpid(looker, 0)
    os.waitpid(copy, 0)
    return pages


# Returns the pages that a copy of this process has written, as pairs of an address and a length.
def written_pages(os, copy):
    size = os.sysconf("SC_PAGE_SIZE")
    found = []
    with open("/proc/%d/maps" % copy, "rb") as maps:
        lines = maps.readlines()
    pagemap = os.open("/proc/%d/pagemap" % copy, os.O_RDONLY)
    for line in lines:
        place, kind = line.split()[:2]
        start, end = (int(address, 16) for address in place.split(b"-"))
        if kind[:2] != b"rw" or kind[3:] != b"p" or end >= 1 << 47 or end - start > 1 << 30:
            continue
        flags = os.pread(pagemap, (end - start) // size * 8, start // size * 8)[7::8]
        for at in range(start, end, size):
            # Present, and mapped by no other process.
            if flags[(at - start) // size] & 0x81 != 0x81:
                continue
            if found and found[-2] + found[-1] == at:
                found[-1] += size
            else:
                found += [at, size]
    os.close(pagemap)
    return found


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


# `PyOS_AfterFork_Child` has reseeded what registers itself for it, such as `random`.
def reseed(os, sys):
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:
        process = sys.modules["multiprocessing.process"]
        process.current_process().authkey = os.urandom(32)


# Runs the order and ends the clone. Python itself would take apart every object of the template at its
# end, and so copy all of its memory. This does what a program can notice: threads, exit functions, streams
# and the objects of the program.
def run_and_leave(os, sys, gc):
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
    os._exit(code & 0xFF if finish(sys, gc) else 120)


# Returns whether all output was written.
def finish(sys, gc):
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    if "atexit" in sys.modules:
        try:
            sys.modules["atexit"]._run_exitfuncs()
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
    return flush(sys) and is_flushed


def flush(sys):
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        return True
    except Exception:
        return False


gc = template(preload())
run_and_leave(__import__("os"), __import__("sys"), gc)
