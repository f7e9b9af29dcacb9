//! Gauges and their readings: how much of which limit is used, and what the limit is.

use std::fmt;

/// Everything that is measured. A gauge has no reading on a host where there is no limit, or where
/// the kernel does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gauge {
    /// Processes and threads in the cgroup of this process, or in one around it.
    PidsCgroup,
    /// Processes and threads of this user, where RLIMIT_NPROC counts.
    PidsUser,
    /// Processes and threads of the host.
    PidsHost,
    /// Descriptors that this process has open.
    DescriptorsProcess,
    /// Open files of the host.
    DescriptorsHost,
    /// Memory of the cgroup of this process, or of one around it, that the kernel cannot reclaim
    /// at once.
    MemoryCgroup,
    /// Memory of the host that the kernel cannot reclaim at once.
    MemoryHost,
    /// How long all processes in the cgroup of this process wait for memory.
    MemoryPressureCgroup,
    /// How long all processes of the host wait for memory.
    MemoryPressureHost,
    /// The file system of the state root.
    DiskBytes,
    /// Inodes of the file system of the state root.
    DiskInodes,
    /// Memory of tmpfs, which the scratch spaces of boxes are.
    Scratch,
    /// Live boxes; if their number is not known, all boxes on record.
    Boxes,
}

/// What `used` and `limit` count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Things,
    Bytes,
    /// A share of time, in hundredths of a percent.
    TimeShare,
}

/// The name and the unit of each gauge, in the order of the variants. The names are those of
/// metrics, answers, events and hooks, and never change.
const TABLE: [(Gauge, &str, Unit); 13] = [
    (Gauge::PidsCgroup, "pids_cgroup", Unit::Things),
    (Gauge::PidsUser, "pids_user", Unit::Things),
    (Gauge::PidsHost, "pids_host", Unit::Things),
    (Gauge::DescriptorsProcess, "descriptors_process", Unit::Things),
    (Gauge::DescriptorsHost, "descriptors_host", Unit::Things),
    (Gauge::MemoryCgroup, "memory_cgroup", Unit::Bytes),
    (Gauge::MemoryHost, "memory_host", Unit::Bytes),
    (Gauge::MemoryPressureCgroup, "memory_pressure_cgroup", Unit::TimeShare),
    (Gauge::MemoryPressureHost, "memory_pressure_host", Unit::TimeShare),
    (Gauge::DiskBytes, "disk_bytes", Unit::Bytes),
    (Gauge::DiskInodes, "disk_inodes", Unit::Things),
    (Gauge::Scratch, "scratch", Unit::Bytes),
    (Gauge::Boxes, "boxes", Unit::Things),
];

impl Gauge {
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.into_iter().map(|(gauge, ..)| gauge)
    }

    pub fn as_str(self) -> &'static str {
        TABLE[self as usize].1
    }

    pub fn unit(self) -> Unit {
        TABLE[self as usize].2
    }
}

impl fmt::Display for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One measurement of one gauge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    pub gauge: Gauge,
    pub used: u64,
    pub limit: u64,
    /// Where the limit is set, for operators.
    pub limit_is: String,
    /// Which new boxes will be part of `used`.
    pub counts: Counts,
}

/// Which new boxes of this process a limit applies to. A cgroup counts a box only if the box is
/// made below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub attached: bool,
    pub detached: bool,
}

impl Counts {
    pub const ALL: Self = Self { attached: true, detached: true };
}

impl Reading {
    pub fn new(gauge: Gauge, used: u64, limit: u64, limit_is: impl Into<String>) -> Self {
        Self { gauge, used, limit, limit_is: limit_is.into(), counts: Counts::ALL }
    }

    /// Returns how much of the limit is used. It can be more than 1, because a limit can be set
    /// below what is used. A limit of 0 is always exceeded.
    pub fn fraction(&self) -> f64 {
        match self.limit {
            0 => f64::INFINITY,
            limit => self.used as f64 / limit as f64,
        }
    }
}

/// `pids_cgroup: 241 of 300 (pids.max of the cgroup /sys/fs/cgroup/pids/x)`.
impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (gauge, limit_is) = (self.gauge, &self.limit_is);
        let (used, limit) = (self.used, self.limit);
        match gauge.unit() {
            Unit::Things => write!(f, "{gauge}: {used} of {limit} ({limit_is})"),
            Unit::Bytes => write!(f, "{gauge}: {used} of {limit} bytes ({limit_is})"),
            Unit::TimeShare => {
                let percent = |share: u64| share as f64 / 100.0;
                let (used, limit) = (percent(used), percent(limit));
                write!(f, "{gauge}: {used} of {limit} % of the time ({limit_is})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gauge_has_its_own_row_and_name() {
        for (row, (gauge, name, _)) in TABLE.into_iter().enumerate() {
            assert_eq!(gauge as usize, row, "{name}");
            let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
            assert!(name.bytes().all(is_plain), "{name}");
            assert_eq!(TABLE.iter().filter(|(_, other, _)| *other == name).count(), 1, "{name}");
        }
    }

    #[test]
    fn a_limit_of_zero_is_exceeded_by_zero() {
        let reading = Reading::new(Gauge::Boxes, 0, 0, "the configured maximum");
        assert!(reading.fraction() > 1.0);
    }

    #[test]
    fn a_reading_is_one_line_of_text() {
        let reading = Reading::new(Gauge::PidsCgroup, 241, 300, "pids.max of the cgroup /x");
        assert_eq!(reading.to_string(), "pids_cgroup: 241 of 300 (pids.max of the cgroup /x)");
        let reading = Reading::new(Gauge::MemoryPressureHost, 1234, 6000, "why");
        assert_eq!(reading.to_string(), "memory_pressure_host: 12.34 of 60 % of the time (why)");
    }
}
