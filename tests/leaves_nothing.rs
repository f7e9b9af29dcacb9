//! Workloads that must leave nothing, whether they end by themselves or are killed. Every test also
//! ends with the oracle's comparison of the whole host.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use tare_harness::skip::is_root;
use tare_harness::{
    Output, Running, Tare, TemporaryDirectory, eventually, fixture, in_boxes, skip, tare,
};

/// An ending that was asked for comes within this, on any machine; the longest timeout of
/// a workload is a part of it.
const SOON: Duration = Duration::from_secs(50);

/// A workload that is not ready within this time never is.
const TIMEOUT_MOST_S: u32 = 32;

/// How a workload comes to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its first process exits and leaves the rest behind.
    ByItself,
    /// The workload waits forever, and its timeout ends it.
    ByTimeout,
}

impl End {
    const BOTH: [Self; 2] = [Self::ByItself, Self::ByTimeout];

    fn code(self) -> i32 {
        match self {
            Self::ByItself => 0,
            Self::ByTimeout => 124,
        }
    }

    /// The last statement of the workload, in Python.
    fn in_python(self) -> &'static str {
        match self {
            Self::ByItself => "os._exit(0)",
            Self::ByTimeout => "[signal.pause() for _ in iter(int, 1)]",
        }
    }
}

/// Runs a workload in Python, which has to say `ready` once it is what it should
/// be, to both its ends; nothing may be left after either.
#[track_caller]
fn ends_both_ways(tare: &Tare, options: &[&str], workload: &str) {
    ends_both_ways_after(tare, 2, options, workload);
}

/// Ends the workload in both ways, for a workload that needs this much time to start.
#[track_caller]
fn ends_both_ways_after(tare: &Tare, timeout_s: u32, options: &[&str], workload: &str) {
    for end in End::BOTH {
        let script = format!(
            "import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
{workload}
print('ready', flush=True)
{}",
            end.in_python()
        );
        let output = run_until_ready(tare, timeout_s, options, &["python3", "-c", &script]);
        let output = output.exited(end.code()).printed("ready\n");
        nothing_left(tare, &output);
    }
}

/// Runs a command with this timeout. On a busy host it may not have said anything by then:
/// that leaves nothing either, and the command gets more time, up to [`TIMEOUT_MOST_S`].
#[track_caller]
fn run_until_ready(tare: &Tare, timeout_s: u32, options: &[&str], command: &[&str]) -> Output {
    let mut timeout_s = timeout_s;
    loop {
        let timeout = format!("{timeout_s}s");
        let timeout = ["--timeout", &timeout, "--"];
        let output = tare.run(options.iter().chain(&timeout).chain(command));
        timeout_s *= 2;
        if output.code != 124 || !output.stdout.is_empty() || timeout_s > TIMEOUT_MOST_S {
            return output;
        }
        nothing_left(tare, &output);
    }
}

#[track_caller]
fn nothing_left(tare: &Tare, output: &Output) {
    let left = tare.difference_now();
    assert!(left.is_empty(), "{output}\nleft:\n{}", left.join("\n"));
    assert!(output.lasted < SOON, "{output}");
}

#[test]
fn fifty_children_that_ignore_every_signal_leave_nothing() {
    let tare = tare!();
    let workload = "
def ignore():
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
for _ in range(50):
    if os.fork() == 0:
        ignore()
        time.sleep(1000000)
ignore()";
    ends_both_ways(&tare, &[], workload);
}

#[test]
fn a_fork_bomb_at_the_limit_leaves_nothing() {
    let tare = tare!();
    // Every process forks as long as it can; the first one says when it no
    // longer could.
    let workload = "
def bomb():
    while True:
        try: os.fork()
        except OSError: time.sleep(0.001)
full = False
while not full:
    try:
        if os.fork() == 0: bomb()
    except OSError:
        full = True";
    ends_both_ways(&tare, &["--pids", "100"], workload);
}

/// Each process exits as soon as its child exists.
#[test]
fn timeout_kills_processes_that_refork_forever() {
    let tare = tare!();
    let workload = "
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        while True:
            try:
                if os.fork() != 0: os._exit(0)
            except OSError: pass";
    ends_both_ways(&tare, &["--pids", "100"], workload);
}

#[test]
fn daemons_that_hold_stdout_leave_nothing() {
    let tare = tare!();
    let workload = "
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            time.sleep(1000000)
        os._exit(0)
    os.wait()";
    ends_both_ways(&tare, &[], workload);
}

/// A process whose main thread has exited survives `cgroup.kill`.
const LEADERLESS: &str = "
import threading
def leaderless():
    threading.Thread(target=time.sleep, args=(1000000,)).start()
    libc.syscall(60, 0)  # exit(2) of this thread alone
