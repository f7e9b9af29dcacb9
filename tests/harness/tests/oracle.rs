//! The oracle sees every kind of leak: each test leaks one object on purpose, expects the report,
//! removes the object, and expects no report.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::slice::from_ref;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tare_harness::skip::{has_program, is_root};
use tare_harness::{
    Process, Snapshot, Tare, TemporaryDirectory, box_processes, eventually, hierarchies, skip,
};

/// A child that lives until its standard input is closed.
struct Living(Child);

impl Living {
    fn start(program: impl AsRef<Path>, args: &[&str]) -> Self {
        let mut command = Command::new(program.as_ref());
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::null());
        Self(command.spawn().expect("the program can be started"))
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        self.0.wait().expect("our own child can be waited for");
    }
}

/// Waits until the oracle reports something with all these words in one line.
fn reported(before: &Snapshot, words: &[&str]) {
    eventually(&format!("a difference that says {words:?}"), || {
        let now = Snapshot::take(&[]);
        let lines = before.difference(&now);
        lines.iter().any(|line| words.iter().all(|word| line.contains(word)))
    });
}

fn nothing_reported(before: &Snapshot) {
    assert_eq!(before.difference_now(), Vec::<String>::new());
}

fn probe_name() -> String {
    format!("tare-harness-probe-{}", std::process::id())
}

#[test]
fn a_quiet_host_equals_itself() {
    nothing_reported(&Snapshot::take(&[]));
}

#[test]
fn a_process_in_another_pid_namespace_is_seen() {
    if !is_root() {
        skip!("only root may unshare a PID namespace alone");
    }
    let before = Snapshot::take(&[]);
    let leaked = Living::start("unshare", &["--pid", "--fork", "cat"]);
    reported(&before, &["new: process", "(cat)", "pid:["]);
    leaked.end();
    nothing_reported(&before);
}

#[test]
fn a_process_called_tare_is_seen_with_its_descriptors() {
    let before = Snapshot::take(&[]);
    let directory = TemporaryDirectory::new();
    let program = directory.join("tare");
    fs::copy("/bin/cat", &program).unwrap();
    let leaked = Living::start(&program, &[]);
    reported(&before, &["new: process", "(tare)"]);
    reported(&before, &["(tare) holds", "of pipe"]);
    leaked.end();
    drop(directory);
    nothing_reported(&before);
}

#[test]
fn a_zombie_called_tare_is_seen() {
    let before = Snapshot::take(&[]);
    let directory = TemporaryDirectory::new();
    let program = directory.join("tare");
    fs::copy("/bin/cat", &program).unwrap();
    let mut leaked = Living::start(&program, &[]);
    drop(leaked.0.stdin.take());
    reported(&before, &["new: process", "(tare), a zombie"]);
    leaked.end();
    drop(directory);
    nothing_reported(&before);
}

#[test]
fn a_cgroup_directory_is_seen_in_every_hierarchy() {
    let writable = probe_cgroups();
    if writable.is_empty() {
        skip!("no cgroup hierarchy can be written");
    }
    for cgroup in writable {
        let before = Snapshot::take(&[]);
        fs::create_dir(&cgroup).unwrap();
        reported(&before, &["new: cgroup", cgroup.to_str().unwrap()]);
        fs::remove_dir(&cgroup).unwrap();
        nothing_reported(&before);
    }
}

#[test]
fn a_process_in_a_cgroup_of_tare_is_seen_whatever_it_runs() {
    let Some(cgroup) = probe_cgroups().pop() else {
        skip!("no cgroup hierarchy can be written");
    };
    let before = Snapshot::take(&[]);
    fs::create_dir(&cgroup).unwrap();
    let leaked = Living::start("cat", &[]);
    fs::write(cgroup.join("cgroup.procs"), leaked.0.id().to_string()).unwrap();
    reported(&before, &["new: process", "(cat)", &probe_name()]);
    leaked.end();
    fs::remove_dir(&cgroup).unwrap();
    nothing_reported(&before);
}

