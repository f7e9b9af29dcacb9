//! What the keeper of a box costs its host, as the kernel counts it.

use std::fs;

use crate::snapshot::process::{Process, box_processes};
use crate::tare::Tare;

impl Tare {
    /// How many descriptors the keeper of the box has open.
    #[track_caller]
    pub fn keeper_descriptors(&self, id: &str) -> usize {
        let directory = format!("/proc/{}/fd", self.keeper(id).pid);
        let entries = fs::read_dir(directory).expect("the keeper is there and ours to look at");
        entries.count()
    }

    /// The memory of the keeper that nobody shares with it (proc_pid_smaps(5)).
    #[track_caller]
    pub fn keeper_private_bytes(&self, id: &str) -> u64 {
        let path = format!("/proc/{}/smaps_rollup", self.keeper(id).pid);
        let text = fs::read_to_string(path).expect("the keeper is there and ours to look at");
        let private = text.lines().filter(|line| line.starts_with("Private_"));
        let kib = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
        private.filter_map(kib).sum::<u64>() * 1024
    }

    /// Everyone in the PID namespace of the box, in whatever state and cgroup.
    #[track_caller]
    pub fn members(&self, id: &str) -> Vec<Process> {
        let namespace = self.keeper(id).pid_namespace;
        let mut all = box_processes();
        all.retain(|one| one.pid_namespace == namespace);
        all
    }
}
