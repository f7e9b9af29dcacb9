//! Why a record cannot be trusted. tare leaves its box alone until a user asks for its end.

use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, statat};
use tare_kernel::fds::open_directory;
use tare_kernel::tree;

use crate::error::Hint;
use crate::host::layout::SCRATCH;
use crate::record::FILES;
use crate::record::files::CONTROL;
use crate::record::json;
use crate::spec::shown::quoted;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// There is no directory that tare can open. Ending the box replaces it.
    NotADirectory,
    /// tare did not make the directory: it holds this entry. tare never changes or removes it.
    NotOurs { entry: String },
    /// The record cannot be read now, or another version of tare wrote it. It may be in order, so
    /// only a user ends the box.
    Unreadable(String),
    /// The record lacks a line, or is wrong. A sweep removes it if no process lives in the box.
    Broken(String),
}

/// The record lacks a line that it must have.
pub const INCOMPLETE: &str = "its record is damaged";
/// The record says that its keeper is dead, and a process lives in the box.
pub const CONTRADICTED: &str = "its record says that it has ended, but it is alive";
const NOT_A_FILE: &str = "a record file is not a regular file";

impl Damage {
    pub fn incomplete() -> Self {
        Self::Broken(INCOMPLETE.to_owned())
    }

    pub fn unreadable(error: &io::Error) -> Self {
        match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::InvalidInput, None) => Self::Broken(NOT_A_FILE.to_owned()),
            (_, _) => Self::Unreadable(error.to_string()),
        }
    }

    /// The record was written by a tare of another version.
    pub fn other_version(version: u32) -> Self {
        Self::Unreadable(format!("another tare wrote it, version {version}"))
    }

    /// What the user can do about it, as a hint of an error.
    pub fn hint(&self) -> Hint {
        match self {
            Self::NotOurs { .. } => self.remedy().into(),
            Self::NotADirectory | Self::Unreadable(_) | Self::Broken(_) => Hint::Force,
        }
    }

    /// What the user can do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NotOurs { .. } => "tare does not touch it: move it elsewhere",
            Self::NotADirectory | Self::Unreadable(_) | Self::Broken(_) => "'tare rm -f' ends it",
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotADirectory => f.write_str("its record is not a directory that tare can open"),
            Self::NotOurs { entry } => {
                write!(f, "it is not a record of tare: it holds {}", quoted(entry))
            }
            Self::Unreadable(why) => write!(f, "its record cannot be read ({why})"),
            Self::Broken(why) => f.write_str(why),
        }
    }
}

/// Returns an entry that tare did not make, of a directory without a line that can be read.
///
/// A record that was just made, is half removed or has lost its lines contains only names that tare
/// uses, and has a mark of tare. A directory without a mark counts as a record only if nothing in
/// it can be lost.
pub fn foreign_entry(directory: BorrowedFd<'_>) -> Option<String> {
    let names = tree::names(directory).ok()?;
    let is_of_tare = |name: &CString| {
        let name = name.to_str().ok();
        name.is_some_and(|name| name == SCRATCH || FILES.contains(&name))
    };
    let is_marked = has_mark(directory);
    let is_foreign = |name: &&CString| !is_marked || !is_of_tare(name);
    let mut foreign = names.iter().filter(is_foreign);
    let entry = foreign.find(|name| can_be_lost(directory, name))?;
    Some(entry.to_string_lossy().into_owned())
}

/// Returns whether removing the entry would lose something: it is a file or directory that is not
/// empty, or cannot be read.
fn can_be_lost(directory: BorrowedFd<'_>, name: &CStr) -> bool {
    let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return true;
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => stat.st_size > 0,
        FileType::Directory => {
            let inside = open_directory(directory, name).map(|it| tree::names(it.as_fd()));
            !matches!(inside, Ok(Ok(names)) if names.is_empty())
        }
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => false,
    }
}

/// How the first line of every record begins.
const FIRST_LINE: &[u8] = b"{\"intent\":{\"version\":";

/// Returns whether the directory has a mark of tare: a control socket, or the beginning of a first
/// line, which may be cut off or partly zeros.
fn has_mark(directory: BorrowedFd<'_>) -> bool {
    let control = statat(directory, CONTROL, AtFlags::SYMLINK_NOFOLLOW);
    if control.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket) {
        return true;
    }
    let bytes = json::read_bytes(directory);
    let mut start = bytes.iter().zip(FIRST_LINE);
    !bytes.is_empty() && start.all(|(byte, expected)| byte == expected || *byte == 0)
}
