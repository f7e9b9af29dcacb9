//! `./check` is more than a list of commands only when a signal ends it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tare_harness::{TemporaryDirectory, eventually};

#[test]
fn check_that_a_signal_ends_fails_and_ends_what_it_started() {
    for (signal, name, code) in [(Signal::TERM, "SIGTERM", 143), (Signal::INT, "SIGINT", 130)] {
        let directory = TemporaryDirectory::new();
        let stderr = fs::File::create(directory.join("stderr")).expect("it is new");
        let mut check = Command::new(copy_of_check(&directory))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .expect("bash starts");
        let started = directory.join("started");
        let pid = || fs::read_to_string(&started).unwrap_or_default();
        eventually("check starts cargo", || pid().ends_with('\n'));
        kill_process(Pid::from_child(&check), signal).expect("it runs");
        assert_eq!(check.wait().expect("it is a child").code(), Some(code));
        let text = fs::read_to_string(directory.join("stderr")).expect("it is text");
        assert!(text.contains(&format!("ENDED by {name} in: ")), "{text}");
        assert!(!Path::new("/proc").join(pid().trim()).exists(), "cargo still runs");
    }
}

/// Copies `./check`, because it removes what is left of lanes beside it. The `cargo` that it
/// finds first hangs.
fn copy_of_check(directory: &TemporaryDirectory) -> PathBuf {
    let copy = directory.join("check");
    let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../check");
    fs::copy(check, &copy).expect("it is readable");
    let tools = directory.join("target/tools");
    fs::create_dir_all(&tools).expect("the directory is ours");
    let cargo = "#!/bin/sh\necho $$ >started\nexec sleep 1000\n";
    fs::write(tools.join("cargo"), cargo).expect("the directory is ours");
    fs::set_permissions(tools.join("cargo"), Permissions::from_mode(0o755)).expect("it is ours");
    copy
}
