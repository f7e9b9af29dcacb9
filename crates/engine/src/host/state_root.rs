//! The directory that contains all state, and the list of boxes in it. It belongs to the caller
//! alone, and tare makes it if it is missing.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, RawDir, flock, fstat, mkdirat, statat};
use rustix::io::Errno;
use tare_kernel::fds::open_directory;
use tare_kernel::step::step;

use crate::error::{Context, Error};
use crate::host::layout::{Layout, RootAccess, StateRoot};
use crate::host::obstacle::{FailedStep, explained};
use crate::spec::BoxId;

/// Creates the state root if it is missing, and checks that it belongs to the caller and
/// that no other user can write to it.
pub fn prepare(layout: &Layout) -> Result<(), Error> {
    let root = open_or_make(layout).map_err(|error| cannot_use(layout, error))?;
    check(layout, &root)
}

fn cannot_use(layout: &Layout, error: io::Error) -> Error {
    let message = format!("cannot use {} as a state root", layout.root().display());
    let failed = Error::failed(message);
    let hint = "choose another with --state-root or TARE_STATE_ROOT";
    match missing_parent(layout, &error) {
        Some(parent) => failed
            .caused_by(format!("there is no directory {}", parent.display()))
            .with_hint(format!("make that first, or {hint}")),
        None => explained(failed.caused_by(error).with_hint(hint), FailedStep::StateRoot),
    }
}

/// The parent of the state root, if it is missing. tare does not create it: its owner and
/// mode are the user's choice.
fn missing_parent<'a>(layout: &'a Layout, error: &io::Error) -> Option<&'a Path> {
    let parent = layout.root().parent()?;
    let is_missing = error.kind() == io::ErrorKind::NotFound && !parent.exists();
    is_missing.then_some(parent)
}

/// Checks a state root without changing it. One that is missing is accepted.
pub fn inspect(layout: &Layout) -> Result<(), Error> {
    match open_directory(CWD, layout.root()) {
        Ok(root) => check(layout, &root),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno).context(|| format!("cannot look at {}", layout.root().display())),
    }
}

fn check(layout: &Layout, root: &OwnedFd) -> Result<(), Error> {
    let doing = || format!("cannot use {} as a state root", layout.root().display());
    let stat = fstat(root).context(doing)?;
    let ours = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o022 == 0;
    if ours {
        return Ok(());
    }
    Err(Error::bad_request(doing())
        .caused_by("it is owned by another user or writable by others")
        .with_hint("it must belong to you, and only you may have the right to write"))
}

fn open_or_make(layout: &Layout) -> io::Result<OwnedFd> {
    let open = || open_directory(CWD, layout.root());
    match step("open state root", open) {
        Ok(root) => return Ok(root),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    for directory in [layout.root().to_owned(), layout.boxes(), layout.names()] {
        make_private(&directory)?;
    }
    Ok(step("open state root", open)?)
}

/// The directory of all records; `None` where there has never been a box.
pub fn boxes_if_any(root: &StateRoot) -> Result<Option<OwnedFd>, Error> {
    match open_directory(CWD, root.layout.boxes()) {
        Err(Errno::NOENT) => Ok(None),
        opened => opened.map(Some).context(|| cannot_open(root)),
    }
}

/// The directory of all records. Opening it to change boxes makes it.
pub fn boxes(root: &StateRoot) -> Result<OwnedFd, Error> {
    match root.access {
        RootAccess::ReadWrite => open_boxes(&root.layout).context(|| cannot_open(root)),
        RootAccess::ReadOnly => {
            boxes_if_any(root)?.ok_or(Errno::NOENT).context(|| cannot_open(root))
        }
    }
}

fn cannot_open(root: &StateRoot) -> String {
    format!("cannot open {}", root.layout.boxes().display())
}

/// Opens the directory of records, and makes it if it is missing.
pub fn open_boxes(layout: &Layout) -> rustix::io::Result<OwnedFd> {
    let open = || open_directory(CWD, layout.boxes());
    match step("open records", open) {
        Err(Errno::NOENT) => {
            make_private(&layout.boxes())?;
            open()
        }
        other => other,
    }
}

/// Makes a directory that only its owner can use. Another process may make it at the same time.
pub fn make_private(directory: &Path) -> rustix::io::Result<()> {
    let make = || mkdirat(CWD, directory, Mode::from_raw_mode(0o700));
    match step("make part of state root", make) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// The ids of all boxes on record. Every command reads this list, and it may be long, so it copies
/// only the ids.
pub fn ids(boxes: BorrowedFd<'_>) -> io::Result<Vec<BoxId>> {
    let directory = open_directory(boxes, c".")?;
    let mut buffer = Vec::with_capacity(LIST_BYTES);
    let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
    let mut ids = Vec::new();
    while let Some(entry) = entries.next() {
        ids.extend(entry?.file_name().to_str().ok().and_then(BoxId::parse));
    }
    Ok(ids)
}

/// Lists the boxes like [`ids`], with an error that names the state root.
pub fn list(root: &StateRoot, boxes: BorrowedFd<'_>) -> Result<Vec<BoxId>, Error> {
    ids(boxes).context(|| format!("cannot list the boxes in {}", root.layout.boxes().display()))
}

/// How much the kernel returns at a time: about a thousand names.
const LIST_BYTES: usize = 32 << 10;

/// Returns whether there is anything in the place of the box's record.
pub fn is_there(boxes: BorrowedFd<'_>, id: &BoxId) -> bool {
    !matches!(statat(boxes, id.as_str(), AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT))
}

/// Returns about how many boxes there are, without reading their names: a directory has a link from
/// each directory in it. 0 on a file system that does not count links.
pub fn count(boxes: BorrowedFd<'_>) -> usize {
    /// The name of the directory, and `.` in it.
    const OWN_LINKS: u64 = 2;
    let links = fstat(boxes).map_or(0, |found| found.st_nlink);
    usize::try_from(links.saturating_sub(OWN_LINKS)).unwrap_or(usize::MAX)
}

/// Tries to pause the creation of records: while this is held, no process is between making a
/// record and locking it. Does not wait.
pub fn pause_creation(boxes: BorrowedFd<'_>) -> bool {
    let hold = || flock(boxes, FlockOperation::NonBlockingLockExclusive);
    step("pause creation of records", hold).is_ok()
}

/// Lets records be created again, after [`pause_creation`].
pub fn resume_creation(boxes: BorrowedFd<'_>) {
    // It cannot fail for an open descriptor.
    flock(boxes, FlockOperation::Unlock).ok();
}
