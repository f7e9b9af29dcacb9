//! The current state of the host, in everything that a box could leave behind.
//!
//! Each class is a set of sentences, so that the difference between two snapshots is readable. A
//! class is read from the kernel (`/proc`, the cgroup file systems, directories), never from tare.
//!
//! All classes but one must be equal at the moment at which a command returns. The kernel frees
//! namespaces later (usually within 0.1 s, once after 5.7 s), so that class is read again for a
//! bounded time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use crate::wait::poll;
use process::Process;

pub mod cgroup;
mod file;
mod ipc;
pub mod mount;
mod namespace;
pub mod process;
mod socket;

/// How long the kernel may take to remove what a test has released.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);

/// Sentences about things of one class.
type Things = BTreeSet<String>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Processes,
    Descriptors,
    Cgroups,
    Mounts,
    Namespaces,
    Sockets,
    Ipc,
    Files,
}

impl Class {
    const ALL: [Self; 8] = [
        Self::Processes,
        Self::Descriptors,
        Self::Cgroups,
        Self::Mounts,
        Self::Namespaces,
        Self::Sockets,
        Self::Ipc,
        Self::Files,
    ];

    fn observe(self, roots: &[PathBuf], processes: &[Process]) -> Things {
        match self {
            Self::Processes => process::observe(processes),
            Self::Descriptors => process::observe_descriptors(processes),
            Self::Cgroups => cgroup::observe(),
            Self::Mounts => mount::observe(),
            Self::Namespaces => namespace::observe(processes),
            Self::Sockets => socket::observe(),
            Self::Ipc => ipc::observe(),
            Self::Files => file::observe(roots),
        }
    }

    /// Whether the kernel frees things of this class after the call that ended
    /// them has returned.
    fn is_asynchronous(self) -> bool {
        matches!(self, Self::Namespaces)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    roots: Vec<PathBuf>,
    classes: BTreeMap<Class, Things>,
}

impl Snapshot {
    /// The host now, with every path under these state roots (and under those
    /// that tare uses by itself).
    pub fn take(roots: &[PathBuf]) -> Self {
        let processes = process::processes();
        let observe = |class: Class| (class, class.observe(roots, &processes));
        Self { roots: roots.to_vec(), classes: Class::ALL.into_iter().map(observe).collect() }
    }

    /// The differences in `later`, one sentence each.
    pub fn difference(&self, later: &Self) -> Vec<String> {
        let of_class = |class: Class| difference(&self.classes[&class], &later.classes[&class]);
        Class::ALL.into_iter().flat_map(of_class).collect()
    }

    /// The differences now. Classes that the kernel frees late get ten seconds.
    pub fn difference_now(&self) -> Vec<String> {
        self.unexpected_difference_now(|_| false)
    }

    /// The differences now, without expected lines.
    pub fn unexpected_difference_now(&self, is_expected: impl Fn(&str) -> bool) -> Vec<String> {
        let mut unexpected = self.observed_difference();
        unexpected.retain(|line| !is_expected(line));
        unexpected
    }

    fn observed_difference(&self) -> Vec<String> {
        let mut now = Self::take(&self.roots);
        for class in Class::ALL.into_iter().filter(|one| one.is_asynchronous()) {
            poll(SETTLED_WITHIN, || {
                let settled = now.classes[&class] == self.classes[&class];
                if !settled {
                    let processes = process::processes();
                    now.classes.insert(class, class.observe(&self.roots, &processes));
                }
                settled
            });
        }
        self.difference(&now)
    }
}

fn difference(before: &Things, after: &Things) -> Vec<String> {
    let new = after.difference(before).map(|thing| format!("new: {thing}"));
    let gone = before.difference(after).map(|thing| format!("gone: {thing}"));
    new.chain(gone).collect()
}
