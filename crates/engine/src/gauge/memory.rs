//! Memory: of the cgroup, of the host, how long everybody waits for it, and the part
//! that boxes have as scratch space.
//!
//! Used is what cannot be had back at once. File pages and freeable caches can: a
//! cgroup in which files are read is at its limit all the time, and nothing is wrong
//! with it. It is what the kernel's own MemAvailable says for the host. Swap is not
//! counted. That everybody waits because too little is left for caches, or because of
//! `memory.high`, is what pressure tells.

use tare_kernel::cgroup::{Version, keyed_number};

use crate::gauge::held::HeldFile;
use crate::gauge::membership::{Counted, Membership};
use crate::gauge::reading::{Gauge, Reading};

#[derive(Debug)]
pub struct Memory {
    meminfo: HeldFile,
    pressure: Option<HeldFile>,
}

/// Of `/proc/meminfo`, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HostMemory {
    total: u64,
    available: u64,
    /// tmpfs and shared memory.
    shared: u64,
}

impl Memory {
    pub fn open() -> Option<Self> {
        Some(Self {
            meminfo: HeldFile::open("/proc/meminfo")?,
            pressure: HeldFile::open("/proc/pressure/memory"),
        })
    }

    pub fn read(&self, membership: &Membership, readings: &mut Vec<Reading>) {
        if let Some(host) = self.meminfo.text().as_deref().and_then(HostMemory::parse) {
            readings.extend(of_cgroup(membership, host.total));
            readings.push(host.memory());
            readings.push(host.scratch());
        }
        let cgroups = membership.memory_pressure.as_ref();
        readings.extend(pressure(Gauge::MemoryPressureCgroup, cgroups));
        readings.extend(pressure(Gauge::MemoryPressureHost, self.pressure.as_ref()));
    }
}

impl HostMemory {
    fn parse(meminfo: &str) -> Option<Self> {
        let bytes = |key: &str| {
            let mut lines = meminfo.lines();
            let value = lines.find_map(|line| line.strip_prefix(key)?.strip_suffix(" kB"))?;
            Some(value.trim().parse::<u64>().ok()? << 10)
        };
        Some(Self {
            total: bytes("MemTotal:")?,
            available: bytes("MemAvailable:")?,
            shared: bytes("Shmem:")?,
        })
    }

    fn memory(self) -> Reading {
        let used = self.total.saturating_sub(self.available);
        let limit_is = "MemTotal, the memory of the host";
        Reading::new(Gauge::MemoryHost, used, self.total, limit_is)
    }

    /// It can become what it is and what can be had.
    fn scratch(self) -> Reading {
        let limit = self.shared + self.available;
        let limit_is = "Shmem and MemAvailable, what file systems in memory have and can get";
        Reading::new(Gauge::Scratch, self.shared, limit, limit_is)
    }
}

/// The fullest of the cgroups that this process is in. A limit of more than the host
/// has, which is how v1 tells that there is none, is none.
fn of_cgroup(membership: &Membership, host_total: u64) -> Option<Reading> {
    let readings = membership.memory.iter().filter_map(|cgroup| {
        let limit = cgroup.limit().filter(|limit| *limit <= host_total)?;
        let freeable = freeable(cgroup.version, &cgroup.parts.as_ref()?.text()?);
        let used = cgroup.used()?.saturating_sub(freeable);
        Some(Reading::new(Gauge::MemoryCgroup, used, limit, limit_is(cgroup)))
    });
    readings.max_by(|one, other| one.fraction().total_cmp(&other.fraction()))
}

fn limit_is(cgroup: &Counted) -> String {
    let file = match cgroup.version {
        Version::V1 => "memory.limit_in_bytes",
        Version::V2 => "memory.max",
    };
    format!("{file} of the cgroup {}", cgroup.directory.display())
}

/// What the kernel takes back when it needs it, by the text of `memory.stat`: with
/// everything below in v2, and in v1 under keys of their own.
fn freeable(version: Version, stat: &str) -> u64 {
    let keys: &[&str] = match version {
        Version::V1 => &["total_active_file", "total_inactive_file"],
        Version::V2 => &["active_file", "inactive_file", "slab_reclaimable"],
    };
    keys.iter().filter_map(|key| keyed_number(stat, key)).sum()
}

/// At this share of the last ten seconds systemd-oomd kills, if it has no other
/// orders (oomd.conf(5), DefaultMemoryPressureLimit=): past it a host only waits.
const PRESSURE_MAX: u64 = 60_00;

/// `None` where the kernel keeps no account of it (`psi=0`).
fn pressure(gauge: Gauge, file: Option<&HeldFile>) -> Option<Reading> {
    let used = time_waited(&file?.text()?)?;
    let limit_is = "a fixed share of the last ten seconds, in which everybody waited for memory";
    Some(Reading::new(gauge, used, PRESSURE_MAX, limit_is))
}

/// `full avg10=1.25 ...`, in hundredths of a percent.
fn time_waited(pressure: &str) -> Option<u64> {
    let mut lines = pressure.lines();
    let averages = lines.find_map(|line| line.strip_prefix("full avg10="))?;
    let (whole, hundredths) = averages.split(' ').next()?.split_once('.')?;
    let (whole, hundredths) = (whole.parse::<u64>().ok()?, hundredths.parse::<u64>().ok()?);
    Some(whole * 100 + hundredths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_host_is_used_as_far_as_it_is_not_available() {
        let text = "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\nShmem: 100 kB\n";
        let host = HostMemory::parse(text).unwrap();
        let reading = host.memory();
        assert_eq!((reading.used, reading.limit), (600 << 10, 1000 << 10));
        let scratch = host.scratch();
        assert_eq!((scratch.used, scratch.limit), (100 << 10, 500 << 10));
    }

    #[test]
    fn pages_of_files_can_be_had_back() {
        let v1 = "inactive_file 1\ntotal_inactive_file 10\ntotal_active_file 20\n";
        assert_eq!(freeable(Version::V1, v1), 30);
        let v2 = "file 99\nshmem 50\ninactive_file 10\nactive_file 20\nslab_reclaimable 5\n";
        assert_eq!(freeable(Version::V2, v2), 35);
    }

    #[test]
    fn pressure_is_the_time_in_which_everybody_waits() {
        let text = "some avg10=80.00 avg60=0.00 avg300=0.00 total=209323\n\
                    full avg10=12.34 avg60=0.00 avg300=0.00 total=193285\n";
        assert_eq!(time_waited(text), Some(1234));
        assert_eq!(time_waited(""), None);
    }
}
