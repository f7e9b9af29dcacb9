//! Files onto a stream.
//!
//! Depth first, without recursion. The names of the directories on the way that
//! are still to be packed lie in one buffer, the innermost directory's last, so
//! that the next name is always at its end.

use std::fs::File;
use std::io::{self, ErrorKind as IoErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::fs::{fstat, openat, readlinkat, statat};
use rustix::io::Errno;

use crate::BUFFER_BYTES;
use crate::descent::{Descent, open_content, open_directory};
use crate::error::{Error, shown};
use crate::header::{Header, Type};
use crate::writer::{Writer, fits};

/// A directory of a million files has 20 MB of names.
const NAMES_BYTES_MAX: usize = 64 << 20;

/// Writes the file, symlink or directory that is called `entry` in `directory`
/// to `out` as an archive in which it is called `name`.
///
/// `entry` is one name without a slash; `.` is the directory itself. What
/// vanishes while a tree is walked is not in the archive; a file that changes
/// its size has the size that it had when its turn came. After an error the
/// stream has no end, which [`unpack`](crate::unpack()) notices.
pub fn pack(
    out: &mut dyn Write,
    directory: BorrowedFd<'_>,
    entry: &[u8],
    name: &[u8],
) -> Result<(), Error> {
    pack_taking(Take::Everything, out, directory, entry, name)
}

/// The same of plain files alone, as far as they can be read: whatever else is there is
/// left out, and nobody is told.
pub fn pack_files(
    out: &mut dyn Write,
    directory: BorrowedFd<'_>,
    entry: &[u8],
    name: &[u8],
) -> Result<(), Error> {
    pack_taking(Take::Files, out, directory, entry, name)
}

fn pack_taking(
    take: Take,
    out: &mut dyn Write,
    directory: BorrowedFd<'_>,
    entry: &[u8],
    name: &[u8],
) -> Result<(), Error> {
    if entry.contains(&b'/') || entry == b".." || entry.is_empty() {
        return Err(Error::refused(cannot_pack(entry), "it is not one name"));
    }
    let mut packing = Packing {
        take,
        writer: Writer::new(out),
        buffer: vec![0; BUFFER_BYTES],
        names: Vec::new(),
    };
    match packing.put(directory, entry, name)? {
        Put::Whole => {}
        Put::Directory => packing.tree(directory, entry, name)?,
        Put::Gone => {
            return Err(Error::failed(cannot_pack(name), io::Error::from(Errno::NOENT)));
        }
    }
    packing.writer.finish().map_err(cannot_write)
}

/// What is wanted of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Take {
    /// What cannot be had is an error.
    Everything,
    /// Plain files that can be read, and the directories that they are in.
    Files,
}

/// What became of an entry.
enum Put {
    Whole,
    /// Its content is still to come.
    Directory,
    Gone,
}

struct Packing<'a> {
    take: Take,
    writer: Writer<'a>,
    buffer: Vec<u8>,
    /// Each name ends with a zero byte.
    names: Vec<u8>,
}

