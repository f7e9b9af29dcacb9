//! What a box shares with its host through files: sockets, locks, tare's own state
//! (docs/security.md).

use std::fs;
use std::path::Path;
use std::process::Command;

use tare_harness::skip::is_root;
use tare_harness::{TemporaryDirectory, eventually, skip, tare};

use crate::security_files::{CONNECT, landlock_version};

/// The kernel's list of sockets has none of other network namespaces.
#[test]
fn a_socket_of_another_network_namespace_is_out_of_reach_from_landlock_abi_9_on() {
    if landlock_version() < 9 {
        skip!("this kernel's Landlock does not know sockets by path");
    }
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let path = directory.join("service.sock");
    let listen = "import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
sys.stdin.read()";
    let mut service = Command::new("unshare")
        .args(["--net", "python3", "-c", listen])
        .arg(&path)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("unshare runs");
    eventually("the service listens", || path.exists());
    let volume = format!("{}:/data", directory.text());
    let call = ["-v", &volume, "--", "python3", "-c", CONNECT];
    tare.run(call.iter().chain(&["/data/service.sock"])).ok().printed("PermissionError\n");
    drop(service.stdin.take());
    service.wait().expect("it ends with its input");
}

/// A lock on a file that a box can open would be the box's to take. Locks of the host's
/// own programs are not tare's.
#[test]
fn a_box_can_open_no_file_that_tare_locks() {
    let tare = tare!();
    let volume = TemporaryDirectory::new();
    let volume = format!("{}:/data", volume.text());
    let script = "echo up; find / -printf '%D:%i\\n' 2>/dev/null; echo all; read line";
    let mut running = tare.spawn(["-i", "-v", &volume, "--", "sh", "-c", script]);
    running.see("up");
    let locked = locked_files();
    assert!(!locked.is_empty(), "a box that lives is locked");
    running.see("all");
    running.write(b"\n");
    let seen = running.wait().ok().stdout_text();
    for file in locked {
        assert!(!seen.lines().any(|line| line == file), "{file}");
    }
}

/// All files of this lane with a lock, as `find` prints them.
fn locked_files() -> Vec<String> {
    let list = fs::read_to_string("/proc/locks").expect("the kernel has locks");
    let file = |line: &str| {
        let mut parts =
            line.split_whitespace().find(|part| part.matches(':').count() == 2)?.split(':');
        let mut hex = || u32::from_str_radix(parts.next()?, 16).ok();
        let device = rustix::fs::makedev(hex()?, hex()?);
        Some(format!("{device}:{}", parts.next()?))
    };
    list.lines().filter_map(file).collect()
}

/// A bind mount gives the state root, or the directory that it is in, another name.
#[test]
fn tares_own_state_is_never_bound_under_another_name() {
    if !is_root() {
        skip!("only root can make a bind mount");
    }
    let tare = tare!();
    tare.run(["--", "true"]).ok();
    let alias = TemporaryDirectory::new();
    let state = tare.state_root();
    for hidden in [state.as_path(), state.parent().unwrap()] {
        let mount = |program: &str, args: &[&Path]| {
            let done = Command::new(program).args(args).status();
            assert!(done.expect("it runs").success(), "{program}");
        };
        mount("mount", &[Path::new("--bind"), hidden, alias.path()]);
        let volume = format!("{}:/data:ro", alias.text());
        let output = tare.run(["-v", &volume, "--", "true"]);
        mount("umount", &[alias.path()]);
        output.exited(125).said(&["tare keeps its own state in"]);
    }
}
