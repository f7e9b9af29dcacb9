//! A stream into files, beneath one directory and nowhere else.
//!
//! The stream is hostile, and somebody may rename what is written while it is
//! written. So: no name is used before it was checked, no symlink is followed,
//! what stands in the way is replaced when the new entry is complete and never
//! written through, and modes are set through descriptors, on what was just made
//! and on nothing else.
//!
//! A directory gets its mode and time when the stream has moved on to something
//! that is not in it, as nothing else would do in constant memory; until then it
//! is 0700. An archive that comes back to a directory changes its time again, and
//! fails if the mode forbids that.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode, Timespec, Timestamps, UTIME_OMIT};
use rustix::fs::{fchmod, futimens, linkat, mkdirat, statat, symlinkat, utimensat};
use rustix::io::Errno;
use tare_kernel::replace::{Draft, replace};
use tare_kernel::step::{once, step};

use crate::descent::{Descent, open_beneath, open_content};
use crate::error::Error;
use crate::header::is_zeros;
use crate::name::{Name, shared_bytes};
use crate::reader::{Entry, Kind, Reader, cannot_unpack};

/// Zeros of at least this length become a hole, so that a sparse file in a box
/// does not fill up the disk of the host.
const HOLE_BYTES_MIN: usize = 4096;

#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    pub top: Top<'a>,
    /// Files, links and directories, those included that only a path mentions.
    pub entries_max: u64,
    /// The sum of all sizes.
    pub bytes_max: u64,
}

/// Anything, and as much of it as there is.
impl Default for Options<'_> {
    fn default() -> Self {
        Self { top: Top::Any, entries_max: u64::MAX, bytes_max: u64::MAX }
    }
}

/// What names may begin with.
#[derive(Debug, Clone, Copy)]
pub enum Top<'a> {
    Any,
    /// All with this first component, which is replaced by another one; another
    /// first component is refused, and so is an archive without any.
    Only {
        name: &'a [u8],
        becomes: &'a [u8],
    },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    pub entries: u64,
    pub bytes: u64,
}

/// Unpacks everything in `input`, which is read to its end, beneath `into`.
///
/// Files and symlinks that are there are replaced. A directory that is there
/// stays as it is, and is never replaced by anything else. New files belong to
/// whoever calls this. After an error, what was unpacked before it stays.
pub fn unpack(
    input: &mut dyn Read,
    into: BorrowedFd<'_>,
    options: Options<'_>,
) -> Result<Summary, Error> {
    let mut unpacking =
        Unpacking { into, place: Descent::new(into), options, summary: Summary::default() };
    let mut reader = Reader::new(input);
    while let Some(entry) = reader.next_entry()? {
        unpacking.put(entry, &mut reader)?;
    }
    unpacking.go_back_to(0)?;
    unpacking.finish()
}

struct Unpacking<'a> {
    into: BorrowedFd<'a>,
    /// With what new directories get when they are left.
    place: Descent<'a, Option<Attributes>>,
    options: Options<'a>,
    summary: Summary,
}

#[derive(Debug, Clone, Copy)]
struct Attributes {
    mode: u32,
    mtime: i64,
}

