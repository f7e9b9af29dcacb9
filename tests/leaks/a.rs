//! A. A kill that does not reach the whole tree.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;
use serde_json::json;
use tare_harness::skip::{has_program, is_root};
use tare_harness::{
    Freezer, Running, Server, TemporaryDirectory, eventually, fixture, skip, unprivileged,
};

use crate::leaks::c::{is_free, listener};
use crate::leaks::case::{Case, case, times};

/// A call that has nothing to wait for returns well within this, on any machine.
const SOON: Duration = Duration::from_secs(20);

/// A1, e2b: `ip netns exec` forwards no signals; only the wrapper was killed.
#[test]
fn a_wrapper_that_forwards_no_signal_ends_with_its_children() {
    let case = case();
    let chain = "sh -c 'sh -c \"echo up; sleep 1000; :\"; :'; :";
    for end in [&["stop"][..], &["stop", "-t", "0"], &["kill"]] {
        let id = case.up(&[], chain);
        assert_eq!(case.workload(&id).len(), 4);
        case.call(end.iter().chain(&[&*id])).ok();
        case.assert_over(&id);
        case.remove(&id);
    }
}

/// A2, boxlite: the outer bwrap was killed, and the processes in its own PID namespace kept
/// running.
#[test]
fn bubblewrap_in_a_box_ends_with_its_inner_tree() {
    let case = case();
    if !has_program("bwrap") {
        skip!("bwrap is not installed");
    }
    let script = "exec bwrap --ro-bind / / --dev /dev --proc /proc --unshare-all \
                  sh -c 'setsid sleep 1000 & echo up; sleep 1000'";
    let ends = [&["rm", "-f"][..]; 5].into_iter().chain([&["stop"][..]; 2]);
    for end in ends {
        let id = case.up(&["--contain"], script);
        case.call(end.iter().chain(&[&*id])).ok();
        case.assert_over(&id);
        case.call(["rm", "-f", &id]);
    }
}

/// A3, boxlite: where no cgroup could be created, `cgroup.kill` did nothing, and stop
/// reported success.
#[test]
fn a_box_without_a_cgroup_of_its_own_still_ends() {
    let case = Case::of(unprivileged!());
    let script = "setsid sleep 1000 & echo up; sleep 1000";
    for end in ["stop", "kill"] {
        let id = case.up(&["--quiet"], script);
        case.call([end, &id]).ok();
        assert_eq!(case.footprint().processes, []);
        case.remove(&id);
    }
    let refused = case.run(["-d", "--memory", "64m", "--", "sleep", "1000"]);
    refused.exited(125).printed("").said(&["cgroup"]);
    case.nothing_left();
}

/// A4, Clawith: only the launcher was killed; its children filled the PID table.
#[test]
fn a_timeout_always_ends_fifty_sleeping_children() {
    let case = case();
    let script = "for i in $(seq 50); do sleep 1000000 & done; echo ready; wait";
    let call = ["--timeout", "2s", "--", "sh", "-c", script];
    for _ in 0..times(20, 1000) / 10 {
        let boxes: Vec<Running> = (0..10).map(|_| case.spawn(call)).collect();
        for one in boxes {
            one.wait().exited(124).printed("ready\n");
        }
        case.nothing_left();
    }
}

/// A5, Clawith: the supervisor sent TERM to the process group, never KILL, and waited for
/// the end of the output.
#[test]
fn a_child_in_another_session_that_ignores_term_and_holds_stdout_ends_at_the_timeout() {
    let case = case();
    let script = "trap '' TERM INT HUP QUIT; setsid sleep 1000000 & echo up; \
                  while :; do sleep 1000000; done";
    // That the pipes are at their end then is for the harness to see.
    let output =
        case.run(["--timeout", "1s", "--", "sh", "-c", script]).exited(124).printed("up\n");
    assert!(output.lasted < SOON, "{output}");
    case.nothing_left();
}

/// A7, boxlite and microsandbox: the timeout of an exec signalled only its leader, and a
/// child that held stdout blocked the call.
#[test]
fn an_exec_timeout_ends_its_children_and_leaves_the_box_usable() {
    let case = case();
    let id = case.idle_box();
    let before = case.members(&id);
    let script = "sleep 300 & sleep 300";
    let call = ["exec", "--timeout", "1s", &id, "--", "sh", "-c", script];
    let output = case.call(call).exited(124);
    assert!(output.lasted < SOON, "{output}");
    assert_eq!(case.members(&id), before);
    case.exec(&id, ["echo", "usable"]).ok().printed("usable\n");
    case.remove(&id);
}

