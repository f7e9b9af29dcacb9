//! Claims about births, on the real kernel.
#![allow(clippy::unwrap_used, reason = "all of this is test code")]

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tare_kernel::process::Status;
use tare_kernel::spawn::{Birth, BirthStep, Namespaces, Newborn, Privilege, spawn};

const BOUND: Duration = Duration::from_secs(10);

/// A birth without namespaces, so that any user can have it: the executable
/// reads `input` and writes to `output`.
fn bear(executable: &str, input: &File, output: &PipeWriter, extra: &[&File]) -> Newborn {
    let executable = File::open(executable).unwrap();
    let mut descriptors = vec![input.as_fd(), output.as_fd(), output.as_fd()];
    descriptors.extend(extra.iter().map(|file| file.as_fd()));
    spawn(Birth {
        namespaces: Namespaces::NONE,
        cgroup: None,
        join: &[],
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

/// leak B1: a creator that dies, or gives up, between the birth and the go.
#[test]
fn a_child_that_is_given_up_before_its_go_never_executes() {
    let (output, input) = pipe().unwrap();
    let newborn = bear("/bin/sh", &script("echo ran"), &input, &[]);
    drop(input);
    let given_up = newborn.give_up();
    assert!(given_up.process.wait_dead(BOUND).unwrap());
    assert_eq!(given_up.process.reap().unwrap(), Some(Status::Exited(127)));
    assert_eq!(given_up.failure().unwrap().0, BirthStep::Abandoned);
    assert_eq!(everything(output), "");
}

/// E025: whatever the parent has open, the child has what it was given.
#[test]
fn a_child_has_the_descriptors_it_was_given_and_no_others() {
    let _open = File::open("/dev/zero").unwrap();
    let given = File::open("/dev/full").unwrap();
    let (output, input) = pipe().unwrap();
    // The shell's own descriptor for the listing is closed when it is looked at.
    let list =
        script("cd /proc/$$/fd; for fd in *; do [ -h $fd ] && echo $fd $(readlink $fd); done; :");
    let spawned = bear("/bin/sh", &list, &input, &[&given]).go();
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
    let waiting = bear("/bin/sh", &script(""), &input, &[]);
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
    let given_up = waiting.give_up();
    assert!(given_up.process.wait_dead(BOUND).unwrap());
    given_up.process.reap().unwrap();
}

#[test]
fn a_child_that_cannot_execute_says_at_which_step() {
    let (_output, input) = pipe().unwrap();
    let spawned = bear("/etc/passwd", &script(""), &input, &[]).go();
    assert!(spawned.process.wait_dead(BOUND).unwrap());
    let (step, error) = spawned.failure().unwrap();
    assert_eq!(step, BirthStep::Execute);
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    spawned.process.reap().unwrap();
}
