//! Everyone on the host, before the records are read, and every port that somebody
//! listens on.

use std::collections::HashMap;

use tare_kernel::procfs::{NAMESPACE_KINDS, Procfs, Stat};
use tare_kernel::sockets::{self, Listening};

use crate::audit::findings::Traces;
use crate::engine::Engine;
use crate::host::parallel::look_at_each;

#[derive(Debug)]
pub struct Census {
    pub procfs: Option<Procfs>,
    stats: HashMap<i32, Stat>,
    children: HashMap<i32, Vec<i32>>,
    /// The namespaces that we are in, in the order of their kinds.
    pub own_namespaces: Vec<u64>,
    pub listening: Vec<Listening>,
}

impl Census {
    /// Of a host that has no boxes nobody is counted.
    pub fn take(engine: &Engine, traces: &Traces) -> Self {
        let mut census = Self {
            procfs: Procfs::open().ok(),
            stats: HashMap::new(),
            children: HashMap::new(),
            own_namespaces: Vec::new(),
            listening: sockets::listening().unwrap_or_default(),
        };
        if matches!(engine.boxes_if_any(), Ok(Some(_))) {
            census.count(&traces.pids);
        }
        census
    }

    fn count(&mut self, pids: &[i32]) {
        let Some(procfs) = &self.procfs else { return };
        let stats = look_at_each(pids, |pid| procfs.stat(*pid).ok());
        for (pid, stat) in pids.iter().zip(stats) {
            // One that is gone by now is nobody.
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

    /// A process and all who descend from it. Whoever loses its parent in a box
    /// becomes a child of its first process: nobody in there is missing.
    pub fn family(&self, first: i32) -> Vec<i32> {
        let mut family = Vec::new();
        let mut pending = vec![first];
        while let Some(pid) = pending.pop() {
            if self.stats.contains_key(&pid) && !family.contains(&pid) {
                family.push(pid);
                pending.extend(self.children.get(&pid).into_iter().flatten());
            }
        }
        family
    }
}
