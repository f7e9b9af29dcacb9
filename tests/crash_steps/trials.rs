//! Tries every fault at every step of an operation.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;

use rustix::process::{Signal, WaitOptions, waitpid};
use tare_harness::random::{number_in, shown_seed};
use tare_harness::scene::Fate;
use tare_harness::skip::is_root;
use tare_harness::{Output, Tare, eventually, skip, tare};

use crate::crash_steps::faulty;
use crate::crash_steps::lane::Lane;
use crate::crash_steps::operations::{
    Before, CONTENT, NAME, Operation, PARENT, RUN_DETACHED, Whom,
};
use crate::machines::machines;

/// How many operations run at the same time.
const LANES: usize = 2;
/// More consecutive steps than a copy has that are not logged.
const UNNOTED_MAX: usize = 8;
/// More steps than any operation has.
const STEPS_MAX: usize = 1_000;

/// errno(3) has the names: ENOSPC, EMFILE, ENFILE, EAGAIN, EBUSY, EROFS, EINTR, ENOMEM,
/// EIO.
const ERRNOS: [i32; 9] = [28, 24, 23, 11, 16, 30, 4, 12, 5];

/// What is done to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Twice,
    /// The errno that the seed chooses for each step.
    Some {
        seed: u64,
    },
    Errno(i32),
}

/// How much of an operation is tried.
#[derive(Debug, Clone, Copy)]
enum Extent {
    /// Each step with every errno.
    EveryErrno,
    /// Each step with one errno.
    EachStep,
    /// One step of so many, with one errno. The seed chooses the first.
    OneStepOf(usize),
}

impl Extent {
    fn stride(self) -> usize {
        match self {
            Self::EveryErrno | Self::EachStep => 1,
            Self::OneStepOf(steps) => steps,
        }
    }
}

impl Fault {
    fn all(seed: u64, extent: Extent) -> Vec<Self> {
        let mut faults = vec![Self::Kill, Self::Twice];
        match extent {
            Extent::EveryErrno => faults.extend(ERRNOS.map(Self::Errno)),
            Extent::EachStep | Extent::OneStepOf(_) => faults.push(Self::Some { seed }),
        }
        faults
    }

    /// The value of `TARE_FAULT`.
    fn at(self, step: usize) -> String {
        match self {
            Self::Kill => format!("kill@{step}"),
            Self::Twice => format!("twice@{step}"),
            Self::Errno(errno) => format!("{errno}@{step}"),
            Self::Some { seed } => {
                let chosen = (seed % ERRNOS.len() as u64) as usize + step;
                format!("{}@{step}", ERRNOS[chosen % ERRNOS.len()])
            }
        }
    }
}

#[track_caller]
pub fn each_step(operation: &'static Operation, whom: Whom) {
    let extent = match number_in("TARE_STEPS_ALL") {
        Some(_) => Extent::EveryErrno,
        None => Extent::EachStep,
    };
    try_steps(&tare!(), None, (operation, whom), extent);
}

/// Boots take long, so this tries a part of the steps.
#[track_caller]
pub fn some_steps_of_a_machine(operation: &'static Operation, whom: Whom) {
    let machines = machines!();
    let extent = match number_in("TARE_STEPS_ALL") {
        Some(_) => Extent::OneStepOf(3),
        None => Extent::OneStepOf(30),
    };
    try_steps(&machines.tare, Some(machines.kernels()), (operation, whom), extent);
}

