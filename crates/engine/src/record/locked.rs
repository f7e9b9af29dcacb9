//! Makes, locks, changes and removes records.
//!
//! No process reads a record that another one is still making: the directory is locked from the
//! moment it is visible, because both happen under the shared lock of `boxes/`.

use std::ffi::{CStr, CString};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, chmodat, flock, fstat, mkdirat, unlinkat};
use rustix::io::Errno;
use tare_kernel::clock::boot_ns;
use tare_kernel::fds::open_directory;
use tare_kernel::locks::{LOCK_WITHIN, Lock, lock_within};
use tare_kernel::step::step;
use tare_kernel::tree;

use crate::actor::Actor;
use crate::error::{Context, Error, ErrorKind};
use crate::host::layout::Layout;
use crate::host::state_root::open_boxes;
use crate::host::{CgroupRoots, Host};
use crate::record::Record;
use crate::record::json::{self, RECORD_FILE};
use crate::record::lines::{Created, KeeperLine, Line, RecordLines, VERSION};
use crate::spec::{BoxId, DetachOptions, Spec};
use crate::time::Timestamp;

/// A record that this process has locked, so that no other process changes it.
#[derive(Debug)]
pub struct LockedRecord(Record);

/// After this many changes of limits or lease, the record is made shorter.
const UPDATES_MAX: usize = 64;
/// How many names a record may have before the oldest ones are dropped.
const NAMES_MAX: usize = 64;

impl Record {
    /// Waits for the lock, and reads the record again. Returns `None` if it is gone by then.
    pub fn lock(
        self,
        boxes: BorrowedFd<'_>,
        id: &BoxId,
        within: Duration,
    ) -> Result<Option<LockedRecord>, Error> {
        let doing = || format!("cannot lock box {id}");
        if self.has_no_directory() {
            return Ok(Some(LockedRecord::replace(boxes, id).context(doing)?));
        }
        match lock_within("lock record", &self.directory, Lock::Exclusive, within) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(busy(id, error)),
            locked => locked.context(doing)?,
        }
        let now = match step("open locked record", || open_directory(boxes, id.as_str())) {
            Ok(directory) => fstat(&directory).context(doing)?,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno).context(doing),
        };
        let ours = fstat(&self.directory).context(doing)?;
        let is_same = (now.st_dev, now.st_ino) == (ours.st_dev, ours.st_ino);
        Ok(is_same.then(|| LockedRecord(Self::read(self.directory))))
    }
}

fn busy(id: &BoxId, why: io::Error) -> Error {
    Error::new(ErrorKind::Busy, format!("box {id} is busy"))
        .caused_by(why)
        .with_hint("another process is changing it; try again when that is done")
}

impl Deref for LockedRecord {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.0
    }
}

impl LockedRecord {
    /// Makes the record of a new box, whose cgroups will be in `parents`. Nothing of the box exists
    /// yet.
    pub fn create(
        layout: &Layout,
        id: &BoxId,
        (host, parents, creator): (&Host, &CgroupRoots, &Actor),
        spec: &Spec,
        detached: Option<&DetachOptions>,
    ) -> Result<Self, Error> {
        let doing = || {
            let boxes = layout.boxes();
            format!("cannot make the record of box {id} in {}", boxes.display())
        };
        let boxes = open_boxes(layout).context(doing)?;
        let mut record = Self::make(boxes, id).context(doing)?;
        let created = Created {
            version: VERSION,
            boot_id: host.boot_id.clone(),
            created_at: Timestamp::now(),
            created_ns: boot_ns(),
            cgroup_roots: parents.all().into_iter().map(Path::to_owned).collect(),
            spec: spec.clone(),
            detached: detached.cloned(),
            creator: Some(creator.clone()),
        };
        match record.add(Line::Created(Box::new(created))).context(doing) {
            Ok(()) => Ok(record),
            // Only this directory exists of the box.
            Err(error) => Err(match remove(layout, id) {
                Ok(()) => error,
                Err(left) => error.with_note(&left, "the next command tries again"),
            }),
        }
    }

    /// Makes an empty record for a box of which only the id is known. It is an error if there is
    /// a record.
    pub fn claim(boxes: BorrowedFd<'_>, id: &BoxId) -> io::Result<Self> {
        Self::make(open_directory(boxes, c".")?, id)
    }

