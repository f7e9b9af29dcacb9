//! All processes of the host, read before the records are, and all ports that a process listens
//! on.

use std::collections::HashMap;

use tare_kernel::procfs::{NAMESPACE_KINDS, Procfs, Stat};
use tare_kernel::sockets::{self, Listening};

use crate::host::layout::StateRoot;
use crate::host::parallel;
use crate::host::processes::all_pids;
use crate::host::state_root;

#[derive(Debug)]
pub struct Processes {
    pub procfs: Option<Procfs>,
    stats: HashMap<i32, Stat>,
    children: HashMap<i32, Vec<i32>>,
    /// The namespaces of this process, in the order of their kinds.
    pub own_namespaces: Vec<u64>,
    pub listening: Vec<Listening>,
}

impl Processes {
    /// Reads these processes. A host without boxes needs none of it.
    pub fn read(root: &StateRoot, pids: &[i32]) -> Self {
        let mut processes = Self {
            procfs: Procfs::open().ok(),
            stats: HashMap::new(),
            children: HashMap::new(),
            own_namespaces: Vec::new(),
            listening: sockets::listening().unwrap_or_default(),
        };
        if matches!(state_root::boxes_if_any(root), Ok(Some(_))) {
            processes.add(pids);
        }
        processes
    }

    /// Finds the processes of one box: those in its cgroup, or without one among all of the host. Reads
    /// ports only of a box that shares the host's network.
    pub fn of_box(members: &[i32], shares_network: bool) -> Self {
        let listening = if shares_network { sockets::listening().ok() } else { None };
        let mut processes = Self {
            procfs: Procfs::open().ok(),
            stats: HashMap::new(),
            children: HashMap::new(),
            own_namespaces: Vec::new(),
            listening: listening.unwrap_or_default(),
        };
        if members.is_empty() {
            processes.add(&all_pids());
        } else {
            processes.add(&[]);
        }
        processes
    }

    fn add(&mut self, pids: &[i32]) {
        let Some(procfs) = &self.procfs else { return };
        let stats = parallel::map(pids, |pid| procfs.stat(*pid).ok());
        for (pid, stat) in pids.iter().zip(stats) {
            if let Some(stat) = stat {
                self.children.entry(stat.parent).or_default().push(*pid);
                self.stats.insert(*pid, stat);
            }
        }
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let own = procfs.process(own).ok();
        let namespaces = own.and_then(|it| it.namespaces(&NAMESPACE_KINDS).ok());
        self.own_namespaces = namespaces.unwrap_or_default();
    }

    pub fn stat(&self, pid: i32) -> Option<Stat> {
        self.stats.get(&pid).copied()
    }

    /// A process and all its descendants. A process that loses its parent in a box becomes a child
    /// of the box's first process, so none is missing.
    pub fn descendants(&self, first: i32) -> Vec<i32> {
        let mut found = Vec::new();
        let mut pending = vec![first];
        while let Some(pid) = pending.pop() {
            if self.stats.contains_key(&pid) && !found.contains(&pid) {
                found.push(pid);
                pending.extend(self.children.get(&pid).into_iter().flatten());
            }
        }
        found
    }
}
