//! Concurrent boxes and boxes in sequence: nothing passes between them.

use std::fs;
use std::process::Command;

use tare_harness::skip::is_root;
use tare_harness::{Running, Tare, TemporaryDirectory, box_processes, skip, tare};

const HOST_VIEW: &str = include_str!("probes/host_view.py");

/// A Python program in a box of its own that says `ready` and waits for a line.
#[track_caller]
fn tenant(tare: &Tare, options: &[&str], program: &str) -> Running {
    let script = format!("{program}\nprint('ready', flush=True)\ninput()\n");
    let mut call = options.to_vec();
    call.extend(["--timeout", "50s", "--", "python3", "-c", &script]);
    let running = tare.spawn(call);
    running.see("ready");
    running
}

#[track_caller]
fn leave(mut tenant: Running) {
    tenant.write(b"\n");
    tenant.wait().ok();
}

/// `first outside count` of a box's user ids.
fn user_ids(tenant: &Running) -> (u32, u32, u32) {
    let keeper = box_processes().into_iter().find(|one| one.parent == tenant.pid());
    let keeper = keeper.expect("the box runs").pid;
    let map = fs::read_to_string(format!("/proc/{keeper}/uid_map")).expect("the box runs");
    let numbers: Vec<u32> =
        map.split_whitespace().map(|text| text.parse().expect("a number")).collect();
    assert_eq!(numbers.len(), 3, "{map}");
    (numbers[0], numbers[1], numbers[2])
}

/// Boxes with the same ids would share per-user limits. No box has the host's root.
#[test]
fn concurrent_boxes_have_separate_user_ids() {
    let tare = tare!();
    if !is_root() {
        skip!("without privileges all boxes are their caller");
    }
    let tenants: Vec<Running> = (0..5).map(|_| tenant(&tare, &[], "")).collect();
    let mut ranges: Vec<_> = tenants.iter().map(user_ids).collect();
    ranges.sort_unstable_by_key(|range| range.1);
    for (inside, outside, count) in &ranges {
        assert_eq!((*inside, *count), (0, 65_536));
        assert!(*outside >= 65_536, "ids of the host are mapped: {outside}");
    }
    for pair in ranges.windows(2) {
        assert!(pair[0].1 + 65_536 <= pair[1].1, "{pair:?}");
    }
    tenants.into_iter().for_each(leave);
}

/// Creates every kind of named object that another tenant might find.
const MAKE_NAMES: &str = "import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
for place in ('/tmp', '/work', '/dev/shm'):
    open(place + '/name', 'w').write('of the first')
assert libc.shmget(0x7a7e, 4096, 0o1666) >= 0
assert libc.semget(0x7a7e, 1, 0o1666) >= 0
assert libc.msgget(0x7a7e, 0o1666) >= 0
abstract = socket.socket(socket.AF_UNIX)
abstract.bind('\\0of-the-first')
abstract.listen()
named = socket.socket(socket.AF_UNIX)
named.bind('/tmp/socket')
named.listen()
port = socket.create_server(('127.0.0.1', 7777))
os.mkfifo('/tmp/fifo')
";

/// Prints which of these objects a tenant finds.
const FIND_NAMES: &str = "import ctypes, glob, os, socket
libc = ctypes.CDLL(None, use_errno=True)
found = [place for place in ('/tmp/name', '/work/name', '/dev/shm/name', '/tmp/socket') if os.path.exists(place)]
found += ['memory'] if libc.shmget(0x7a7e, 0, 0) >= 0 else []
found += ['semaphores'] if libc.semget(0x7a7e, 0, 0) >= 0 else []
found += ['messages'] if libc.msgget(0x7a7e, 0) >= 0 else []
def connects(family, address):
    try:
        socket.socket(family).connect(address)
        return True
    except OSError:
        return False
