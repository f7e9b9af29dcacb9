//! Processes and threads: of the cgroup, of the user, of the host. The kernel counts
//! both as one, zombies included.

use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, getuid};
use rustix::thread::{CapabilitySet, capabilities};
use tare_kernel::procfs::Procfs;

use crate::gauge::held::HeldFile;
use crate::gauge::membership::{Counted, Membership};
use crate::gauge::reading::{Gauge, Reading};
use crate::gauge::spare::Spare;

/// The fullest of the cgroups that this process is in.
pub fn of_cgroup(membership: &Membership) -> Option<Reading> {
    let readings = membership.pids.iter().filter_map(|cgroup: &Counted| {
        let limit_is = format!("pids.max of the cgroup {}", cgroup.directory.display());
        let (used, limit) = (cgroup.used()?, cgroup.limit()?);
        Some(Reading::new(Gauge::PidsCgroup, used, limit, limit_is))
    });
    readings.max_by(|one, other| one.fraction().total_cmp(&other.fraction()))
}

#[derive(Debug)]
pub struct HostPids {
    loadavg: HeldFile,
    pid_max: Option<HeldFile>,
    threads_max: Option<HeldFile>,
}

impl HostPids {
    pub fn open() -> Option<Self> {
        Some(Self {
            loadavg: HeldFile::open("/proc/loadavg")?,
            pid_max: HeldFile::open("/proc/sys/kernel/pid_max"),
            threads_max: HeldFile::open("/proc/sys/kernel/threads-max"),
        })
    }

    pub fn read(&self) -> Option<Reading> {
        let used = threads_of_host(&self.loadavg.text()?)?;
        let limits = [
            (&self.pid_max, "the sysctl kernel.pid_max"),
            (&self.threads_max, "the sysctl kernel.threads-max"),
        ];
        let known = limits.into_iter();
        let known = known.filter_map(|(file, name)| Some((file.as_ref()?.number()?, name)));
        let (limit, name) = known.min()?;
        Some(Reading::new(Gauge::PidsHost, used, limit, name))
    }
}

/// Behind the load averages: runnable/all.
fn threads_of_host(loadavg: &str) -> Option<u64> {
    let (_, all) = loadavg.split(' ').nth(3)?.split_once('/')?;
    all.parse().ok()
}

/// What the user has. The kernel tells nobody how much it has counted, so every process
/// is looked at: a hundredth of the time is spent on that, however many there are.
#[derive(Debug)]
pub struct UserPids {
    procfs: Procfs,
    spare: Spare,
    last: Option<Count>,
}

#[derive(Debug)]
struct Count {
    threads: u64,
    good_until: Instant,
}

/// A count is good for so many times as long as it took.
const REST: u32 = 100;

impl UserPids {
    /// `None` for whom the limit does not count.
    pub fn open(in_first_namespace: bool) -> Option<Self> {
        if is_exempt(in_first_namespace) {
            return None;
        }
        Some(Self { procfs: Procfs::open().ok()?, spare: Spare::take(), last: None })
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

    /// If it cannot be done now, the last count stands.
    fn count(&mut self) {
        let start = Instant::now();
        let procfs = &self.procfs;
        let threads = self.spare.lend(|| {
            let pids = procfs.pids().ok()?;
            let uid = getuid().as_raw();
            let of_one = |pid| threads_of_user(&procfs.text(&format!("{pid}/status")).ok()?, uid);
            Some(pids.into_iter().filter_map(of_one).sum())
        });
        if let Some(threads) = threads {
            let rest: Duration = start.elapsed() * REST;
            let good_until = Instant::now() + rest;
            self.last = Some(Count { threads, good_until });
        }
    }
}

/// As the kernel decides it (`copy_process` in `kernel/fork.c`): outside of the first
/// user namespace capabilities exempt nobody.
fn is_exempt(in_first_namespace: bool) -> bool {
    let exempting = CapabilitySet::SYS_RESOURCE | CapabilitySet::SYS_ADMIN;
    let has_any = || capabilities(None).is_ok_and(|it| it.effective.intersects(exempting));
    in_first_namespace && (getuid().is_root() || has_any())
}

/// The threads of a process, if it is this user's; by the text of its `status`.
fn threads_of_user(status: &str, uid: u32) -> Option<u64> {
    let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
    let real: u32 = value("Uid:")?.split_whitespace().next()?.parse().ok()?;
    let threads = value("Threads:")?.trim().parse().ok()?;
    (real == uid).then_some(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_of_the_host_are_behind_the_stroke() {
        assert_eq!(threads_of_host("11.18 6.75 2.93 12/175 16923\n"), Some(175));
        assert_eq!(threads_of_host(""), None);
    }

    #[test]
    fn the_real_user_of_a_process_counts() {
        let status = "Name:\tx\nUid:\t7\t0\t0\t0\nThreads:\t3\n";
        assert_eq!(threads_of_user(status, 7), Some(3));
        assert_eq!(threads_of_user(status, 0), None);
    }
}
