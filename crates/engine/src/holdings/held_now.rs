//! What one box holds on the host now, as the kernel shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{StatFs, statfs};
use rustix::io::Errno;
use serde::Serialize;
use tare_kernel::cgroup_tree::CgroupTree;
use tare_kernel::procfs::{NAMESPACE_KINDS, NamespaceKind, ProcessDir};
use tare_kernel::sockets::Listening;

use crate::holdings::census::Processes;
use crate::holdings::cgroup::CgroupReader;
use crate::host::layout::BoxAt;
use crate::record::Record;
use crate::spec::Isolation;

/// What a box holds. `None` means that the kernel does not show it to us.
#[derive(Debug, Default, Serialize)]
pub struct Held {
    pub processes: Vec<HeldProcess>,
    pub threads: u64,
    /// Descriptors of all processes together, by kind.
    pub descriptors: Option<BTreeMap<&'static str, u64>>,
    /// The memory that the kernel counts for the box.
    pub memory_bytes: Option<u64>,
    /// The memory of each of its processes, added up. Shared pages count several times.
    pub resident_bytes: u64,
    pub cgroups: Vec<PathBuf>,
    pub namespaces: Option<Vec<HeldNamespace>>,
    /// Mounts in its mount namespaces.
    pub mounts: Option<u64>,
    /// Mounts on the host itself.
    pub host_mounts: Vec<PathBuf>,
    /// Ports of the host's network on which the box listens.
    pub ports: Vec<HeldPort>,
    /// Used scratch space, as the keeper sees it, or as it was kept.
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
    /// The processes of the box that are in it.
    pub pids: Vec<i32>,
}

#[derive(Debug, Serialize)]
pub struct HeldPort {
    pub transport: &'static str,
    pub address: SocketAddr,
    /// Of the socket.
    pub inode: u64,
    /// The processes of the box that have it open.
    pub pids: Vec<i32>,
}

/// What was seen in the processes of a box.
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

/// Which processes of a box to look at.
#[derive(Debug, Clone, Copy)]
pub struct ChosenProcesses<'a> {
    /// The keeper, if it is alive.
    pub keeper: Option<i32>,
    /// Whether the box has not ended.
    pub is_live: bool,
    /// How many processes are looked at closely.
    pub most: usize,
    /// Whether what each process uses is read: its threads, memory and descriptors.
    pub with_use: bool,
    pub processes: &'a Processes,
}

/// What the box holds on the host now, and how many processes are in it.
pub fn held_now(at: BoxAt<'_>, record: &Record, which: ChosenProcesses<'_>) -> (Held, u64) {
    let ChosenProcesses { keeper, is_live, most, processes, .. } = which;
    let mut held = Held::default();
    let cgroup = CgroupReader::new(at, record);
    let tree = cgroup.tree();
    let mut seen = Seen::default();
    let members = members(keeper, &tree, processes);
    let count = members.len() as u64;
    // The keeper is in the namespaces that the box was made with, so it comes first.
    let others = members.into_iter().filter(|pid| Some(*pid) != keeper);
    for pid in keeper.into_iter().chain(others).take(most) {
        let shown = processes.procfs.as_ref().and_then(|it| it.process(pid).ok());
        if let Some(shown) = shown {
            seen.look(pid, &shown, which, &mut held);
            if keeper == Some(pid) && has_scratch(record) {
                held.scratch_bytes = shown.space_at("work").ok().and_then(used);
            }
        }
    }
    held.processes.sort_by_key(|process| process.pid);
    held.memory_bytes = if is_live { cgroup.memory() } else { None };
    let mounted = mounted_scratch(at, record);
    if keeper.is_none() && has_scratch(record) {
        held.scratch_bytes = mounted.as_ref().and_then(|it| used(statfs(it).ok()?));
    }
    held.cgroups = unified_directories(&cgroup, &tree);
    held.host_mounts = mounted.into_iter().collect();
    held.ports = ports(&seen, &tree, &processes.listening);
    held.take(seen);
    (held, count)
}

