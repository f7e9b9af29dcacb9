//! What is measured for each gauge, except for cgroups: files of the kernel, the limits of this
//! process and of its user, and the state root.
//!
//! Everything is opened ahead of time; see [`reserve`](crate::gauge::reserve).

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, fstat, fstatvfs};
use rustix::process::{Resource, getrlimit, getuid};
use rustix::thread::{CapabilitySet, capabilities};
use tare_kernel::fds::open_directory;
use tare_kernel::procfs::Procfs;

use crate::gauge::reading::{Gauge, Reading};
use crate::gauge::reserve::{GaugeFds, OpenFile, count_entries};
use crate::host::state_root;

/// What a source says: how much is used, of which limit, and what the limit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    used: u64,
    limit: u64,
    limit_is: &'static str,
}

impl Value {
    pub fn reading(self, gauge: Gauge) -> Reading {
        Reading::new(gauge, self.used, self.limit, self.limit_is)
    }
}

/// A gauge that is read from files of the kernel. `read` gets the texts of the files, and an empty
/// text for a file that this host does not have.
struct Source {
    gauge: Gauge,
    files: &'static [&'static str],
    read: fn(&[String]) -> Option<Value>,
}

const HOST_SOURCES: [Source; 5] = [
    Source {
        gauge: Gauge::PidsHost,
        files: &["/proc/loadavg", "/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"],
        read: host_pids,
    },
    Source {
        gauge: Gauge::DescriptorsHost,
        files: &["/proc/sys/fs/file-nr"],
        read: host_descriptors,
    },
    Source { gauge: Gauge::MemoryHost, files: &["/proc/meminfo"], read: host_memory },
    Source { gauge: Gauge::Scratch, files: &["/proc/meminfo"], read: scratch },
    Source { gauge: Gauge::MemoryPressureHost, files: &["/proc/pressure/memory"], read: pressure },
];

/// The files of the table above, open.
#[derive(Debug)]
pub struct HostFiles(Vec<Vec<Option<OpenFile>>>);

impl HostFiles {
    pub fn open() -> Self {
        let open = |source: &Source| source.files.iter().map(OpenFile::open).collect();
        Self(HOST_SOURCES.iter().map(open).collect())
    }

    pub fn read(&self) -> impl Iterator<Item = Reading> {
        let text = |file: &Option<OpenFile>| file.as_ref().and_then(OpenFile::text);
        HOST_SOURCES.iter().zip(&self.0).filter_map(move |(source, files)| {
            let texts: Vec<String> = files.iter().map(|it| text(it).unwrap_or_default()).collect();
            Some((source.read)(&texts)?.reading(source.gauge))
        })
    }
}

/// Reads the number of threads behind the load averages (`runnable/all`), and the smaller one of
/// two limits. The kernel counts processes and threads as one, including zombies.
fn host_pids(texts: &[String]) -> Option<Value> {
    let [loadavg, pid_max, threads_max] = texts else { return None };
    let (_, all) = loadavg.split(' ').nth(3)?.split_once('/')?;
    let limits =
        [(pid_max, "the sysctl kernel.pid_max"), (threads_max, "the sysctl kernel.threads-max")];
    let known = limits.iter().filter_map(|(text, name)| Some((text.trim().parse().ok()?, *name)));
    let (limit, limit_is) = known.min()?;
    Some(Value { used: all.parse().ok()?, limit, limit_is })
}

/// Reads `allocated unused limit`. The largest number means "no limit": systemd sets it at boot.
fn host_descriptors(texts: &[String]) -> Option<Value> {
    let mut numbers = texts.first()?.split_whitespace().map(str::parse::<u64>);
    let mut number = || numbers.next()?.ok();
    let (allocated, unused, limit) = (number()?, number()?, number()?);
    let used = allocated.saturating_sub(unused);
    let value = Value { used, limit, limit_is: "the sysctl fs.file-max" };
    (limit < i64::MAX.unsigned_abs()).then_some(value)
}

fn host_memory(texts: &[String]) -> Option<Value> {
    let (total, available) = (meminfo(texts, "MemTotal:")?, meminfo(texts, "MemAvailable:")?);
    let used = total.saturating_sub(available);
    Some(Value { used, limit: total, limit_is: "MemTotal, the memory of the host" })
}

/// tmpfs and shared memory can grow by what is available.
fn scratch(texts: &[String]) -> Option<Value> {
    let (shared, available) = (meminfo(texts, "Shmem:")?, meminfo(texts, "MemAvailable:")?);
    let limit_is = "Shmem and MemAvailable, what file systems in memory have and can get";
    Some(Value { used: shared, limit: shared + available, limit_is })
}

/// Returns one number of `/proc/meminfo`, in bytes.
fn meminfo(texts: &[String], key: &str) -> Option<u64> {
    let mut lines = texts.first()?.lines();
    let value = lines.find_map(|line| line.strip_prefix(key)?.strip_suffix(" kB"))?;
    Some(value.trim().parse::<u64>().ok()? << 10)
}

