//! A box's name: the link `names/<tenant>/<name>` to its id. One system call takes the name and
//! records its owner.
//!
//! The directory of a tenant is made for its first name and removed after its last one. No lock is
//! needed for that: rmdir(2) fails while a name is in the directory, and symlink(2) fails with
//! ENOENT in a directory that is removed. A process that is killed in between leaves an empty
//! directory, which the next command removes ([`remove_empty`]).

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, mkdirat, readlinkat, symlinkat, unlinkat};
use rustix::io::Errno;
use tare_kernel::fds::open_directory;
use tare_kernel::locks::{Lock, lock_within};
use tare_kernel::step::step;
use tare_kernel::tree;

use crate::error::{Context, Error, Hint};
use crate::holdings::{Ends, Found, Holding, Sight};
use crate::host::layout::{BoxAt, Layout};
use crate::host::state_root::{self, make_private};
use crate::record::lines::RecordLines;
use crate::spec::{BoxId, Name, Tenant};

/// The name of a box. Teardown releases it with the record.
pub const HOLDING: Holding = Holding {
    kind: "name",
    ends: Ends::WithRecord,
    probe: |look| {
        let name = current(look.at, &look.record.lines);
        Found::these(name.map(ToString::to_string).into_iter().collect())
    },
    sight: Sight::Check {
        word: "name_link",
        is_gone: |at, record, _| {
            !record.lines.names.iter().any(|name| leads_to(at, &record.lines, name))
        },
    },
};

/// How often a name is tried whose directory another process has just removed. Each attempt fails
/// only if that process released the last name, or found the directory empty, at the same moment.
const ATTEMPTS: usize = 100;

/// Takes a name for a box. Fails while another box of the tenant has it.
pub fn acquire(layout: &Layout, tenant: &Tenant, name: &Name, id: &BoxId) -> Result<(), Error> {
    let doing = || format!("cannot take the name {}", name.as_str());
    let names = open_or_make(layout).context(doing)?;
    let take = || {
        let directory = make_tenant(&names, tenant)?;
        step("take name", || symlinkat(id.as_str(), &directory, name.as_str()))
    };
    let is_settled = |taken: &rustix::io::Result<()>| *taken != Err(Errno::NOENT);
    let taken = (0..ATTEMPTS).map(|_| take()).find(is_settled).unwrap_or(Err(Errno::NOENT));
    match taken {
        Err(Errno::EXIST) if holder(layout, tenant, name).as_ref() == Some(id) => Ok(()),
        Err(Errno::EXIST) => Err(is_taken(name)),
        other => other.context(doing),
    }
}

