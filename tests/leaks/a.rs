//! A. A kill that does not reach the whole tree.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use tare_harness::skip::{has_program, is_root};
use tare_harness::{Running, eventually, fixture, hierarchies, skip, unprivileged};

use crate::case::{Case, case, times};

/// A call that has nothing to wait for returns well within this, on any machine.
const SOON: Duration = Duration::from_secs(20);

/// A1, e2b: `ip netns exec` forwards no signal, and only the wrapper was killed.
#[test]
fn a_wrapper_that_forwards_no_signal_goes_with_what_it_wraps() {
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

/// A2, boxlite: the outer bwrap was killed and the tree in its own PID namespace lived on.
#[test]
fn bubblewrap_in_a_box_goes_with_its_inner_tree() {
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

/// A3, boxlite: where no cgroup could be made `cgroup.kill` did nothing, and stop said
/// that it was done.
#[test]
fn without_a_cgroup_of_its_own_a_box_ends_all_the_same() {
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

/// A4, Clawith: only the launcher was killed, and what it had forked filled the PID table.
#[test]
fn fifty_sleepers_are_gone_after_their_timeout_every_time() {
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

/// A5, Clawith: TERM to the process group, no KILL, and a wait for the end of its output.
#[test]
fn who_ignores_term_and_holds_stdout_in_another_session_ends_with_the_timeout() {
    let case = case();
    let script = "trap '' TERM INT HUP QUIT; setsid sleep 1000000 & echo up; \
                  while :; do sleep 1000000; done";
    // That the pipes are at their end then is for the harness to see.
    let output = case
        .run(["--timeout", "1s", "--", "sh", "-c", script])
        .exited(124)
        .printed("up\n");
    assert!(output.lasted < SOON, "{output}");
    case.nothing_left();
}

/// A7, boxlite and microsandbox: the timeout of an exec signalled its leader only, and a
/// child that held stdout held the call.
#[test]
fn the_timeout_of_an_exec_ends_its_children_and_leaves_the_box_usable() {
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

/// A8, langfuse and pc2v9: killpg missed who had made a session of its own.
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

/// A10, kata and firecracker-containerd: a launcher that was killed left the machine that
/// it had launched, and its directory.
#[test]
fn a_launcher_that_is_killed_leaves_neither_a_box_nor_its_directory() {
    let case = case();
    let Some(root) = fixture::busybox_root() else {
        skip!("there is no static busybox");
    };
    let script = "echo changed > /marker; echo up; while :; do :; done";
    let launcher = case.spawn(["--rootfs", root.text(), "--root", "--", "sh", "-c", script]);
    launcher.see("up").signal(Signal::KILL);
    launcher.wait().exited(-9);
    eventually("the box is gone without anybody's help", || {
        case.footprint().processes.is_empty()
    });
    case.call(["ls"]).ok();
    assert_eq!(case.footprint().records.len(), 0);
    case.reap_orphans();
    case.nothing_left();
}

/// A11, rivet: to destroy a session marked its record, and 7,029 processes piled up.
#[test]
fn sessions_that_are_destroyed_leave_no_process() {
    let case = case();
    for _ in 0..times(40, 300) {
        let id = case.idle_box();
        for _ in 0..2 {
            case.call(["exec", "-d", &id, "--", "setsid", "sleep", "1000"])
                .ok();
        }
        case.remove(&id);
        assert_eq!(case.footprint().processes, []);
    }
}

/// A12, boxlite: a descriptor of a pipe that was closed twice broke the next exec.
#[test]
fn every_exec_has_its_three_streams_and_the_keeper_as_many_descriptors_as_before() {
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
    eventually("its descriptors are back", || {
        case.keeper_descriptors(&id) == held
    });
    case.remove(&id);
}

/// A14, crun: with a process that cannot die, delete went round for ever.
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
    case.exec("other", ["echo", "usable"])
        .ok()
        .printed("usable\n");
    case.remove(&other);
    freezer.thaw();
    eventually("whoever looks next ends it", || case.state(&id) == "exited");
    case.assert_over(&id);
    case.remove(&id);
}

/// A cgroup whose processes take no signal, SIGKILL neither (freezer-subsystem.rst).
struct Freezer(PathBuf);

impl Freezer {
    fn new() -> Option<Self> {
        let name = format!("frozen-by-a-test-{}", std::process::id());
        let mut roots = hierarchies().into_iter().filter(|_| is_root());
        let root = roots.find(|root| root.ends_with("freezer"))?;
        fs::create_dir(root.join(&name)).ok()?;
        Some(Self(root.join(name)))
    }

    fn freeze(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("root may move it");
        self.set("FROZEN");
        eventually("it is frozen", || {
            fs::read_to_string(self.0.join("freezer.state")).is_ok_and(|it| it == "FROZEN\n")
        });
    }

    fn thaw(&self) {
        self.set("THAWED");
    }

    fn set(&self, state: &str) {
        fs::write(self.0.join("freezer.state"), state).expect("the cgroup is ours");
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        // Whoever was in there is gone, or its test has failed.
        let _ = fs::remove_dir(&self.0);
    }
}