/// systemd-oomd kills at this share of the last ten seconds by default (oomd.conf(5),
/// DefaultMemoryPressureLimit=), in hundredths of a percent. Above it a host only waits.
const PRESSURE_MAX: u64 = 60_00;

/// Reads `full avg10=1.25 ...`. There is no such line if the kernel does not account for pressure
/// (`psi=0`).
pub fn pressure(texts: &[String]) -> Option<Value> {
    let mut lines = texts.first()?.lines();
    let averages = lines.find_map(|line| line.strip_prefix("full avg10="))?;
    let (whole, hundredths) = averages.split(' ').next()?.split_once('.')?;
    let (whole, hundredths) = (whole.parse::<u64>().ok()?, hundredths.parse::<u64>().ok()?);
    let limit_is = "a fixed share of the last ten seconds in which all processes waited for memory";
    Some(Value { used: whole * 100 + hundredths, limit: PRESSURE_MAX, limit_is })
}

/// The descriptors of this process: `/proc/self/fd`, open. A descriptor counts also if its number
/// is beyond a limit that was lowered.
#[derive(Debug)]
pub struct OwnDescriptors {
    directory: OwnedFd,
    /// How many descriptors are not for boxes.
    pub reserved: u64,
}

impl OwnDescriptors {
    pub fn open() -> Option<Self> {
        let directory = open_directory(CWD, c"/proc/self/fd").ok()?;
        Some(Self { directory, reserved: 0 })
    }

    pub fn read(&self) -> Option<Reading> {
        let limit = getrlimit(Resource::Nofile).current?.saturating_sub(self.reserved);
        let limit_is = match self.reserved {
            0 => "the soft RLIMIT_NOFILE of this process",
            _ => "the soft RLIMIT_NOFILE of this process, less a reserve",
        };
        Some(Reading::new(Gauge::DescriptorsProcess, self.count()?, limit, limit_is))
    }

    /// Since Linux 6.2 the size of the directory is the number; before, the size is 0.
    fn count(&self) -> Option<u64> {
        let size = fstat(&self.directory).ok()?.st_size;
        let known = u64::try_from(size).ok().filter(|size| *size > 0);
        known.or_else(|| count_entries(&self.directory).ok())
    }
}

/// The threads of this user. The kernel does not show how many it has counted, so this gauge looks
/// at every process. It spends at most a hundredth of the time on that.
#[derive(Debug)]
pub struct UserPids {
    procfs: Procfs,
    reserved: GaugeFds,
    last: Option<Count>,
}

#[derive(Debug)]
struct Count {
    threads: u64,
    good_until: Instant,
}

/// A count is good for this many times as long as it took.
const REST: u32 = 100;

impl UserPids {
    /// Returns `None` if RLIMIT_NPROC does not apply to this process.
    pub fn open(in_first_namespace: bool) -> Option<Self> {
        if is_exempt(in_first_namespace) {
            return None;
        }
        Some(Self { procfs: Procfs::open().ok()?, reserved: GaugeFds::reserve(), last: None })
    }

    pub fn read(&mut self) -> Option<Reading> {
        let limit = getrlimit(Resource::Nproc).current?;
        let is_good = |last: &Count| Instant::now() < last.good_until;
        if !self.last.as_ref().is_some_and(is_good) {
            self.count();
        }
        let used = self.last.as_ref()?.threads;
        let limit_is = "the soft RLIMIT_NPROC of this process";
        Some(Reading::new(Gauge::PidsUser, used, limit, limit_is))
    }

    /// If counting fails now, the last count stands.
    fn count(&mut self) {
        let start = Instant::now();
        let procfs = &self.procfs;
        let threads = self.reserved.lend(|| {
            let pids = procfs.pids().ok()?;
            let uid = getuid().as_raw();
            let of_one = |pid| threads_of_user(&procfs.text(&format!("{pid}/status")).ok()?, uid);
            Some(pids.into_iter().filter_map(of_one).sum())
        });
        if let Some(threads) = threads {
            let rest: Duration = start.elapsed() * REST;
            self.last = Some(Count { threads, good_until: Instant::now() + rest });
        }
    }
}

/// Decides as the kernel does (`copy_process` in `kernel/fork.c`): capabilities exempt a process
/// from RLIMIT_NPROC only in the first user namespace.
fn is_exempt(in_first_namespace: bool) -> bool {
    let exempting = CapabilitySet::SYS_RESOURCE | CapabilitySet::SYS_ADMIN;
    let has_any = || capabilities(None).is_ok_and(|it| it.effective.intersects(exempting));
    in_first_namespace && (getuid().is_root() || has_any())
}

