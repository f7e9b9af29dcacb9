//! Takes one sample of everything that is measured, inside of the lane.
//!
//! There, `/proc` and the cgroup hierarchies show only the lane, so everything that is counted
//! belongs to the soak. The first process and the driver are left out.

use super::count::{
    Hierarchies, Used, amount_in, cgroup_memory, namespaces_and_mounts, own_mounts, processes,
};
use super::measure::{Demand, Measure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

pub type Values = BTreeMap<Measure, f64>;

/// All values at a moment when no command runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sample {
    /// The number of boxes so far.
    pub boxes: u64,
    pub seconds: f64,
    /// How long it took until all was as before, or until time was up.
    pub settled_after_seconds: f64,
    pub values: Values,
}

/// The places to read from.
#[derive(Debug)]
pub struct Place {
    pub hierarchies: Hierarchies,
    /// A file system of its own, so that statvfs(3) counts everything in it.
    pub state: PathBuf,
    /// tare keeps the files of this directory on purpose. They are a measure of their own.
    pub history: PathBuf,
    /// A few empty files that tare makes when it needs them, and keeps.
    pub claims: PathBuf,
    /// The list of cgroups below which boxes were made, which a sweep shortens.
    pub parents: PathBuf,
}

impl Place {
    /// The counts that have to be as before.
    pub fn counted(&self) -> Values {
        let processes = processes();
        let (namespaces, mounts) = namespaces_and_mounts(&processes);
        let state = Used::by_file_system(&self.state)
            .without(&self.history())
            .without(&Used::by_file(&self.history))
            .without(&Used::by_files_in(&self.claims))
            .without(&Used::by_files_in(&self.parents))
            .without(&Used::by_file(&self.parents));
        let mut values = Values::from([
            (Measure::Processes, processes.len() as f64),
            (Measure::Threads, sum(processes.iter().map(|it| it.threads))),
            (Measure::Descriptors, sum(processes.iter().map(|it| it.descriptors))),
            (Measure::Cgroups, self.hierarchies.directories().len() as f64),
            (Measure::Mounts, (own_mounts() + mounts) as f64),
            (Measure::Namespaces, namespaces as f64),
            (Measure::StateFiles, state.files as f64),
            (Measure::StateBytes, state.bytes as f64),
        ]);
        put(&mut values, Measure::DyingCgroups, self.hierarchies.dying());
        values
    }

    fn history(&self) -> Used {
        Used::by_files_in(&self.history)
    }

    /// All values. Those that the kernel does not show are missing.
    pub fn all(&self) -> Values {
        let mut values = self.counted();
        let resident = sum(processes().iter().map(|it| it.resident_bytes));
        values.insert(Measure::ResidentBytes, resident);
        self.hierarchies.reclaim();
        let (charged, kernel) = cgroup_memory(&self.hierarchies);
        // The state root is in memory, so its history is charged too.
        let history = self.history().bytes as f64;
        values.insert(Measure::HistoryBytes, history);
        put(&mut values, Measure::ChargedBytes, charged.map(|it| it - history));
        put(&mut values, Measure::KernelBytes, kernel);
        let kilobytes = |name| amount_in("/proc/meminfo", name, 1).map(|it| it * 1024.0);
        for (measure, name) in [
            (Measure::HostAvailableBytes, "MemAvailable:"),
            (Measure::HostSlabBytes, "Slab:"),
            (Measure::HostPerCpuBytes, "Percpu:"),
        ] {
            put(&mut values, measure, kilobytes(name));
        }
        let networks = amount_in("/proc/slabinfo", "net_namespace", 1);
        put(&mut values, Measure::HostNetworks, networks);
        let cgroups = amount_in("/proc/cgroups", "memory", 2);
        put(&mut values, Measure::HostMemoryCgroups, cgroups);
        values
    }
}

fn sum(values: impl Iterator<Item = u64>) -> f64 {
    values.sum::<u64>() as f64
}

fn put(values: &mut Values, measure: Measure, value: Option<f64>) {
    if let Some(value) = value {
        values.insert(measure, value);
    }
}

/// Returns whether all values that must be equal are.
pub fn is_as_before(before: &Values, now: &Values) -> bool {
    let judged = |(measure, _): &(&Measure, &f64)| measure.demand() == Demand::Equal;
    let before = before.iter().filter(judged);
    let mut equal = before.map(|(measure, value)| now.get(measure).is_none_or(|it| it == value));
    equal.all(|it| it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_counted_has_to_be_as_before() {
        let before = Values::from([(Measure::Processes, 4.0), (Measure::HostSlabBytes, 1.0)]);
        let mut now = before.clone();
        now.insert(Measure::HostSlabBytes, 2.0);
        assert!(is_as_before(&before, &now));
        now.insert(Measure::Processes, 5.0);
        assert!(!is_as_before(&before, &now));
    }
}
