# Started ahead of a request as `python3 -c`, with the modules to import as its arguments. It writes
# one byte when it is ready, reads one order from its standard input, and runs that program as
# `python3 FILE` would. It is used once.

# Imports the modules, and writes the name of each before. Returns each with the threads, the descriptors
# and the writable shared mappings that there were afterwards.
def preload():
    import os
    import sys

    seen = []
    for name in sys.argv[1:]:
        os.write(1, b"\n\1" + os.fsencode(name) + b"\n")
        try:
            __import__(name)
        except BaseException as error:
            why = type(error).__name__ + ": " + " ".join(str(error).split())[:500]
            os.write(2, ("\ncannot import " + name + ": " + why + "\n").encode("utf-8", "replace"))
            os._exit(1)
        threads, descriptors = [len(os.listdir("/proc/self/" + kind)) for kind in ("task", "fd")]
        with open("/proc/self/maps", "rb") as maps:
            shared = sum(line.split()[1][1::2] == b"ws" for line in maps)
        seen.append([name, threads, descriptors - 1, shared])
    sys.stdout.flush()
    return seen


# A clone copies each page of memory that this touches, so it calls as few functions as possible.
def launch():
    import os
    import sys

    def read(count):
        data = b""
        while len(data) < count:
            part = os.read(0, count - len(data))
            if not part:
                os._exit(0)
            data += part
        return data

    os.write(1, b"\0")
    order = read(int(read(16), 16))
    at = 0

    def word():
        nonlocal at
        begin = order.index(b"\n", at) + 1
        at = begin + int(order[at : begin - 1])
        return order[begin:at]

    def words():
        return [word() for _ in range(int(word()))]

    has_input, arguments, env, files = word() == b"1", words(), words(), words()
    arguments = [os.fsdecode(argument) for argument in arguments]
    if env:
        for key, value in zip(env[::2], env[1::2]):
            os.environb[key] = value
    contents = {}
    for path, mtime, content in zip(files[::3], files[1::3], files[2::3]):
        write_file(os, path, content)
        os.utime(path, (int(mtime), int(mtime)))
        contents[os.fsdecode(path)] = content
    if not has_input:
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.close(null)
    sys.argv = arguments
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = sys.orig_argv[:1] + arguments
    if sys.path[:1] == [""]:
        sys.path[0] = arguments[0].rpartition("/")[0] or "/"
    # It remembers directories that did not exist when the interpreter started.
    sys.path_importer_cache.clear()
    run(sys, arguments[0], contents.get(arguments[0]))


# Without file objects: a clone would copy the memory of everything that they need.
def write_file(os, path, content):
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        file = os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path))
        file = os.open(path, flags, 0o666)
    while content:
        content = content[os.write(file, content) :]
    os.close(file)


# Runs a program. Its source is what has just been written to the file, if that is known.
def run(sys, path, source):
    import _frozen_importlib_external
    import builtins

    main = type(sys)("__main__")
    loader = _frozen_importlib_external.SourceFileLoader("__main__", path)
    vars(main).update(__builtins__=builtins, __cached__=None, __file__=path, __loader__=loader)
    if "__annotations__" in globals():
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    try:
        if source is None:
            with open(path, "rb") as file:
                source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), vars(main))
    except SystemExit:
        raise
    except KeyboardInterrupt:
        hide_own_frames(sys)
        raise
    except BaseException as error:
        # Without the frame of this function, as if Python had run the file itself.
        error.__traceback__ = error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


# Python itself has to end a program that was interrupted: it ends by the signal.
def hide_own_frames(sys):
    hook = sys.excepthook

    def excepthook(kind, error, traceback):
        while traceback is not None and traceback.tb_frame.f_globals is globals():
            traceback = traceback.tb_next
        hook(kind, error.with_traceback(traceback), traceback)

    sys.excepthook = excepthook
