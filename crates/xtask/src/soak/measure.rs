//! The measures of a soak, and how each is judged.

use serde::{Deserialize, Serialize};

/// A value of every sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    Listed,
    Processes,
    Threads,
    Descriptors,
    Cgroups,
    DyingCgroups,
    Mounts,
    Namespaces,
    StateFiles,
    StateBytes,
    HistoryBytes,
    ResidentBytes,
    ChargedBytes,
    KernelBytes,
    HostAvailableBytes,
    HostSlabBytes,
    HostPerCpuBytes,
    HostNetworks,
    HostMemoryCgroups,
}

/// How a measure is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// A count of the soak's own things, which has to be exactly as before.
    Equal,
    /// Bytes of the soak, which may vary but not grow.
    NoSlope,
    /// Bytes that are kept on purpose, up to this limit.
    AtMost(u64),
    /// A value of the whole host, which other programs change too: it is not judged.
    None,
}

/// The limit on the histories of removed boxes, which tare keeps for `tare explain`.
const HISTORY_BYTES_MAX: u64 = 64 << 20;

/// Every measure in the order of the report, its title, and how it is judged.
const TABLE: [(Measure, &str, Demand); 19] = [
    (Measure::Processes, "processes", Demand::Equal),
    (Measure::Threads, "threads", Demand::Equal),
    (Measure::Descriptors, "descriptors", Demand::Equal),
    (Measure::Cgroups, "cgroup directories", Demand::Equal),
    (Measure::DyingCgroups, "dying cgroups (v2)", Demand::Equal),
    (Measure::Mounts, "mounts", Demand::Equal),
    (Measure::Namespaces, "namespaces", Demand::Equal),
    (Measure::StateFiles, "files in the state root", Demand::Equal),
    (Measure::StateBytes, "bytes in the state root", Demand::Equal),
    (Measure::HistoryBytes, "history, kept on purpose", Demand::AtMost(HISTORY_BYTES_MAX)),
    (Measure::Listed, "boxes that tare ls -a lists", Demand::Equal),
    (Measure::ResidentBytes, "memory of the processes (RSS)", Demand::NoSlope),
    (Measure::ChargedBytes, "memory charged to the soak", Demand::NoSlope),
    (Measure::KernelBytes, "of that, the kernel's", Demand::NoSlope),
    (Measure::HostAvailableBytes, "host: MemAvailable", Demand::None),
    (Measure::HostSlabBytes, "host: slab", Demand::None),
    (Measure::HostPerCpuBytes, "host: per-CPU memory", Demand::None),
    (Measure::HostNetworks, "host: network namespaces", Demand::None),
    (Measure::HostMemoryCgroups, "host: memory cgroups, dying too", Demand::None),
];

impl Measure {
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|(measure, ..)| *measure)
    }

    pub fn title(self) -> &'static str {
        self.row().1
    }

    pub fn demand(self) -> Demand {
        self.row().2
    }

    fn row(self) -> &'static (Self, &'static str, Demand) {
        TABLE.iter().find(|row| row.0 == self).expect("the table has every measure")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measure_has_its_own_row_and_nothing_of_the_host_is_judged() {
        for (index, (measure, title, demand)) in TABLE.iter().enumerate() {
            assert_eq!(TABLE.iter().position(|row| row.0 == *measure), Some(index));
            assert_eq!(*demand == Demand::None, title.starts_with("host:"), "{title}");
        }
        assert_eq!(Measure::all().map(|it| it as usize).max(), Some(TABLE.len() - 1));
    }
}
