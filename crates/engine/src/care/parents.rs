//! Removes cgroups from the list of parents when no box needs them any more. If tare had moved itself
//! into a cgroup below a parent, that one goes first.
//!
//! A box has its record, which names its parents, before it lists them. So while no record is
//! being made, a parent that no record names and that has no cgroup of a box in it is not in use.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use tare_kernel::cgroup::{self, Cgroup};

use crate::audit::host_objects::boxes_in;
use crate::host::cgroups::CALLER_CGROUP;
use crate::host::layout::StateRoot;
use crate::host::{parents, state_root};
use crate::record::Record;

/// Which parents may be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forget {
    /// Those that do not exist any more.
    Gone,
    /// Also those in which there is no box.
    Unused,
}

/// Removes parents from the list. While another process makes a record, nothing is removed; a later
/// call does it.
pub fn forget_parents(root: &StateRoot, which: Forget) {
    let tag = root.layout.tag();
    let is_over = |parent: &PathBuf| match which {
        Forget::Gone => !parent.exists(),
        Forget::Unused => boxes_in(parent, tag).is_empty(),
    };
    let mut over = parents::listed(&root.layout);
    over.retain(is_over);
    if over.is_empty() {
        return;
    }
    let Ok(Some(boxes)) = state_root::boxes_if_any(root) else {
        return;
    };
    if state_root::pause_creation(boxes.as_fd()) {
        if let Some(used) = recorded(boxes.as_fd()) {
            for parent in over.iter().filter(|it| !used.contains(it)) {
                if remove_caller(parent) {
                    parents::remove(&root.layout, parent).ok();
                }
            }
        }
        state_root::resume_creation(boxes.as_fd());
    }
}

/// Removes the cgroup into which tare had moved itself. Returns whether there is none any more: the
/// kernel does not remove one with processes.
fn remove_caller(parent: &Path) -> bool {
    let caller = parent.join(CALLER_CGROUP);
    let is_populated = || Cgroup::open(&caller).and_then(|it| it.is_populated());
    !is_populated().is_ok_and(|it| it) && cgroup::remove(&caller).is_ok()
}

/// The parents that records name. `None` if a record does not say them.
fn recorded(boxes: std::os::fd::BorrowedFd<'_>) -> Option<Vec<PathBuf>> {
    let mut used = Vec::new();
    for id in state_root::ids(boxes).ok()? {
        if let Some(record) = Record::look(boxes, &id).ok()? {
            used.extend(record.lines.created?.cgroup_roots);
        }
    }
    Some(used)
}
