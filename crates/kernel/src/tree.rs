//! Removing a directory tree beneath a descriptor, following no symlink.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

/// Records are shallow; anything deeper is not one of ours.
const DEPTH_MAX: usize = 8;

/// Removes `name` beneath `parent` with everything in it. Absent is as wanted.
pub fn remove(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    remove_at_depth(parent, name, DEPTH_MAX)
}

fn remove_at_depth(parent: BorrowedFd<'_>, name: &CStr, depth: usize) -> io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    if depth == 0 {
        return Err(io::Error::from(Errno::LOOP));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match openat(parent, name, flags, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            remove_at_depth(directory.as_fd(), entry.file_name(), depth - 1)?;
        }
    }
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The names of the directories in a directory.
pub fn subdirectories(directory: BorrowedFd<'_>) -> io::Result<Vec<std::ffi::CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type() == FileType::Directory && name != c"." && name != c".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}
