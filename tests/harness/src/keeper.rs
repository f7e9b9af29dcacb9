//! What the keeper of a box costs its host, as the kernel counts it.

use std::fs;

use crate::snapshot::process::{Process, box_processes};
use crate::tare::Tare;
use crate::wait::eventually;

impl Tare {
    /// How many descriptors the idle keeper of the box has. It waits, because the keeper may still
    /// clean up after a process that has ended.
    #[track_caller]
    pub fn keeper_descriptors(&self, id: &str) -> usize {
        let keeper = self.keeper(id).pid;
        eventually("the keeper has nothing to do", || is_asleep(keeper));
        let entries = fs::read_dir(format!("/proc/{keeper}/fd"));
        entries.expect("the keeper is there and ours to look at").count()
    }

    /// The memory that belongs to this keeper alone. All keepers share the pages of the program.
    #[track_caller]
    pub fn keeper_private_bytes(&self, id: &str) -> u64 {
        private_bytes(self.keeper(id).pid)
    }

    /// All processes in the PID namespace of the box, in any state and cgroup.
    #[track_caller]
    pub fn members(&self, id: &str) -> Vec<Process> {
        let namespace = self.keeper(id).pid_namespace;
        let mut all = box_processes();
        all.retain(|one| one.pid_namespace == namespace);
        all
    }
}

fn is_asleep(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('S'))
}

/// The memory that belongs to one process alone (`Anonymous` of proc_pid_smaps(5)).
#[track_caller]
pub fn private_bytes(pid: u32) -> u64 {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(path).expect("it is there and ours to look at");
    let line = text.lines().find(|line| line.starts_with("Anonymous:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.expect("as in proc_pid_smaps(5)") * 1024
}
