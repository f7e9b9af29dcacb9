//! What one box holds on the host now.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use rustix::fs::{StatFs, statfs};
use serde::Serialize;
use tare_kernel::cgroup_tree::CgroupTree;
use tare_kernel::procfs::{NAMESPACE_KINDS, NamespaceKind, ProcessDir};
use tare_kernel::sockets::Listening;

use crate::audit::census::Census;
use crate::engine::Engine;
use crate::holdings::cgroup::CgroupReader;
use crate::observe::Observed;
use crate::operate::find::spec_of;
use crate::spec::{BoxId, Isolation};

/// `None` is what the kernel does not show to us.
#[derive(Debug, Default, Serialize)]
pub struct Held {
    pub processes: Vec<HeldProcess>,
    pub threads: u64,
    /// Of all processes together, by kind.
    pub descriptors: Option<BTreeMap<&'static str, u64>>,
    /// What the kernel counts for the box.
    pub memory_bytes: Option<u64>,
    /// What its processes have in memory, each for itself.
    pub resident_bytes: u64,
    pub cgroups: Vec<PathBuf>,
    pub namespaces: Option<Vec<HeldNamespace>>,
    /// In its mount namespaces.
    pub mounts: Option<u64>,
    /// On the host itself.
    pub host_mounts: Vec<PathBuf>,
    /// Of the host's network, that it listens on.
    pub ports: Vec<HeldPort>,
    /// As its keeper sees it, or as it was left.
    pub scratch_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct HeldProcess {
    pub pid: i32,
    pub threads: u64,
    pub descriptors: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct HeldNamespace {
    pub kind: &'static str,
    pub inode: u64,
    /// Whoever of the box is in it.
    pub pids: Vec<i32>,
}

#[derive(Debug, Serialize)]
pub struct HeldPort {
    pub transport: &'static str,
    pub address: SocketAddr,
    /// Whoever of the box has it open.
    pub pids: Vec<i32>,
}

/// What the look at all processes of a box has brought.
#[derive(Debug, Default)]
struct Seen {
    descriptors: BTreeMap<&'static str, u64>,
    hides_descriptors: bool,
    sockets: BTreeMap<u64, Vec<i32>>,
    namespaces: BTreeMap<(usize, u64), Vec<i32>>,
    hides_namespaces: bool,
    /// How many there are in each mount namespace.
    mounts: Vec<u64>,
}

impl Engine {
    pub(super) fn held_by(&self, id: &BoxId, observed: &Observed, census: &Census) -> Held {
        let mut held = Held::default();
        let tree = CgroupReader::at(self.at(id)).tree();
        let members = members(observed, &tree, census);
        let mut seen = Seen::default();
        let keeper = observed.keeper.as_ref().map(|keeper| keeper.pid());
        for pid in members {
            let shown = census.procfs.as_ref().and_then(|it| it.process(pid).ok());
            if let Some(shown) = shown {
                seen.look(pid, &shown, census, &mut held);
                if keeper == Some(pid) && has_scratch(observed) {
                    held.scratch_bytes = shown.space_at("work").ok().and_then(used);
                }
            }
        }
        held.memory_bytes =
            if observed.is_live() { CgroupReader::at(self.at(id)).memory() } else { None };
        let mounted = self.mounted_scratch(id, observed);
        if keeper.is_none() && has_scratch(observed) {
            held.scratch_bytes = mounted.as_ref().and_then(|it| used(statfs(it).ok()?));
        }
        held.cgroups = self.unified_directories(&tree);
        held.host_mounts = mounted.into_iter().collect();
        held.ports = ports(&seen, &tree, &census.listening);
        held.take(seen);
        held
    }

    fn unified_directories(&self, tree: &CgroupTree) -> Vec<PathBuf> {
        let unified = self.root.host.cgroups.unified.as_deref();
        let directories = tree.directories.iter();
        directories.filter_map(|it| Some(unified?.join(&it.path))).collect()
    }
}

/// Whoever is in its cgroup, or descends from its keeper.
fn members(observed: &Observed, tree: &CgroupTree, census: &Census) -> BTreeSet<i32> {
    let mut members: BTreeSet<i32> = tree.members.iter().copied().collect();
    if let Some(keeper) = &observed.keeper {
        // It may be younger than the census.
        members.insert(keeper.pid());
        members.extend(census.family(keeper.pid()));
    }
    members
}

impl Seen {
    fn look(&mut self, pid: i32, shown: &ProcessDir<'_>, census: &Census, held: &mut Held) {
        let stat = census.stat(pid).or_else(|| shown.stat().ok());
        let Some(stat) = stat else { return };
        let descriptors = shown.descriptors().ok();
        held.threads += stat.threads;
        held.resident_bytes += stat.resident_bytes;
        held.processes.push(HeldProcess {
            pid,
            threads: stat.threads,
            descriptors: match &descriptors {
                Some(known) => Some(known.total()),
                None => shown.descriptor_count().ok(),
            },
        });
        match descriptors {
            Some(found) => {
                for (kind, count) in &found.kinds {
                    *self.descriptors.entry(kind.as_str()).or_default() += count;
                }
                for inode in found.sockets {
                    self.sockets.entry(inode).or_default().push(pid);
                }
            }
            None => self.hides_descriptors = true,
        }
        self.look_at_namespaces(pid, shown, census);
    }

    fn look_at_namespaces(&mut self, pid: i32, shown: &ProcessDir<'_>, census: &Census) {
        let Some(inodes) = shown.namespaces(&NAMESPACE_KINDS).ok() else {
            self.hides_namespaces = true;
            return;
        };
        for (kind, inode) in inodes.into_iter().enumerate() {
            if census.own_namespaces.get(kind) == Some(&inode) {
                continue;
            }
            let known = self.namespaces.entry((kind, inode)).or_default();
            let is_new = known.is_empty();
            known.push(pid);
            if is_new && NAMESPACE_KINDS[kind] == NamespaceKind::Mount {
                self.mounts.extend(mounts_of(shown));
            }
        }
    }
}

impl Held {
    pub(super) fn add_cgroups<'a>(&mut self, found: impl Iterator<Item = &'a PathBuf>) {
        let known: BTreeSet<&PathBuf> = self.cgroups.iter().collect();
        let others: Vec<PathBuf> = found.filter(|path| !known.contains(path)).cloned().collect();
        self.cgroups.extend(others);
        self.cgroups.sort();
    }

    fn take(&mut self, seen: Seen) {
        self.descriptors = (!seen.hides_descriptors).then_some(seen.descriptors);
        self.mounts = (!seen.mounts.is_empty()).then(|| seen.mounts.iter().sum());
        let namespaces = seen.namespaces.into_iter();
        let namespaces = namespaces.map(|((kind, inode), pids)| HeldNamespace {
            kind: NAMESPACE_KINDS[kind].as_str(),
            inode,
            pids,
        });
        self.namespaces = (!seen.hides_namespaces).then(|| namespaces.collect());
    }
}

/// How many mounts there are in its namespace.
fn mounts_of(shown: &ProcessDir<'_>) -> Option<u64> {
    let counted = shown.mount_namespace().ok().and_then(|it| it.mounts);
    counted.or_else(|| shown.listed_mounts().ok())
}

/// By the cgroup in which the socket was made, or by who has it open.
fn ports(seen: &Seen, tree: &CgroupTree, listening: &[Listening]) -> Vec<HeldPort> {
    let is_inside = |cgroup| tree.directories.iter().any(|it| Some(it.inode) == cgroup);
    let its = listening.iter().filter(|port| {
        seen.sockets.contains_key(&port.inode) || (port.cgroup.is_some() && is_inside(port.cgroup))
    });
    its.map(|port| HeldPort {
        transport: port.transport.as_str(),
        address: port.address,
        pids: seen.sockets.get(&port.inode).cloned().unwrap_or_default(),
    })
    .collect()
}

/// Containment has none of its own.
fn has_scratch(observed: &Observed) -> bool {
    spec_of(observed).is_some_and(|spec| spec.isolation == Isolation::Full)
}

fn used(space: StatFs) -> Option<u64> {
    let blocks = space.f_blocks.saturating_sub(space.f_bfree);
    Some(blocks * u64::try_from(space.f_bsize).ok()?)
}