#[track_caller]
fn try_steps(
    tare: &Tare,
    kernels: Option<PathBuf>,
    (operation, whom): (&'static Operation, Whom),
    extent: Extent,
) {
    if !is_root() {
        skip!("only the boxes of root have cgroups to find them by");
    }
    let Some(faulty) = faulty::tare() else {
        skip!("tests/build-faults has not built target/faults/tare");
    };
    let new = |lane| Lane::new(tare, &faulty, kernels.as_deref(), lane);
    let lanes: Vec<Lane<'_>> = (0..LANES).map(new).collect();
    let seed = shown_seed("TARE_STEPS_SEED");
    let stride = extent.stride();
    let skipped = seed as usize % stride * LANES;
    let first = steps_before(&lanes[0], operation, whom) + 1 + skipped;
    let mut failures = Vec::new();
    for fault in Fault::all(seed, extent) {
        let tried: Vec<Tried> = std::thread::scope(|threads| {
            let spawn = |(at, lane)| {
                let steps = Steps { lane, operation, whom, fault, stride };
                threads.spawn(move || steps.all_from(first + at))
            };
            let running: Vec<_> = lanes.iter().enumerate().map(spawn).collect();
            let joined = running.into_iter().map(|lane| lane.join());
            joined.map(|tried| tried.expect("it has said why")).collect()
        });
        let steps: usize = tried.iter().map(|lane| lane.steps).sum();
        tell(&format!("{:?}, {whom:?}, {fault:?}: {steps} steps", operation.call));
        assert!(steps > 0, "{operation:?} has no step");
        failures.extend(tried.into_iter().flat_map(|lane| lane.failures));
    }
    assert!(failures.is_empty(), "{:?} of {whom:?}:\n{}", operation.call, failures.join("\n"));
    lanes.into_iter().for_each(Lane::finish);
    // Children of a killed tare become children of the test, and none of them runs now.
    while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
}

/// How many steps the keeper has made when the operation begins.
fn steps_before(lane: &Lane<'_>, operation: &Operation, whom: Whom) -> usize {
    if whom == Whom::Tare || operation.before == Before::Nothing {
        return 0;
    }
    lane.note_anew();
    prepare(lane, operation.before, whom, None);
    let steps = lane.steps_of(whom);
    lane.clear();
    steps
}

/// The result of one lane.
#[derive(Debug, Default)]
struct Tried {
    steps: usize,
    failures: Vec<String>,
}

/// The trials of one lane.
struct Steps<'a> {
    lane: &'a Lane<'a>,
    operation: &'static Operation,
    whom: Whom,
    fault: Fault,
    /// Distance between two tried steps of this lane.
    stride: usize,
}

