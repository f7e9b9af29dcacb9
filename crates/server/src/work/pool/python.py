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
    return seen


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

    sys.stdout.flush()
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
    for key, value in zip(env[::2], env[1::2]):
        os.environb[key] = value
    for path, mtime, content in zip(files[::3], files[1::3], files[2::3]):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
        os.utime(path, (int(mtime), int(mtime)))
    if not has_input:
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.close(null)
    sys.argv = arguments
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = sys.orig_argv[:1] + arguments
    if sys.path[:1] == [""]:
        sys.path[0] = os.path.dirname(arguments[0])
    # It remembers directories that did not exist when the interpreter started.
    sys.path_importer_cache.clear()
    run(sys, arguments[0])


def run(sys, path):
    import _frozen_importlib_external
    import builtins

    main = type(sys)("__main__")
    loader = _frozen_importlib_external.SourceFileLoader("__main__", path)
    vars(main).update(__builtins__=builtins, __cached__=None, __file__=path, __loader__=loader)
    if "__annotations__" in globals():
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    try:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, vars(main))
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