impl Packing<'_> {
    /// Everything in a directory whose header was written.
    fn tree(&mut self, parent: BorrowedFd<'_>, entry: &[u8], name: &[u8]) -> Result<(), Error> {
        let failed = |errno| cannot(name, errno);
        let base = open_directory(parent, entry).map_err(failed)?;
        self.list(base.as_fd(), name)?;
        // The note is where the names of the directory begin.
        let mut place = Descent::<usize>::new(base.as_fd());
        loop {
            let start = place.note().copied().unwrap_or(0);
            if self.names.len() > start {
                let entry = self.pop_name();
                let name = join(name, place.path(), &entry);
                self.next(&mut place, &entry, &name)?;
            } else if place.leave().is_none() {
                return Ok(());
            }
        }
    }

    fn next(
        &mut self,
        place: &mut Descent<'_, usize>,
        entry: &[u8],
        name: &[u8],
    ) -> Result<(), Error> {
        let failed = |errno| cannot(name, errno);
        let here = place.here().map_err(failed)?;
        match self.put(here, entry, name)? {
            Put::Whole | Put::Gone => return Ok(()),
            Put::Directory => {}
        }
        match place.enter(entry, self.names.len()) {
            // It was there a moment ago, and is in the archive without content.
            Err(Errno::NOENT) => return Ok(()),
            Err(_) if self.take == Take::Files => return Ok(()),
            entered => entered.map_err(failed)?,
        }
        match self.list(place.here().map_err(failed)?, name) {
            Err(_) if self.take == Take::Files => Ok(()),
            listed => listed,
        }
    }

    /// One entry, without what is in it.
    fn put(&mut self, here: BorrowedFd<'_>, entry: &[u8], name: &[u8]) -> Result<Put, Error> {
        let stat = match statat(here, entry, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(Put::Gone),
            stat => stat.map_err(|errno| cannot(name, errno))?,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => self.file(here, entry, name),
            FileType::Directory => self.directory(&stat, name),
            _ if self.take == Take::Files => Ok(Put::Gone),
            FileType::Symlink => self.symlink(here, entry, &stat, name),
            special @ (FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown) => Err(refused_kind(name, special)),
        }
    }

    fn directory(&mut self, stat: &Stat, name: &[u8]) -> Result<Put, Error> {
        // The slash is for programs that do not know the type.
        let header = header(stat, Type::Directory, &[name, b"/"].concat(), 0);
        self.header(&header)?;
        Ok(Put::Directory)
    }

    fn symlink(
        &mut self,
        here: BorrowedFd<'_>,
        entry: &[u8],
        stat: &Stat,
        name: &[u8],
    ) -> Result<Put, Error> {
        let target = match readlinkat(here, entry, Vec::new()) {
            Err(Errno::NOENT) => return Ok(Put::Gone),
            target => target.map_err(|errno| cannot(name, errno))?,
        };
        let mut header = header(stat, Type::Symlink, name, 0);
        header.link = target.into_bytes();
        self.header(&header)?;
        Ok(Put::Whole)
    }

    fn file(&mut self, here: BorrowedFd<'_>, entry: &[u8], name: &[u8]) -> Result<Put, Error> {
        // Between the look and the opening it may have become a fifo or a
        // terminal: neither may make us wait or become ours.
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match openat(here, entry, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Put::Gone),
            Err(_) if self.take == Take::Files => return Ok(Put::Gone),
            file => file.map_err(|errno| cannot(name, errno))?,
        };
        let stat = fstat(&file).map_err(|errno| cannot(name, errno))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        match self.take {
            _ if kind == FileType::RegularFile => {}
            Take::Files => return Ok(Put::Gone),
            Take::Everything => return Err(refused_kind(name, kind)),
        }
        let mut file = File::from(file);
        let begin = read_full(&mut file, &mut self.buffer)
            .map_err(|error| Error::failed(cannot_pack(name), error))?;
        let size = self.size(&stat, begin, name)?;
        self.header(&header(&stat, Type::File, name, size))?;
        self.writer.data(&self.buffer[..begin]).map_err(cannot_write)?;
        self.rest(&mut file, size - begin as u64, name)?;
        self.writer.end_of_data(size).map_err(cannot_write)?;
        Ok(Put::Whole)
    }

    /// What the header shall say, when `begin` bytes were read already. A file
    /// that ended within the buffer has the size it turned out to have: files of
    /// /proc and /sys say something else.
    fn size(&self, stat: &Stat, begin: usize, name: &[u8]) -> Result<u64, Error> {
        let claimed = u64::try_from(stat.st_size).unwrap_or(0);
        match begin < self.buffer.len() {
            true => Ok(begin as u64),
            false if claimed == 0 => Err(Error::refused(
                cannot_pack(name),
                "it does not say how long it is, as some files of /proc",
            )),
            false => Ok(claimed.max(begin as u64)),
        }
    }

    /// As many bytes as were promised, whatever became of the file since.
    fn rest(&mut self, file: &mut File, mut left: u64, name: &[u8]) -> Result<(), Error> {
        while left > 0 {
            let wanted = usize::try_from(left).map_or(BUFFER_BYTES, |it| it.min(BUFFER_BYTES));
            let count = read_full(file, &mut self.buffer[..wanted])
                .map_err(|error| Error::failed(cannot_pack(name), error))?;
            if count == 0 {
                return self.writer.zeros(left).map_err(cannot_write);
            }
            self.writer.data(&self.buffer[..count]).map_err(cannot_write)?;
            left -= count as u64;
        }
        Ok(())
    }

    fn header(&mut self, header: &Header) -> Result<(), Error> {
        if !fits(&header.name, &header.link) {
            let why = "its path is too long for an archive";
            return Err(Error::refused(cannot_pack(&header.name), why));
        }
        self.writer.header(header).map_err(cannot_write)
    }

    /// Appends the names of what is in a directory.
    fn list(&mut self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Error> {
        let failed = |errno| cannot(name, errno);
        let content = open_content(directory).and_then(Dir::new);
        for entry in content.map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let entry = entry.file_name();
            if entry == c"." || entry == c".." {
                continue;
            }
            if self.names.len() > NAMES_BYTES_MAX {
                let why = "there are more than 64 MiB of names in it and around it";
                return Err(Error::refused(cannot_pack(name), why));
            }
            self.names.extend_from_slice(entry.to_bytes_with_nul());
        }
        Ok(())
    }

    fn pop_name(&mut self) -> Vec<u8> {
        self.names.pop();
        let end = self.names.iter().rposition(|byte| *byte == 0);
        self.names.split_off(end.map_or(0, |zero| zero + 1))
    }
}

fn header(stat: &Stat, kind: Type, name: &[u8], size: u64) -> Header {
    Header {
        name: name.to_vec(),
        kind,
        mode: stat.st_mode & 0o777,
        size,
        mtime: stat.st_mtime,
        link: Vec::new(),
    }
}

/// Until the buffer is full or the file is at its end.
fn read_full(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match file.read(&mut buffer[count..]) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == IoErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

fn join(top: &[u8], path: &[u8], entry: &[u8]) -> Vec<u8> {
    match path {
        b"" => [top, entry].join(&b'/'),
        _ => [top, path, entry].join(&b'/'),
    }
}

fn cannot_pack(name: &[u8]) -> String {
    format!("cannot pack {}", shown(name))
}

fn cannot(name: &[u8], errno: Errno) -> Error {
    Error::failed(cannot_pack(name), io::Error::from(errno))
}

fn cannot_write(error: io::Error) -> Error {
    Error::failed("cannot write the archive".into(), error)
}

fn refused_kind(name: &[u8], kind: FileType) -> Error {
    let what = match kind {
        FileType::Socket => "it is a socket",
        FileType::Fifo => "it is a fifo",
        FileType::CharacterDevice => "it is a character device",
        FileType::BlockDevice => "it is a block device",
        FileType::RegularFile | FileType::Directory | FileType::Symlink => {
            "it became something else while it was packed"
        }
        FileType::Unknown => "it is of a type that tare does not know",
    };
    Error::refused(cannot_pack(name), what)
}
