//! Packs files into a stream.
//!
//! The walk is depth first, without recursion. One buffer has the names that are still to be
//! packed, those of the innermost directory last, so the next name is always at its end.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat};
use rustix::fs::{fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use tare_kernel::files::Kind as FileKind;

use crate::directory_stack::{DirectoryStack, open_content, open_directory};
use crate::error::{Error, ErrorKind, shown};
use crate::header::{Header, Type};
use crate::writer::{Writer, fits};
use crate::{BUFFER_BYTES, read_full};

/// A directory of a million files has 20 MB of names.
const NAMES_BYTES_MAX: usize = 64 << 20;

/// Writes an archive of the file, symlink or directory `entry` in `directory` to `out`. In the
/// archive it is called `name`.
///
/// `entry` is one name without a slash; `.` is the directory itself. A file that vanishes during
/// the walk is not in the archive. A file that changes its size is packed with the size that it
/// had when its header was written.
///
/// A socket, a fifo, a device or an unreadable file below a directory is left out. The archive is
/// whole then, and the error [`ErrorKind::LeftOut`] names the first such entry. After any other
/// error the stream has no end, which [`unpack`](crate::unpack()) notices.
pub fn pack(
    out: &mut dyn Write,
    directory: BorrowedFd<'_>,
    entry: &[u8],
    name: &[u8],
) -> Result<(), Error> {
    pack_including(Include::Everything, out, directory, entry, name)
}

/// Writes an archive of the regular files and their directories. Symlinks and special files are
/// left out without an error, and unreadable entries as [`pack`] leaves them out.
pub fn pack_files(
    out: &mut dyn Write,
    directory: BorrowedFd<'_>,
    entry: &[u8],
    name: &[u8],
) -> Result<(), Error> {
    pack_including(Include::Files, out, directory, entry, name)
}

fn pack_including(
    include: Include,
    out: &mut dyn Write,
    directory: BorrowedFd<'_>,
    entry: &[u8],
    name: &[u8],
) -> Result<(), Error> {
    if entry.contains(&b'/') || entry == b".." || entry.is_empty() {
        return Err(Error::refused(cannot_pack(entry), "it is not one name"));
    }
    let mut packer = Packer {
        include,
        writer: Writer::new(out),
        buffer: vec![0; BUFFER_BYTES],
        names: Vec::new(),
        left_out: None,
    };
    match packer.put(directory, entry, name).map_err(Failure::into_error)? {
        Packed::Whole => {}
        Packed::Directory => packer.tree(directory, entry, name)?,
        Packed::Gone => return Err(cannot(name, Errno::NOENT)),
    }
    packer.writer.finish().map_err(cannot_write)?;
    match packer.left_out {
        Some(error) => Err(error.with_kind(ErrorKind::LeftOut)),
        None => Ok(()),
    }
}

/// Which entries of a tree to pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Include {
    /// All that an archive can have.
    Everything,
    /// Regular files, and the directories that they are in.
    Files,
}

/// The result of packing one entry.
enum Packed {
    Whole,
    /// The header is written; the content of the directory comes next.
    Directory,
    /// It does not exist any more, or is not included.
    Gone,
}

/// Why an entry was not packed.
enum Failure {
    /// The archive has nothing of the entry, and can go on without it.
    Entry(Error),
    /// The archive cannot go on.
    Archive(Error),
}

impl Failure {
    fn into_error(self) -> Error {
        match self {
            Self::Entry(error) | Self::Archive(error) => error,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Entry(error)
    }
}

struct Packer<'a> {
    include: Include,
    writer: Writer<'a>,
    buffer: Vec<u8>,
    /// Each name ends with a zero byte.
    names: Vec<u8>,
    /// Why the first entry that was left out was not packed.
    left_out: Option<Error>,
}

