//! Reads, lists, writes and removes single files of a box for clients. Like
//! [`crate::programs::tar`], these programs run in the box as its user.

use std::ffi::{CString, OsStr};
use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, Stat};
use rustix::fs::{fstat, lstat, openat, statat};
use rustix::io::Errno;
use tare_archive::read_full;
use tare_control::file_programs::{
    Listed, ListedKind, PIECE_BYTES_MAX, ProgramStatus, piece_length,
};
use tare_kernel::files::Kind;
use tare_kernel::replace::Draft;
use tare_kernel::{signals, tree};

use crate::programs::{DONE, FAILED, open_directory, refuse_own, say};

const READY: ProgramStatus = ProgramStatus::Ready { kind: None, size: None };

/// Writes the regular file at `path`, wherever its links lead, to standard output.
pub fn read(path: &[u8]) -> u8 {
    conclude(try_read(place(path)))
}

/// Writes what is in the directory at `path` to standard output.
pub fn list(path: &[u8]) -> u8 {
    conclude(try_list(place(path)))
}

/// Writes standard input to a file at `path`, and makes the directories that it is in.
pub fn write(path: &[u8]) -> u8 {
    // A file larger than the box may write is an error. It must not kill this process.
    signals::fail_past_file_limit();
    conclude(try_write(place(path)))
}

/// Removes the file, the link or the whole directory at `path`. A link is not followed.
pub fn remove(path: &[u8]) -> u8 {
    conclude(try_remove(place(path)))
}

fn place(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

fn conclude(result: io::Result<()>) -> u8 {
    match result {
        Ok(()) => DONE,
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
            say(&ProgramStatus::Failed { errno: Some(errno), what: String::new() });
            FAILED
        }
    }
}

fn try_read(path: &Path) -> io::Result<()> {
    // Opening a fifo must not wait, and a terminal must not become the controlling one.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = refuse_own(openat(CWD, path, flags, Mode::empty())?)?;
    let stat = fstat(&file)?;
    refuse_all_but_files(&stat)?;
    let mut file = File::from(file);
    let mut buffer = vec![0; PIECE_BYTES_MAX];
    let begin = read_full(&mut file, &mut buffer)?;
    // Files of /proc claim to be empty, so the size of a short file is what was read.
    let size = match (begin < buffer.len(), u64::try_from(stat.st_size)) {
        (true, _) => Some(begin as u64),
        (false, Ok(size)) if size >= begin as u64 => Some(size),
        (false, _) => None,
    };
    say(&ProgramStatus::Ready { kind: None, size });
    let mut output = output()?;
    output.write_all(&buffer[..begin])?;
    let rest = size.map_or(u64::MAX, |size| size - begin as u64);
    io::copy(&mut file.take(rest), &mut output)?;
    output.flush()
}

fn refuse_all_but_files(stat: &Stat) -> io::Result<()> {
    match Kind::of(stat) {
        Kind::File => Ok(()),
        Kind::Directory => Err(Errno::ISDIR.into()),
        Kind::Symlink | Kind::Special(_) => Err(NOT_A_FILE.into()),
    }
}

/// The error for fifos, sockets and devices.
const NOT_A_FILE: Errno = Errno::OPNOTSUPP;

/// Returns standard output with a buffer for whole pieces: std's own writes line by line.
fn output() -> io::Result<BufWriter<File>> {
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    Ok(BufWriter::with_capacity(PIECE_BYTES_MAX, File::from(output)))
}

fn try_list(path: &Path) -> io::Result<()> {
    let directory = open_directory(path)?;
    let content = Dir::read_from(&directory)?;
    say(&READY);
    let mut output = output()?;
    for entry in content {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => output.write_all(&listed(&stat, name.to_bytes()).encode())?,
            // It was removed since it was listed.
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    output.flush()
}

fn listed(stat: &Stat, name: &[u8]) -> Listed {
    Listed {
        kind: match Kind::of(stat) {
            Kind::File => ListedKind::File,
            Kind::Directory => ListedKind::Directory,
            Kind::Symlink => ListedKind::Symlink,
            Kind::Special(_) => ListedKind::Other,
        },
        mode: stat.st_mode & 0o7777,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mtime: stat.st_mtime,
        name: name.to_vec(),
    }
}

/// Writes a file that has no name until it is complete, so a reader sees the old file or the new
/// one.
fn try_write(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::ISDIR.into());
    };
    let mode = mode_in_place(path)?;
    fs::create_dir_all(parent)?;
    // Not opened for reading: the user may have only the right to write in the directory.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = openat(CWD, parent, flags, Mode::empty())?;
    let name = CString::new(name.as_bytes())?;
    let mut draft = Draft::create(parent.as_fd(), &name, Mode::from_raw_mode(0o644))?;
    say(&READY);
    fill(draft.file(), mode)?;
    Ok(draft.publish()?)
}

/// Returns the permissions of the file that is to be replaced. Only a file or a link can be
/// replaced.
fn mode_in_place(path: &Path) -> io::Result<Option<u32>> {
    match lstat(path) {
        Ok(stat) if Kind::is_symlink(&stat) => Ok(None),
        Ok(stat) => refuse_all_but_files(&stat).map(|()| Some(stat.st_mode & 0o777)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Reads pieces into the file, until an empty one says that the file is complete.
fn fill(file: &mut File, mode: Option<u32>) -> io::Result<()> {
    let mut input = io::stdin().lock();
    let mut buffer = vec![0; PIECE_BYTES_MAX];
    loop {
        let mut head = [0; 4];
        input.read_exact(&mut head)?;
        match piece_length(head) {
            Some(0) => break,
            Some(length) => {
                input.read_exact(&mut buffer[..length])?;
                file.write_all(&buffer[..length])?;
            }
            None => return Err(Errno::INVAL.into()),
        }
    }
    match mode {
        Some(mode) => file.set_permissions(Permissions::from_mode(mode)),
        None => Ok(()),
    }
}

fn try_remove(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::BUSY.into());
    };
    let name = CString::new(name.as_bytes())?;
    let parent = open_directory(parent)?;
    statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW)?;
    say(&READY);
    tree::remove(parent.as_fd(), &name)
}
