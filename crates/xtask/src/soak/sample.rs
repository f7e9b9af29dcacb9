//! One look at everything that is measured, from inside the ground.
//!
//! `/proc` shows only the processes of the ground there, and the cgroup
//! hierarchies only its own part, so what is counted is the soak's. Its own two
//! processes, the first one and the driver, are left out.

use super::count::{
    Hierarchies, Used, amount_in, cgroup_memory, namespaces_and_mounts, own_mounts, processes,
};
use super::measure::{Demand, Measure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

pub type Values = BTreeMap<Measure, f64>;

/// Everything at one moment at which nothing was under way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sample {
    /// How many boxes there had been by then.
    pub boxes: u64,
    pub seconds: f64,
    /// How long it took until all was as before, or until nobody waited any more.
    pub settled_after_seconds: f64,
    pub values: Values,
}

/// Where to look.
#[derive(Debug)]
pub struct Place {
    pub hierarchies: Hierarchies,
    /// A file system of its own, so that it knows what is in it.
    pub state: PathBuf,
    /// What tare keeps there on purpose, and is counted by itself.
    pub history: PathBuf,
    /// A few empty files that are made when they are needed, and stay.
    pub claims: PathBuf,
}

impl Place {
    /// What is the soak's own and has to be as before.
    pub fn counted(&self) -> Values {
        let processes = processes();
        let (namespaces, mounts) = namespaces_and_mounts(&processes);
        let state = Used::by_file_system(&self.state)
            .without(&self.history())
            .without(&Used::by_files_in(&self.claims));
        let mut values = Values::from([
            (Measure::Processes, processes.len() as f64),
            (Measure::Threads, processes.iter().map(|it| it.threads()).sum::<usize>() as f64),
            (
                Measure::Descriptors,
                processes.iter().map(|it| it.descriptors()).sum::<usize>() as f64,
            ),
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
        Used::by_file(&self.history)
    }

    /// All of it. What the kernel does not tell is not there.
    pub fn all(&self) -> Values {
        let mut values = self.counted();
        let resident: f64 = processes().iter().map(|it| it.resident_bytes()).sum();
        values.insert(Measure::ResidentBytes, resident);
        self.hierarchies.reclaim();
        let (charged, kernel) = cgroup_memory(&self.hierarchies);
        // A state root in memory is memory, too.
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

fn put(values: &mut Values, measure: Measure, value: Option<f64>) {
    if let Some(value) = value {
        values.insert(measure, value);
    }
}

/// Whether everything that must be equal is.
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
