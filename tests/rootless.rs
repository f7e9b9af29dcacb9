//! `tare run` without privileges: the PID namespace ends the box, and limits that cannot be
//! enforced are reported.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use tare_harness::{box_processes, eventually_within, unprivileged};

const SOON: Duration = Duration::from_secs(15);

#[test]
fn hello_from_a_box() {
    let tare = unprivileged!();
    tare.run(["--quiet", "--", "python3", "-c", "print('hello from a box')"])
        .ok()
        .printed("hello from a box\n")
        .said_nothing();
}

#[test]
fn exit_codes_are_the_same() {
    let tare = unprivileged!();
    for code in [0, 1, 42, 255] {
        tare.run(["--", "sh", "-c", &format!("exit {code}")]).exited(code);
    }
    tare.run(["--", "sh", "-c", "kill -9 $$"]).exited(137);
    tare.run(["--", "/etc/passwd"]).exited(126);
    tare.run(["--", "no-such-program"]).exited(127);
    tare.run(["--cpus", "NaN", "--", "true"]).exited(125);
}

#[test]
fn bytes_pass_both_ways() {
    let tare = unprivileged!();
    let input: Vec<u8> = (0..131_072_u64).flat_map(u64::to_be_bytes).collect();
    let output = tare.with_stdin(input.clone(), ["--", "cat"]).ok();
    assert!(output.stdout == input, "{} bytes came back", output.stdout.len());
}

#[test]
fn a_rootless_box_is_isolated() {
    let tare = unprivileged!();
    let script = "import os, socket
print([name for _, name in socket.if_nameindex()])
print(sorted(name for name in os.listdir('/proc') if name.isdigit()) == [str(os.getpid())])
print(os.path.exists('/root') or os.path.exists('/etc/shadow'))
print(os.readlink('/proc/self/ns/pid'))
status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines())
print(status['NoNewPrivs'], status['Seccomp'], status['CapEff'], status['CapBnd'])";
    let output = tare.run(["--", "python3", "-c", script]).ok();
    let text = output.stdout_text();
    assert!(text.starts_with("['lo']\nTrue\nFalse\npid:["), "{output}");
    assert!(text.ends_with("\n1 2 0000000000000000 0000000000000000\n"), "{output}");
    let ours = fs::read_link("/proc/self/ns/pid").unwrap();
    assert!(!text.contains(ours.to_str().unwrap()), "{output}");
}

#[test]
fn a_rootless_timeout_kills_all_processes() {
    let tare = unprivileged!();
    let script = "for i in $(seq 20); do (trap '' TERM HUP INT; setsid sleep 1000) & done; trap '' TERM; echo ready; wait";
    let output =
        tare.run(["--timeout", "1s", "--", "sh", "-c", script]).exited(124).printed("ready\n");
    assert!(output.lasted < SOON, "{output}");
    let left = tare.difference_now();
    assert!(left.is_empty(), "{}", left.join("\n"));
}

#[test]
fn rootless_daemons_end_with_the_command() {
    let tare = unprivileged!();
    let script = "for i in 1 2 3; do (setsid sleep 1000 &) ; done; echo over";
    tare.run(["--", "sh", "-c", script]).ok().printed("over\n");
    let left = tare.difference_now();
    assert!(left.is_empty(), "{}", left.join("\n"));
}

/// The kernel kills all processes of a PID namespace when its first process dies.
#[test]
fn a_killed_rootless_tare_takes_its_box_along() {
    let tare = unprivileged!();
    let script =
        "for i in $(seq 5); do (trap '' TERM HUP INT; setsid sleep 1000) & done; echo ready; wait";
    let running = tare.spawn(["--", "sh", "-c", script]);
    let pid = running.see("ready").pid();
    let alive = || {
        let processes = box_processes().into_iter();
        processes.filter(|p| !p.is_zombie && p.pid != pid).count()
    };
    assert!(alive() > 5);
    running.signal(Signal::KILL);
    eventually_within(Duration::from_secs(2), "the box dies with tare", || alive() == 0);
    running.wait().exited(-9);
    tare.run(["--", "true"]).ok();
    tare.reap_orphans();
    let left = tare.difference_now();
    assert!(left.is_empty(), "{}", left.join("\n"));
}

#[test]
fn a_requested_limit_that_cannot_be_enforced_is_an_error() {
    let tare = unprivileged!();
    for (option, value) in [("--memory", "64m"), ("--cpus", "0.5")] {
        let output = tare.run([option, value, "--", "true"]);
        let command = "systemd-run --user --scope -p Delegate=yes tare run";
        output.exited(125).printed("").said(&["cgroup", command, option]);
    }
}

#[test]
fn a_default_limit_that_cannot_be_enforced_is_a_note_that_quiet_hides() {
    let tare = unprivileged!();
    let output = tare.run(["--", "true"]).ok().printed("");
    let note = output.stderr_text();
    assert!(note.contains("memory") && note.contains("cgroup"), "{output}");
    // This one is enforced.
    assert!(!note.contains("processes"), "{output}");
    assert!(note.lines().all(|line| line.starts_with("tare: ")), "{output}");
    tare.run(["--quiet", "--", "true"]).ok().printed("").said_nothing();
}

#[test]
fn rootless_limits_without_cgroups_are_enforced() {
    let tare = unprivileged!();
    tare.run(["--quiet", "--nofile", "64", "--", "sh", "-c", "ulimit -n"]).ok().printed("64\n");
    let script = "for i in 1 2 3 4 5 6; do sleep 1000 & done";
    let output = tare.run(["--quiet", "--pids", "5", "--", "sh", "-c", script]);
    assert!(output.stderr_text().contains("Cannot fork"), "{output}");
    let script = "head -c 32m /dev/zero > /tmp/fill";
    let output = tare.run(["--quiet", "--scratch", "16m", "--", "sh", "-c", script]);
    assert_ne!(output.code, 0, "{output}");
    assert!(output.stderr_text().contains("No space left"), "{output}");
}

#[test]
fn contain_works_without_root() {
    let tare = unprivileged!();
    tare.run(["--quiet", "--contain", "--", "sh", "-c", "setsid sleep 1000 & echo in"])
        .ok()
        .printed("in\n");
    let left = tare.difference_now();
    assert!(left.is_empty(), "{}", left.join("\n"));
}

#[test]
fn twenty_rootless_boxes_in_a_row_leave_nothing() {
    let tare = unprivileged!();
    for round in 0..20 {
        let number = round.to_string();
        tare.run(["--quiet", "--", "echo", &number])
            .ok()
            .printed(&format!("{number}\n"))
            .said_nothing();
    }
}