found += ['abstract'] if connects(socket.AF_UNIX, '\\0of-the-first') else []
found += ['port'] if connects(socket.AF_INET, ('127.0.0.1', 7777)) else []
found += ['listed'] if 'of-the-first' in open('/proc/net/unix').read() else []
others = [pid for pid in glob.glob('/proc/[0-9]*') if int(pid[6:]) not in (os.getpid(), os.getppid())]
found += ['processes'] if others else []
print('found', found)
";

/// The boxes run at the same time. As a control, each box looks for its own objects.
#[test]
fn concurrent_boxes_see_nothing_of_each_other() {
    let tare = tare!();
    let first = tenant(&tare, &[], MAKE_NAMES);
    tare.run(["--", "python3", "-c", FIND_NAMES]).ok().printed("found []\n");
    leave(first);
    let both = format!(
        "{MAKE_NAMES}\nif os.fork() == 0: signal = __import__('signal'); signal.pause()\n{FIND_NAMES}\nsys.stdout.flush(); os.kill(0, 9)"
    );
    let control = tare.run(["--", "python3", "-c", &both]).exited(137);
    let all = "found ['/tmp/name', '/work/name', '/dev/shm/name', '/tmp/socket', 'memory', 'semaphores', 'messages', 'abstract', 'port', 'listed', 'processes']\n";
    assert_eq!(control.stdout_text(), all);
}

/// On the host's network Landlock alone stands between them.
#[test]
fn boxes_on_the_hosts_network_do_not_reach_each_others_abstract_sockets() {
    let tare = tare!();
    let options = ["--net", "host", "--quiet"];
    let listen = "import socket
server = socket.socket(socket.AF_UNIX)
server.bind('\\0tare-test-tenant')
server.listen()";
    let connect = "import socket
try:
    socket.socket(socket.AF_UNIX).connect('\\0tare-test-tenant')
    print('connected')
except OSError as error:
    print(type(error).__name__)";
    let first = tenant(&tare, &options, listen);
    let control = Command::new("python3").args(["-c", connect]).output().expect("python3 runs");
    assert_eq!(String::from_utf8_lossy(&control.stdout), "connected\n");
    let mut call = options.to_vec();
    call.extend(["--", "python3", "-c", connect]);
    tare.run(call).ok().printed("PermissionError\n");
    leave(first);
}

/// The next box of the same name inherits nothing, however the first one ended.
#[test]
fn the_next_box_of_a_name_inherits_nothing() {
    let tare = tare!();
    let stopped = format!(
        "{MAKE_NAMES}
import signal
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        os.kill(os.getpid(), signal.SIGSTOP)
print('ready', flush=True)
signal.pause()"
    );
    for _ in 0..3 {
        tare.run(["--name", "same", "--timeout", "1s", "--", "python3", "-c", &stopped])
            .exited(124)
            .printed("ready\n");
        tare.run(["--name", "same", "--", "python3", "-c", FIND_NAMES]).ok().printed("found []\n");
    }
}

/// Opens pipes until the kernel gives only small ones, and says so.
const TAKE_PIPES: &str = "import fcntl, os
def capacity():
    reader, writer = os.pipe()
    return fcntl.fcntl(writer, 1032)
for _ in range(1500):
    held = capacity()
print('small', held < 65536, flush=True)";

/// One box at the end of what its user may have of pipes.
#[test]
fn pipes_of_one_box_do_not_shrink_those_of_another() {
    let tare = tare!();
    if !is_root() {
        skip!("without privileges all boxes are one user to the kernel");
    }
    let limits = ["--nofile", "4096"];
    let mut greedy = tenant(&tare, &limits, TAKE_PIPES);
    greedy.see("small True");
    let ask = "import fcntl, os; print(fcntl.fcntl(os.pipe()[1], 1032))";
    tare.run(["--", "python3", "-c", ask]).ok().printed("65536\n");
    greedy.write(b"\n");
    greedy.wait().ok();
}

/// Takes all that one user may have of something and says how it ended.
const TAKE_WATCHES: &str = "import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
while libc.inotify_init1(0) >= 0:
    pass