impl Unpacking<'_> {
    fn put(&mut self, entry: Entry, reader: &mut Reader<'_>) -> Result<(), Error> {
        let name = self.name(&entry.name, &entry.name)?;
        let attributes = Attributes { mode: entry.mode, mtime: entry.mtime };
        let Some((parent, last)) = name.split_last() else {
            return match entry.kind {
                // The directory that everything goes into: it stays as it is.
                Kind::Directory => Ok(()),
                Kind::File { .. } | Kind::Symlink { .. } | Kind::HardLink { .. } => {
                    let why = "it is named like the directory itself";
                    Err(Error::refused(cannot_unpack(&entry.name), why))
                }
            };
        };
        self.count(&name)?;
        self.go_to(parent, &name)?;
        match entry.kind {
            Kind::File { size } => self.file(&name, last, size, attributes, reader),
            Kind::Directory => self.directory(&name, last, attributes),
            Kind::Symlink { target } => self.symlink(&name, last, &target, attributes.mtime),
            Kind::HardLink { target } => self.hard_link(&name, last, &target),
        }
    }

    fn finish(self) -> Result<Summary, Error> {
        match self.options.top {
            Top::Only { name, .. } if self.summary.entries == 0 => {
                Err(Error::refused(cannot_unpack(name), "it is not in the archive"))
            }
            Top::Only { .. } | Top::Any => Ok(self.summary),
        }
    }

    /// A name that the stream gives, checked, and renamed as was asked for.
    fn name(&self, raw: &[u8], entry: &[u8]) -> Result<Name, Error> {
        let name = Name::parse(raw).and_then(|parsed| match self.options.top {
            Top::Any => Ok(parsed),
            Top::Only { name, becomes } => parsed.with_top(name, becomes),
        });
        name.map_err(|why| Error::refused(cannot_unpack(entry), why))
    }

    fn count(&mut self, name: &Name) -> Result<(), Error> {
        self.summary.entries += 1;
        if self.summary.entries > self.options.entries_max {
            Err(Error::refused(
                cannot_unpack(name.as_bytes()),
                format!("there are more than {} entries", self.options.entries_max),
            ))
        } else {
            Ok(())
        }
    }

    /// Goes into the directory of an entry, and makes it if need be.
    fn go_to(&mut self, directory: &[u8], name: &Name) -> Result<(), Error> {
        self.go_back_to(shared_bytes(self.place.path(), directory))?;
        let rest = &directory[self.place.path().len()..];
        for component in rest.split(|byte| *byte == b'/').filter(|it| !it.is_empty()) {
            match self.place.enter(component, None) {
                Err(Errno::NOENT) => self.make_parent(component, name)?,
                entered => entered.map_err(|errno| blocked(name, errno))?,
            }
        }
        Ok(())
    }

    /// A directory that only the names of others mention.
    fn make_parent(&mut self, component: &[u8], name: &Name) -> Result<(), Error> {
        self.count(name)?;
        let made = self.place.here().and_then(|here| {
            let mode = Mode::from_raw_mode(0o777);
            step("directory unpacked", || mkdirat(here, component, mode))
        });
        made.and_then(|()| self.place.enter(component, None)).map_err(|errno| blocked(name, errno))
    }

    /// Leaves directories until the path has this length.
    fn go_back_to(&mut self, path_bytes: usize) -> Result<(), Error> {
        while self.place.path().len() > path_bytes {
            if let Some(Some(attributes)) = self.place.note().copied() {
                self.complete_directory(attributes).map_err(|errno| {
                    Error::failed(cannot_unpack(self.place.path()), io::Error::from(errno))
                })?;
            }
            self.place.leave();
        }
        Ok(())
    }

    fn complete_directory(&mut self, attributes: Attributes) -> rustix::io::Result<()> {
        let directory = open_content(self.place.here()?)?;
        attributes.set(directory.as_fd())
    }

    fn directory(&mut self, name: &Name, last: &[u8], new: Attributes) -> Result<(), Error> {
        match self.place.enter(last, None) {
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            entered => return entered.map_err(|errno| blocked(name, errno)),
        }
        let here = self.place.here().map_err(|errno| blocked(name, errno))?;
        entry_name(last)
            .and_then(|last| replace(here, &last, |last| mkdirat(here, last, Mode::RWXU)))
            .and_then(|()| self.place.enter(last, Some(new)))
            .map_err(|errno| blocked(name, errno))
    }

    fn symlink(
        &mut self,
        name: &Name,
        last: &[u8],
        target: &[u8],
        mtime: i64,
    ) -> Result<(), Error> {
        if target.is_empty() || target.contains(&0) {
            let why = "its target is not a path";
            return Err(Error::refused(cannot_unpack(name.as_bytes()), why));
        }
        let here = self.place.here().map_err(|errno| blocked(name, errno))?;
        let make = |last: &CStr| {
            symlinkat(target, here, last)?;
            utimensat(here, last, &times(mtime), AtFlags::SYMLINK_NOFOLLOW)
        };
        entry_name(last)
            .and_then(|last| replace(here, &last, make))
            .map_err(|errno| blocked(name, errno))
    }

    fn hard_link(&mut self, name: &Name, last: &[u8], target: &[u8]) -> Result<(), Error> {
        let refused = |why| Err(Error::refused(cannot_unpack(name.as_bytes()), why));
        let target = match self.name(target, name.as_bytes()) {
            Ok(target) if target != *name => target,
            Ok(_) => return refused("it is a hard link to itself"),
            Err(_) => return refused("it is a hard link to something outside of the archive"),
        };
        let Some((parent, target)) = target.split_last() else {
            return refused("it is a hard link to a directory");
        };
        let into = self.into;
        let here = self.place.here().map_err(|errno| blocked(name, errno))?;
        let linked = open_beneath(into, parent).and_then(|parent| {
            // Without AT_SYMLINK_FOLLOW: a link to a symlink is one more name of it.
            let link = |last: &CStr| linkat(&parent, target, here, last, AtFlags::empty());
            replace(here, &entry_name(last)?, link)
        });
        match linked {
            Err(Errno::NOENT) => refused("it is a hard link to something that is not there"),
            linked => linked.map_err(|errno| blocked(name, errno)),
        }
    }

    /// Complete under its name, or the name is as it was.
    fn file(
        &mut self,
        name: &Name,
        last: &[u8],
        size: u64,
        attributes: Attributes,
        reader: &mut Reader<'_>,
    ) -> Result<(), Error> {
        let bytes = self.summary.bytes.saturating_add(size);
        if bytes > self.options.bytes_max {
            let why = format!("there are more than {} bytes", self.options.bytes_max);
            return Err(Error::refused(cannot_unpack(name.as_bytes()), why));
        }
        let here = self.place.here().map_err(|errno| blocked(name, errno))?;
        let last = entry_name(last).map_err(|errno| blocked(name, errno))?;
        let mut draft = Draft::create(here, &last, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| blocked(name, errno))?;
        let unwritten = |error| unwritten(here, &last, name, error);
        fill(draft.file(), size, attributes, reader, &unwritten)?;
        draft.publish().map_err(|errno| blocked(name, errno))?;
        self.summary.bytes = bytes;
        Ok(())
    }
}

