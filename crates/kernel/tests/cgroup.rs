//! Claims about killing a cgroup, on the real kernel.
#![allow(clippy::unwrap_used, reason = "all of this is test code")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tare_harness::skip;
use tare_kernel::cgroup::{self, Cgroup, Version, hierarchies, kill_until_empty};
use tare_kernel::cgroup_tree::{self as tree, Members};

const BOUND: Duration = Duration::from_secs(10);

/// A cgroup of this test's own, or `None` where we may not make one.
fn own_cgroup(name: &str) -> Option<(PathBuf, Cgroup)> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let found = hierarchies(&mountinfo).into_iter().find(|one| one.version == Version::V2)?;
    let path = found.mount.join(format!("tare-test-{name}-{}", std::process::id()));
    Some((path.clone(), Cgroup::create(&path).ok()?))
}

/// Starts a Python program in the cgroup and waits until it says `ready`.
fn start_in(cgroup: &Cgroup, program: &str) -> Child {
    start_with(program, |pid| cgroup.write("cgroup.procs", pid).unwrap())
}

/// Starts a Python program, passes its number to `enter`, and waits until it says
/// `ready`.
fn start_with(program: &str, enter: impl FnOnce(&str)) -> Child {
    let mut child = Command::new("python3")
        .args(["-c", &format!("import sys; sys.stdin.readline()\n{program}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    enter(&child.id().to_string());
    drop(child.stdin.take());
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

/// leak A3, and why `cgroup.kill` alone is not trusted: it signals the main
/// thread only, which is gone here. The first half is the control: it shows
/// that the process does survive.
#[test]
fn a_process_whose_main_thread_has_exited_is_killed() {
    let Some((path, cgroup)) = own_cgroup("main-thread") else {
        skip!("no cgroup v2 hierarchy that we may write");
    };
    let mut child = start_in(&cgroup, WITHOUT_MAIN_THREAD);
    cgroup.kill().unwrap();
    assert!(cgroup.is_populated().unwrap(), "cgroup.kill reached it: the control does not hold");
    assert!(kill_until_empty(&cgroup, BOUND).unwrap());
    child.wait().unwrap();
    cgroup::remove(&path).unwrap();
    assert!(!path.exists());
}

/// Python that prints `ready` from a second thread once its main thread has exited.
const WITHOUT_MAIN_THREAD: &str = "import ctypes, threading, time\n\
     def live():\n\
     \x20   while threading.main_thread().native_id and open('/proc/self/stat').read().split()[2] != 'Z': time.sleep(0.001)\n\
     \x20   print('ready', flush=True)\n\
     \x20   time.sleep(1000)\n\
     threading.Thread(target=live).start()\n\
     ctypes.CDLL(None).pthread_exit(0)\n";

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
    let mut child = start_in(&inner, "print('ready', flush=True); import time; time.sleep(1000)");
    assert!(cgroup.is_populated().unwrap());
    assert!(kill_until_empty(&cgroup, BOUND).unwrap());
    child.wait().unwrap();
    cgroup::remove(&path).unwrap();
    assert!(!path.exists());
}

/// A path to the deepest of these would be longer than a path can be, and one
/// descriptor for each level more than a process may have.
#[test]
fn nested_cgroups_a_thousand_deep_are_removed_with_64_descriptors() {
    let Some((path, cgroup)) = own_cgroup("deep") else {
        skip!("no cgroup v2 hierarchy that we may write");
    };
    let deepest = nest(&path);
    let procs = format!("/proc/self/fd/{}/cgroup.procs", deepest.as_raw_fd());
    let mut child = start_with(WITHOUT_MAIN_THREAD, |pid| {
        fs::write(procs, pid).unwrap();
    });
    drop(deepest);
    allow_descriptors(64);
    assert!(kill_until_empty(&cgroup, BOUND).unwrap());
    child.wait().unwrap();
    cgroup::remove(&path).unwrap();
    assert!(!path.exists());
}

#[test]
fn nested_v1_cgroups_a_thousand_deep_are_removed_with_64_descriptors() {
    let Some(path) = own_v1_cgroup("deep") else {
        skip!("no cgroup v1 hierarchy of pids that we may write");
    };
    nest(&path);
    allow_descriptors(64);
    cgroup::remove(&path).unwrap();
    assert!(!path.exists());
}

fn own_v1_cgroup(name: &str) -> Option<PathBuf> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let found = hierarchies(&mountinfo)
        .into_iter()
        .find(|one| one.controllers.iter().any(|name| name == "pids"))?;
    let path = found.mount.join(format!("tare-test-{name}-{}", std::process::id()));
    fs::create_dir(&path).ok().map(|()| path)
}

/// Makes 1,200 directories, each in the one before; the last of them.
fn nest(path: &Path) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut current = openat(CWD, path, flags, Mode::empty()).unwrap();
    for _ in 0..1200 {
        mkdirat(&current, "level", Mode::RWXU).unwrap();
        current = openat(&current, "level", flags, Mode::empty()).unwrap();
    }
    current
}

fn allow_descriptors(number: u64) {
    let limit = Rlimit { current: Some(number), maximum: getrlimit(Resource::Nofile).maximum };
    setrlimit(Resource::Nofile, limit).unwrap();
}

#[test]
fn removing_a_cgroup_that_is_already_gone_succeeds() {
    cgroup::remove(&PathBuf::from("/sys/fs/cgroup/tare-test-never-made")).unwrap();
}

/// A page of process numbers is about 700 of them.
#[test]
fn all_members_of_a_cgroup_and_its_descendants_are_found() {
    let Some((path, cgroup)) = own_cgroup("members") else {
        skip!("no cgroup v2 hierarchy that we may write");
    };
    let below = cgroup.make_below("below", None).unwrap();
    let children = "import os, signal\n\
        for _ in range(900):\n    if os.fork() == 0: signal.pause()\n\
        print('ready', flush=True)\nsignal.pause()";
    let mut many = start_in(&cgroup, children);
    let mut one = start_in(&below, "print('ready', flush=True)\nimport signal; signal.pause()");
    let root = fs::File::open(path.parent().unwrap()).unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    let read = |usual| tree::read(root.as_fd(), name, usual, Members::Read).unwrap();
    for usual in ["below", "other"] {
        let found = read(usual);
        assert_eq!(found.members.len(), 902);
        assert!(found.members.contains(&i32::try_from(one.id()).unwrap()));
        let paths: Vec<_> = found.directories.iter().map(|it| it.path.clone()).collect();
        assert_eq!(paths, [PathBuf::from(name), PathBuf::from(name).join("below")]);
        assert_eq!(found.directories[0].inode, cgroup.inode().unwrap());
    }
    assert!(kill_until_empty(&cgroup, BOUND).unwrap());
    cgroup::remove(&path).unwrap();
    assert_eq!(read("below").directories, []);
    many.wait().unwrap();
    one.wait().unwrap();
}