/// A8, langfuse and pc2v9: killpg missed processes that had created their own session.
#[test]
fn a_fork_bomb_of_daemons_is_stopped() {
    let case = case();
    let bomb = "import os, sys, time
def bomb():
    os.setsid()
    while True:
        try:
            if os.fork() == 0 and os.fork() == 0: os.setsid()
        except OSError: time.sleep(0.001)
try:
    while True:
        if os.fork() == 0: bomb()
except OSError: print('up', flush=True)
time.sleep(1000000)";
    for end in [&["stop", "-t", "1s"][..], &["rm", "-f"]] {
        let id = case.detached(["--pids", "100", "--", "python3", "-c", bomb]);
        case.logged(&id, "up");
        case.call(end.iter().chain(&[&*id])).ok();
        case.assert_over(&id);
        case.call(["rm", "-f", &id]);
    }
}

/// A10, kata and firecracker-containerd: a killed launcher left its virtual machine and the
/// machine's directory behind.
#[test]
fn a_killed_launcher_leaves_neither_a_box_nor_its_directory() {
    let case = case();
    let Some(root) = fixture::busybox_root() else {
        skip!("there is no static busybox");
    };
    let script = "echo changed > /marker; echo up; while :; do :; done";
    let launcher = case.spawn(["--rootfs", root.text(), "--root", "--", "sh", "-c", script]);
    launcher.see("up").signal(Signal::KILL);
    launcher.wait().exited(-9);
    eventually("the box ends without any tare command", || case.footprint().processes.is_empty());
    case.call(["ls"]).ok();
    assert_eq!(case.footprint().records.len(), 0);
    case.reap_orphans();
    case.nothing_left();
}

/// A11, rivet: destroying a session only marked its record; 7,029 processes accumulated.
#[test]
fn destroyed_sessions_leave_no_process() {
    let case = case();
    for _ in 0..times(40, 300) {
        let id = case.idle_box();
        for _ in 0..2 {
            case.call(["exec", "-d", &id, "--", "setsid", "sleep", "1000"]).ok();
        }
        case.remove(&id);
        assert_eq!(case.footprint().processes, []);
    }
}

/// A12, boxlite: a pipe descriptor was closed twice, which broke the next exec.
#[test]
fn every_exec_gets_its_three_streams_and_the_keeper_leaks_no_descriptor() {
    let case = case();
    let id = case.idle_box();
    case.exec(&id, ["true"]).ok();
    let held = case.keeper_descriptors(&id);
    for number in 0..times(200, 10_000) {
        let line = format!("{number}\n");
        let call = ["exec", &id, "--", "sh", "-c", "tee /dev/stderr"];
        let output = case.call_with_stdin(line.clone(), call).ok().printed(&line);
        assert_eq!(output.stderr_text(), line);
    }
    eventually("its descriptors are back", || case.keeper_descriptors(&id) == held);
    case.remove(&id);
}

/// A14, crun: delete looped forever on a process that could not die.
#[test]
fn a_box_that_cannot_die_is_stuck_and_others_are_not() {
    let case = case();
    let Some(freezer) = Freezer::new() else {
        skip!("there is no freezer of cgroup version 1");
    };
    let id = case.detached(["--name", "frozen", "--", "sleep", "1000"]);
    let other = case.detached(["--name", "other", "--", "sleep", "1000"]);
    freezer.freeze(case.workload(&id)[0].pid);
    let output = case.call(["stop", "-t", "0", "frozen"]).exited(1);
    assert!(output.lasted < SOON, "{output}");
    output.printed("").said(&["tare: ", "does not die"]);
    let look = case.look(&id);
    assert_eq!(look["state"], "stuck", "{look}");
    assert!(look["stuck_on"].is_string(), "{look}");
    case.exec("other", ["echo", "usable"]).ok().printed("usable\n");
    case.remove(&other);
    freezer.thaw();
    eventually("the next command ends it", || case.state(&id) == "exited");
    case.assert_over(&id);
    case.remove(&id);
}

