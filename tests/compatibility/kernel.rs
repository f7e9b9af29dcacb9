//! What programs need from the kernel: sockets, descriptors of every kind, locks, memory, files.

use tare_harness::{skip, tare};

use super::python;

#[test]
fn unix_sockets_pass_descriptors_by_name_and_by_abstract_name() {
    let tare = tare!();
    let source = "
import array, os, socket
for name in ('socket', '\\0abstract'):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect(name)
    peer = listener.accept()[0]
    read, write = os.pipe()
    socket.send_fds(client, [b'take'], [write])
    message, fds, _, _ = socket.recv_fds(peer, 10, 1)
    os.write(fds[0], b'through')
    print(message, os.read(read, 10))
left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
left.send(b'packet')
print(right.recv(100))
";
    python(&tare, source)
        .ok()
        .printed("b'take' b'through'\nb'take' b'through'\nb'packet'\n")
        .said_nothing();
}

/// `ip_unprivileged_port_start` is 0: the box is alone in its network.
#[test]
fn a_server_can_bind_port_80() {
    let tare = tare!();
    let source = "
import http.server, threading, urllib.request
server = http.server.HTTPServer(('', 80), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
open('index.html', 'w').write('served')
print(urllib.request.urlopen('http://localhost/').read())
server.shutdown()
";
    let output = python(&tare, source).ok();
    assert_eq!(output.stdout_text(), "b'served'\n", "{output}");
}

#[test]
fn loopback_has_both_families_and_a_name() {
    let tare = tare!();
    let source = "
import socket
print(sorted({a[4][0] for a in socket.getaddrinfo('localhost', 80)}))
print(socket.gethostbyname(socket.gethostname()))
for family, address in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):
    listener = socket.create_server((address, 0), family=family)
    client = socket.create_connection(listener.getsockname()[:2])
    client.sendall(b'stream')
    one, two = socket.socket(family, socket.SOCK_DGRAM), socket.socket(family, socket.SOCK_DGRAM)
    two.bind((address, 0))
    one.sendto(b'datagram', two.getsockname())
    print(listener.accept()[0].recv(100), two.recv(100))
print([name for _, name in socket.if_nameindex()])
";
    if !std::path::Path::new("/proc/net/if_inet6").exists() {
        skip!("this kernel has no IPv6");
    }
    python(&tare, source)
        .ok()
        .printed(
            "['127.0.0.1', '::1']\n127.0.0.1\nb'stream' b'datagram'\nb'stream' b'datagram'\n['lo']\n",
        )
        .said_nothing();
}

