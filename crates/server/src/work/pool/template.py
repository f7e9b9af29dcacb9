# Follows `python.py` in a template: an interpreter that has imported its modules and makes boxes, each
# with a copy of itself. Its native part (`native.rs` of the kernel crate) reads orders from the standard
# input, a socket. It makes K, the first process of a box, in new namespaces, and W, the copy. K executes
# the keeper. W confines itself and returns from `template`.
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
    interpreter = (ctypes.c_int64 * 5)(*functions, offset, size)
    native.serve.restype = None
    restore(os, _signal)
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()
    os.write(1, b"\0")
    native.serve(interpreter)
    for name in THREADS:
        os.environ.pop(name, None)
    reseed(os, sys)


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
