//! Measures one live box from outside: its processes, their descriptors, the memory of the keeper, and
//! the memory that is charged to its cgroup. It does not ask tare.

use super::super::footprint::cgroups_of;
use crate::failure::Failure;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A box's cgroups have at most one level of their own.
const CGROUP_DEPTH_MAX: u32 = 4;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Anatomy {
    /// All threads of all processes, because each counts against pid_max.
    pub pids: u64,
    /// The descriptors of all processes.
    pub descriptors: u64,
    pub keeper_descriptors: u64,
    /// Pages that no other process maps.
    pub keeper_private_bytes: u64,
    /// The memory that is charged to the cgroup, and the kernel's part of it.
    pub cgroup_bytes: Option<u64>,
    pub cgroup_kernel_bytes: Option<u64>,
}

impl Anatomy {
    pub fn observe(id: &str) -> Result<Self, Failure> {
        let cgroups = cgroups_of([id]);
        let mut pids = BTreeSet::new();
        for cgroup in &cgroups {
            collect_pids(cgroup, CGROUP_DEPTH_MAX, &mut pids);
        }
        let mut anatomy = Self {
            cgroup_bytes: first(&cgroups, &["memory.current", "memory.usage_in_bytes"]),
            cgroup_kernel_bytes: kernel_bytes(&cgroups),
            ..Self::default()
        };
        let mut keepers = 0;
        for pid in pids {
            let process = PathBuf::from(format!("/proc/{pid}"));
            let status = read(&process.join("status"));
            let descriptors = count(&process.join("fd"));
            anatomy.pids += field(&status, "Threads:").unwrap_or(1);
            anatomy.descriptors += descriptors;
            if is_first_of_its_namespace(&status) {
                keepers += 1;
                anatomy.keeper_descriptors = descriptors;
                anatomy.keeper_private_bytes = private_bytes(&read(&process.join("smaps_rollup")));
            }
        }
        match keepers {
            1 => Ok(anatomy),
            _ => Err(Failure::new(format!("box {id} has {keepers} keepers in its cgroups"))),
        }
    }
}

/// An object that disappears meanwhile counts as zero.
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn count(directory: &Path) -> u64 {
    fs::read_dir(directory).map_or(0, |entries| entries.count() as u64)
}

fn collect_pids(cgroup: &Path, depth_left: u32, pids: &mut BTreeSet<u32>) {
    let procs = read(&cgroup.join("cgroup.procs"));
    pids.extend(procs.lines().filter_map(|line| line.parse::<u32>().ok()));
    if depth_left == 0 {
        return;
    }
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|it| it.is_dir()) {
            collect_pids(&entry.path(), depth_left - 1, pids);
        }
    }
}

/// The number in the first of these files that any of the cgroups has.
fn first(cgroups: &[PathBuf], names: &[&str]) -> Option<u64> {
    let files = cgroups.iter().flat_map(|cgroup| names.iter().map(move |name| cgroup.join(name)));
    files.filter_map(|file| read(&file).trim().parse().ok()).next()
}

/// The kernel's memory: a file on v1, a line of `memory.stat` on v2.
fn kernel_bytes(cgroups: &[PathBuf]) -> Option<u64> {
    let stat = |cgroup: &PathBuf| field(&read(&cgroup.join("memory.stat")), "kernel");
    first(cgroups, &["memory.kmem.usage_in_bytes"]).or_else(|| cgroups.iter().find_map(stat))
}

/// The first number on the line that begins with this word.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok())?
    })
}

/// PID 1 of a PID namespace that is not ours: the keeper (proc(5), NSpid).
fn is_first_of_its_namespace(status: &str) -> bool {
    let line = status.lines().find_map(|it| it.strip_prefix("NSpid:"));
    let numbers: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    numbers.len() > 1 && numbers.last() == Some(&"1")
}

fn private_bytes(smaps_rollup: &str) -> u64 {
    let kilobytes: u64 = ["Private_Clean:", "Private_Dirty:"]
        .iter()
        .filter_map(|name| field(smaps_rollup, name))
        .sum();
    kilobytes * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keeper_is_the_first_process_of_a_namespace_below_ours() {
        assert!(is_first_of_its_namespace("Name:\tx\nNSpid:\t4711\t1\n"));
        assert!(!is_first_of_its_namespace("NSpid:\t4712\t2\n"));
        assert!(!is_first_of_its_namespace("NSpid:\t1\n"), "the host's own");
        assert!(!is_first_of_its_namespace(""));
    }

    #[test]
    fn private_memory_is_clean_and_dirty_together() {
        let rollup = "\
55d0-7ffe ---p 00000000 00:00 0    [rollup]
Rss:                 900 kB
Shared_Clean:        600 kB
Private_Clean:        40 kB
Private_Dirty:       212 kB
Private_Hugetlb:       0 kB
";
        assert_eq!(private_bytes(rollup), 252 * 1024);
        assert_eq!(private_bytes(""), 0);
    }

    #[test]
    fn cgroups_of_either_version_tell_their_memory() {
        let root = std::env::temp_dir().join(format!("xtask-anatomy-{}", std::process::id()));
        let (old, new) = (root.join("v1"), root.join("v2"));
        fs::create_dir_all(&old).unwrap();
        fs::create_dir_all(new.join("work")).unwrap();
        fs::write(old.join("memory.kmem.usage_in_bytes"), "4096\n").unwrap();
        fs::write(new.join("memory.stat"), "anon 5\nkernel_stack 6\nkernel 7\n").unwrap();
        fs::write(new.join("cgroup.procs"), "11\n").unwrap();
        fs::write(new.join("work/cgroup.procs"), "12\n13\n").unwrap();
        assert_eq!(kernel_bytes(std::slice::from_ref(&old)), Some(4096));
        assert_eq!(kernel_bytes(std::slice::from_ref(&new)), Some(7));
        assert_eq!(first(&[old, new.clone()], &["memory.current"]), None);
        let mut pids = BTreeSet::new();
        collect_pids(&new, CGROUP_DEPTH_MAX, &mut pids);
        assert_eq!(Vec::from_iter(pids), [11, 12, 13]);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn an_id_without_cgroups_has_no_keeper() {
        let failure = Anatomy::observe("no-such-box").unwrap_err().to_string();
        assert!(failure.contains("0 keepers"), "{failure}");
    }
}