#[test]
fn every_kind_of_shared_memory_works() {
    let tare = tare!();
    let source = "
import ctypes, mmap, os
fd = os.open('/dev/shm/block', os.O_RDWR | os.O_CREAT)
os.truncate(fd, 1 << 20)
os.posix_fallocate(fd, 0, 1 << 20)
with mmap.mmap(fd, 1 << 20) as shared:
    if os.fork() == 0:
        shared[0] = 7
        os._exit(0)
    os.wait()
    print(shared[0])
os.unlink('/dev/shm/block')
memfd = os.memfd_create('held', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.write(memfd, b'memfd')
print(os.pread(memfd, 5, 0))
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
block = libc.shmget(0, 4096, 0o1600)
at = libc.shmat(block, None, 0)
ctypes.memset(at, 65, 3)
print(ctypes.string_at(at, 3), libc.shmdt(ctypes.c_void_p(at)), libc.shmctl(block, 0, None))
with mmap.mmap(-1, 64 << 20) as anonymous:
    anonymous.madvise(mmap.MADV_HUGEPAGE)
    anonymous[-1] = 1
    print(len(anonymous) >> 20)
";
    python(&tare, source).ok().printed("7\nb'memfd'\nb'AAA' 0 0\n64\n").said_nothing();
}

#[test]
fn every_kind_of_event_can_be_waited_for() {
    let tare = tare!();
    let source = "
import ctypes, os, select, signal
libc = ctypes.CDLL(None, use_errno=True)
poll = select.epoll()
def ready(fd, length):
    poll.register(fd, select.EPOLLIN)
    came = [number for number, _ in poll.poll(10)]
    assert came == [fd], came
    poll.unregister(fd)
    return os.read(fd, length)
event = os.eventfd(0)
os.eventfd_write(event, 3)
print('event', int.from_bytes(ready(event, 8), 'little'))
timer = libc.timerfd_create(1, 0)
libc.timerfd_settime(timer, 0, (ctypes.c_long * 4)(0, 0, 0, 1000), None)
print('timer', int.from_bytes(ready(timer, 8), 'little') > 0)
mask = (ctypes.c_ulong * 16)(1 << (signal.SIGUSR1 - 1))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
signals = libc.signalfd(-1, mask, 0)
os.kill(os.getpid(), signal.SIGUSR1)
print('signal', ready(signals, 128)[0] == signal.SIGUSR1)
notify = libc.inotify_init1(0)
print('watch', libc.inotify_add_watch(notify, b'.', 0x100))
open('made', 'w').close()
print('inotify', b'made' in ready(notify, 1024))
child = os.spawnlp(os.P_NOWAIT, 'true', 'true')
poll.register(os.pidfd_open(child), select.EPOLLIN)
print('pidfd', len(poll.poll(10)))
";
    python(&tare, source)
        .ok()
        .printed("event 3\ntimer True\nsignal True\nwatch 1\ninotify True\npidfd 1\n")
        .said_nothing();
}

#[test]
fn locks_hold_between_processes() {
    let tare = tare!();
    let source = "
import fcntl, os
file = open('lock', 'w')
for lock in (fcntl.flock, fcntl.lockf):
    lock(file, fcntl.LOCK_EX)
    if os.fork() == 0:
        try:
            lock(open('lock', 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)
            os._exit(0)
        except BlockingIOError:
            os._exit(9)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
    lock(file, fcntl.LOCK_UN)
";
    python(&tare, source).ok().printed("9\n9\n").said_nothing();
}

#[test]
fn the_kernel_copies_between_descriptors() {
    let tare = tare!();
    let source = "
import os
data = os.urandom(200000)
open('source', 'wb').write(data)
source = os.open('source', os.O_RDONLY)
def copied(name, copy):
    target = os.open(name, os.O_RDWR | os.O_CREAT)
    done = 0
    while done < len(data):
        done += copy(target, done)
    print(name, os.pread(target, 1 << 20, 0) == data)
def through_a_pipe(target, done):
    count = os.splice(source, write, 4096, offset_src=done)
    return os.splice(read, target, count)
read, write = os.pipe()
copied('sendfile', lambda target, done: os.sendfile(target, source, done, 1 << 20))
copied('splice', through_a_pipe)
copied('copy_file_range', lambda target, done: os.copy_file_range(source, target, 1 << 20, done, done))
";
    python(&tare, source)
        .ok()
        .printed("sendfile True\nsplice True\ncopy_file_range True\n")
        .said_nothing();
}

#[test]
fn every_kind_of_file_can_be_created() {
    let tare = tare!();
    let source = "
import os, stat
os.mkfifo('fifo')
reader = os.open('fifo', os.O_RDONLY | os.O_NONBLOCK)
os.write(os.open('fifo', os.O_WRONLY), b'fifo')
print(os.read(reader, 10))
open('file', 'w').write('x')
os.link('file', 'hard')
os.symlink('file', 'soft')
os.chmod('file', 0o4751)
print(os.stat('file').st_nlink, os.readlink('soft'), oct(stat.S_IMODE(os.stat('hard').st_mode)))
nameless = os.open('.', os.O_TMPFILE | os.O_RDWR)
os.ftruncate(nameless, 200 << 20)
print(os.fstat(nameless).st_blocks)
os.utime('file', ns=(1, 2))
os.rename('file', 'renamed')
os.setxattr('renamed', 'user.note', b'kept')
print(os.stat('renamed').st_mtime_ns, os.getxattr('renamed', 'user.note'))
";
    python(&tare, source).ok().printed("b'fifo'\n2 file 0o4751\n0\n2 b'kept'\n").said_nothing();
}