/// Where a directory of tare's could be made, one for each hierarchy.
fn probe_cgroups() -> Vec<PathBuf> {
    let candidates = hierarchies().into_iter().map(|root| root.join(probe_name()));
    candidates.filter(|path| fs::create_dir(path).is_ok() && fs::remove_dir(path).is_ok()).collect()
}

#[test]
fn a_mount_is_seen() {
    if !is_root() {
        skip!("only root may mount");
    }
    let before = Snapshot::take(&[]);
    let directory = TemporaryDirectory::new();
    mount("none", directory.path(), "tmpfs", MountFlags::empty(), None).unwrap();
    reported(&before, &["new: mount", directory.text(), "tmpfs"]);
    unmount(directory.path(), UnmountFlags::empty()).unwrap();
    drop(directory);
    nothing_reported(&before);
}

#[test]
fn a_mount_that_went_away_is_seen() {
    if !is_root() {
        skip!("only root may mount");
    }
    let directory = TemporaryDirectory::new();
    mount("none", directory.path(), "tmpfs", MountFlags::empty(), None).unwrap();
    let before = Snapshot::take(&[]);
    unmount(directory.path(), UnmountFlags::empty()).unwrap();
    reported(&before, &["gone: mount", directory.text()]);
}

#[test]
fn network_and_mount_namespaces_are_seen() {
    if !is_root() {
        skip!("only root may unshare these namespaces alone");
    }
    for (option, kind) in [("--net", "net:["), ("--mount", "mnt:[")] {
        let before = Snapshot::take(&[]);
        let leaked = Living::start("unshare", &[option, "cat"]);
        reported(&before, &["new: namespace", kind]);
        leaked.end();
        nothing_reported(&before);
    }
}

#[test]
fn listening_ports_are_seen() {
    let before = Snapshot::take(&[]);
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let tcp_port = tcp.local_addr().unwrap().to_string();
    let udp_port = udp.local_addr().unwrap().to_string();
    reported(&before, &["new: tcp port", &tcp_port]);
    reported(&before, &["new: udp port", &udp_port]);
    drop((tcp, udp));
    nothing_reported(&before);
}

#[test]
fn an_abstract_unix_name_is_seen() {
    let before = Snapshot::take(&[]);
    let name = SocketAddr::from_abstract_name(probe_name()).unwrap();
    let listener = UnixListener::bind_addr(&name).unwrap();
    reported(&before, &["new: abstract unix name", &probe_name()]);
    drop(listener);
    nothing_reported(&before);
}

#[test]
fn system_v_objects_are_seen() {
    if !has_program("ipcmk") {
        skip!("ipcmk is not installed");
    }
    let kinds = [
        (["--shmem", "4096"].as_slice(), "shm", "--shmem-id"),
        (["--semaphore", "1"].as_slice(), "sem", "--semaphore-id"),
        (["--queue"].as_slice(), "msg", "--queue-id"),
    ];
    for (make, kind, remove) in kinds {
        let before = Snapshot::take(&[]);
        let made = Command::new("ipcmk").args(make).output().unwrap();
        let text = String::from_utf8(made.stdout).unwrap();
        let id = text.trim().rsplit(' ').next().unwrap();
        reported(&before, &["new: System V", kind, id]);
        let removed = Command::new("ipcrm").args([remove, id]).status().unwrap();
        assert!(removed.success());
        nothing_reported(&before);
    }
}

#[test]
fn posix_shared_memory_is_seen() {
    let before = Snapshot::take(&[]);
    let name = Path::new("/dev/shm").join(probe_name());
    let mut file = fs::File::create(&name).unwrap();
    file.write_all(b"x").unwrap();
    reported(&before, &["new: POSIX shared memory", &probe_name()]);
    fs::remove_file(&name).unwrap();
    nothing_reported(&before);
}

