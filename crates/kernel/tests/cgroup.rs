//! Claims about killing a cgroup, on the real kernel.
#![allow(clippy::unwrap_used, reason = "all of this is test code")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tare_harness::skip;
use tare_kernel::cgroup::{self, Cgroup, Version, hierarchies, kill_until_empty};

const BOUND: Duration = Duration::from_secs(10);

/// A cgroup of this test's own, or `None` where we may not make one.
fn own_cgroup(name: &str) -> Option<(PathBuf, Cgroup)> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let found = hierarchies(&mountinfo)
        .into_iter()
        .find(|one| one.version == Version::V2)?;
    let path = found
        .mount
        .join(format!("tare-test-{name}-{}", std::process::id()));
    Some((path.clone(), Cgroup::create(&path).ok()?))
}

/// Starts a Python program in the cgroup and waits until it says `ready`.
fn start_in(cgroup: &Cgroup, program: &str) -> Child {
    let mut child = Command::new("python3")
        .args([
            "-c",
            &format!("import sys; sys.stdin.readline()\n{program}"),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    cgroup
        .write("cgroup.procs", &child.id().to_string())
        .unwrap();
    drop(child.stdin.take());
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    child
}

/// leak A3, and why `cgroup.kill` alone is not trusted: it signals the main
/// thread only, which is gone here. The first half is the control: it shows
/// that the process does survive.
#[test]
fn a_process_whose_main_thread_has_exited_is_killed_all_the_same() {
    let Some((path, cgroup)) = own_cgroup("main-thread") else {
        skip!("no cgroup v2 hierarchy that we may write");
    };
    let mut child = start_in(
        &cgroup,
        "import ctypes, threading, time\n\
         def live():\n\
         \x20   while threading.main_thread().native_id and open('/proc/self/stat').read().split()[2] != 'Z': time.sleep(0.001)\n\
         \x20   print('ready', flush=True)\n\
         \x20   time.sleep(1000)\n\
         threading.Thread(target=live).start()\n\
         ctypes.CDLL(None).pthread_exit(0)\n",
    );
    cgroup.kill().unwrap();
    assert!(
        cgroup.is_populated().unwrap(),
        "cgroup.kill reached it: the control does not hold"
    );
    assert!(kill_until_empty(&cgroup, BOUND).unwrap());
    child.wait().unwrap();
    cgroup::remove(&path).unwrap();
    assert!(!path.exists());
}

/// leak D1: sub-cgroups that the box made go with it, however deep.
#[test]
fn nested_cgroups_are_emptied_and_removed_bottom_up() {
    let Some((path, cgroup)) = own_cgroup("nested") else {
        skip!("no cgroup v2 hierarchy that we may write");
    };
    let mut deep = path.clone();
    for level in 0..20 {
        deep.push(format!("level{level}"));
        fs::create_dir(&deep).unwrap();
    }
    let inner = Cgroup::open(&deep).unwrap();
    let mut child = start_in(
        &inner,
        "print('ready', flush=True); import time; time.sleep(1000)",
    );
    assert!(cgroup.is_populated().unwrap());
    assert!(kill_until_empty(&cgroup, BOUND).unwrap());
    child.wait().unwrap();
    cgroup::remove(&path).unwrap();
    assert!(!path.exists());
}

#[test]
fn removing_a_cgroup_that_is_already_gone_succeeds() {
    cgroup::remove(&PathBuf::from("/sys/fs/cgroup/tare-test-never-made")).unwrap();
}