    /// Makes the record of a box in place of what cannot be opened as one.
    fn replace(boxes: BorrowedFd<'_>, id: &BoxId) -> io::Result<Self> {
        let remove = || unlinkat(boxes, id.as_str(), AtFlags::empty());
        match step("remove file in place of record", remove) {
            Ok(()) | Err(Errno::NOENT) => return Self::claim(boxes, id),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => return Err(errno.into()),
        }
        // It is a directory that we may not read.
        let permit = || chmodat(boxes, id.as_str(), Mode::RWXU, AtFlags::empty());
        step("permit reading record", permit)?;
        let directory = step("open permitted record", || open_directory(boxes, id.as_str()))?;
        let lock = || flock(&directory, FlockOperation::NonBlockingLockExclusive);
        step("lock permitted record", lock)?;
        Ok(Self(Record::read(directory)))
    }

    fn make(boxes: OwnedFd, id: &BoxId) -> io::Result<Self> {
        lock_within("hold records", &boxes, Lock::Shared, LOCK_WITHIN)?;
        step("make record", || mkdirat(&boxes, id.as_str(), Mode::RWXU))?;
        let opened = step("open new record", || open_directory(&boxes, id.as_str()));
        let locked = opened.map_err(io::Error::from).and_then(|directory| {
            lock_within("lock new record", &directory, Lock::Exclusive, LOCK_WITHIN)?;
            Ok(directory)
        });
        match locked {
            Ok(directory) => {
                Ok(Self(Record { directory, lines: RecordLines::default(), damage: None }))
            }
            Err(error) => {
                // The next command removes an empty directory that cannot be removed now.
                let remove = || unlinkat(&boxes, id.as_str(), AtFlags::REMOVEDIR);
                step("remove new record", remove).ok();
                Err(error)
            }
        }
    }

    pub fn add_keeper(&mut self, keeper: KeeperLine) -> io::Result<()> {
        self.add(Line::Keeper(keeper))
    }

    /// Adds a line, all of it or nothing.
    pub fn add(&mut self, line: Line) -> io::Result<()> {
        let directory = self.directory.as_fd();
        // A box whose lease is renewed for years has a short record. On a full disk it stays long.
        let is_long = self.lines.updates >= UPDATES_MAX;
        let is_merged =
            is_long && matches!(line, Line::Updated(_)) && json::merge_updates(directory).is_ok();
        json::append(directory, &line)?;
        if is_merged {
            self.0.lines.updates = 1;
        }
        self.0.lines.add(line);
        Ok(())
    }

    /// Drops old names if there are many. The box must have released them. On a full disk the record
    /// stays long.
    pub fn drop_old_names(&mut self) {
        if self.lines.names.len() > NAMES_MAX {
            json::drop_names(self.directory.as_fd()).ok();
        }
    }

    /// Replaces all lines by one that says that the removal has begun. If this process is killed,
    /// the next command finishes the removal, whatever the record said before.
    pub fn forget(&mut self, id: &BoxId) -> Result<(), Error> {
        let removing = Line::Removing { at_ns: boot_ns() };
        json::overwrite(self.directory.as_fd(), &removing)
            .context(|| format!("cannot remove the record of box {id}"))?;
        self.0.lines.removing = true;
        Ok(())
    }

    /// Unlocks the record for other processes.
    pub fn unlock(self) -> Record {
        // Unlocking an open descriptor cannot fail, and closing it unlocks it too.
        step("unlock record", || flock(&self.directory, FlockOperation::Unlock)).ok();
        self.0
    }
}

/// Removes a record with everything in it, `record.json` last. A record that is absent counts as
/// removed. If the directory itself cannot be removed, `record.json` is written again.
pub fn remove(layout: &Layout, id: &BoxId) -> Result<(), Error> {
    let doing = || format!("cannot remove the record of box {id}");
    let open = || open_directory(CWD, layout.boxes());
    let boxes = step("open records to remove one", open).context(doing)?;
    let name = CString::new(id.as_str()).context(doing)?;
    remove_in(boxes.as_fd(), &name).context(doing)
}

fn remove_in(boxes: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let Ok(directory) = open_directory(boxes, name) else {
        return tree::remove(boxes, name);
    };
    for entry in tree::names(directory.as_fd())? {
        if entry.as_bytes() != RECORD_FILE.as_bytes() {
            tree::remove(directory.as_fd(), &entry)?;
        }
    }
    let bytes = json::read_bytes(directory.as_fd());
    let remove_file = || unlinkat(&directory, RECORD_FILE, AtFlags::empty());
    let remove_directory = || unlinkat(boxes, name, AtFlags::REMOVEDIR);
    let is_removed = step("remove record file", remove_file).is_ok()
        && step("remove record directory", remove_directory).is_ok();
    // Otherwise a file was made in it meanwhile, or there is no record file.
    let removed = if is_removed { Ok(()) } else { tree::remove(boxes, name) };
    if removed.is_err() && !bytes.is_empty() {
        json::restore(directory.as_fd(), &bytes);
    }
    removed
}
