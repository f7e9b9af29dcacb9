//! Kills tare, a keeper, both or the whole process group at random moments.

use std::fmt;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Signal, kill_process_group, pidfd_send_signal};
use tare_harness::random::{Random, fresh_seed, number_in};
use tare_harness::scene::{Expected, Fate, Scene, in_lanes, keeper_of, pid, pidfd};
use tare_harness::{Running, tare};

/// How many crashes are checked together.
const BATCH: usize = 50;
/// The number of crashes in each test; the environment can ask for more.
const CRASHES: u64 = 1_000;
/// How often a batch is repeated; each repetition crashes at other moments.
const REPETITIONS: u64 = 20;
/// Every second crash happens within this time, in which a command creates most objects.
const EARLY: Duration = Duration::from_millis(6);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Run,
    Detach,
    Exec,
    Stop,
    Remove,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Tare,
    Keeper,
    Both,
    Group,
}

const OPERATIONS: [Operation; 5] =
    [Operation::Run, Operation::Detach, Operation::Exec, Operation::Stop, Operation::Remove];
const VICTIMS: [Victim; 4] = [Victim::Tare, Victim::Keeper, Victim::Both, Victim::Group];

#[derive(Debug, Clone)]
struct Crash {
    operation: Operation,
    victim: Victim,
    after: Duration,
    /// Whether the command in the box ends by itself.
    brief: bool,
    name: String,
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, victim, after, brief, name } = self;
        write!(f, "{name}: {operation:?}{} ", if *brief { " (brief)" } else { "" })?;
        write!(f, "{victim:?} killed after {} us", after.as_micros())
    }
}

/// What the test observed during a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// There was a keeper to kill.
    keeper_killed: bool,
    /// The command succeeded before it was killed.
    acknowledged: bool,
}

#[test]
fn first_thousand_crashes_at_random_instants_leave_nothing() {
    crashes();
}

#[test]
fn second_thousand_crashes_at_random_instants_leave_nothing() {
    crashes();
}

#[test]
fn third_thousand_crashes_at_random_instants_leave_nothing() {
    crashes();
}

/// Three tests share the crashes, so that none of them takes long. Each has its own seeds.
#[track_caller]
fn crashes() {
    let scene = Scene::new(tare!());
    let durations = Durations::measured(&scene);
    if let Some(seed) = number_in("TARE_CRASH_SEED") {
        (0..REPETITIONS).for_each(|_| batch(&scene, &durations, seed));
        return;
    }
    let mut seeds = Random::seeded(fresh_seed());
    let crashes = number_in("TARE_CRASHES").unwrap_or(CRASHES);
    for _ in 0..crashes.div_ceil(BATCH as u64) {
        batch(&scene, &durations, seeds.below(1 << 32));
    }
}

/// How long each operation takes on this host without interference.
#[derive(Debug)]
struct Durations([(Operation, Duration); OPERATIONS.len()]);

impl Durations {
    fn measured(scene: &Scene) -> Self {
        let measured = OPERATIONS.map(|operation| {
            let crash = Crash {
                operation,
                victim: Victim::Tare,
                after: Duration::ZERO,
                brief: true,
                name: "measured".into(),
            };
            crash.prepare(scene);
            let lasted = crash.start(scene).wait().lasted;
            scene.clear();
            (operation, lasted)
        });
        Self(measured)
    }

    fn of(&self, operation: Operation) -> Duration {
        let found = self.0.iter().find(|(it, _)| *it == operation);
        found.expect("each was measured").1
    }
}

#[track_caller]
fn batch(scene: &Scene, durations: &Durations, seed: u64) {
    let mut random = Random::seeded(seed);
    let crashes: Vec<Crash> =
        (0..BATCH).map(|number| Crash::random(&mut random, durations, number)).collect();
    let _story = Story { seed, crashes: &crashes };
    let seen = in_lanes(&crashes, |crash| crash.happen(scene));
    let expected = crashes.iter().zip(seen).map(|(crash, seen)| Expected {
        name: crash.name.clone(),
        fates: crash.fates(seen).to_vec(),
    });
    scene.check(&expected.collect::<Vec<_>>());
    scene.clear();
}

/// Prints what happened if the test fails before the value is dropped.
struct Story<'a> {
    seed: u64,
    crashes: &'a [Crash],
}

impl Drop for Story<'_> {
    #[expect(clippy::print_stderr, reason = "a failed test shows it")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let lines: Vec<String> = self.crashes.iter().map(Crash::to_string).collect();
            eprintln!("{}", lines.join("\n"));
            eprintln!("the same again: TARE_CRASH_SEED={}", self.seed);
        }
    }
}

