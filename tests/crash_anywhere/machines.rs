//! Kills tare, the keeper, both, the process group or the monitor before, during and after the boot of
//! a machine.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Signal, kill_process_group, pidfd_send_signal};
use tare_harness::Running;
use tare_harness::random::{Random, number_in, shown_seed};
use tare_harness::scene::{Expected, Fate, Scene, in_lanes, pid};

use super::instants::children;
use crate::machines::machines;

/// How many machines are killed; `./check --long` asks for more.
const CRASHES: u64 = 8;
const CRASHES_LONG: u64 = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Tare,
    Keeper,
    Both,
    Group,
    Monitor,
}

const VICTIMS: [Victim; 5] =
    [Victim::Tare, Victim::Keeper, Victim::Both, Victim::Group, Victim::Monitor];

#[derive(Debug)]
struct Crash {
    victim: Victim,
    after: Duration,
    detached: bool,
    name: String,
}

#[test]
fn a_machine_killed_at_any_instant_leaves_nothing() {
    let (scene, directory) = machines!().into_scene();
    let kernels = directory.join("vm");
    let whole = start(&scene, &kernels, &["--", "true"]).wait().ok().lasted;
    let mut random = Random::seeded(shown_seed("TARE_CRASH_SEED"));
    let count = if number_in("TARE_LONG").is_some() { CRASHES_LONG } else { CRASHES };
    let crashes: Vec<Crash> = (0..count)
        .map(|number| Crash {
            victim: *random.pick(&VICTIMS),
            // Somewhat more than a life takes, since two run at the same time.
            after: whole.mul_f64(random.below(1000) as f64 / 1000. * 1.5),
            detached: random.once_in(2),
            name: format!("box-{number}"),
        })
        .collect();
    for crashes in crashes.chunks(8) {
        let fates = in_lanes(crashes, |crash| crash.happen(&scene, &kernels));
        let named = crashes.iter().zip(fates);
        let expected =
            named.map(|(crash, fates)| Expected { name: crash.name.clone(), fates: fates.into() });
        scene.check(&expected.collect::<Vec<_>>());
        scene.clear();
    }
}

/// `tare run --driver vm --accel tcg ARGS`, in a process group of its own.
fn start(scene: &Scene, kernels: &Path, args: &[&str]) -> Running {
    let mut command = scene.tare.command(["run", "--driver", "vm", "--accel", "tcg"]);
    command.args(args).env("TARE_VM_DIR", kernels).env("TARE_VM_BOOT", "55s");
    command.process_group(0).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    scene.tare.start_command(command)
}

impl Crash {
    /// Returns the states in which the box may be afterwards.
    fn happen(&self, scene: &Scene, kernels: &Path) -> &'static [Fate] {
        let detach: &[&str] = if self.detached { &["-d"] } else { &[] };
        let rest = ["--name", &self.name, "--", "sleep", "1000"];
        let running = start(scene, kernels, &[detach, &rest].concat());
        tare_harness::let_pass(self.after);
        let keepers = children(running.pid());
        let victims = match self.victim {
            Victim::Tare | Victim::Group => Vec::new(),
            Victim::Keeper | Victim::Both => keepers,
            Victim::Monitor => keepers.iter().flat_map(|(pid, _)| children(*pid)).collect(),
        };
        if self.victim == Victim::Group {
            // It leads a group of its own, and is not reaped yet: the number is its.
            kill_process_group(pid(running.pid()), Signal::KILL).expect("the group is there");
        }
        let is_alone = victims.is_empty();
        if is_alone || self.victim == Victim::Both {
            running.signal(Signal::KILL);
        }
        for (_, victim) in &victims {
            // It may have ended by itself.
            let _ = pidfd_send_signal(victim, Signal::KILL);
        }
        let acknowledged = running.wait().code == 0;
        use Fate::{Absent, Exited, Running};
        match (self.detached, is_alone, acknowledged) {
            (false, _, _) => &[Absent],
            (true, false, _) => &[Absent, Exited],
            (true, true, true) => &[Running],
            (true, true, false) => &[Absent, Running],
        }
    }
}
