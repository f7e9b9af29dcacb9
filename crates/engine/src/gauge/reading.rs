//! What a gauge says: how much of which limit is used, and where the limit was found.

use std::fmt;

/// Everything that is measured. A gauge that a host does not have (no limit, nothing
/// that counts) has no reading there.
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
    /// Memory of the cgroup of this process, or of one around it, that cannot be had
    /// back at once.
    MemoryCgroup,
    /// Memory of the host that cannot be had back at once.
    MemoryHost,
    /// How long everybody in the cgroup of this process waits for memory.
    MemoryPressureCgroup,
    /// How long everybody on the host waits for memory.
    MemoryPressureHost,
    /// The file system of the state root.
    DiskBytes,
    /// Names on the file system of the state root.
    DiskInodes,
    /// File systems in memory, which the scratch spaces of boxes are.
    Scratch,
    /// Boxes that live; where nobody knows, all that are on record.
    Boxes,
    // Ports: here, as soon as boxes publish any.
}

/// What `used` and `limit` count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Things,
    Bytes,
    /// Of the time, in hundredths of a percent.
    TimeShare,
}

impl Gauge {
    pub const ALL: [Self; 13] = [
        Self::PidsCgroup,
        Self::PidsUser,
        Self::PidsHost,
        Self::DescriptorsProcess,
        Self::DescriptorsHost,
        Self::MemoryCgroup,
        Self::MemoryHost,
        Self::MemoryPressureCgroup,
        Self::MemoryPressureHost,
        Self::DiskBytes,
        Self::DiskInodes,
        Self::Scratch,
        Self::Boxes,
    ];

    /// The name in metrics, answers, events and hooks; it stays as it is.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PidsCgroup => "pids_cgroup",
            Self::PidsUser => "pids_user",
            Self::PidsHost => "pids_host",
            Self::DescriptorsProcess => "descriptors_process",
            Self::DescriptorsHost => "descriptors_host",
            Self::MemoryCgroup => "memory_cgroup",
            Self::MemoryHost => "memory_host",
            Self::MemoryPressureCgroup => "memory_pressure_cgroup",
            Self::MemoryPressureHost => "memory_pressure_host",
            Self::DiskBytes => "disk_bytes",
            Self::DiskInodes => "disk_inodes",
            Self::Scratch => "scratch",
            Self::Boxes => "boxes",
        }
    }

    pub fn unit(self) -> Unit {
        match self {
            Self::PidsCgroup
            | Self::PidsUser
            | Self::PidsHost
            | Self::DescriptorsProcess
            | Self::DescriptorsHost
            | Self::DiskInodes
            | Self::Boxes => Unit::Things,
            Self::MemoryCgroup | Self::MemoryHost | Self::DiskBytes | Self::Scratch => Unit::Bytes,
            Self::MemoryPressureCgroup | Self::MemoryPressureHost => Unit::TimeShare,
        }
    }
}

impl fmt::Display for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    pub gauge: Gauge,
    pub used: u64,
    pub limit: u64,
    /// What the limit is, for a person who wants to change it.
    pub limit_is: String,
}

impl Reading {
    pub(crate) fn new(gauge: Gauge, used: u64, limit: u64, limit_is: impl Into<String>) -> Self {
        Self { gauge, used, limit, limit_is: limit_is.into() }
    }

    /// How much of the limit is used. It may be more than all of it: a limit can be
    /// set below what is there. A limit of nothing is always used up.
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
    fn every_gauge_has_a_name_of_its_own() {
        let names = Gauge::ALL.map(Gauge::as_str);
        for name in names {
            let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
            assert!(name.bytes().all(is_plain), "{name}");
            assert_eq!(names.iter().filter(|it| **it == name).count(), 1, "{name}");
        }
    }

    #[test]
    fn a_limit_of_nothing_is_used_up_by_nothing() {
        let reading = Reading::new(Gauge::Boxes, 0, 0, "the configured maximum");
        assert!(reading.fraction() > 1.0);
    }

    #[test]
    fn a_reading_is_a_line_that_a_person_understands() {
        let reading = Reading::new(Gauge::PidsCgroup, 241, 300, "pids.max of the cgroup /x");
        assert_eq!(reading.to_string(), "pids_cgroup: 241 of 300 (pids.max of the cgroup /x)");
        let reading = Reading::new(Gauge::MemoryPressureHost, 1234, 6000, "why");
        assert_eq!(reading.to_string(), "memory_pressure_host: 12.34 of 60 % of the time (why)");
    }
}