impl Crash {
    fn random(random: &mut Random, durations: &Durations, number: usize) -> Self {
        let operation = *random.pick(&OPERATIONS);
        let span = if random.once_in(2) {
            EARLY
        } else {
            // Somewhat more than it takes, since others have the processor too.
            durations.of(operation).mul_f64(1.25)
        };
        let span_us = u64::try_from(span.as_micros()).expect("it was short");
        Self {
            operation,
            victim: *random.pick(&VICTIMS),
            after: Duration::from_micros(random.below(span_us.max(1))),
            brief: random.once_in(2),
            name: format!("box-{number}"),
        }
    }

    /// Creates the box that the operation needs, if it needs one.
    fn prepare(&self, scene: &Scene) -> Option<String> {
        match self.operation {
            Operation::Run | Operation::Detach => None,
            Operation::Exec | Operation::Stop | Operation::Remove => {
                Some(scene.box_named(&self.name))
            }
        }
    }

    fn happen(&self, scene: &Scene) -> Seen {
        let keeper = self
            .prepare(scene)
            .filter(|_| self.is_for_keeper())
            .map(|id| pidfd(keeper_of(scene, &id)).expect("the box is alive"));
        let running = self.start(scene);
        tare_harness::let_pass(self.after);
        let keepers = if self.is_for_keeper() {
            let started = children(running.pid()).into_iter().map(|(_, child)| child);
            keeper.into_iter().chain(started).collect()
        } else {
            Vec::new()
        };
        if self.victim == Victim::Group {
            // It leads a group of its own, and is not reaped yet: the number is its.
            kill_process_group(pid(running.pid()), Signal::KILL).expect("the group is there");
        }
        let no_keeper = keepers.is_empty();
        if matches!(self.victim, Victim::Tare | Victim::Both) || no_keeper {
            running.signal(Signal::KILL);
        }
        for keeper in &keepers {
            // It may have ended by itself.
            let _ = pidfd_send_signal(keeper, Signal::KILL);
        }
        Seen { keeper_killed: !no_keeper, acknowledged: running.wait().code == 0 }
    }

    fn is_for_keeper(&self) -> bool {
        matches!(self.victim, Victim::Keeper | Victim::Both)
    }

    fn start(&self, scene: &Scene) -> Running {
        let (program, argument) = if self.brief { ("true", None) } else { ("sleep", Some("1000")) };
        let name = self.name.as_str();
        let mut call = match self.operation {
            Operation::Run => vec!["run", "--name", name, "--", program],
            // What it runs is looked for afterwards.
            Operation::Detach => vec!["run", "-d", "--name", name, "--", "sleep", "1000"],
            Operation::Exec => vec!["exec", name, "--", program],
            Operation::Stop => vec!["stop", name],
            Operation::Remove => vec!["rm", "-f", name],
        };
        if matches!(self.operation, Operation::Run | Operation::Exec) {
            call.extend(argument);
        }
        let mut command = scene.tare.command(call);
        command.process_group(0).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        scene.tare.start_command(command)
    }

    /// The states in which the box may be now.
    fn fates(&self, seen: Seen) -> &'static [Fate] {
        use Fate::{Absent, Exited, Running};
        match (self.operation, seen.keeper_killed, seen.acknowledged) {
            (Operation::Run, _, _) => &[Absent],
            // Its keeper may have been killed after it was told that all is well.
            (Operation::Detach, true, _) => &[Absent, Exited],
            (Operation::Detach, false, true) => &[Running],
            (Operation::Detach, false, false) => &[Absent, Running],
            (Operation::Exec, true, _) => &[Exited],
            (Operation::Exec, false, _) => &[Running],
            (Operation::Stop, true, _) | (Operation::Stop, false, true) => &[Exited],
            (Operation::Stop, false, false) => &[Running, Exited],
            (Operation::Remove, _, true) => &[Absent],
            (Operation::Remove, true, false) => &[Absent, Exited],
            (Operation::Remove, false, false) => &[Absent, Running, Exited],
        }
    }
}

/// The children of a process that it has not reaped (`children` in proc_pid_task(5)).
pub fn children(parent: u32) -> Vec<(u32, OwnedFd)> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let numbers = || -> Vec<u32> {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let words = text.split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    };
    // Still its child after it was opened: the number had not become another's.
    let opened = numbers().into_iter().map(|child| (child, pidfd(child)));
    let opened: Vec<_> = opened.collect();
    let still = numbers();
    let ours = opened.into_iter().filter(|(child, _)| still.contains(child));
    ours.filter_map(|(child, descriptor)| Some((child, descriptor?))).collect()
}