pid = os.fork()
if pid == 0: leaderless()
while open('/proc/%d/stat' % pid).read().rsplit(') ')[1][0] != 'Z': time.sleep(0.001)
assert len(os.listdir('/proc/%d/task' % pid)) == 2";

#[test]
fn a_process_whose_main_thread_has_exited_leaves_nothing() {
    let tare = tare!();
    ends_both_ways(&tare, &[], LEADERLESS);
    ends_both_ways(&tare, &["--contain"], LEADERLESS);
}

#[test]
fn a_command_whose_main_thread_has_exited_leaves_nothing() {
    let tare = tare!();
    let script = "import ctypes, threading, time
print('ready', flush=True)
threading.Thread(target=time.sleep, args=(1000000,)).start()
ctypes.CDLL(None).syscall(60, 0)";
    for options in [&[][..], &["--contain"]] {
        let output = run_until_ready(&tare, 1, options, &["python3", "-c", script]);
        let output = output.exited(124).printed("ready\n");
        nothing_left(&tare, &output);
    }
}

#[test]
fn a_child_stopped_by_its_tracer_leaves_nothing() {
    let tare = tare!();
    let workload = "
pid = os.fork()
if pid == 0:
    if libc.ptrace(0, 0, 0, 0) != 0: os._exit(9)  # PTRACE_TRACEME
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(8)
_, status = os.waitpid(pid, 0)
assert os.WIFSTOPPED(status), status";
    ends_both_ways(&tare, &["--seccomp", "debug"], workload);
    ends_both_ways(&tare, &["--contain"], workload);
}

#[test]
fn a_stopped_child_leaves_nothing() {
    let tare = tare!();
    let workload = "
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(8)
_, status = os.waitpid(pid, os.WUNTRACED)
assert os.WIFSTOPPED(status), status";
    ends_both_ways(&tare, &[], workload);
}

#[test]
fn a_stopped_command_leaves_nothing() {
    let tare = tare!();
    let output = tare
        .run(["--timeout", "1s", "--", "sh", "-c", "echo ready; kill -STOP $$"])
        .exited(124)
        .printed("ready\n");
    nothing_left(&tare, &output);
}

const VFORK: &str = r#"
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>
int main(void) {
    printf("ready\n");
    fflush(stdout);
    if (vfork() == 0)
        for (;;) pause();
    return 1;
}
"#;

/// Its parent waits in the kernel for an `exec` that never comes.
#[test]
fn a_child_that_blocks_its_parent_in_vfork_leaves_nothing() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let Some(_program) = fixture::compiled(&directory, "vfork", VFORK) else {
        skip!("gcc is not installed");
    };
    let volume = format!("{}:/programs:ro", directory.text());
    let by_timeout = tare
        .run(["-v", &volume, "--timeout", "1s", "--", "/programs/vfork"])
        .exited(124)
        .printed("ready\n");
    assert!(by_timeout.lasted < SOON, "{by_timeout}");
    // The command ends while such a pair lives.
    let script = "/programs/vfork | { read line; echo $line; kill -9 $$; }";
    tare.run(["-v", &volume, "--", "sh", "-c", script]).exited(137).printed("ready\n");
}

#[test]
fn nested_namespaces_and_cgroups_are_refused() {
    let tare = tare!();
    for script in [
        "unshare --user true",
        "unshare --user --pid --fork true",
        "unshare --mount true",
        "unshare --net true",
        "mkdir /sys/fs/cgroup/nested",
        "mkdir /sys/fs/cgroup/unified/nested",
        "mount -t cgroup2 none /tmp",
        "echo 0 > /sys/fs/cgroup/cgroup.procs",
    ] {
        let output = tare.run(["--", "sh", "-c", script]);
        assert_ne!(output.code, 0, "{script}: {output}");
        nothing_left(&tare, &output);
    }
    tare.run(["--", "sh", "-c", "command -v unshare mount mkdir"]).ok();
}

/// Container engines mount them so: to remove what is not there fails, too.
#[test]
fn boxes_end_on_a_host_with_read_only_cgroups() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can mount cgroups read-only");
    }
    let read_only = "while read -r _ at kind _; do
    case $kind in cgroup*) mount -o remount,bind,ro \"$at\" || exit 1 ;; esac
