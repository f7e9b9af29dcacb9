//! Unpacks a stream into files beneath one directory, and nowhere else.
//!
//! The stream is hostile, and another process may rename the files meanwhile. So every name is
//! checked before it is used, and no symlink is followed. An existing file is replaced when the
//! new one is complete, and never written to. Modes are set through the descriptors of what was
//! just made.
//!
//! A directory is 0700 while the stream has entries in it, and then gets its mode and time:
//! nothing else works in constant memory. An archive that comes back to a directory changes its
//! time again, and fails if the mode forbids that.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode, Timespec, Timestamps, UTIME_OMIT};
use rustix::fs::{fchmod, futimens, linkat, mkdirat, statat, symlinkat, utimensat};
use rustix::io::Errno;
use tare_kernel::replace::{Draft, replace};
use tare_kernel::step::{once, step};

use crate::directory_stack::{DirectoryStack, open_beneath, open_content};
use crate::error::Error;
use crate::header::{Name, is_zeros, shared_bytes};
use crate::reader::{Entry, Kind, Reader, cannot_unpack};

/// Zeros of at least this length become a hole: a sparse file of a box must not fill the disk of
/// the host.
const HOLE_BYTES_MIN: usize = 4096;

#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    pub top: Top<'a>,
    /// The limit on files, links and directories, including directories that only a path names.
    pub entries_max: u64,
    /// The limit on the sum of all sizes.
    pub bytes_max: u64,
}

/// No limits.
impl Default for Options<'_> {
    fn default() -> Self {
        Self { top: Top::Any, entries_max: u64::MAX, bytes_max: u64::MAX }
    }
}

/// Rule for the directory that the names of entries begin with.
#[derive(Debug, Clone, Copy)]
pub enum Top<'a> {
    Any,
    /// Every name begins with `name`, which is replaced by `becomes`. Another first component is
    /// an error, and so is an archive without entries.
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
/// Replaces existing files and symlinks. An existing directory stays as it is and is never
/// replaced. New files belong to the user of this process. After an error, the entries before it
/// stay.
pub fn unpack(
    input: &mut dyn Read,
    into: BorrowedFd<'_>,
    options: Options<'_>,
) -> Result<Summary, Error> {
    let mut unpacking =
        Unpacking { into, place: DirectoryStack::new(into), options, summary: Summary::default() };
    let mut reader = Reader::new(input);
    while let Some(entry) = reader.next_entry()? {
        unpacking.put(entry, &mut reader)?;
    }
    unpacking.go_back_to(0)?;
    unpacking.finish()
}

struct Unpacking<'a> {
    into: BorrowedFd<'a>,
    /// The notes are the attributes that new directories get when the stream leaves them.
    place: DirectoryStack<'a, Option<Attributes>>,
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
                // It is the directory to unpack into, which stays as it is.
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

    /// Checks a name of the stream, and renames its first component if requested.
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

    /// Enters the directory of an entry, and makes it if it does not exist.
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

    /// Makes a directory that has no entry of its own.
    fn make_parent(&mut self, component: &[u8], name: &Name) -> Result<(), Error> {
        self.count(name)?;
        let made = self.place.here().and_then(|here| {
            let mode = Mode::from_raw_mode(0o777);
            step("make unpacked directory", || mkdirat(here, component, mode))
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
            // Without AT_SYMLINK_FOLLOW, a link to a symlink is one more name of the symlink.
            let link = |last: &CStr| linkat(&parent, target, here, last, AtFlags::empty());
            replace(here, &entry_name(last)?, link)
        });
        match linked {
            Err(Errno::NOENT) => refused("it is a hard link to something that is not there"),
            linked => linked.map_err(|errno| blocked(name, errno)),
        }
    }

    /// Writes a file. Its name leads to the old file until the new one is complete.
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
        step("set unpacked mode", || fchmod(file, Mode::from_raw_mode(self.mode)))?;
        step("set unpacked time", || futimens(file, &times(self.mtime)))
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
            once("write unpacked content", || file.write_all(part)).map_err(failed)?;
        }
        reader.consume(count);
    }
    // The file may end with a hole.
    step("set unpacked size", || file.set_len(size)).map_err(failed)?;
    attributes.set(file.as_fd()).map_err(|errno| failed(errno.into()))
}

/// Explains why content could not be written. The old file is kept even if the disk is full.
fn unwritten(here: BorrowedFd<'_>, last: &CStr, name: &Name, error: io::Error) -> Error {
    let message = cannot_unpack(name.as_bytes());
    let is_full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
    if is_full.contains(&error.kind()) && statat(here, last, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        let why = "there is no room for it beside the old file, which is unchanged";
        Error::failed(format!("{message}: {why}"), error)
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
