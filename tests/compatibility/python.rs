//! Python: threads, processes, event loops, databases, encryption, packages.

use tare_harness::skip::has_program;
use tare_harness::{skip, tare};

use super::{python, shell};

#[test]
fn threads_share_memory_and_wait_for_each_other() {
    let tare = tare!();
    let source = "
import threading, concurrent.futures
lock, count = threading.Lock(), 0
def work():
    global count
    for _ in range(1000):
        with lock:
            count += 1
threads = [threading.Thread(target=work) for _ in range(64)]
[one.start() for one in threads]
[one.join() for one in threads]
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    print(count, sum(pool.map(lambda n: n * n, range(100))))
";
    python(&tare, source).ok().printed("64000 328350\n").said_nothing();
}

/// Pools, queues, locks (POSIX semaphores) and shared memory (`/dev/shm`), by each
/// way to make a process.
#[test]
fn multiprocessing_works_by_fork_by_spawn_and_by_server() {
    let tare = tare!();
    let source = "
import multiprocessing as mp, sys
from multiprocessing import shared_memory
def square(n): return n * n
def put(queue, lock, value, name):
    block = shared_memory.SharedMemory(name=name)
    with lock:
        value.value += 1
        block.buf[0] += 1
    block.close()
    queue.put('from a process')
if __name__ == '__main__':
    for how in ('fork', 'spawn', 'forkserver'):
        context = mp.get_context(how)
        with context.Pool(4) as pool:
            squares = sum(pool.map(square, range(50)))
        block = shared_memory.SharedMemory(create=True, size=4096)
        queue, lock, value = context.Queue(), context.Lock(), context.Value('i', 0)
        made = [context.Process(target=put, args=(queue, lock, value, block.name)) for _ in range(3)]
        [one.start() for one in made]
        said = {queue.get() for _ in made}
        [one.join() for one in made]
        print(how, squares, value.value, block.buf[0], said)
        block.close()
        block.unlink()
    with mp.Manager() as manager:
        shared = manager.dict(a=1)
        shared['b'] = 2
        print(dict(shared))
";
    let line = |how: &str| format!("{how} 40425 3 3 {{'from a process'}}\n");
    let expected = ["fork", "spawn", "forkserver"].map(line).concat();
    python(&tare, source).ok().printed(&format!("{expected}{{'a': 1, 'b': 2}}\n")).said_nothing();
}

#[test]
fn asyncio_has_processes_sockets_and_signals() {
    let tare = tare!();
    let source = "
import asyncio, os, signal
async def answer(reader, writer):
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()
async def ask(open):
    reader, writer = await open
    writer.write(b'hello\\n')
    print((await reader.read()).decode(), end='')
    writer.close()
async def main():
    process = await asyncio.create_subprocess_exec('tr', 'a-z', 'A-Z', stdin=-1, stdout=-1)
    print((await process.communicate(b'child\\n'))[0].decode(), process.returncode)
    tcp = await asyncio.start_server(answer, '127.0.0.1', 0)
    await ask(asyncio.open_connection(*tcp.sockets[0].getsockname()))
    unix = await asyncio.start_unix_server(answer, 'socket')
    await ask(asyncio.open_unix_connection('socket'))
    came = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, came.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(came.wait(), 10)
    await asyncio.wait_for(asyncio.to_thread(lambda: print('thread')), 10)
asyncio.run(main())
";
    python(&tare, source).ok().printed("CHILD\n 0\nHELLO\nHELLO\nthread\n").said_nothing();
}

/// Two processes on one file: the journal is shared memory and file locks.
#[test]
fn sqlite_writes_ahead_from_two_processes() {
    let tare = tare!();
    let source = "
import sqlite3, subprocess, sys
if len(sys.argv) == 1:
    db = sqlite3.connect('data')
    print(db.execute('pragma journal_mode=wal').fetchone()[0])
    with db:
        db.execute('create table t (n integer)')
    made = [subprocess.Popen([sys.executable, __file__, str(n)]) for n in range(2)]
    print([one.wait() for one in made])
    print(db.execute('select count(*), sum(n) from t').fetchone())
    print(db.execute('pragma integrity_check').fetchone()[0])
else:
    db = sqlite3.connect('data', timeout=30)
    for _ in range(100):
        with db:
            db.execute('insert into t values (?)', (int(sys.argv[1]),))
";
    python(&tare, source).ok().printed("wal\n[0, 0]\n(200, 100)\nok\n").said_nothing();
}