done < /proc/self/mounts
";
    for script in [
        "\"$TARE\" run --quiet -- echo ready",
        "\"$TARE\" run --quiet --timeout 1s -- sh -c 'echo ready; sleep 1000'; test $? = 124",
        "box=$(\"$TARE\" run --quiet -d --rm -- sleep 1000) && \"$TARE\" exec \"$box\" echo ready &&
         \"$TARE\" stop -t 0 \"$box\" > /dev/null",
    ] {
        let script = format!("{read_only}{script} && \"$TARE\" audit > /dev/null");
        let mut command =
            tare.shell_command("exec unshare --mount --propagation private sh -c \"$1\"");
        command.args(["sh", &script]).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = tare.start_command(command).wait().ok().printed("ready\n");
        // The keeper of a detached box is a child of the test by now.
        tare.reap_orphans();
        nothing_left(&tare, &output);
    }
}

#[test]
fn a_port_is_free_again_at_once() {
    let tare = tare!();
    let script = "import socket, sys, time
server = socket.create_server(('127.0.0.1', 0))
print(server.getsockname()[1], flush=True)
if sys.argv[1] == 'ByTimeout': time.sleep(1000)";
    for option in ["--net=host", "--contain"] {
        for end in End::BOTH {
            let how = format!("{end:?}");
            let command = ["python3", "-c", script, &how];
            let output = run_until_ready(&tare, 2, &[option], &command).exited(end.code());
            let port: u16 = output.stdout_text().trim().parse().unwrap();
            TcpListener::bind(("127.0.0.1", port)).unwrap();
            nothing_left(&tare, &output);
        }
    }
}

/// A socket in flight between processes keeps its port.
#[test]
fn a_port_that_is_in_flight_between_sockets_is_free_again() {
    let tare = tare!();
    let workload = "
import socket
server = socket.create_server(('127.0.0.1', 0))
left, right = socket.socketpair()
socket.send_fds(left, [b'x'], [server.fileno(), left.fileno(), right.fileno()])
server.close()";
    for option in ["--net=host", "--contain"] {
        for end in End::BOTH {
            let script = format!(
                "import os, signal\n{workload}\nprint('ready', flush=True)\n{}",
                end.in_python()
            );
            tare.run([option, "--timeout", "2s", "--", "python3", "-c", &script])
                .exited(end.code())
                .printed("ready\n");
            // The kernel's collector of sockets in flight runs in its own time.
            eventually("the port is free", || tare.difference_now().is_empty());
        }
    }
}

const SYSTEM_V: &str = "
made = (libc.shmget(0, 8 << 20, 0o1600), libc.semget(0, 3, 0o1600), libc.msgget(0, 0o1600))
assert min(made) >= 0, made
libc.shmat.restype = ctypes.c_void_p
assert libc.shmat(made[0], None, 0) != ctypes.c_void_p(-1).value";

#[test]
fn system_v_objects_leave_nothing() {
    let tare = tare!();
    ends_both_ways(&tare, &[], SYSTEM_V);
    ends_both_ways(&tare, &["--contain"], SYSTEM_V);
}

#[test]
fn posix_shared_memory_leaves_nothing() {
    let tare = tare!();
    let workload = "
import mmap
fd = os.open('/dev/shm/left-by-a-box', os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 1 << 20)
mmap.mmap(fd, 1 << 20)[0] = 1";
    ends_both_ways(&tare, &[], workload);
}

/// Invisible to the oracle where the file system of queues is not mounted, so the
/// name itself is asked for.
#[test]
fn posix_message_queues_leave_nothing() {
    let tare = tare!();
    let name = format!("/tare-test-{}", std::process::id());
    let open = format!("queue = libc.mq_open(b'{name}', os.O_RDWR | FLAGS, 0o600, None)");
    let workload =
        format!("{}\nassert queue >= 0, ctypes.get_errno()", open.replace("FLAGS", "os.O_CREAT"));
    ends_both_ways(&tare, &["--contain"], &workload);
    let script = format!(
        "import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
{}
sys.exit(0 if queue < 0 and ctypes.get_errno() == errno.ENOENT else 1)",
        open.replace("FLAGS", "0")
    );
    let status = std::process::Command::new("python3").args(["-c", &script]).status().unwrap();
    assert!(status.success(), "the queue is still there");
}

#[test]
fn a_hundred_thousand_files_leave_nothing() {
    let tare = tare!();
    let workload = "
for directory in range(100):
    os.mkdir('/tmp/%d' % directory)
    for file in range(1000):
        os.close(os.open('/tmp/%d/%d' % (directory, file), os.O_CREAT | os.O_WRONLY))";
    ends_both_ways_after(&tare, 6, &["--scratch", "1g", "--memory", "1g"], workload);
}

#[test]
fn directories_five_thousand_deep_leave_nothing() {
    let tare = tare!();
    let workload = "
os.chdir('/tmp')
for _ in range(5000):
    os.mkdir('d' * 50)
    os.chdir('d' * 50)
os.close(os.open('bottom', os.O_CREAT))";
    ends_both_ways_after(&tare, 6, &[], workload);
}

