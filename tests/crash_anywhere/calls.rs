//! Kills tare, or a keeper, right before its k-th system call, for every k. Between two system
//! calls a process changes only its memory, so this covers every instant.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tare_harness::random::{fresh_seed, number_in};
use tare_harness::scene::{Expected, Fate, Scene, in_lanes, keeper_of};
use tare_harness::skip::is_root;
use tare_harness::{Running, TemporaryDirectory, fixture, skip, tare};

const KILL_AT_CALL: &str = include_str!("../probes/kill_at_call.c");

/// Exit codes of the probe: it killed the process, or the process made fewer calls.
const KILLED: i32 = 0;
const NO_SUCH_CALL: i32 = 3;

/// How many crashes are checked together.
const BATCH: u64 = 40;
/// More calls than any of these operations makes.
const CALLS_MAX: u64 = 5_000;
/// Only every `STRIDE`-th call is tried, from a random one on, unless the environment asks for all.
const STRIDE: u64 = 2;
/// How long a keeper may be busy after its client has the answer.
const AFTER_ANSWER: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whom {
    Tare,
    /// The keeper of the box that the command creates.
    NewKeeper,
    /// The keeper of the box that the command works on.
    OldKeeper,
}

#[derive(Debug)]
struct Operation {
    whom: Whom,
    /// Builds the arguments from the name of the box that the command works on or creates.
    call: fn(&str) -> Vec<&str>,
    needs_box: bool,
    /// The states in which the box may be after the kill.
    fates: &'static [Fate],
}

fn run(name: &str) -> Vec<&str> {
    vec!["run", "--name", name, "--", "true"]
}

fn detach(name: &str) -> Vec<&str> {
    vec!["run", "-d", "--name", name, "--", "sleep", "1000"]
}

fn detach_brief(name: &str) -> Vec<&str> {
    vec!["run", "-d", "--name", name, "--", "true"]
}

fn exec(name: &str) -> Vec<&str> {
    vec!["exec", name, "--", "true"]
}

fn stop(name: &str) -> Vec<&str> {
    vec!["stop", name]
}

fn remove(name: &str) -> Vec<&str> {
    vec!["rm", "-f", name]
}

#[test]
fn run_killed_at_any_system_call_leaves_nothing() {
    each_call(Operation { whom: Whom::Tare, call: run, needs_box: false, fates: &[Fate::Absent] });
}

#[test]
fn detached_run_killed_at_any_system_call_leaves_a_complete_box_or_none() {
    each_call(Operation {
        whom: Whom::Tare,
        call: detach,
        needs_box: false,
        fates: &[Fate::Absent, Fate::Running],
    });
}

#[test]
fn exec_killed_at_any_system_call_leaves_nothing() {
    each_call(Operation { whom: Whom::Tare, call: exec, needs_box: true, fates: &[Fate::Running] });
}

#[test]
fn stop_killed_at_any_system_call_is_finished_by_the_next_command() {
    each_call(Operation {
        whom: Whom::Tare,
        call: stop,
        needs_box: true,
        fates: &[Fate::Running, Fate::Exited],
    });
}

#[test]
fn rm_killed_at_any_system_call_is_finished_by_the_next_command() {
    each_call(Operation {
        whom: Whom::Tare,
        call: remove,
        needs_box: true,
        fates: &[Fate::Running, Fate::Exited, Fate::Absent],
    });
}

#[test]
fn keeper_killed_at_any_system_call_leaves_nothing() {
    each_call(Operation {
        whom: Whom::NewKeeper,
        call: run,
        needs_box: false,
        fates: &[Fate::Absent],
    });
}

#[test]
fn keeper_of_a_detached_box_killed_at_any_system_call_leaves_nothing() {
    each_call(Operation {
        whom: Whom::NewKeeper,
        call: detach_brief,
        needs_box: false,
        fates: &[Fate::Absent, Fate::Exited],
    });
}

#[test]
fn keeper_killed_at_any_system_call_of_an_exec_leaves_nothing() {
    each_call(Operation {
        whom: Whom::OldKeeper,
        call: exec,
        needs_box: true,
        fates: &[Fate::Running, Fate::Exited],
    });
}

#[test]
fn keeper_killed_at_any_system_call_of_a_stop_leaves_nothing() {
    each_call(Operation {
        whom: Whom::OldKeeper,
        call: stop,
        needs_box: true,
        fates: &[Fate::Exited],
    });
}

#[track_caller]
fn each_call(operation: Operation) {
    if !is_root() {
        skip!("only root can trace a keeper");
    }
    let scene = Scene::new(tare!());
    let directory = TemporaryDirectory::new();
    let Some(probe) = fixture::compiled(&directory, "kill_at_call", KILL_AT_CALL) else {
        skip!("this host has no C compiler");
    };
    let stride = number_in("TARE_CRASH_STRIDE").unwrap_or(STRIDE);
    let mut first = 1 + fresh_seed() % stride;
    loop {
        let calls: Vec<u64> = (0..BATCH).map(|at| first + at * stride).collect();
        let killed = in_lanes(&calls, |call| operation.crash(&scene, &probe, *call));
        let expected = calls
            .iter()
            .map(|call| Expected { name: name(*call), fates: operation.fates.to_vec() });
        scene.check(&expected.collect::<Vec<_>>());
        scene.clear();
        // The last ones of the batch were past the end.
        if killed.contains(&false) {
            return;
        }
        first += BATCH * stride;
        assert!(first < CALLS_MAX, "{operation:?} does not end");
    }
}

fn name(call: u64) -> String {
    format!("call-{call}")
}

impl Operation {
    /// Returns whether the process made so many calls.
    fn crash(&self, scene: &Scene, probe: &PathBuf, call: u64) -> bool {
        let name = name(call);
        let id = self.needs_box.then(|| scene.box_named(&name));
        let ended = match (self.whom, id) {
            (Whom::OldKeeper, Some(id)) => return self.crash_old(scene, probe, call, &id),
            (Whom::OldKeeper, None) => unreachable!("an old keeper has a box"),
            (Whom::Tare, _) => self.traced(scene, probe, "itself", call).wait(),
            (Whom::NewKeeper, _) => self.traced(scene, probe, "child", call).wait(),
        };
        assert!([KILLED, NO_SUCH_CALL].contains(&ended.code), "{ended}");
        ended.code == KILLED
    }

    fn traced(&self, scene: &Scene, probe: &PathBuf, whom: &str, call: u64) -> Running {
        let mut command = Command::new(probe);
        command.arg(whom).arg(call.to_string());
        command.arg(scene.tare.program());
        command.args((self.call)(&name(call)));
        start(scene, command)
    }

    /// Attaches to the keeper first, then starts the command that makes the keeper work.
    fn crash_old(&self, scene: &Scene, probe: &PathBuf, call: u64, id: &str) -> bool {
        let keeper = keeper_of(scene, id);
        let mut command = Command::new(probe);
        command.args(["process", &call.to_string(), &keeper.to_string()]);
        let tracer = start(scene, command);
        tracer.see("ready");
        let output = scene.tare.call((self.call)(&name(call)));
        if output.code != 0 {
            // Who is not answered says so.
            output.said(&["tare: "]);
        } else if !tracer.ends_within(AFTER_ANSWER) {
            // Dropped, it lets the keeper go.
            return false;
        }
        tracer.wait().code == KILLED
    }
}

fn start(scene: &Scene, mut command: Command) -> Running {
    command.env("TARE_STATE_ROOT", scene.tare.state_root());
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    scene.tare.start_command(command)
}