impl Packer<'_> {
    /// Packs everything in a directory whose header was written.
    fn tree(&mut self, parent: BorrowedFd<'_>, entry: &[u8], name: &[u8]) -> Result<(), Error> {
        let failed = |errno| cannot(name, errno);
        let base = open_directory(parent, entry).map_err(failed)?;
        self.list(base.as_fd(), name)?;
        // The note is the place in `names` where the names of the directory begin.
        let mut place = DirectoryStack::<usize>::new(base.as_fd());
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
        place: &mut DirectoryStack<'_, usize>,
        entry: &[u8],
        name: &[u8],
    ) -> Result<(), Error> {
        let failed = |errno| cannot(name, errno);
        let here = place.here().map_err(failed)?;
        match self.put(here, entry, name) {
            Ok(Packed::Whole | Packed::Gone) => {}
            Ok(Packed::Directory) => match place.enter(entry, self.names.len()) {
                Ok(()) => {
                    let listed = self.list(place.here().map_err(failed)?, name);
                    listed.unwrap_or_else(|error| self.leave_out(error));
                }
                // It was removed meanwhile, and is in the archive without content.
                Err(Errno::NOENT) => {}
                Err(errno) => self.leave_out(failed(errno)),
            },
            Err(Failure::Entry(error)) => self.leave_out(error),
            Err(Failure::Archive(error)) => return Err(error),
        }
        Ok(())
    }

    /// Goes on without an entry, or without the content of a directory.
    fn leave_out(&mut self, why: Error) {
        self.left_out.get_or_insert(why);
    }

    /// Packs one entry, without the content of a directory.
    fn put(&mut self, here: BorrowedFd<'_>, entry: &[u8], name: &[u8]) -> Result<Packed, Failure> {
        let stat = match statat(here, entry, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(Packed::Gone),
            stat => stat.map_err(|errno| cannot(name, errno))?,
        };
        match FileKind::of(&stat) {
            FileKind::File => self.file(here, entry, name),
            FileKind::Directory => self.directory(&stat, name),
            _ if self.include == Include::Files => Ok(Packed::Gone),
            FileKind::Symlink => self.symlink(here, entry, &stat, name),
            special @ FileKind::Special(_) => Err(refused_kind(name, special).into()),
        }
    }

    fn directory(&mut self, stat: &Stat, name: &[u8]) -> Result<Packed, Failure> {
        // The slash is for programs that do not know the type.
        let header = header(stat, Type::Directory, &[name, b"/"].concat(), 0);
        self.header(&header)?;
        Ok(Packed::Directory)
    }

    fn symlink(
        &mut self,
        here: BorrowedFd<'_>,
        entry: &[u8],
        stat: &Stat,
        name: &[u8],
    ) -> Result<Packed, Failure> {
        let target = match readlinkat(here, entry, Vec::new()) {
            Err(Errno::NOENT) => return Ok(Packed::Gone),
            target => target.map_err(|errno| cannot(name, errno))?,
        };
        let mut header = header(stat, Type::Symlink, name, 0);
        header.link = target.into_bytes();
        self.header(&header)?;
        Ok(Packed::Whole)
    }

    fn file(&mut self, here: BorrowedFd<'_>, entry: &[u8], name: &[u8]) -> Result<Packed, Failure> {
        // By now it may be a fifo, which must not make us wait, or a terminal, which must not
        // become our controlling one.
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match openat(here, entry, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Packed::Gone),
            file => file.map_err(|errno| cannot(name, errno))?,
        };
        let stat = fstat(&file).map_err(|errno| cannot(name, errno))?;
        if !FileKind::is_file(&stat) {
            return Err(refused_kind(name, FileKind::of(&stat)).into());
        }
        let mut file = File::from(file);
        let begin = read_full(&mut file, &mut self.buffer)
            .map_err(|error| Error::failed(cannot_pack(name), error))?;
        let size = self.size(&stat, begin, name)?;
        self.header(&header(&stat, Type::File, name, size))?;
        self.content(&mut file, begin, size, name).map_err(Failure::Archive)?;
        Ok(Packed::Whole)
    }

    /// Writes the data of a file whose header was written, and whose first `begin` bytes are in
    /// the buffer.
    fn content(
        &mut self,
        file: &mut File,
        begin: usize,
        size: u64,
        name: &[u8],
    ) -> Result<(), Error> {
        self.writer.data(&self.buffer[..begin]).map_err(cannot_write)?;
        self.rest(file, size - begin as u64, name)?;
        self.writer.end_of_data(size).map_err(cannot_write)
    }

    /// Returns the size for the header, after `begin` bytes were read. For a file that ended
    /// within the buffer it is what was read: files of /proc and /sys claim other sizes.
    fn size(&self, stat: &Stat, begin: usize, name: &[u8]) -> Result<u64, Error> {
        let claimed = u64::try_from(stat.st_size).unwrap_or(0);
        if begin < self.buffer.len() {
            return Ok(begin as u64);
        }
        if claimed == 0 {
            let why = "it does not say how long it is, as some files of /proc";
            return Err(Error::refused(cannot_pack(name), why));
        }
        Ok(claimed.max(begin as u64))
    }

    /// Writes the bytes that the header promised. If the file has become shorter, zeros follow.
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

    fn header(&mut self, header: &Header) -> Result<(), Failure> {
        if !fits(&header.name, &header.link) {
            let why = "its path is too long for an archive";
            return Err(Error::refused(cannot_pack(&header.name), why).into());
        }
        self.writer.header(header).map_err(|error| Failure::Archive(cannot_write(error)))
    }

    /// Appends the names of the entries of a directory.
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

fn refused_kind(name: &[u8], kind: FileKind) -> Error {
    let what = match kind {
        FileKind::Special(what) => format!("it is a {what}"),
        FileKind::File | FileKind::Directory | FileKind::Symlink => {
            "it became something else while it was packed".to_owned()
        }
    };
    Error::refused(cannot_pack(name), what)
}
