//! What boxes of this state root have on the host under their own names, record or
//! not. Only reads, and only counts what bears the tag.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use tare_control::KEEPER_NAME;
use tare_kernel::process::Process;
use tare_kernel::procfs::Procfs;

use crate::host::CgroupRoots;
use crate::id::BoxId;
use crate::layout;
use crate::shares::look_at_each;
use crate::tag::{Tag, Tagged};

/// The directories of boxes in every hierarchy, by box.
pub fn cgroups(roots: &CgroupRoots, tag: &Tag) -> BTreeMap<BoxId, Vec<PathBuf>> {
    let mut found: BTreeMap<BoxId, Vec<PathBuf>> = BTreeMap::new();
    for root in roots.all() {
        for id in boxes_in(root, tag) {
            let path = layout::cgroup(root, Tagged { tag, id: &id });
            found.entry(id).or_default().push(path);
        }
    }
    found
}

/// The boxes that have a directory in one hierarchy.
pub fn boxes_in(root: &Path, tag: &Tag) -> Vec<BoxId> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let entries = openat(CWD, root, flags, Mode::empty()).and_then(rustix::fs::Dir::new);
    let entries = entries.into_iter().flatten().filter_map(Result::ok);
    let id = |entry: rustix::fs::DirEntry| layout::box_of(entry.file_name().to_str().ok()?, tag);
    entries.filter_map(id).collect()
}

/// The numbers of all processes; none where they are not shown.
pub fn everyone() -> Vec<i32> {
    let pids = Procfs::open().and_then(|procfs| procfs.pids());
    pids.unwrap_or_default()
}

/// Every one of these processes that is called like a keeper of this state root, with
/// its box.
pub fn claims(pids: &[i32], tag: &Tag) -> Vec<(BoxId, i32)> {
    let Ok(procfs) = Procfs::open() else {
        return Vec::new();
    };
    let claims = look_at_each(pids, |pid| {
        let arguments = procfs.arguments_behind(*pid, KEEPER_NAME)?;
        Some((box_of_keeper(&arguments, tag)?, *pid))
    });
    claims.into_iter().flatten().collect()
}

/// The process of this number, if it is the keeper of the box.
pub fn keeper_with(of: Tagged<'_>, pid: i32) -> Option<Process> {
    let process = Process::open(pid).ok()?;
    is_keeper_of(&process, of).then_some(process)
}

/// The keeper of one box, by its name alone.
pub fn keeper_of(of: Tagged<'_>) -> Option<Process> {
    let claims = claims(&everyone(), of.tag).into_iter();
    let mut its = claims.filter(|(id, _)| id == of.id);
    its.find_map(|(_, pid)| keeper_with(of, pid))
}

/// Last in its arguments are its state root's tag and its box.
fn box_of_keeper(cmdline: &str, tag: &Tag) -> Option<BoxId> {
    let mut words = cmdline.split_terminator('\0');
    if words.next().map(str::as_bytes) != Some(KEEPER_NAME.to_bytes()) {
        return None;
    }
    let id = BoxId::parse(words.next_back()?)?;
    (words.next_back() == Some(tag.as_str())).then_some(id)
}

/// Whether it is what only the keeper of this box is: the first process of a PID
/// namespace, of our own program, under a keeper's name with the box behind it.
/// Anybody may call itself so, but for the program.
fn is_keeper_of(process: &Process, of: Tagged<'_>) -> bool {
    let named = process
        .arguments()
        .is_ok_and(|arguments| is_called(&arguments, of));
    named
        && process.is_first_of_namespace().unwrap_or(false)
        && runs_our_program(process).unwrap_or(false)
}

/// Whether these are the arguments of the keeper of this box.
pub fn is_called(arguments: &[String], of: Tagged<'_>) -> bool {
    let last = [of.tag.as_str(), of.id.as_str()];
    let first = arguments.first().map(String::as_bytes);
    first == Some(KEEPER_NAME.to_bytes()) && arguments.ends_with(&last.map(str::to_owned))
}

/// A keeper is not dumpable, so that without privileges its program is not shown,
/// which is otherwise that of any process of the same user.
fn runs_our_program(process: &Process) -> std::io::Result<bool> {
    let own = fs::metadata("/proc/self/exe")?;
    match fs::metadata(format!("/proc/{}/exe", process.pid())) {
        Ok(its) => Ok((its.dev(), its.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(true),
        Err(error) => Err(error),
    }
}
