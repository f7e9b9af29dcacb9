//! What may exist on the host after crashes, and what may not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::footprint::Footprint;
use crate::tare::Tare;
use crate::wait::{eventually, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

/// The state of a box after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    Absent,
    Running,
    Paused,
    Exited,
}

impl Fate {
    /// Reads the state from the output of `tare ls`.
    pub fn of(listed: Option<&Value>) -> Self {
        match listed {
            None => Self::Absent,
            Some(one) if one["state"] == "running" => Self::Running,
            Some(one) if one["state"] == "paused" => Self::Paused,
            Some(_) => Self::Exited,
        }
    }
}

/// The possible states of the box with this name.
#[derive(Debug)]
pub struct Expected {
    pub name: String,
    pub fates: Vec<Fate>,
}

/// The keeper and the one process that it started.
const PROCESSES_OF_A_BOX: usize = 2;

/// How long a box that is ending, or a process whose client is gone, may still exist.
const SOON: Duration = Duration::from_secs(5);

/// How many crashes happen at the same time.
const LANES: usize = 2;

#[derive(Debug)]
pub struct Scene {
    pub tare: Tare,
    cgroups_before: BTreeSet<PathBuf>,
}

impl Scene {
    pub fn new(tare: Tare) -> Self {
        let cgroups_before = tare.footprint().cgroups;
        Self { tare, cgroups_before }
    }

    /// Starts a box that only waits.
    #[track_caller]
    pub fn box_named(&self, name: &str) -> String {
        self.tare.detached(["--name", name, "--", "sleep", "1000"])
    }

    /// Runs one ordinary command. Checks that everything on the host then belongs to a listed box,
    /// and that each box is in a state that is allowed.
    #[track_caller]
    pub fn check(&self, expected: &[Expected]) {
        self.tare.reap_orphans();
        let first = self.by_name();
        let footprint = self.tare.footprint();
        self.holds_only_what_is_listed(&first, &footprint);
        // A stopping box has a grace period.
        eventually("no box is on its way", || {
            let settled = ["running", "paused", "exited"];
            let is_settled = |one: &Value| settled.iter().any(|state| one["state"] == *state);
            self.by_name().values().all(is_settled)
        });
        let listed = self.by_name();
        for one in expected {
            let fate = Fate::of(listed.get(&one.name));
            let said = listed.get(&one.name);
            assert!(one.fates.contains(&fate), "{one:?} is {fate:?}: {said:?}");
        }
        for name in listed.keys() {
            let is_expected = expected.iter().any(|one| one.name == *name);
            assert!(is_expected, "the test did not create {name:?}");
        }
        self.boxes_are_whole(&listed);
    }

    /// Removes every box, and checks that nothing is left.
    #[track_caller]
    pub fn clear(&self) {
        self.tare.call(["rm", "-f", "--all"]).ok().said_nothing();
        self.tare.reap_orphans();
        let left = self.tare.footprint();
        assert!(left.records.is_empty(), "records: {:?}", left.records);
        assert!(left.names.is_empty(), "names: {:?}", left.names);
        assert!(left.processes.is_empty(), "alive: {:?}", left.processes);
        self.no_cgroup_but_of(&BTreeSet::new());
    }

    fn by_name(&self) -> BTreeMap<String, Value> {
        // Boxes without a name are on their way out. Each counts.
        let named =
            |one: Value| (one["name"].as_str().map_or_else(|| id(&one), str::to_owned), one);
        self.tare.list().into_iter().map(named).collect()
    }

    #[track_caller]
    fn holds_only_what_is_listed(&self, listed: &BTreeMap<String, Value>, footprint: &Footprint) {
        let ids: BTreeSet<String> = listed.values().map(id).collect();
        let names = listed.values().filter_map(|one| one["name"].as_str().map(str::to_owned));
        let names: BTreeSet<String> = names.collect();
        assert_eq!(footprint.records, ids, "records and boxes");
        assert_eq!(footprint.names, names, "names and boxes");
        let alive = listed.values().filter(|one| one["state"] != "exited");
        self.no_cgroup_but_of(&alive.map(id).collect());
    }

    /// Checks that live boxes are unchanged and that there is no other process.
    #[track_caller]
    fn boxes_are_whole(&self, listed: &BTreeMap<String, Value>) {
        let alive = listed.values().filter(|one| one["state"] != "exited");
        let count = alive.count() * PROCESSES_OF_A_BOX;
        let mut processes = Vec::new();
        let is_whole = poll(SOON, || {
            processes = self.tare.footprint().processes;
            processes.len() == count
        });
        assert!(is_whole, "not {count} alive in {listed:?}: {processes:?}");
    }

    #[track_caller]
    fn no_cgroup_but_of(&self, ids: &BTreeSet<String>) {
        let is_of_one = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            ids.iter().any(|id| name.ends_with(id))
        };
        let mut left = self.tare.footprint().cgroups;
        left.retain(|path| !self.cgroups_before.contains(path) && !is_of_one(path));
        assert!(left.is_empty(), "cgroups: {left:?}");
    }
}

/// Calls `make` for each item, some at the same time, so that their tare commands run concurrently.
/// Returns the results in order.
pub fn in_lanes<T: Sync, R: Send>(items: &[T], make: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let make = &make;
    let mut made: Vec<(usize, R)> = std::thread::scope(|threads| {
        let lane = |lane: usize| {
            move || {
                let ours = items.iter().enumerate().skip(lane).step_by(LANES);
                ours.map(|(at, item)| (at, make(item))).collect::<Vec<_>>()
            }
        };
        let lanes: Vec<_> = (0..LANES).map(|at| threads.spawn(lane(at))).collect();
        let joined = lanes.into_iter().map(|lane| lane.join());
        joined.flat_map(|lane| lane.expect("it has said why")).collect()
    });
    made.sort_by_key(|(at, _)| *at);
    made.into_iter().map(|(_, it)| it).collect()
}

fn id(of: &Value) -> String {
    of["id"].as_str().expect("an id").to_owned()
}

pub fn pid(number: u32) -> Pid {
    let number = i32::try_from(number).ok();
    number.and_then(Pid::from_raw).expect("a pid")
}

/// The one process that is in the box's own cgroup of version 2 and not below it.
pub fn keeper_of(scene: &Scene, id: &str) -> u32 {
    let members = scene.tare.cgroups_of(id).into_iter().find_map(|path| {
        let is_second_version = path.join("cgroup.events").exists();
        is_second_version.then(|| fs::read_to_string(path.join("cgroup.procs")).ok())?
    });
    let first = members.and_then(|text| text.lines().next()?.parse().ok());
    first.unwrap_or_else(|| scene.tare.keeper(id).pid)
}

pub fn pidfd(process: u32) -> Option<OwnedFd> {
    pidfd_open(pid(process), PidfdFlags::empty()).ok()
}
