//! How many boxes this host can have: the limits of the host, and how much of each one box uses. A
//! bench that uses up all pids of a host would end other programs.

use super::anatomy::Anatomy;
use serde::Serialize;
use std::fmt;
use std::fs;

/// The share of each limit that boxes and the rest of the host may use together.
const SHARE_MAX: f64 = 0.9;

/// One limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    pub what: &'static str,
    pub in_use: u64,
    pub per_box: u64,
    pub limit: u64,
}

/// All known limits, and how much of each one box uses.
pub fn observe(one_box: &Anatomy) -> Vec<Limit> {
    let limits = [number("/proc/sys/kernel/pid_max", 0), number("/proc/sys/kernel/threads-max", 0)];
    let pids = Limit {
        what: "pids",
        in_use: threads(&read("/proc/loadavg")),
        per_box: one_box.pids,
        limit: limits.into_iter().flatten().min().unwrap_or(u64::MAX),
    };
    let files = Limit {
        what: "open files of the host",
        in_use: number("/proc/sys/fs/file-nr", 0).unwrap_or(0),
        per_box: one_box.descriptors,
        limit: number("/proc/sys/fs/file-max", 0).unwrap_or(u64::MAX),
    };
    // Nothing of ours holds one for each box; a command that lists or removes
    // them would be the one to do so, and then this is where it would end.
    let descriptors = Limit {
        what: "descriptors of one process, were it to hold one for each box",
        in_use: 0,
        per_box: 1,
        limit: open_files_max(&read("/proc/self/limits")).unwrap_or(u64::MAX),
    };
    vec![pids, files, descriptors, memory(one_box)]
}

/// By what a box's own cgroup is charged: less than all, but most of it.
fn memory(one_box: &Anatomy) -> Limit {
    let meminfo = read("/proc/meminfo");
    let kilobytes = |name: &str| {
        let line = meminfo.lines().find_map(|it| it.strip_prefix(name));
        line.and_then(|it| it.split_whitespace().next()?.parse::<u64>().ok())
    };
    let total = kilobytes("MemTotal:").unwrap_or(u64::MAX);
    Limit {
        what: "KB of memory",
        in_use: total.saturating_sub(kilobytes("MemAvailable:").unwrap_or(total)),
        per_box: one_box.cgroup_bytes.unwrap_or(0) / 1024,
        limit: total,
    }
}

/// Returns why this number of boxes is too large, if it is.
pub fn stop(limits: &[Limit], boxes: usize) -> Option<String> {
    let limit = limits.iter().find(|it| !it.allows(boxes as u64))?;
    Some(format!("not made: {boxes} boxes want {limit}"))
}

impl Limit {
    fn allows(&self, boxes: u64) -> bool {
        let wanted = self.in_use as f64 + self.per_box as f64 * boxes as f64;
        wanted <= self.limit as f64 * SHARE_MAX
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, in_use, per_box, limit } = self;
        write!(f, "{per_box} each of {limit} {what} ({in_use} in use)")
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn number(path: &str, word: usize) -> Option<u64> {
    read(path).split_whitespace().nth(word)?.parse().ok()
}

/// All threads of the host: `0.00 0.01 0.05 1/110 32445` (proc(5)).
fn threads(loadavg: &str) -> u64 {
    let entities = loadavg.split_whitespace().nth(3);
    let total = entities.and_then(|it| it.split_once('/')?.1.parse().ok());
    total.unwrap_or(0)
}

/// The soft limit, which the kernel enforces.
fn open_files_max(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|it| it.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pids(per_box: u64) -> Limit {
        Limit { what: "pids", in_use: 110, per_box, limit: 32_768 }
    }

    #[test]
    fn too_many_boxes_are_refused_with_the_figures() {
        assert_eq!(stop(&[pids(2)], 5_000), None);
        assert_eq!(
            stop(&[pids(2), pids(6)], 5_000).unwrap(),
            "not made: 5000 boxes want 6 each of 32768 pids (110 in use)"
        );
    }

    #[test]
    fn a_share_of_every_limit_is_left_for_the_host() {
        assert!(pids(1).allows(29_381));
        assert!(!pids(1).allows(29_382));
    }

    #[test]
    fn this_host_is_limited_in_pids_files_descriptors_and_memory() {
        let limits = observe(&Anatomy { pids: 2, ..Anatomy::default() });
        assert_eq!(limits.len(), 4);
        assert!(limits.iter().all(|it| it.limit < u64::MAX), "{limits:?}");
        assert!(limits[0].in_use > 0 && limits[3].in_use > 0, "{limits:?}");
    }

    #[test]
    fn the_files_of_the_kernel_are_understood() {
        assert_eq!(threads("2.92 1.16 1.14 3/110 32445\n"), 110);
        assert_eq!(threads(""), 0);
        let limits = "Limit   Soft Limit   Hard Limit   Units\nMax open files            20000                20000                files\n";
        assert_eq!(open_files_max(limits), Some(20_000));
        assert_eq!(open_files_max("Max open files  unlimited unlimited files"), None);
    }
}
