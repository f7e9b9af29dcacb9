//! The streams of processes in a machine cross one port. They arrive whole, and none stops another.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Stdio};

use tare_harness::{TerminalSize, eventually};

use crate::machines::{Machines, machines};

/// `./check --long` moves and repeats as much as the issue asks for.
fn is_long() -> bool {
    std::env::var_os("TARE_LONG").is_some()
}

/// Starts `tare exec BOX -- sh -c SCRIPT` with pipes that only the test reads and writes.
fn exec(machines: &Machines, id: &str, script: &str) -> Child {
    let mut command = machines.tare.command(["exec", "-i", id, "--", "sh", "-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().expect("tare can be started")
}

/// Sends bytes through `cat` in the machine. Returns what came back.
fn through_cat(machines: &Machines, id: &str, bytes: &[u8]) -> Vec<u8> {
    let mut child = exec(machines, id, "exec cat");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    let mut stdout = child.stdout.take().expect("it is a pipe");
    let mut received = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(bytes).expect("it is read"));
        stdout.read_to_end(&mut received).expect("a pipe can be read");
    });
    assert!(child.wait().expect("it is a child").success());
    received
}

#[test]
fn streams_of_a_machine_arrive_whole_and_none_stops_another() {
    let machines = machines!();
    let tare = &machines.tare;
    let id = machines.detached(&["--lease", "10m", "--", "sleep", "1000"]);
    let count = if is_long() { 12_500_000_u64 } else { 1_000_000 };
    let bytes: Vec<u8> = (0..count).flat_map(u64::to_le_bytes).collect();
    assert!(through_cat(&machines, &id, &bytes) == bytes, "{} bytes each way", bytes.len());
    // The test reads nothing of the first, and the command in the second reads no input.
    let unread = exec(&machines, &id, "exec head -c 1000000 /dev/zero");
    let mut unwritten = exec(&machines, &id, "exec sleep 1000");
    let mut stdin = unwritten.stdin.take().expect("it is a pipe");
    let filling = std::thread::spawn(move || while stdin.write_all(&[0; 65536]).is_ok() {});
    let keeper = tare.keeper(&id).pid;
    let descriptors = || fs::read_dir(format!("/proc/{keeper}/fd")).map_or(0, Iterator::count);
    tare.exec(&id, ["true"]).ok();
    let before = descriptors();
    for number in 0..if is_long() { 1000 } else { 20 } {
        let script = format!("echo {number}; echo aside >&2; exit 3");
        let output = tare.exec(&id, ["sh", "-c", &script]).exited(3);
        assert_eq!(output.stdout_text(), format!("{number}\n"));
        assert_eq!(output.stderr_text(), "aside\n");
    }
    eventually("execs that have ended leave no descriptor", || descriptors() <= before);
    let mut kept = unread.wait_with_output().expect("it is a child");
    assert!(kept.status.success());
    assert_eq!(std::mem::take(&mut kept.stdout).len(), 1_000_000, "it was only late");
    unwritten.kill().expect("it is a child");
    unwritten.wait().expect("it is a child");
    filling.join().expect("it ends with its reader");
    // An exec without a client writes to the log.
    tare.call(["exec", "-d", &id, "--", "sh", "-c", "sleep 1; echo to the log"]).ok();
    tare.logged(&id, "to the log\n");
    // A reader that is gone ends its writer.
    let mut yes = exec(&machines, &id, "yes; test $? = 141");
    yes.stdout.take().expect("it is a pipe").read_exact(&mut [0; 1000]).expect("it says yes");
    eventually("it ends with its reader", || yes.try_wait().expect("it is a child").is_some());
    tare.remove(&id);
}

#[test]
fn a_terminal_of_a_machine_has_its_keys_its_size_and_its_clients() {
    let machines = machines!();
    let tare = &machines.tare;
    let id = machines.detached(&["-t", "--lease", "10m", "--", "sh"]);
    let size = |rows, columns| TerminalSize { rows, columns };
    let mut first = tare.call_under_terminal(size(33, 101), ["attach", &id]);
    first.type_bytes(b"stty size; echo one''d\r");
    first.see("33 101").see("oned");
    first.resize(size(44, 123));
    first.type_bytes(b"sleep 1; stty size\r");
    first.see("44 123");
    // The process that says it has begun is the one that the key ends.
    first.type_bytes(b"sh -c 'echo be\"\"gun; exec sleep 1000'\r");
    first.see("begun");
    first.type_bytes(b"\x03");
    first.see("^C");
    first.type_bytes(b"echo still''here\r");
    first.see("stillhere");
    // The keys that detach: the command lives on.
    first.type_bytes(b"\x10\x11");
    let (output, cooked) = first.wait();
    output.ok();
    assert!(cooked, "the caller's terminal was not put back");
    let mut other = tare.call_under_terminal(size(20, 60), ["exec", "-t", &id, "--", "sh"]);
    other.type_bytes(b"tty; stty size; exit 5\r");
    other.see("/dev/pts/1").see("20 60");
    other.wait().0.exited(5);
    let mut last = tare.call_under_terminal(size(21, 61), ["attach", &id]);
    last.type_bytes(b"stty size; exit 7\r");
    last.see("21 61");
    last.wait().0.exited(7);
    tare.remove(&id);
}