/// A process whose request a file server in user space has taken cannot be killed before the
/// server answers (D state, `request_wait_answer` of fs/fuse/dev.c).
///
/// A14, crun: delete looped forever on a process that waited for a file server.
#[test]
fn a_box_that_waits_for_a_file_server_is_stuck_until_the_server_answers() {
    let case = case();
    if !has_program("bindfs") || !is_root() || !Path::new("/dev/fuse").exists() {
        skip!("bindfs or /dev/fuse is not there, or we are not root");
    }
    let [source, below, above] = [(); 3].map(|()| TemporaryDirectory::new());
    source.write("file", "content");
    // The server above takes the request, and waits for the stopped one below.
    let [lower, upper] = [(&source, &below), (&below, &above)].map(|(from, to)| {
        let mut bindfs = Command::new("bindfs");
        bindfs.args(["-f", from.text(), to.text()]);
        let server = case.start_piped(bindfs);
        let table = || fs::read_to_string("/proc/self/mounts").expect("/proc is mounted");
        eventually("it is mounted", || table().contains(to.text()));
        server
    });
    lower.signal(Signal::STOP);
    let file = above.path().join("file");
    let id = case.up(&["--contain"], &format!("echo up; read line < {}", file.display()));
    eventually("the command opens the file", || {
        case.workload(&id).first().is_some_and(|shell| is_opening(shell.pid))
    });
    let output = case.call(["rm", "-f", &id]).exited(1);
    assert!(output.lasted < SOON, "{output}");
    output.printed("").said(&["tare: ", "does not die"]);
    assert_eq!(case.state(&id), "stuck");
    case.call(["audit"]).exited(1);
    lower.signal(Signal::CONT);
    eventually("the next command ends it", || case.listed(&id).is_none());
    for (mounted, server) in [(above, upper), (below, lower)] {
        unmount(mounted.path(), UnmountFlags::empty()).expect("no process holds it");
        server.wait();
    }
}

/// Whether a process is in open(2) or openat(2) (proc_pid_syscall(5)).
fn is_opening(pid: u32) -> bool {
    let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    ["2 ", "257 "].iter().any(|number| call.starts_with(number))
}

/// A process of a box that everything else of it depends on.
#[derive(Debug, Clone, Copy)]
enum Anchor {
    Keeper,
    Command,
}

/// A18, pelagos: the anchor process died, the record was dropped, and no record named the
/// other processes of the box.
#[test]
fn killing_any_anchor_process_ends_the_box_and_frees_its_port() {
    let case = case();
    for anchor in [Anchor::Keeper, Anchor::Command] {
        let (id, port) = listener(&case);
        let background = ["exec", "-d", &id, "--", "sh", "-c", "setsid sleep 1000 & sleep 1000"];
        case.call(background).ok();
        let client = case.spawn_call(["exec", &id, "--", "sh", "-c", "echo up; sleep 1000"]);
        client.see("up");
        let keeper = case.keeper(&id);
        // The command is the oldest child of the keeper.
        let children = case.workload(&id).into_iter();
        let command = children.filter(|one| one.parent == keeper.pid);
        let command = command.min_by_key(|one| one.pid).expect("it has a command");
        match anchor {
            Anchor::Keeper => keeper.signal(Signal::KILL),
            Anchor::Command => command.signal(Signal::KILL),
        }
        assert_ne!(client.wait().code, 0, "{anchor:?}");
        case.ended(&id);
        case.assert_over(&id);
        assert!(is_free(port), "{anchor:?}");
        case.remove(&id);
    }
}

/// A18, pelagos: the record of a box was dropped while one of its processes was alive.
#[test]
fn the_record_of_a_killed_keeper_stays_while_a_process_of_its_box_lives() {
    let case = case();
    let Some(freezer) = Freezer::new() else {
        skip!("a v1 freezer is needed to make a process that cannot die, and root");
    };
    let id = case.up(&["--rm"], "sleep 1000 & echo up; wait");
    let sleeper = case.workload(&id).into_iter().find(|one| one.name == "sleep");
    freezer.freeze(sleeper.expect("it sleeps").pid);
    case.keeper(&id).signal(Signal::KILL);
    for call in [&["ls"][..], &["sweep"], &["run", "--", "true"]] {
        case.call(call);
        assert!(case.record(&id).exists(), "{call:?}");
    }
    assert!(case.listed(&id).is_some());
    freezer.thaw();
    eventually("everyone in the box is gone", || case.processes_in(&id).is_empty());
    case.call(["sweep"]).ok();
    case.assert_gone(&id);
}

/// Writes as many MiB as it is told into a file of this directory that has no name any
/// more, says so, and holds the file open.
const UNLINKED: &str = "import os, sys, time
path = os.path.join(sys.argv[1], 'unlinked')
file = open(path, 'wb')
os.unlink(path)
for _ in range(int(sys.argv[2])):
    file.write(bytes(1 << 20))
file.flush()
print('up', flush=True)
time.sleep(1000)";