#[test]
fn ssl_finds_the_hosts_certificates() {
    let tare = tare!();
    if !std::path::Path::new("/etc/ssl/certs/ca-certificates.crt").exists() {
        skip!("this host has no certificates");
    }
    let source = "
import ssl
context = ssl.create_default_context()
print(context.cert_store_stats()['x509_ca'] > 10)
";
    python(&tare, source).ok().printed("True\n").said_nothing();
}

#[test]
fn tls_shakes_hands_on_loopback() {
    let tare = tare!();
    if !has_program("openssl") {
        skip!("this host has no openssl");
    }
    let source = "
import socket, ssl, subprocess, threading
subprocess.run('openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -days 1 '
    '-subj /CN=localhost -addext subjectAltName=DNS:localhost', shell=True, check=True, stderr=-3)
server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
server.load_cert_chain('cert', 'key')
listener = socket.create_server(('localhost', 0))
def serve():
    with server.wrap_socket(listener.accept()[0], server_side=True) as peer:
        peer.sendall(peer.recv(100).upper())
threading.Thread(target=serve).start()
client = ssl.create_default_context(cafile='cert')
with client.wrap_socket(socket.create_connection(listener.getsockname()), server_hostname='localhost') as peer:
    peer.sendall(b'secret')
    print(peer.recv(100), peer.version())
";
    python(&tare, source).ok().printed("b'SECRET' TLSv1.3\n").said_nothing();
}

#[test]
fn a_program_can_create_terminals() {
    let tare = tare!();
    let source = "
import os, pty, subprocess, sys
master, slave = pty.openpty()
print(os.isatty(slave), os.ttyname(slave).startswith('/dev/pts/'))
subprocess.run(['stty', 'rows', '30', 'cols', '100'], stdin=slave, check=True)
print(os.get_terminal_size(slave))
child, master = pty.fork()
if child == 0:
    os.execlp('sh', 'sh', '-c', 'test -t 0 && tty < /dev/tty')
said = os.read(master, 1024)
print(os.waitpid(child, 0)[1], said)
";
    python(&tare, source)
        .ok()
        .printed("True True\nos.terminal_size(columns=100, lines=30)\n0 b'/dev/tty\\r\\n'\n");
}

#[test]
fn temporary_files_live_in_the_box() {
    let tare = tare!();
    let source = "
import os, tempfile
with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile() as file:
    file.write(b'x' * 100000)
    open(os.path.join(directory, 'a'), 'w').write('b')
    print(tempfile.gettempdir(), os.listdir(directory), file.tell())
with tempfile.NamedTemporaryFile(suffix='.txt') as file:
    print(os.path.exists(file.name))
print(os.path.exists(file.name))
";
    python(&tare, source).ok().printed("/tmp ['a'] 100000\nTrue\nFalse\n").said_nothing();
}

#[test]
fn subprocesses_have_pipes_groups_limits_and_timeouts() {
    let tare = tare!();
    let source = "
import os, resource, signal, subprocess
run = lambda *args, **kw: subprocess.run(*args, capture_output=True, text=True, **kw)
print(run('echo $X | tr a-z A-Z', shell=True, env={'X': 'shell', 'PATH': '/usr/bin:/bin'}).stdout, end='')
try:
    run(['sleep', '60'], timeout=0.1)
except subprocess.TimeoutExpired:
    print('expired')
group = subprocess.Popen('sleep 60 & wait', shell=True, start_new_session=True)
os.killpg(group.pid, signal.SIGKILL)
print(group.wait())
limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
print(run(['sh', '-c', 'ulimit -n; nice -n 5 nice'], preexec_fn=limit).stdout.split())
print(run(['cat'], input='z' * 1000000).stdout.count('z'))
";
    python(&tare, source).ok().printed("SHELL\nexpired\n-9\n['64', '5']\n1000000\n").said_nothing();
}