/// Opens the directory of a tenant, and makes it if it is missing.
fn make_tenant(names: &OwnedFd, tenant: &Tenant) -> rustix::io::Result<OwnedFd> {
    match open_directory(names, tenant.as_str()) {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    let make = || mkdirat(names, tenant.as_str(), Mode::RWXU);
    match step("make tenant directory", make) {
        Ok(()) | Err(Errno::EXIST) => open_directory(names, tenant.as_str()),
        Err(errno) => Err(errno),
    }
}

/// Fails if the name is taken. Another box may still take it afterwards.
pub fn check_free(layout: &Layout, tenant: &Tenant, name: &Name) -> Result<(), Error> {
    if holder(layout, tenant, name).is_some() { Err(is_taken(name)) } else { Ok(()) }
}

/// The error for a name that another box has.
pub fn is_taken(name: &Name) -> Error {
    Error::conflict(format!("the name {} is taken by another box", name.as_str()))
        .with_hint(Hint::ChooseAnotherName)
}

/// The name of a box. After a rename it is the last of the recorded names whose link leads to the
/// box: a rename records the new name before it takes it.
pub fn current<'a>(at: BoxAt<'_>, lines: &'a RecordLines) -> Option<&'a Name> {
    if !lines.is_renamed {
        return lines.names.last();
    }
    lines.names.iter().rev().find(|name| leads_to(at, lines, name))
}

/// Whether a name of the box's tenant leads to the box.
pub fn leads_to(at: BoxAt<'_>, lines: &RecordLines, name: &Name) -> bool {
    let holder = lines.tenant().and_then(|tenant| holder(&at.root.layout, tenant, name));
    holder.as_ref() == Some(at.id)
}

/// The names that a box still has although it was renamed.
pub fn superseded(at: BoxAt<'_>, lines: &RecordLines) -> Vec<Name> {
    if !lines.is_renamed {
        return Vec::new();
    }
    let own = current(at, lines);
    let is_old = |name: &&Name| Some(*name) != own && leads_to(at, lines, name);
    lines.names.iter().filter(is_old).cloned().collect()
}

/// Releases the old names of a renamed box. The caller has locked the record, which keeps other
/// renames away. If the names are in use for longer than this, a later command does it.
pub fn release_superseded(
    at: BoxAt<'_>,
    lines: &RecordLines,
    within: Duration,
) -> Result<(), Error> {
    let (old, Some(tenant)) = (superseded(at, lines), lines.tenant()) else {
        return Ok(());
    };
    if old.is_empty() {
        return Ok(());
    }
    let doing = || format!("cannot release the old name of box {}", at.id);
    if let Some(names) = Names::lock(&at.root.layout, within).context(doing)? {
        for name in old {
            names.release(tenant, name.as_str(), at.id).context(doing)?;
        }
    }
    Ok(())
}

/// Releases the names that lead to a box without a record. A removal deletes the record first, and
/// may have been killed before it released them.
pub fn release_dangling(
    at: BoxAt<'_>,
    boxes: BorrowedFd<'_>,
    within: Duration,
) -> Result<(), Error> {
    let doing = || format!("cannot release the names of box {}", at.id);
    match Names::lock(&at.root.layout, within).context(doing)? {
        // A record is made before its name is taken, so no box has these names.
        Some(names) if !state_root::is_there(boxes, at.id) => {
            names.release_all(at.id).context(doing)
        }
        Some(_) | None => Ok(()),
    }
}

/// Removes directories of tenants without a name, unless the names are in use now.
pub fn remove_empty(layout: &Layout, tenants: &[Tenant]) {
    if tenants.is_empty() {
        return;
    }
    if let Ok(Some(names)) = Names::lock(layout, Duration::ZERO) {
        for tenant in tenants {
            names.remove_empty(tenant).ok();
        }
    }
}

/// The box that has a name; `None` if the name is free, or is not a link to the id of a box.
pub fn holder(layout: &Layout, tenant: &Tenant, name: &Name) -> Option<BoxId> {
    linked(&open_directory(open(layout).ok()?, tenant.as_str()).ok()?, name.as_str())
}

/// The boxes of all tenants that have a name.
pub fn holders(layout: &Layout, name: &Name) -> Vec<(Tenant, BoxId)> {
    let Ok(names) = open(layout) else {
        return Vec::new();
    };
    let found = tenants(&names).into_iter().filter_map(|tenant| {
        let directory = open_directory(&names, tenant.as_str()).ok()?;
        Some((tenant, linked(&directory, name.as_str())?))
    });
    found.collect()
}

fn linked<P: rustix::path::Arg>(directory: impl AsFd, name: P) -> Option<BoxId> {
    let target = readlinkat(directory, name, Vec::new()).ok()?;
    BoxId::parse(target.to_str().ok()?)
}

/// Every entry of `names/`.
#[derive(Debug, Default)]
pub struct Listing {
    /// Links to the id of a box, whether or not there is one.
    pub links: Vec<NameLink>,
    /// Directories without a name.
    pub empty: Vec<Tenant>,
    /// Everything else, which tare did not make.
    pub foreign: Vec<PathBuf>,
}

#[derive(Debug)]
pub struct NameLink {
    pub tenant: Tenant,
    /// It may not be a valid name of a box.
    pub name: String,
    pub id: BoxId,
}

impl NameLink {
    /// Whether the name leads to the same box now.
    pub fn is_there(&self, layout: &Layout) -> bool {
        let names = open(layout).and_then(|names| open_directory(names, self.tenant.as_str()));
        names.is_ok_and(|names| linked(names, &*self.name).as_ref() == Some(&self.id))
    }
}

/// Reads `names/`.
pub fn list(layout: &Layout) -> Listing {
    let mut listing = Listing::default();
    let Ok(names) = open(layout) else {
        return listing;
    };
    for entry in entries(&names) {
        let path = layout.names().join(entry_path(&entry));
        let tenant = entry.to_str().ok().and_then(Tenant::parse);
        let Some((tenant, directory)) = tenant
            .and_then(|it| open_directory(&names, it.as_str()).ok().map(|opened| (it, opened)))
        else {
            // A tenant may just have released its last name.
            listing.foreign.extend(path.symlink_metadata().is_ok().then_some(path));
            continue;
        };
        let inside = entries(&directory);
        if inside.is_empty() {
            listing.empty.push(tenant.clone());
        }
        for entry in inside {
            match (linked(&directory, &*entry), entry.to_str()) {
                (Some(id), Ok(name)) => listing.links.push(NameLink {
                    tenant: tenant.clone(),
                    name: name.to_owned(),
                    id,
                }),
                (_, _) => {
                    let path = path.join(entry_path(&entry));
                    listing.foreign.extend(path.symlink_metadata().is_ok().then_some(path));
                }
            }
        }
    }
    listing
}

fn entry_path(entry: &CStr) -> &OsStr {
    OsStr::from_bytes(entry.to_bytes())
}

/// The names in a directory. One that cannot be read has none.
fn entries(directory: &OwnedFd) -> Vec<CString> {
    tree::names(directory.as_fd()).unwrap_or_default()
}

fn tenants(names: &OwnedFd) -> Vec<Tenant> {
    entries(names).iter().filter_map(|entry| Tenant::parse(entry.to_str().ok()?)).collect()
}

/// All names, locked. Without the lock, two processes could see the same link, and the second
/// could remove it after another box took the name. Taking a name needs no lock: it fails
/// while the link exists.
#[derive(Debug)]
pub struct Names(OwnedFd);

impl Names {
    /// Locks the names, and waits for `within` at most. Returns `None` if there is no name.
    pub fn lock(layout: &Layout, within: Duration) -> io::Result<Option<Self>> {
        let names = match step("open names", || open(layout)) {
            Err(Errno::NOENT) => return Ok(None),
            names => names?,
        };
        lock_within("lock names", &names, Lock::Exclusive, within)?;
        Ok(Some(Self(names)))
    }

    /// Releases the name if it leads to this box, and returns whether it did. Removes the directory
    /// of the tenant after its last name.
    pub fn release(&self, tenant: &Tenant, name: &str, id: &BoxId) -> io::Result<bool> {
        let directory = match open_directory(&self.0, tenant.as_str()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
            directory => directory?,
        };
        let was_held = unlink(&directory, name, id)?;
        self.remove_empty(tenant)?;
        Ok(was_held)
    }

    /// Releases every name that leads to this box, for a record that does not say the names.
    pub fn release_all(&self, id: &BoxId) -> io::Result<()> {
        for tenant in tenants(&self.0) {
            let Ok(directory) = open_directory(&self.0, tenant.as_str()) else {
                continue;
            };
            for name in entries(&directory) {
                unlink(&directory, &*name, id)?;
            }
            self.remove_empty(&tenant)?;
        }
        Ok(())
    }

    /// Removes the directory of a tenant that has no name.
    fn remove_empty(&self, tenant: &Tenant) -> io::Result<()> {
        let remove = || unlinkat(&self.0, tenant.as_str(), AtFlags::REMOVEDIR);
        match step("remove tenant directory", remove) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Removes the name if it leads to this box, and returns whether it did.
fn unlink<P: rustix::path::Arg + Copy>(
    directory: &OwnedFd,
    name: P,
    id: &BoxId,
) -> io::Result<bool> {
    match readlinkat(directory, name, Vec::new()) {
        Ok(holder) if holder.to_bytes() == id.as_str().as_bytes() => {}
        Ok(_) | Err(Errno::NOENT | Errno::INVAL) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    }
    match step("release name", || unlinkat(directory, name, AtFlags::empty())) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(errno) => Err(errno.into()),
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

/// Opens `names/`, never through a link: tare makes and removes names only in the state root.
fn open(layout: &Layout) -> rustix::io::Result<OwnedFd> {
    open_directory(CWD, layout.names())
}
