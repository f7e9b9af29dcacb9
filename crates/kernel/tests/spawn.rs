//! Tests of `spawn` on the real kernel.
#![allow(clippy::unwrap_used, reason = "all of this is test code")]

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tare_kernel::process::Status;
use tare_kernel::spawn::{Namespaces, Privilege, SpawnOrder, SpawnStep, WaitingChild, spawn};

const BOUND: Duration = Duration::from_secs(10);

/// Starts a child without namespaces, which any user may do. The program reads `input` and
/// writes to `output`.
fn start(executable: &str, input: &File, output: &PipeWriter, extra: &[&File]) -> WaitingChild {
    let executable = File::open(executable).unwrap();
    let mut descriptors = vec![input.as_fd(), output.as_fd(), output.as_fd()];
    descriptors.extend(extra.iter().map(|file| file.as_fd()));
    spawn(SpawnOrder {
        namespaces: Namespaces::NONE,
        cgroup: None,
        tasks: &[],
        executable: executable.into(),
        arguments: &[c"sh"],
        descriptors: &descriptors,
        guard: None,
        privilege: Privilege::Unchanged,
    })
    .unwrap()
}

/// A shell script as an open file, to be a shell's standard input.
fn script(text: &str) -> File {
    let (read, mut write) = pipe().unwrap();
    write.write_all(text.as_bytes()).unwrap();
    OwnedFd::from(read).into()
}

fn everything(mut from: PipeReader) -> String {
    let mut text = String::new();
    from.read_to_string(&mut text).unwrap();
    text
}

/// A creator that dies, or gives up, between `clone3` and the go.
#[test]
fn a_child_that_is_abandoned_before_its_go_never_executes() {
    let (output, input) = pipe().unwrap();
    let waiting = start("/bin/sh", &script("echo ran"), &input, &[]);
    drop(input);
    let abandoned = waiting.abandon();
    assert!(abandoned.process.wait_dead(BOUND).unwrap());
    assert_eq!(abandoned.process.reap().unwrap(), Some(Status::Exited(127)));
    assert_eq!(abandoned.failure().unwrap().0, SpawnStep::Abandoned);
    assert_eq!(everything(output), "");
}

/// The child has no other descriptors, whatever its parent has open.
#[test]
fn a_child_has_the_descriptors_it_was_given_and_no_others() {
    let _open = File::open("/dev/zero").unwrap();
    let given = File::open("/dev/full").unwrap();
    let (output, input) = pipe().unwrap();
    // The shell's own descriptor for the listing is closed when it is looked at.
    let list =
        script("cd /proc/$$/fd; for fd in *; do [ -h $fd ] && echo $fd $(readlink $fd); done; :");
    let spawned = start("/bin/sh", &list, &input, &[&given]).go();
    drop(input);
    let said = everything(output);
    assert!(spawned.process.wait_dead(BOUND).unwrap());
    assert_eq!(spawned.process.reap().unwrap(), Some(Status::Exited(0)));
    let numbers: Vec<&str> = said.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(numbers, ["0", "1", "2", "3"], "{said}");
    assert!(said.contains("3 /dev/full"), "{said}");
}

/// A waiting child that holds the write end of another child's go pipe keeps that child
/// waiting after the parent was killed. The listening port of the parent would stay open too.
#[test]
fn a_child_that_waits_for_its_go_holds_only_its_own_descriptors() {
    let _open: Vec<File> = (0..100).map(|_| File::open("/dev/zero").unwrap()).collect();
    let (_output, input) = pipe().unwrap();
    let waiting = start("/bin/sh", &script(""), &input, &[]);
    let held = || {
        let fds = format!("/proc/{}/fd", waiting.process().pid());
        let entries = std::fs::read_dir(fds).unwrap();
        let mut held: Vec<u32> = entries
            .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
            .collect();
        held.sort_unstable();
        held
    };
    // The three streams, the executable and the go pipe.
    let begun = std::time::Instant::now();
    while held() != [0, 1, 2, 3, 4] && begun.elapsed() < BOUND {
        std::thread::yield_now();
    }
    assert_eq!(held(), [0, 1, 2, 3, 4]);
    let abandoned = waiting.abandon();
    assert!(abandoned.process.wait_dead(BOUND).unwrap());
    abandoned.process.reap().unwrap();
}

#[test]
fn a_child_that_cannot_execute_reports_the_step() {
    let (_output, input) = pipe().unwrap();
    let spawned = start("/etc/passwd", &script(""), &input, &[]).go();
    assert!(spawned.process.wait_dead(BOUND).unwrap());
    let (step, error) = spawned.failure().unwrap();
    assert_eq!(step, SpawnStep::Execute);
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    spawned.process.reap().unwrap();
}