/// Returns the threads of a process if it belongs to this user, by the text of its `status`.
fn threads_of_user(status: &str, uid: u32) -> Option<u64> {
    let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
    let real: u32 = value("Uid:")?.split_whitespace().next()?.parse().ok()?;
    let threads = value("Threads:")?.trim().parse().ok()?;
    (real == uid).then_some(threads)
}

/// The file system of the state root, and the boxes on record.
#[derive(Debug)]
pub struct StateRootGauges {
    /// The directory of all records.
    pub boxes: OwnedFd,
    /// The maximum that the operator chose.
    pub boxes_max: Option<u64>,
    /// How many boxes live, if the caller knows.
    pub boxes_live: Option<u64>,
}

impl StateRootGauges {
    pub fn read(&self) -> Vec<Reading> {
        let disk = fstatvfs(&self.boxes).ok();
        let disk = disk.iter().flat_map(|disk| {
            // Blocks that are reserved for root are neither used nor available, as in df(1).
            let blocks =
                counted(disk.f_blocks, disk.f_bfree, disk.f_bavail).map(|(used, limit)| {
                    let (used, limit) = (used * disk.f_frsize, limit * disk.f_frsize);
                    let limit_is = "the size of the state root's file system";
                    Reading::new(Gauge::DiskBytes, used, limit, limit_is)
                });
            let inodes = counted(disk.f_files, disk.f_ffree, disk.f_favail).map(|(used, limit)| {
                let limit_is = "the number of inodes of the state root's file system";
                Reading::new(Gauge::DiskInodes, used, limit, limit_is)
            });
            blocks.into_iter().chain(inodes)
        });
        disk.chain(self.read_boxes()).collect()
    }

    fn read_boxes(&self) -> Option<Reading> {
        let limit = self.boxes_max?;
        let used = self.boxes_live.or_else(|| self.count_boxes())?;
        Some(Reading::new(Gauge::Boxes, used, limit, "the configured maximum of boxes"))
    }

    fn count_boxes(&self) -> Option<u64> {
        match state_root::count(self.boxes.as_fd()) {
            // There is none, or the file system does not count.
            0 => count_entries(&self.boxes).ok(),
            count => Some(count as u64),
        }
    }
}

/// Returns what is used and what could be used. `None` if the file system has no such number: a
/// tmpfs without a size, or a file system that makes inodes as needed.
fn counted(all: u64, free: u64, available: u64) -> Option<(u64, u64)> {
    let used = all.saturating_sub(free);
    (all > 0).then_some((used, used + available))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(read: fn(&[String]) -> Option<Value>, texts: &[&str]) -> Option<(u64, u64)> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        read(&texts).map(|value| (value.used, value.limit))
    }

    #[test]
    fn host_threads_are_after_the_slash_of_loadavg() {
        let loadavg = "11.18 6.75 2.93 12/175 16923\n";
        assert_eq!(of(host_pids, &[loadavg, "4000\n", "3000\n"]), Some((175, 3000)));
        assert_eq!(of(host_pids, &[loadavg, "4000\n", ""]), Some((175, 4000)));
        assert_eq!(of(host_pids, &[loadavg, "", ""]), None);
        assert_eq!(of(host_pids, &["", "4000\n", "3000\n"]), None);
    }

    #[test]
    fn the_files_of_the_host_are_those_allocated_and_not_unused() {
        assert_eq!(of(host_descriptors, &["1164\t4\t2465787\n"]), Some((1160, 2_465_787)));
        assert_eq!(of(host_descriptors, &["1164\t0\t9223372036854775807\n"]), None);
    }

    #[test]
    fn the_memory_of_the_host_is_used_as_far_as_it_is_not_available() {
        let text = "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\nShmem: 100 kB\n";
        assert_eq!(of(host_memory, &[text]), Some((600 << 10, 1000 << 10)));
        assert_eq!(of(scratch, &[text]), Some((100 << 10, 500 << 10)));
    }

    #[test]
    fn pressure_is_the_time_in_which_all_processes_wait() {
        let text = "some avg10=80.00 avg60=0.00 avg300=0.00 total=209323\n\
                    full avg10=12.34 avg60=0.00 avg300=0.00 total=193285\n";
        assert_eq!(of(pressure, &[text]), Some((1234, PRESSURE_MAX)));
        assert_eq!(of(pressure, &[""]), None);
    }

    #[test]
    fn the_real_user_of_a_process_counts() {
        let status = "Name:\tx\nUid:\t7\t0\t0\t0\nThreads:\t3\n";
        assert_eq!(threads_of_user(status, 7), Some(3));
        assert_eq!(threads_of_user(status, 0), None);
    }

    /// Before Linux 6.2, listing is the only way.
    #[test]
    fn as_many_descriptors_are_listed_as_the_kernel_counts() {
        let own = OwnDescriptors::open().unwrap();
        let is_equal = || own.count().unwrap() == count_entries(&own.directory).unwrap();
        // Other tests open and close files meanwhile.
        assert!((0..1000).any(|_| is_equal()));
    }
}
