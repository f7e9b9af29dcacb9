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
    /// A value of the whole host, which other programs change too: reported and not judged.
    Told,
}

/// The limit on the histories of removed boxes, which tare keeps for `tare explain`.
const HISTORY_BYTES_MAX: u64 = 1 << 20;

impl Measure {
    pub const ALL: [Self; 19] = [
        Self::Processes,
        Self::Threads,
        Self::Descriptors,
        Self::Cgroups,
        Self::DyingCgroups,
        Self::Mounts,
        Self::Namespaces,
        Self::StateFiles,
        Self::StateBytes,
        Self::HistoryBytes,
        Self::Listed,
        Self::ResidentBytes,
        Self::ChargedBytes,
        Self::KernelBytes,
        Self::HostAvailableBytes,
        Self::HostSlabBytes,
        Self::HostPerCpuBytes,
        Self::HostNetworks,
        Self::HostMemoryCgroups,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::Listed => "boxes that tare ls -a lists",
            Self::Processes => "processes",
            Self::Threads => "threads",
            Self::Descriptors => "descriptors",
            Self::Cgroups => "cgroup directories",
            Self::DyingCgroups => "dying cgroups (v2)",
            Self::Mounts => "mounts",
            Self::Namespaces => "namespaces",
            Self::StateFiles => "files in the state root",
            Self::StateBytes => "bytes in the state root",
            Self::HistoryBytes => "history, kept on purpose",
            Self::ResidentBytes => "memory of the processes (RSS)",
            Self::ChargedBytes => "memory charged to the soak",
            Self::KernelBytes => "of that, the kernel's",
            Self::HostAvailableBytes => "host: MemAvailable",
            Self::HostSlabBytes => "host: slab",
            Self::HostPerCpuBytes => "host: per-CPU memory",
            Self::HostNetworks => "host: network namespaces",
            Self::HostMemoryCgroups => "host: memory cgroups, dying too",
        }
    }

    pub fn demand(self) -> Demand {
        match self {
            Self::Listed
            | Self::Processes
            | Self::Threads
            | Self::Descriptors
            | Self::Cgroups
            | Self::DyingCgroups
            | Self::Mounts
            | Self::Namespaces
            | Self::StateFiles
            | Self::StateBytes => Demand::Equal,
            Self::ResidentBytes | Self::ChargedBytes | Self::KernelBytes => Demand::NoSlope,
            Self::HistoryBytes => Demand::AtMost(HISTORY_BYTES_MAX),
            Self::HostAvailableBytes
            | Self::HostSlabBytes
            | Self::HostPerCpuBytes
            | Self::HostNetworks
            | Self::HostMemoryCgroups => Demand::Told,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_measure_is_in_the_list_once_under_a_title_of_its_own() {
        let distinct: BTreeSet<Measure> = Measure::ALL.into_iter().collect();
        assert_eq!(distinct.len(), Measure::ALL.len());
        let titles: BTreeSet<&str> = Measure::ALL.into_iter().map(Measure::title).collect();
        assert_eq!(titles.len(), Measure::ALL.len());
    }

    #[test]
    fn nothing_of_the_whole_host_is_judged() {
        for measure in Measure::ALL {
            let of_host = measure.title().starts_with("host:");
            assert_eq!(measure.demand() == Demand::Told, of_host, "{measure:?}");
        }
    }
}