impl Attributes {
    fn set(self, file: BorrowedFd<'_>) -> rustix::io::Result<()> {
        step("mode unpacked", || fchmod(file, Mode::from_raw_mode(self.mode)))?;
        step("time unpacked", || futimens(file, &times(self.mtime)))
    }
}

fn times(mtime: i64) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime, tv_nsec: 0 },
    }
}

fn fill(
    file: &mut File,
    size: u64,
    attributes: Attributes,
    reader: &mut Reader<'_>,
    failed: &dyn Fn(io::Error) -> Error,
) -> Result<(), Error> {
    loop {
        let part = reader.data()?;
        let count = part.len();
        if count == 0 {
            break;
        }
        if count >= HOLE_BYTES_MIN && is_zeros(part) {
            file.seek(SeekFrom::Current(count as i64)).map_err(failed)?;
        } else {
            once("content unpacked", || file.write_all(part)).map_err(failed)?;
        }
        reader.consume(count);
    }
    // The last thing may have been a hole.
    step("size unpacked", || file.set_len(size)).map_err(failed)?;
    attributes.set(file.as_fd()).map_err(|errno| failed(errno.into()))
}

/// Why content could not be written. The file that is there is not given up for it.
fn unwritten(here: BorrowedFd<'_>, last: &CStr, name: &Name, error: io::Error) -> Error {
    let message = cannot_unpack(name.as_bytes());
    let is_full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
    if is_full.contains(&error.kind()) && statat(here, last, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        Error::failed(
            message,
            format!("there is no room for it beside the old file, which is unchanged: {error}"),
        )
    } else {
        Error::failed(message, error)
    }
}

fn entry_name(last: &[u8]) -> rustix::io::Result<CString> {
    CString::new(last).map_err(|_| Errno::INVAL)
}

fn blocked(name: &Name, errno: Errno) -> Error {
    let message = cannot_unpack(name.as_bytes());
    match errno {
        Errno::ISDIR => Error::refused(message, "a directory is in its place"),
        Errno::NOTDIR => Error::refused(message, "a symlink or a file is where its directory is"),
        errno => Error::failed(message, io::Error::from(errno)),
    }
}
