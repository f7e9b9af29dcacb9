//! A box's name: a symbolic link to its id, so that taking a name and saying
//! whose it is are one step.

use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, flock, openat, readlinkat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use tare_kernel::step::step;

use crate::error::{Doing, Error, ErrorKind};
use crate::id::BoxId;
use crate::layout::Layout;
use crate::record::make_private;
use crate::spec::Name;

pub fn acquire(layout: &Layout, name: &Name, id: &BoxId) -> Result<(), Error> {
    let doing = || format!("cannot take the name {}", name.as_str());
    let names = open_or_make(layout).doing(doing)?;
    let take = || symlinkat(id.as_str(), &names, name.as_str());
    match step("name taken", take) {
        Err(Errno::EXIST) => Err(Error::new(
            ErrorKind::Conflict,
            format!("the name {} is taken by another box", name.as_str()),
        )
        .with_hint("choose another, or 'tare rm' that box first")),
        other => other.doing(doing),
    }
}

/// Whose it is; `None` when it is free, or held by what is no box.
pub fn holder(layout: &Layout, name: &Name) -> Option<BoxId> {
    holder_of(layout, name.as_str())
}

/// The same of what may be no name that anybody would be given.
pub fn holder_of(layout: &Layout, name: &str) -> Option<BoxId> {
    let names = open(layout).ok()?;
    let holder = readlinkat(&names, name, Vec::new()).ok()?;
    BoxId::parse(holder.to_str().ok()?)
}

/// Every name that leads to the id of a box, whether or not there is one.
pub fn all(layout: &Layout) -> Vec<(String, BoxId)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(names) = openat(CWD, layout.names(), flags, Mode::empty()) else {
        return Vec::new();
    };
    let entries = Dir::read_from(&names).into_iter().flatten();
    let named = |entry: rustix::fs::DirEntry| {
        let holder = readlinkat(&names, entry.file_name(), Vec::new()).ok()?;
        let id = BoxId::parse(holder.to_str().ok()?)?;
        Some((entry.file_name().to_str().ok()?.to_owned(), id))
    };
    entries.filter_map(Result::ok).filter_map(named).collect()
}

/// Lets go of the name if it is this box's; whether it was. Absent is as wanted.
pub fn release(layout: &Layout, name: &Name, id: &BoxId) -> Result<bool, Error> {
    let doing = || format!("cannot release the name {}", name.as_str());
    let names = match open_to_release(layout) {
        Err(Errno::NOENT) => return Ok(false),
        other => other.doing(doing)?,
    };
    match readlinkat(&names, name.as_str(), Vec::new()) {
        Ok(holder) if holder.to_bytes() == id.as_str().as_bytes() => {
            let release = || unlinkat(&names, name.as_str(), AtFlags::empty());
            match step("name released", release) {
                Ok(()) | Err(Errno::NOENT) => Ok(true),
                Err(errno) => Err(errno).doing(doing),
            }
        }
        Ok(_) | Err(Errno::NOENT | Errno::INVAL) => Ok(false),
        Err(errno) => Err(errno).doing(doing),
    }
}

/// Lets go of every name that is this box's: of one whose record does not say
/// which.
pub fn release_all(layout: &Layout, id: &BoxId) -> Result<(), Error> {
    let doing = || format!("cannot release the names of box {id}");
    let names = match open_to_release(layout) {
        Err(Errno::NOENT) => return Ok(()),
        other => other.doing(doing)?,
    };
    for entry in Dir::read_from(&names).doing(doing)? {
        let entry = entry.doing(doing)?;
        let holder = readlinkat(&names, entry.file_name(), Vec::new());
        if holder.is_ok_and(|holder| holder.to_bytes() == id.as_str().as_bytes()) {
            let release = || unlinkat(&names, entry.file_name(), AtFlags::empty());
            match step("name found and released", release) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno).doing(doing),
            }
        }
    }
    Ok(())
}

/// Locked: a link that was seen to be a box's must not become another's before
/// it is removed, by somebody who has seen the same. Taking a name needs no lock:
/// it fails as long as the link is there.
fn open_to_release(layout: &Layout) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || openat(CWD, layout.names(), flags, Mode::empty());
    let names = step("names opened", open)?;
    step("names locked", || {
        flock(&names, FlockOperation::LockExclusive)
    })?;
    Ok(names)
}

fn open_or_make(layout: &Layout) -> rustix::io::Result<OwnedFd> {
    match open(layout) {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    make_private(&layout.names())?;
    open(layout)
}

/// Never through a link: names are made and removed in the state root alone.
fn open(layout: &Layout) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, layout.names(), flags, Mode::empty())
}