/// How many bytes are used where this directory of a box is, as the box sees it.
#[track_caller]
fn used_inside(case: &Case, id: &str, directory: &str) -> u64 {
    let script = "import os, sys
space = os.statvfs(sys.argv[1])
print((space.f_blocks - space.f_bfree) * space.f_frsize)";
    let output = case.exec(id, ["python3", "-c", script, directory]).ok();
    output.stdout_text().trim().parse().expect("a number")
}

/// A19, codex: an unrecorded child wrote 205 GB into a deleted file, which `du` does not
/// show.
#[test]
fn an_unlinked_file_counts_only_while_it_is_open() {
    let case = case();
    if !is_root() {
        skip!("only root may mount a volume of its own size");
    }
    let mib = times(24, 500);
    // Room for one such file, and not for two.
    let room = format!("{}m", mib + mib / 2);
    let disk = Disk::new(&room);
    let volume = format!("{}:/data", disk.path().display());
    let memory = format!("{}m", 5 * mib + 64);
    let options = ["--scratch", &room, "--memory", &memory, "-v", &volume];
    let command = ["--", "sleep", "1000"];
    let id = case.detached(options.iter().chain(&command));
    let written = (mib as u64) << 20;
    for directory in ["/work", "/tmp", "/data"] {
        let before = used_inside(&case, &id, directory);
        let count = mib.to_string();
        let write = ["python3", "-c", UNLINKED, directory, &count];
        let client = case.spawn_call(["exec", &id, "--"].iter().chain(&write));
        client.see("up");
        assert!(used_inside(&case, &id, directory) >= before + written);
        if directory != "/data" {
            let counted = case.json(["stats", "--json", &id])[0]["scratch_bytes"].as_u64();
            assert!(counted >= Some(written), "{directory}: {counted:?}");
        }
        // A second one finds no room, although no name is in its way.
        let full = case.exec(&id, write).exited(1);
        assert!(full.stderr_text().contains("No space left"), "{full}");
        client.signal(Signal::KILL);
        client.wait();
        eventually("the room is free again", || used_inside(&case, &id, directory) <= before);
    }
    let write = ["python3", "-c", UNLINKED, "/data", "8"];
    case.call(["exec", "-d", &id, "--"].iter().chain(&write)).ok();
    case.logged(&id, "up");
    case.remove(&id);
    assert_eq!(disk.used(), 0);
}

/// A disk of its own size, for a volume.
struct Disk(TemporaryDirectory);

impl Disk {
    fn new(size: &str) -> Self {
        let directory = TemporaryDirectory::new();
        let options = std::ffi::CString::new(format!("size={size},mode=777")).expect("no zero");
        let flags = MountFlags::empty();
        let path = directory.path();
        mount("none", path, "tmpfs", flags, Some(options.as_c_str())).expect("root may mount");
        Self(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn used(&self) -> u64 {
        let space = rustix::fs::statvfs(self.path()).expect("it is mounted");
        (space.f_blocks - space.f_bfree) * space.f_frsize
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A test that fails may have left a process in it.
        unmount(self.path(), UnmountFlags::DETACH).expect("it is ours");
    }
}

/// A16, e2b: a once-cell stored the failure of a stop, so no later stop tried again.
#[test]
fn a_failed_stop_is_retried_by_the_next_stop_and_by_the_server() {
    let case = case();
    let Some(freezer) = Freezer::new() else {
        skip!("there is no freezer of cgroup version 1");
    };
    let server = Server::start(&case, &[]);
    for asks_again in [true, false] {
        let made = server.post("/v1/boxes", &json!({ "command": ["sleep", "1000"] }));
        let id = made.was(201).json()["id"].as_str().expect("an id").to_owned();
        let stop = || server.post(&format!("/v1/boxes/{id}/stop"), &json!({ "grace_ms": 0 }));
        freezer.freeze(case.workload(&id)[0].pid);
        let refused = stop().refused(503, "stuck");
        assert!(refused.header("retry-after").is_some());
        let look = server.get(&format!("/v1/boxes/{id}")).was(200).json();
        assert_eq!(look["state"], "stuck", "{look}");
        assert!(look["stuck_on"].as_str().expect("a reason").ends_with("does not die"), "{look}");
        freezer.thaw();
        if asks_again {
            assert_eq!(stop().was(200).json()["state"], "exited");
        }
        // No command and no request helps the server here.
        eventually("all of it is gone", || {
            case.processes_in(&id).is_empty() && case.cgroups_of(&id).is_empty()
        });
        server.delete(&format!("/v1/boxes/{id}?force=true")).was(204);
    }
    server.stop().ok();
}