#[test]
fn text_is_utf_8_everywhere() {
    let tare = tare!();
    let source = "
import locale, os, sys
locale.setlocale(locale.LC_ALL, '')
print(locale.getpreferredencoding(), sys.getfilesystemencoding(), sys.stdout.encoding)
open('große-Ünïcödé-文件', 'w').write('ß')
print(sorted(os.listdir('.'))[0], 'ΑΒΓ'.lower())
";
    python(&tare, source)
        .ok()
        .printed("UTF-8 utf-8 utf-8\ngroße-Ünïcödé-文件 αβγ\n")
        .said_nothing();
}

/// Makes a source distribution and a wheel of it by hand, without an index.
const PACKAGE: &str = "
mkdir -p package/thing
echo 'def word(): return \"installed\"' > package/thing/__init__.py
echo 'from setuptools import setup; setup(name=\"thing\", version=\"1.0\", packages=[\"thing\"])' > package/setup.py
cat > wheel.py <<'END'
import zipfile
with zipfile.ZipFile('thing-1.0-py3-none-any.whl', 'w') as wheel:
    info = 'thing-1.0.dist-info/'
    wheel.write('package/thing/__init__.py', 'thing/__init__.py')
    wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: thing\\nVersion: 1.0\\n')
    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr(info + 'RECORD', '')
END
python3 wheel.py
";

#[test]
fn pip_installs_a_wheel_and_a_source_tree_into_a_virtual_environment() {
    let tare = tare!();
    let probe = "import ensurepip, sys; sys.exit(not ensurepip.version())";
    if tare.run(["--", "python3", "-c", probe]).code != 0 {
        skip!("this host has no python3-venv");
    }
    let script = format!(
        "{PACKAGE}
        python3 -m venv env
        env/bin/pip --version | cut -d' ' -f1
        install() {{ env/bin/pip install -q --no-index --no-build-isolation --disable-pip-version-check \"$@\"; }}
        install ./thing-1.0-py3-none-any.whl
        env/bin/python -c 'import thing; print(thing.word())'
        env/bin/pip uninstall -q -y thing
        env/bin/python -c 'import setuptools' 2>/dev/null || {{ echo installed; exit; }}
        install ./package
        env/bin/python -c 'import thing; print(thing.word())'"
    );
    shell(&tare, &[], &script).ok().printed("pip\ninstalled\ninstalled\n");
}

/// Serves the wheel as a registry does, on the loopback of the box, and installs it with `install`.
const REGISTRY: &str = "
mkdir -p registry/simple/thing
mv thing-1.0-py3-none-any.whl registry/simple/thing
cat > serve.py <<'END'
import functools, http.server
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory='registry')
http.server.ThreadingHTTPServer(('127.0.0.1', 8000), handler).serve_forever()
END
python3 serve.py 2>/dev/null &
install() {
  \"$@\" -m pip install -q --retries 20 --disable-pip-version-check --index-url http://127.0.0.1:8000/simple thing
  \"$@\" -c 'import thing; print(thing.word(), thing.__file__)'
}
";

#[test]
fn pip_installs_from_a_registry_for_the_user_and_in_a_virtual_environment() {
    let tare = tare!();
    if tare.run(["--", "python3", "-m", "pip", "--version"]).code != 0 {
        skip!("this host's python3 has no pip");
    }
    // As an ordinary user, and as the root of the box.
    for options in [&[][..], &["--root"]] {
        let script = format!("{PACKAGE}{REGISTRY}install python3; echo \"$PATH\"");
        let installed = shell(&tare, options, &script).ok().stdout_text();
        let place = "/work/.local/lib/python3.";
        assert!(installed.starts_with(&format!("installed {place}")), "{installed}");
        assert!(installed.ends_with("/bin:/work/.local/bin\n"), "{installed}");
    }
    let probe = "import ensurepip, sys; sys.exit(not ensurepip.version())";
    if tare.run(["--", "python3", "-c", probe]).code != 0 {
        skip!("this host has no python3-venv");
    }
    let script = format!("{PACKAGE}{REGISTRY}python3 -m venv env; install env/bin/python");
    let installed = shell(&tare, &[], &script).ok().stdout_text();
    assert!(installed.starts_with("installed /work/env/lib/python3."), "{installed}");
}

/// There, pip would change the host's own packages.
#[test]
fn a_contained_box_does_not_let_pip_break_the_hosts_packages() {
    let tare = tare!();
    let script = "echo ${PIP_BREAK_SYSTEM_PACKAGES-unset}";
    tare.run(["--contain", "--", "sh", "-c", script]).ok().printed("unset\n");
}