print('stopped', errno.errorcode[ctypes.get_errno()], flush=True)";

/// One box uses all inotify watches of its user.
#[test]
fn inotify_watches_of_one_box_do_not_use_up_those_of_another() {
    let tare = tare!();
    if !is_root() {
        skip!("without privileges all boxes are one user to the kernel");
    }
    let mut greedy = tenant(&tare, &["--nofile", "4096"], TAKE_WATCHES);
    greedy.see("stopped EMFILE");
    let ask = "import ctypes; print(ctypes.CDLL(None).inotify_init1(0) >= 0)";
    tare.run(["--", "python3", "-c", ask]).ok().printed("True\n");
    // Least of all those of the host, whose root has made the box.
    let host = Command::new("python3").args(["-c", ask]).output().expect("python3 runs");
    assert_eq!(String::from_utf8_lossy(&host.stdout), "True\n");
    greedy.write(b"\n");
    greedy.wait().ok();
}

/// Message queues count against a per-user limit, so boxes have none.
#[test]
fn a_box_has_no_message_queues_to_fill() {
    let tare = tare!();
    let script = "import ctypes, errno, os
librt = ctypes.CDLL('librt.so.1', use_errno=True)
failed = librt.mq_open(b'/tare', os.O_CREAT | os.O_RDWR, 0o600, None) == -1
print(errno.errorcode[ctypes.get_errno()] if failed else 'made')";
    tare.run(["--", "python3", "-c", script]).ok().printed("EMFILE\n");
}

/// Files of the host that a box sees, a few of each kind.
fn shared_files() -> Vec<String> {
    let mut files: Vec<String> =
        ["/usr/bin/env", "/usr/bin/python3", "/etc/services", "/etc/ld.so.cache"]
            .map(str::to_owned)
            .into();
    for directory in ["/usr/bin", "/usr/lib/x86_64-linux-gnu"] {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let regular = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        files.extend(regular.take(20).map(|entry| entry.path().to_string_lossy().into_owned()));
    }
    files.retain(|path| fs::metadata(path).is_ok_and(|file| file.is_file()));
    files
}

/// The sums of these files as the disk has them, past the page cache where that is
/// possible.
fn sums(files: &[String]) -> Vec<String> {
    let sum = |path: &String| {
        let script = "dd if=\"$0\" iflag=direct bs=1M 2>/dev/null | sha256sum; sha256sum < \"$0\"; stat -c '%a %u %Y %s' \"$0\"";
        let output = Command::new("sh").args(["-c", script, path]).output().expect("sh runs");
        format!("{path}: {}", String::from_utf8_lossy(&output.stdout))
    };
    files.iter().map(sum).collect()
}

/// Boxes share the page cache of shared files, so no box may change them. The control is a file of
/// the box's own, which every attack can change.
#[test]
fn no_box_can_change_a_shared_file() {
    let tare = tare!();
    let files = shared_files();
    assert!(files.len() > 20, "{files:?}");
    let before = sums(&files);
    for options in [&[][..], &["--root"], &["--seccomp", "unconfined"]] {
        let mut call = options.to_vec();
        call.extend(["--", "python3", "-c", HOST_VIEW]);
        call.extend(files.iter().map(String::as_str));
        tare.run(call).ok().printed(&format!("tried {}\n", files.len()));
    }
    assert_eq!(sums(&files), before);
    let directory = TemporaryDirectory::new();
    directory.write("attack.py", HOST_VIEW);
    let volume = format!("{}:/attack:ro", directory.text());
    let script = "echo 0123456789abcdef > own; python3 /attack/attack.py /work/own";
    let control = tare.run(["-v", &volume, "--", "sh", "-c", script]).ok();
    for way in ["write", "append", "truncate", "mode", "owner", "times", "remove", "neighbour"] {
        assert!(control.stdout_text().contains(&format!("{way} /work/own\n")), "{way}: {control}");
    }
}
