//! A box's name: a symbolic link to its id, so that taking a name and saying
//! whose it is are one step.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Dir, readlinkat, symlinkat, unlinkat};
use rustix::io::Errno;
use tare_kernel::fds::open_directory;
use tare_kernel::locks::{LOCK_WITHIN, Lock, lock_within};
use tare_kernel::step::step;

use crate::error::{Context, Error};
use crate::host::layout::{BoxAt, Layout};
use crate::host::state_root::make_private;
use crate::record::lines::Account;
use crate::spec::{BoxId, Name};

/// Takes a name for a box. Fails while another box has it.
pub fn acquire(layout: &Layout, name: &Name, id: &BoxId) -> Result<(), Error> {
    let doing = || format!("cannot take the name {}", name.as_str());
    let names = open_or_make(layout).context(doing)?;
    let take = || symlinkat(id.as_str(), &names, name.as_str());
    match step("name taken", take) {
        Err(Errno::EXIST) if holder(layout, name).as_ref() == Some(id) => Ok(()),
        Err(Errno::EXIST) => Err(is_taken(name)),
        other => other.context(doing),
    }
}

/// Fails if the name is taken. Another box may still take it afterwards.
pub fn check_free(layout: &Layout, name: &Name) -> Result<(), Error> {
    if holder(layout, name).is_some() { Err(is_taken(name)) } else { Ok(()) }
}

/// The error for a name that another box has.
pub fn is_taken(name: &Name) -> Error {
    Error::conflict(format!("the name {} is taken by another box", name.as_str()))
        .with_hint("choose another, or 'tare rm -f' removes that box")
}

/// The name of a box. After a rename it is the last of the recorded names whose link leads to the
/// box: a rename records the new name before it takes it.
pub fn current<'a>(at: BoxAt<'_>, account: &'a Account) -> Option<&'a Name> {
    if !account.is_renamed {
        return account.names.last();
    }
    let leads_here = |name: &&Name| holder(&at.root.layout, name).as_ref() == Some(at.id);
    account.names.iter().rev().find(leads_here)
}

/// The names that a box still has although it was renamed.
pub fn superseded(at: BoxAt<'_>, account: &Account) -> Vec<Name> {
    if !account.is_renamed {
        return Vec::new();
    }
    let own = current(at, account);
    let is_old =
        |name: &&Name| Some(*name) != own && holder(&at.root.layout, name).as_ref() == Some(at.id);
    account.names.iter().filter(is_old).cloned().collect()
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
    let Ok(names) = open(layout) else {
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

/// Entries of `names/` that tare did not make: everything but links to the id of a box.
pub fn foreign(layout: &Layout) -> Vec<PathBuf> {
    let names = layout.names();
    let entries = std::fs::read_dir(&names).into_iter().flatten().filter_map(Result::ok);
    let is_name = |path: &PathBuf| {
        let target = std::fs::read_link(path).ok();
        target.is_some_and(|target| target.to_str().and_then(BoxId::parse).is_some())
    };
    entries.map(|entry| entry.path()).filter(|path| !is_name(path)).collect()
}

/// Lets go of the name if it is this box's. Absent is as wanted.
pub fn release(layout: &Layout, name: &Name, id: &BoxId) -> Result<(), Error> {
    let doing = || format!("cannot release the name {}", name.as_str());
    match Names::lock(layout, LOCK_WITHIN).context(doing)? {
        Some(names) => names.release(name.as_str(), id).context(doing).map(drop),
        None => Ok(()),
    }
}

/// All names, locked. Without the lock, two processes could see the same link, and the second
/// could remove it after another box took the name. Taking a name needs no lock: it fails
/// while the link exists.
#[derive(Debug)]
pub struct Names(OwnedFd);

impl Names {
    /// Locks the names, and waits so long at most. `None` where there are no names.
    pub fn lock(layout: &Layout, within: Duration) -> io::Result<Option<Self>> {
        let names = match step("open names", || open(layout)) {
            Err(Errno::NOENT) => return Ok(None),
            names => names?,
        };
        lock_within("names locked", &names, Lock::Exclusive, within)?;
        Ok(Some(Self(names)))
    }

    /// Lets go of the name if it is this box's; whether it was.
    pub fn release(&self, name: &str, id: &BoxId) -> io::Result<bool> {
        match readlinkat(&self.0, name, Vec::new()) {
            Ok(holder) if holder.to_bytes() == id.as_str().as_bytes() => {}
            Ok(_) | Err(Errno::NOENT | Errno::INVAL) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
        let release = || unlinkat(&self.0, name, AtFlags::empty());
        match step("name released", release) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Lets go of every name that is this box's: of one whose record does not say which.
    pub fn release_all(&self, id: &BoxId) -> io::Result<()> {
        for entry in Dir::read_from(&self.0)? {
            if let Ok(name) = entry?.file_name().to_str() {
                self.release(name, id)?;
            }
        }
        Ok(())
    }
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
    open_directory(CWD, layout.names())
}