#[test]
fn endless_output_leaves_nothing() {
    let tare = tare!();
    let output = tare
        .run([
            "--timeout",
            "1s",
            "--output-limit",
            "1m",
            "--",
            "sh",
            "-c",
            "yes & yes >&2 & exec yes",
        ])
        .exited(124);
    assert!(output.lasted < SOON, "{:?}", output.lasted);
    let left = tare.difference_now();
    assert!(left.is_empty(), "{}", left.join("\n"));
}

#[test]
fn unread_output_does_not_delay_the_timeout() {
    let tare = tare!();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = tare.command(["run", "--timeout", "1s", "--", "yes"]);
    command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::null());
    let running = tare.start_command(command);
    eventually("the box is there", || in_boxes(running.pid()) > 0);
    eventually("the box has ended though tare cannot write", || in_boxes(running.pid()) == 0);
    let mut chunk = vec![0; 1 << 20];
    while reader.read(&mut chunk).unwrap() > 0 {}
    running.wait().exited(124);
}

#[test]
fn a_hundred_boxes_in_a_row_leave_nothing() {
    let tare = tare!();
    for round in 0..100 {
        let number = round.to_string();
        tare.run(["--", "echo", &number]).ok().printed(&format!("{number}\n")).said_nothing();
        if round % 10 == 0 {
            let left = tare.difference_now();
            assert!(left.is_empty(), "after {round}: {}", left.join("\n"));
        }
    }
}

#[test]
fn ten_concurrent_boxes_leave_nothing() {
    let tare = tare!();
    let mut all: Vec<_> = (0..10)
        .map(|number| tare.spawn(["--", "sh", "-c", &format!("echo up; read line; exit {number}")]))
        .collect();
    for running in &all {
        running.see("up");
    }
    for running in &mut all {
        running.write(b"\n");
    }
    for (number, running) in (0..).zip(all) {
        running.wait().exited(number);
    }
}

/// The first calls on a fresh state root come at the same time: each waits for
/// the end of one pipe.
#[test]
fn concurrent_runs_on_a_fresh_state_root_all_succeed() {
    let tare = tare!();
    for round in 0..20 {
        let directory = TemporaryDirectory::new();
        let root = match round % 2 {
            0 => directory.path().to_owned(),
            _ => directory.join("not-there-yet"),
        };
        let (gate, opener) = std::io::pipe().unwrap();
        let start = |number: u32| {
            let mut command = tare.shell_command(&format!(
                "read line; exec \"$TARE\" run --name box-{number} -- true"
            ));
            command.env("TARE_STATE_ROOT", &root);
            command.stdin(gate.try_clone().unwrap()).stderr(Stdio::piped());
            tare.start_command(command)
        };
        let all: Vec<_> = (0..8).map(start).collect();
        drop(opener);
        // All have ended before the first is judged: nothing is left to sweep.
        let ended: Vec<_> = all.into_iter().map(Running::wait).collect();
        for output in ended {
            output.ok().said_nothing();
        }
    }
}

/// The record of a box that another tare is still running is not swept.
#[test]
fn other_commands_leave_a_live_box_alone() {
    let tare = tare!();
    let mut running = tare.spawn(["--", "sh", "-c", "echo up; read line; echo still here"]);
    running.see("up");
    for _ in 0..5 {
        tare.run(["--", "true"]).ok();
    }
    running.write(b"\n");
    running.wait().ok().printed("up\nstill here\n");
}

#[test]
fn a_box_that_cannot_start_leaves_nothing() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let file = directory.write("program", "not a program");
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let volume = format!("{}:/data:ro", directory.text());
    for (call, code) in [
        (vec!["--", "no-such-program"], 127),
        (vec!["--", "/etc"], 126),
        (vec!["-v", &volume, "--", "/data/program"], 126),
        (vec!["-w", "/no/such/place", "--", "true"], 125),
        (vec!["-v", "/no/such/place:/x", "--", "true"], 125),
    ] {
        let output = tare.run(call).exited(code);
        nothing_left(&tare, &output);
    }
}

#[test]
fn core_dumps_leave_nothing() {
    let tare = tare!();
    if !is_root() {
        skip!("the working directory of a contained box must be writable");
    }
    let directory = TemporaryDirectory::new();
    let mut command =
        tare.command(["run", "--contain", "--", "sh", "-c", "ulimit -c; kill -SEGV $$"]);
    command.current_dir(directory.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    tare.start_command(command).wait().exited(139).printed("0\n");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}
