//! What boxes of this state root have on the host under their own names, record or
//! not. Only reads, and only counts what bears the tag.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat};
use tare_control::KEEPER_NAME;
use tare_kernel::process::Process;
use tare_kernel::procfs::Procfs;
use tare_kernel::program;

use crate::host::CgroupRoots;
use crate::host::layout;
use crate::host::parallel::look_at_each;
use crate::host::tag::{Tag, Tagged};
use crate::spec::BoxId;

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
/// namespace, of tare's program in whatever version, under a keeper's name with the box
/// behind it. Any process can choose such arguments, but not tare's program.
pub fn is_keeper_of(process: &Process, of: Tagged<'_>) -> bool {
    let named = process.arguments().is_ok_and(|arguments| is_called(&arguments, of));
    named && process.is_first_of_namespace().unwrap_or(false) && may_be_tare(process)
}

/// Whether these are the arguments of the keeper of this box.
fn is_called(arguments: &[String], of: Tagged<'_>) -> bool {
    let last = [of.tag.as_str(), of.id.as_str()];
    let first = arguments.first().map(String::as_bytes);
    first == Some(KEEPER_NAME.to_bytes()) && arguments.ends_with(&last.map(str::to_owned))
}

/// A keeper is not dumpable, so that without privileges its program is not shown,
/// which is otherwise that of any process of the same user.
fn may_be_tare(process: &Process) -> bool {
    match program::is_tare(process) {
        Ok(is_tare) => is_tare,
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

/// How long a keeper may take to end after its creator was killed.
const STRAY_AFTER: Duration = Duration::from_millis(200);

/// Keepers that were never started, whose creator is dead. Such a process ends by itself,
/// unless something holds it: it was stopped, or it is of an older tare, in which two of
/// them could wait for each other.
pub fn strays(pids: &[i32]) -> Vec<Process> {
    let Ok(procfs) = Procfs::open() else {
        return Vec::new();
    };
    let strays = look_at_each(pids, |pid| stray(&procfs, *pid));
    let until = Instant::now() + STRAY_AFTER;
    let stays = |process: &Process| {
        let left = until.saturating_duration_since(Instant::now());
        matches!(process.wait_dead(left), Ok(false))
    };
    strays.into_iter().flatten().filter(stays).collect()
}

/// The process of this number, if it is a stray. Only a keeper before its start is the
/// first of a PID namespace, runs tare's program and has not executed it itself. It has
/// the arguments of its creator, in whose memory it runs. Without its creator it is the
/// child of a process that has others.
fn stray(procfs: &Procfs, pid: i32) -> Option<Process> {
    if procfs.stat(pid).ok()?.has_executed {
        return None;
    }
    let process = Process::open(pid).ok()?;
    let is_unborn = process.is_first_of_namespace().ok()? && program::is_tare(&process).ok()?;
    // Not of a parent in a PID namespace above ours, which has no number here.
    let parent = Process::open(procfs.stat(pid).ok()?.parent).ok()?;
    let is_left = parent.arguments().ok()? != process.arguments().ok()?;
    (is_unborn && is_left).then_some(process)
}
