//! Entries of a directory. A name is resolved from the descriptor of its directory, and a symbolic
//! link is never followed.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat, mkdirat, openat, statat, unlinkat};
use rustix::io::Errno;

use crate::error::ServiceError;

/// Only the user who runs the server can read the store.
const PRIVATE_DIRECTORY: Mode = Mode::RWXU;

/// Adds to an error of the operating system what the store was doing. Only the log shows it,
/// because it can contain paths of the host.
pub trait IoContext<T> {
    fn context(self, doing: impl FnOnce() -> String) -> Result<T, ServiceError>;
}

impl<T, E: Into<io::Error>> IoContext<T> for Result<T, E> {
    fn context(self, doing: impl FnOnce() -> String) -> Result<T, ServiceError> {
        self.map_err(|source| {
            let source = source.into();
            let detail = format!("{}: {source}", doing());
            let missing = match source.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOSPC | Errno::DQUOT) => "space for files",
                Some(Errno::MFILE | Errno::NFILE) => "descriptors",
                Some(_) | None => return ServiceError::internal(detail),
            };
            let message = format!("the host has no {missing} left");
            ServiceError {
                detail: Some(detail.into()),
                ..ServiceError::unavailable("exhausted", message)
            }
        })
    }
}

pub fn open_file(directory: impl AsFd, name: &str) -> Result<Option<File>, Errno> {
    // A FIFO must not block the thread that opens it.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match openat(directory, name, flags, Mode::empty()) {
        Ok(file) => Ok(Some(File::from(file))),
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

pub const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

pub fn open_or_create(parent: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    match mkdirat(&parent, name, PRIVATE_DIRECTORY) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    openat(parent, name, DIRECTORY, Mode::empty())
}

pub fn remove(directory: impl AsFd, name: &str) -> Result<(), Errno> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns `None` if the name does not exist. Does not follow a symbolic link.
pub fn status(directory: impl AsFd, name: &str) -> Result<Option<Stat>, Errno> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(status) => Ok(Some(status)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The names in a directory that are UTF-8, as all names of the store are.
pub fn names(directory: impl AsFd) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if let Ok(name) = name.to_str() {
            names.push(name.to_owned());
        }
    }
    names.retain(|name| !matches!(name.as_str(), "." | ".."));
    Ok(names)
}