impl Steps<'_> {
    /// Tries every step from `first` on that is `LANES` times `stride` after another. It continues after a
    /// failure and reports every step that fails.
    fn all_from(&self, first: usize) -> Tried {
        let mut tried = Tried::default();
        let mut unmet = 0;
        for step in (first..STEPS_MAX).step_by(LANES * self.stride) {
            match std::panic::catch_unwind(AssertUnwindSafe(|| self.try_at(step))) {
                Ok(true) => unmet = 0,
                Ok(false) => {
                    unmet += 1;
                    if unmet >= self.unmet_max() {
                        return tried;
                    }
                    continue;
                }
                Err(panic) => {
                    let (name, why) = (self.lane.name_of(self.whom, step), message(&*panic));
                    let fault = self.fault.at(step);
                    tried.failures.push(format!("{fault} ({name}): {why}"));
                    // If that fails too, it is no use to go on.
                    self.lane.clear();
                }
            }
            tried.steps += 1;
        }
        panic!("{:?} does not end", self.operation.call);
    }

    /// How many consecutive steps without a hit end the search.
    fn unmet_max(&self) -> usize {
        if self.is_for_copies_too() { UNNOTED_MAX } else { 1 }
    }

    /// A copy is a fork of the keeper that continues its count. Its steps are not logged, because
    /// it has no descriptor of the log.
    fn is_for_copies_too(&self) -> bool {
        self.whom == Whom::Keeper && self.operation.call.contains(&"cp")
    }

    /// Returns whether the operation has so many steps.
    fn try_at(&self, step: usize) -> bool {
        let Self { lane, operation, whom, .. } = *self;
        let fault = self.fault.at(step);
        let mut story = Story(format!("{:?}, {whom:?} {fault}", operation.call));
        lane.note_anew();
        let processes = match whom {
            Whom::Tare => prepare(lane, operation.before, whom, None),
            Whom::Keeper => prepare(lane, operation.before, whom, Some(&fault)),
        };
        lane.forget_own_steps();
        let output = lane.faulty(operation.call, whom, Some(&fault));
        story.0 += &format!("\n{output}");
        let noted = lane.steps_of(whom) >= step;
        let met = noted || self.is_for_copies_too() && output.code != 0;
        self.spoke(&output, met);
        if !met && !self.is_for_copies_too() {
            // The operation has fewer steps. The commands of a check can meet the fault: `ls` asks the
            // keeper of a machine.
            lane.clear();
            return false;
        }
        if operation.before == Before::Orphan {
            // What is on no record is nothing that other commands look for.
            lane.ordinary(["sweep"]).ok();
        }
        let fate = lane.check();
        if fate == Fate::Running && noted {
            // Otherwise the fault is still to come.
            lane.answers();
        }
        let keeper_killed = whom == Whom::Keeper && self.fault == Fault::Kill && met;
        let fates = operation.fates(output.code == 0, keeper_killed);
        assert!(fates.contains(&fate), "it is {fate:?}, and not one of {fates:?}");
        let lives = matches!(fate, Fate::Running | Fate::Paused);
        if lives && operation.before != Before::Nothing {
            assert_eq!(lane.processes_of_subject(), processes, "its processes");
        }
        lane.clear();
        met
    }

    /// Checks that the command was killed, succeeded, or printed one line with the reason.
    #[track_caller]
    fn spoke(&self, output: &Output, met: bool) {
        let Self { operation, whom, fault, .. } = *self;
        let was_killed = whom == Whom::Tare && fault == Fault::Kill && met;
        let said = output.stderr_text();
        match output.code {
            code if was_killed => assert_eq!(code, -Signal::KILL.as_raw(), "{output}"),
            0 => assert!(!said.contains("panicked"), "{output}"),
            code => {
                assert!(met, "it fails without a fault: {output}");
                let is_one_line = said.lines().count() == 1 && said.starts_with("tare: ");
                // A sweep tells what it did and what it could not as its result.
                let is_told = operation.call == ["sweep"] && !output.stdout.is_empty();
                assert!(is_one_line || is_told, "{output}");
                assert!(operation.failures.contains(&code), "{output}");
            }
        }
        let has_copied = operation.call.contains(&"HERE/out") && output.code == 0;
        if has_copied {
            assert_eq!(self.lane.copied().as_deref(), Some(CONTENT), "{output}");
        }
    }
}

/// Puts the box into its state before the operation, and returns its processes.
#[track_caller]
fn prepare(lane: &Lane<'_>, before: Before, whom: Whom, fault: Option<&str>) -> BTreeSet<u32> {
    let call = RUN_DETACHED.call;
    let make = || match whom {
        Whom::Tare => drop(lane.faulty(call, whom, None).ok()),
        Whom::Keeper => drop(lane.faulty(call, whom, fault).ok()),
    };
    match before {
        Before::Nothing => {}
        Before::Running => make(),
        Before::Paused => {
            make();
            lane.ordinary(["pause", NAME]).ok();
        }
        Before::Dead => {
            make();
            lane.kill_keeper();
        }
        Before::Abandoned => abandon(lane),
        Before::Orphan => {
            let below = ["run", "-d", "--cgroup-parent", PARENT];
            let call = below.into_iter().chain(["--name", NAME, "--", "sleep", "1000"]);
            lane.ordinary(call).ok();
            lane.lose_record();
        }
    }
    lane.processes_of_subject()
}

/// Starts a box and kills its creator while the command runs.
#[track_caller]
fn abandon(lane: &Lane<'_>) {
    let call = ["run", "--name", NAME, "--", "sh", "-c", "echo here; exec sleep 1000"];
    let running = lane.start(lane.command(&call));
    running.see("here");
    running.signal(Signal::KILL);
    running.wait();
    eventually("its box has died with it", || lane.processes_of_subject().is_empty());
}

/// Prints the trial if the test fails before the value is dropped.
struct Story(String);

impl Drop for Story {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tell(&self.0);
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

#[expect(clippy::print_stderr, reason = "a failed test shows it")]
fn tell(what: &str) {
    eprintln!("{what}");
}
