//! The list of cgroups below which boxes are made: `STATE/parents`, one link for each directory.
//!
//! A box may be made below any cgroup, and its record says where. For leftovers without a record,
//! audit and sweep look in every listed directory. tare lists a directory before it makes the first
//! box in it. The directories of [`CgroupRoots`] that every tare finds by itself are listed only if
//! tare moves itself into a cgroup below. tare never makes a parent, and never removes one.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, readlinkat, symlinkat, unlinkat};
use rustix::io::Errno;
use tare_kernel::fds::open_directory;
use tare_kernel::step::step;
use tare_kernel::tree;

use crate::error::{Context, Error};
use crate::host::cgroups::CgroupRoots;
use crate::host::layout::{Layout, StateRoot};
use crate::host::state_root::make_private;
use crate::host::tag::name_of;

/// Lists the parents of a box. Returns whether one of them is new to the list.
pub fn list(root: &StateRoot, parents: &CgroupRoots) -> Result<bool, Error> {
    let known = root.host.cgroups.all();
    let mut is_new = false;
    for parent in parents.all() {
        if !known.contains(&parent) {
            is_new |= add(&root.layout, parent)?;
        }
    }
    Ok(is_new)
}

/// Lists one parent. Returns whether it is new to the list.
pub fn add(layout: &Layout, parent: &Path) -> Result<bool, Error> {
    let link = layout.parents().join(name_of(parent));
    let add = || step("list parent", || symlinkat(parent, CWD, &link));
    let added = add().or_else(|errno| match errno {
        Errno::NOENT => {
            make_private(&layout.parents())?;
            add()
        }
        other => Err(other),
    });
    match added {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(errno) => Err(errno)
            .context(|| format!("cannot list the cgroup {} in the state root", parent.display())),
    }
}

/// Returns every directory in which this state root may have boxes, each once.
pub fn all(root: &StateRoot) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = root.host.cgroups.all().into_iter().map(Path::to_owned).collect();
    for parent in listed(&root.layout) {
        if !all.contains(&parent) {
            all.push(parent);
        }
    }
    all
}

/// Returns the directories on the list. A list that cannot be read is empty.
pub fn listed(layout: &Layout) -> Vec<PathBuf> {
    let Ok(directory) = open_directory(CWD, layout.parents()) else {
        return Vec::new();
    };
    let target = |name: &CString| {
        let target = readlinkat(&directory, name, Vec::new()).ok()?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        target.is_absolute().then_some(target)
    };
    let names = tree::names(directory.as_fd()).unwrap_or_default();
    names.iter().filter_map(target).collect()
}

/// Takes a directory off the list.
pub fn remove(layout: &Layout, parent: &Path) -> io::Result<()> {
    let link = layout.parents().join(name_of(parent));
    match step("unlist parent", || unlinkat(CWD, &link, AtFlags::empty())) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
