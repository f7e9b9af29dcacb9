//! Measures one live box from outside: its processes, their descriptors, and the memory that is
//! charged to its cgroup. It does not ask tare.

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
    /// The memory that is charged to the cgroup.
    pub cgroup_bytes: Option<u64>,
}

impl Anatomy {
    pub fn observe(id: &str) -> Result<Self, Failure> {
        let cgroups = cgroups_of([id]);
        let mut pids = BTreeSet::new();
        for cgroup in &cgroups {
            collect_pids(cgroup, CGROUP_DEPTH_MAX, &mut pids);
        }
        if pids.is_empty() {
            return Err(Failure::new(format!("box {id} has no process in its cgroups")));
        }
        let mut anatomy = Self { cgroup_bytes: charged_bytes(&cgroups), ..Self::default() };
        for pid in pids {
            let process = PathBuf::from(format!("/proc/{pid}"));
            anatomy.pids += count(&process.join("task"));
            anatomy.descriptors += count(&process.join("fd"));
        }
        Ok(anatomy)
    }
}

/// A directory that disappears meanwhile counts as empty.
fn count(directory: &Path) -> u64 {
    fs::read_dir(directory).map_or(0, |entries| entries.count() as u64)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
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

/// The memory of the first cgroup that has a memory controller, of either version.
fn charged_bytes(cgroups: &[PathBuf]) -> Option<u64> {
    let names = ["memory.current", "memory.usage_in_bytes"];
    let files = cgroups.iter().flat_map(|cgroup| names.map(|name| cgroup.join(name)));
    files.filter_map(|file| read(&file).trim().parse().ok()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_of_either_version_tell_their_memory() {
        let root = std::env::temp_dir().join(format!("xtask-anatomy-{}", std::process::id()));
        let (old, new) = (root.join("v1"), root.join("v2"));
        fs::create_dir_all(&old).unwrap();
        fs::create_dir_all(new.join("work")).unwrap();
        fs::write(old.join("memory.usage_in_bytes"), "4096\n").unwrap();
        fs::write(new.join("memory.current"), "7\n").unwrap();
        fs::write(new.join("cgroup.procs"), "11\n").unwrap();
        fs::write(new.join("work/cgroup.procs"), "12\n13\n").unwrap();
        assert_eq!(charged_bytes(std::slice::from_ref(&old)), Some(4096));
        assert_eq!(charged_bytes(&[new.join("work"), new.clone()]), Some(7));
        let mut pids = BTreeSet::new();
        collect_pids(&new, CGROUP_DEPTH_MAX, &mut pids);
        assert_eq!(Vec::from_iter(pids), [11, 12, 13]);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn an_id_without_cgroups_has_no_process() {
        let failure = Anatomy::observe("no-such-box").unwrap_err().to_string();
        assert!(failure.contains("no process"), "{failure}");
    }
}
