//! The directory that all state is in: the caller's alone, made if it is missing.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use tare_kernel::step::step;

use crate::error::{Context, Error};
use crate::host::layout::Layout;
use crate::host::obstacle::{Step, explained};
use crate::record::make_private;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

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
        None => explained(failed.caused_by(error).with_hint(hint), Step::StateRoot),
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
    match openat(CWD, layout.root(), DIRECTORY, Mode::empty()) {
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
    let open = || openat(CWD, layout.root(), DIRECTORY, Mode::empty());
    match step("state root opened", open) {
        Ok(root) => return Ok(root),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    for directory in [layout.root().to_owned(), layout.boxes(), layout.names()] {
        make_private(&directory)?;
    }
    Ok(step("state root opened", open)?)
}