#[test]
fn a_file_under_a_state_root_is_seen() {
    let directory = TemporaryDirectory::new();
    let root = directory.join("state");
    fs::create_dir(&root).unwrap();
    let before = Snapshot::take(from_ref(&root));
    fs::create_dir(root.join("box")).unwrap();
    fs::write(root.join("box/record"), "").unwrap();
    let lines = before.difference(&Snapshot::take(from_ref(&root)));
    let expected = [
        format!("new: directory {}/box", root.display()),
        format!("new: file {}/box/record", root.display()),
    ];
    assert_eq!(lines, expected);
    fs::remove_dir_all(root.join("box")).unwrap();
    nothing_reported(&before);
}

/// A shell script stands in for tare and writes to the state root.
#[test]
fn a_test_fails_when_something_is_left_in_the_state_root() {
    let left = std::panic::catch_unwind(|| {
        let tare = Tare::start("/bin/sh");
        tare.call(["-c", "mkdir $TARE_STATE_ROOT/box"]).ok();
    });
    let message = *left.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("new: directory"), "{message}");
    assert!(message.contains("/state/box"), "{message}");
}

#[test]
fn a_test_passes_when_nothing_is_left() {
    let tare = Tare::start("/bin/sh");
    tare.call(["-c", "exit 3"]).exited(3).printed("").said_nothing();
    tare.call(["-c", "echo one; echo two >&2"]).ok().printed("one\n").said(&["two"]);
    tare.finish();
}

#[test]
fn a_call_ended_by_a_signal_differs_from_one_that_exits() {
    let tare = Tare::start("/bin/sh");
    tare.call(["-c", "kill -9 $$"]).exited(-9);
}

/// A script that pretends to create a box and to list boxes.
fn pretender(directory: &TemporaryDirectory, run: &str, listed: &str) -> PathBuf {
    let script = format!("#!/bin/sh\ncase $1$2 in run-d) {run};; ls-a) echo '{listed}';; esac\n");
    let program = directory.write("pretender", script);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    program
}

#[test]
fn a_test_fails_when_a_box_is_still_listed() {
    let directory = TemporaryDirectory::new();
    let listed = r#"[{"id":"abcdefghijkl","name":"mine","state":"running"}]"#;
    let program = pretender(&directory, "echo abcdefghijkl", listed);
    let left = std::panic::catch_unwind(|| {
        let tare = Tare::start(&program);
        tare.detached(["--", "true"]);
    });
    let message = *left.unwrap_err().downcast::<String>().unwrap();
    for word in ["boxes are left", "abcdefghijkl", "mine", "running"] {
        assert!(message.contains(word), "{message}");
    }
}

/// The first process of a PID namespace whose creator has exited, as a keeper is.
const ORPHAN: &str =
    "unshare --pid sh -c \"sleep $SECONDS_LEFT >/dev/null 2>&1 & echo abcdefghijkl\"";

fn orphans() -> Vec<Process> {
    let is_ours = |process: &Process| process.parent == std::process::id();
    box_processes().into_iter().filter(is_ours).collect()
}

#[test]
fn the_zombie_of_a_keeper_that_outlived_its_creator_is_not_a_leak() {
    if !is_root() {
        skip!("only root may unshare a PID namespace alone");
    }
    let directory = TemporaryDirectory::new();
    let run = ORPHAN.replace("$SECONDS_LEFT", "0.1");
    let tare = Tare::start(pretender(&directory, &run, "[]"));
    tare.detached(["--", "true"]);
    eventually("the orphan ends", || orphans().iter().all(|process| process.is_zombie));
    tare.finish();
}

#[test]
fn a_keeper_that_is_alive_is_a_leak_and_is_killed() {
    if !is_root() {
        skip!("only root may unshare a PID namespace alone");
    }
    let directory = TemporaryDirectory::new();
    let run = ORPHAN.replace("$SECONDS_LEFT", "1000");
    let program = pretender(&directory, &run, "[]");
    let left = std::panic::catch_unwind(|| {
        let tare = Tare::start(&program);
        tare.detached(["--", "true"]);
        let left = tare.difference_now();
        assert!(left.is_empty(), "{}", left.join("\n"));
    });
    let message = *left.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("(sleep)"), "{message}");
    assert_eq!(orphans(), []);
}