/// Where the kept scratch space of a box is mounted on the host. `None` if it is a directory, as
/// without privileges.
fn mounted_scratch(at: BoxAt<'_>, record: &Record) -> Option<PathBuf> {
    if !record.keeps_scratch() {
        return None;
    }
    let path = at.scratch();
    let device = |path: &Path| Some(path.symlink_metadata().ok()?.dev());
    (device(&path)? != device(path.parent()?)?).then_some(path)
}

fn unified_directories(cgroup: &CgroupReader<'_>, tree: &CgroupTree) -> Vec<PathBuf> {
    let unified = cgroup.unified_parent();
    let directories = tree.directories.iter();
    directories.filter_map(|it| Some(unified?.join(&it.path))).collect()
}

/// The processes in the box's cgroup, and the descendants of its keeper.
fn members(keeper: Option<i32>, tree: &CgroupTree, processes: &Processes) -> BTreeSet<i32> {
    let mut members: BTreeSet<i32> = tree.members.iter().copied().collect();
    if let Some(keeper) = keeper {
        // The keeper may be younger than the list of processes.
        members.insert(keeper);
        members.extend(processes.descendants(keeper));
    }
    members
}

impl Seen {
    fn look(
        &mut self,
        pid: i32,
        shown: &ProcessDir<'_>,
        which: ChosenProcesses<'_>,
        held: &mut Held,
    ) {
        let processes = which.processes;
        // The descriptors of a process show its ports.
        if !which.with_use && processes.listening.is_empty() {
            held.processes.push(HeldProcess { pid, threads: 0, descriptors: None });
            return self.look_at_namespaces(pid, shown, processes);
        }
        let stat = processes.stat(pid).or_else(|| shown.stat().ok());
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
        self.look_at_namespaces(pid, shown, processes);
    }

    fn look_at_namespaces(&mut self, pid: i32, shown: &ProcessDir<'_>, processes: &Processes) {
        let inodes = match shown.namespaces(&NAMESPACE_KINDS) {
            Ok(inodes) => inodes,
            Err(error) => {
                // A process that ends is in none.
                self.hides_namespaces |= !is_gone(&error);
                return;
            }
        };
        for (kind, inode) in inodes.into_iter().enumerate() {
            if processes.own_namespaces.get(kind) == Some(&inode) {
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
    pub fn add_cgroups<'a>(&mut self, found: impl Iterator<Item = &'a PathBuf>) {
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

fn is_gone(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::NOENT | Errno::SRCH))
}

/// How many mounts there are in its namespace.
fn mounts_of(shown: &ProcessDir<'_>) -> Option<u64> {
    let counted = shown.mount_namespace().ok().and_then(|it| it.mounts);
    counted.or_else(|| shown.listed_mounts().ok())
}

/// The ports whose socket was made in a cgroup of the box, or is open in one of its processes.
fn ports(seen: &Seen, tree: &CgroupTree, listening: &[Listening]) -> Vec<HeldPort> {
    let is_inside = |cgroup| tree.directories.iter().any(|it| Some(it.inode) == cgroup);
    let its = listening.iter().filter(|port| {
        seen.sockets.contains_key(&port.inode) || (port.cgroup.is_some() && is_inside(port.cgroup))
    });
    its.map(|port| HeldPort {
        transport: port.transport.as_str(),
        address: port.address,
        inode: port.inode,
        pids: seen.sockets.get(&port.inode).cloned().unwrap_or_default(),
    })
    .collect()
}

/// A contained box has no scratch space of its own.
fn has_scratch(record: &Record) -> bool {
    let created = record.lines.created.as_ref();
    created.is_some_and(|created| created.spec.isolation == Isolation::Full)
}

fn used(space: StatFs) -> Option<u64> {
    let blocks = space.f_blocks.saturating_sub(space.f_bfree);
    Some(blocks * u64::try_from(space.f_bsize).ok()?)
}
