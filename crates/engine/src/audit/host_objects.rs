//! Objects on the host whose names belong to boxes of one state root, with or without a record. Only
//! reads, and counts only objects with the tag of the state root.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tare_kernel::cgroup::Cgroup;

use crate::host::cgroups::CALLER_CGROUP;
use crate::host::layout::{self, BoxAt, StateRoot};
use crate::host::parents;
use crate::host::processes::{all_pids, keeper_candidates};
use crate::host::tag::{Tag, TaggedId};
use crate::observe::identity;
use crate::spec::BoxId;

/// The host as it was before the records were read.
#[derive(Debug)]
pub struct HostObjects {
    pub cgroups: BTreeMap<BoxId, Vec<PathBuf>>,
    /// Cgroups into which tare moved itself, and in which there is no process.
    pub empty_callers: Vec<PathBuf>,
    /// All processes of the host.
    pub pids: Vec<i32>,
    /// Processes with the arguments of a keeper, read when they are needed.
    candidates: OnceLock<Candidates>,
}

type Candidates = BTreeMap<BoxId, Vec<i32>>;

impl HostObjects {
    pub fn read(root: &StateRoot) -> Self {
        Self {
            cgroups: cgroups(root),
            empty_callers: empty_callers(root),
            pids: all_pids(),
            candidates: OnceLock::new(),
        }
    }

    /// Returns whether a process lives in a box, whatever its record says. A cgroup that cannot be
    /// read counts as alive.
    pub fn has_life(&self, at: BoxAt<'_>) -> bool {
        let tag = at.root.layout.tag();
        let candidates = || by_box(keeper_candidates(&self.pids, tag));
        let its = self.candidates.get_or_init(candidates).get(at.id);
        its.is_some_and(|its| identity::find_unrecorded(at, its.iter().copied()).is_some())
            || self.cgroups.get(at.id).into_iter().flatten().any(|it| may_be_populated(it))
    }

    /// Processes with the arguments of a keeper that are not among these keepers, by box. It does
    /// not matter that this is read after the records: a box has its record before it has a
    /// keeper, and keeps it for as long as the keeper lives.
    pub fn candidates_beside(&self, keepers: &HashSet<i32>, tag: &Tag) -> Candidates {
        let pids = self.pids.iter().copied();
        let others: Vec<i32> = pids.filter(|pid| !keepers.contains(pid)).collect();
        by_box(keeper_candidates(&others, tag))
    }
}

fn by_box(candidates: Vec<(BoxId, i32)>) -> Candidates {
    let mut found = Candidates::new();
    for (id, pid) in candidates {
        found.entry(id).or_default().push(pid);
    }
    found
}

/// Returns whether a process may be in the cgroup. A v1 directory counts as empty: its processes are
/// in the v2 directory of the box too.
fn may_be_populated(cgroup: &Path) -> bool {
    let is_populated = Cgroup::open(cgroup).and_then(|cgroup| cgroup.is_populated());
    is_populated.unwrap_or_else(|error| error.kind() != io::ErrorKind::NotFound)
}

/// The directories of boxes in every cgroup in which there may be some, by box.
fn cgroups(root: &StateRoot) -> BTreeMap<BoxId, Vec<PathBuf>> {
    let tag = root.layout.tag();
    let mut found: BTreeMap<BoxId, Vec<PathBuf>> = BTreeMap::new();
    for parent in parents::all(root) {
        for id in boxes_in(&parent, tag) {
            let path = layout::cgroup(&parent, TaggedId { tag, id: &id });
            found.entry(id).or_default().push(path);
        }
    }
    found
}

/// tare moves itself after it has made the first box in the same parent. So next to a box, an empty
/// cgroup may be a new one.
fn empty_callers(root: &StateRoot) -> Vec<PathBuf> {
    let mut parents = parents::listed(&root.layout);
    parents.retain(|parent| boxes_in(parent, root.layout.tag()).is_empty());
    let callers = parents.into_iter().map(|parent| parent.join(CALLER_CGROUP));
    callers.filter(|it| it.is_dir() && !may_be_populated(it)).collect()
}

/// Returns the boxes that have a directory in this cgroup.
pub fn boxes_in(parent: &Path, tag: &Tag) -> Vec<BoxId> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| layout::box_of(entry.file_name().to_str()?, tag)).collect()
}
