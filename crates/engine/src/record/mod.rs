//! A box's record: a directory, made first. Only the name of the box is removed after it.
//!
//! ```text
//! boxes/<id>/      locked by the process that changes the box
//!   record.json    facts about the box, one line each (see `lines`)
//!   control        the socket on which the keeper answers
//!   journal        of a detached box: what its keeper has written about it
//!   log.0, log.1   of a detached box: the last part of its output
//!   scratch        with `--keep`: the scratch space
//! ```
//! `json` reads and writes `record.json`, `files` has the other files, `locked` makes and changes
//! records, `foreign` recognises directories that are not tare's, and `damage` says why a record cannot
//! be trusted.

pub mod damage;
pub mod files;
mod foreign;
mod json;
pub mod lines;
mod locked;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, flock, fstat, openat, statat};
use rustix::io::Errno;
use tare_control::log::FILE_NAMES;
use tare_kernel::fds::open_directory;
use tare_kernel::step::step;

use crate::actor::Actor;
use crate::record::damage::Damage;
use crate::record::files::{CONTROL, JOURNAL, TEMPLATE};
use crate::record::json::RECORD_FILE;
use crate::record::lines::{Act, EndingLine, HeldLine, Line, Reason, RecordLines, RequestLine};
use crate::spec::{BoxId, Isolation};

pub use locked::{LockedRecord, remove};

/// A record as it was when it was read.
#[derive(Debug)]
pub struct Record {
    /// The directory, or what is in its place.
    directory: OwnedFd,
    pub lines: RecordLines,
    /// Why the lines cannot be trusted, if they cannot.
    pub damage: Option<Damage>,
}

/// How many requests a record keeps with their times.
const REQUESTS_MAX: usize = 64;

const PRIVATE: Mode = Mode::from_raw_mode(0o600);

/// The files of a record.
const FILES: [&str; 6] = [RECORD_FILE, CONTROL, JOURNAL, FILE_NAMES[0], FILE_NAMES[1], TEMPLATE];

#[cfg(test)]
impl Record {
    /// A record that says this, without a directory of its own.
    pub fn of(lines: RecordLines) -> Self {
        let directory = open_directory(rustix::fs::CWD, c"/").expect("the root is there");
        Self { directory, lines, damage: None }
    }
}

impl Record {
    /// Opens and reads the record of a box. Returns `None` if there is no such box.
    pub fn look(boxes: BorrowedFd<'_>, id: &BoxId) -> io::Result<Option<Self>> {
        match step("open record", || open_directory(boxes, id.as_str())) {
            Ok(directory) => Ok(Some(Self::read(directory))),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => Self::look_at_other(boxes, id),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens what is in the place of a record and is not a directory that tare can read. It counts
    /// as a box of which only the id is known.
    fn look_at_other(boxes: BorrowedFd<'_>, id: &BoxId) -> io::Result<Option<Self>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match openat(boxes, id.as_str(), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened?,
        };
        let damage = Some(Damage::NotADirectory);
        Ok(Some(Self { directory, lines: RecordLines::default(), damage }))
    }

    fn read(directory: OwnedFd) -> Self {
        let (lines, damage) = match json::read(directory.as_fd()) {
            Ok(lines) => {
                let damage = lines.other_version.map(Damage::other_version);
                (lines, damage)
            }
            // Teardown then works from the id alone.
            Err(damage) => (RecordLines::default(), Some(damage)),
        };
        let foreign =
            if lines.is_empty() { foreign::foreign_entry(directory.as_fd()) } else { None };
        let damage = foreign.map(|entry| Damage::NotOurs { entry }).or(damage);
        Self { directory, lines, damage }
    }

    /// Reads the lines one by one, for the history.
    pub fn read_each_line(&self) -> Vec<Line> {
        json::read_each_line(self.directory.as_fd())
    }

    /// Returns whether the record was just made: it is empty, or the first line was never written.
    pub fn is_blank(&self) -> bool {
        let is_empty = match statat(&self.directory, RECORD_FILE, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_size == 0,
            Err(errno) => errno == Errno::NOENT,
        };
        is_empty && ![CONTROL, JOURNAL].into_iter().any(|name| self.has(name))
    }

    /// Returns whether the box keeps its scratch space.
    pub fn keeps_scratch(&self) -> bool {
        let created = self.lines.created.as_ref();
        let is_full = created.is_some_and(|created| created.spec.isolation == Isolation::Full);
        is_full && self.lines.detached().is_some_and(|options| options.keep)
    }

    /// Returns whether the box is in a machine.
    pub fn is_machine(&self) -> bool {
        self.lines.created.as_ref().is_some_and(|created| created.spec.machine.is_some())
    }

    /// Returns whether the record stays after the box's end: that of a box that was detached,
    /// without `--rm`.
    pub fn is_kept(&self) -> bool {
        self.lines.detached().is_some_and(|options| !options.remove) && self.has_detached()
    }

    /// Returns whether the box no longer depends on its creator. A journal that cannot be read is no
    /// reason to lose the rest of a record.
    pub fn has_detached(&self) -> bool {
        self.lines.detached().is_some() && self.journal().map_or(true, |journal| journal.detached)
    }

    /// Records why tare kills an attached box, whose creator holds the lock, and what the box holds.
    /// The creator reads this when the keeper is gone.
    pub fn note_kill(&self, why: Reason, held: HeldLine) -> io::Result<()> {
        json::append(self.directory.as_fd(), &Line::Ending(EndingLine::now(why)))?;
        json::append(self.directory.as_fd(), &Line::Held(held))
    }

    /// Records who asks for an act on the box. Like a kill, this needs no lock: a line is appended as
    /// a whole. A record that cannot be trusted stays as it is. A user may send signals for years:
    /// after [`REQUESTS_MAX`] requests, only kinds that are not on record yet are recorded.
    pub fn note_request(&self, act: Act, by: &Actor) -> io::Result<()> {
        if self.damage.is_some() || self.lines.created.is_none() {
            return Ok(());
        }
        let requests = &self.lines.requests;
        let is_known = requests.iter().any(|request| request.act == act);
        if requests.len() >= REQUESTS_MAX && is_known {
            return Ok(());
        }
        json::append(self.directory.as_fd(), &Line::Requested(RequestLine::now(act, by)))
    }

    /// Reads the lines again: another process may have recorded that it kills an attached box.
    pub fn lines_now(&self) -> RecordLines {
        json::read(self.directory.as_fd()).unwrap_or_default()
    }

    fn has(&self, name: &str) -> bool {
        !matches!(statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT))
    }

    /// Returns whether the directory has not been removed since it was opened.
    pub fn exists(&self) -> bool {
        fstat(&self.directory).is_ok_and(|stat| stat.st_nlink > 0)
    }

    /// Returns whether a process is changing the box now.
    pub fn is_busy(&self) -> bool {
        if self.has_no_directory() {
            return false;
        }
        let lock = FlockOperation::NonBlockingLockShared;
        let is_free = step("try lock of record", || flock(&self.directory, lock)).is_ok();
        if is_free {
            // Unlocking an open descriptor cannot fail.
            flock(&self.directory, FlockOperation::Unlock).ok();
        }
        !is_free
    }

    /// Returns whether there is no directory that can be locked and read.
    pub fn has_no_directory(&self) -> bool {
        matches!(self.damage, Some(Damage::NotADirectory))
    }
}

impl AsFd for Record {
    /// The directory.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}
