//! What is wrong with a record, so that what it says, or does not say, is nothing to
//! go by: its box is left alone until somebody asks for its end.

use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, statat};
use tare_kernel::tree;

use crate::host::layout::SCRATCH;
use crate::spec::shown::quoted;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// A link, a file, or anything else that is no directory.
    NoDirectory,
    /// A directory that does not let us in.
    Closed,
    /// What is in it was written by another user.
    NotOurs { uid: u32 },
    /// A file in it is a link, a directory, or what else none of its files is.
    Odd,
    /// A file in it cannot be read just now.
    Unreadable(String),
    /// It was written by a version of tare that does it differently.
    Newer { version: u32 },
    /// It has neither account nor socket, and holds what tare never puts into a record.
    Foreign { entry: String },
    /// It lacks what it must have said.
    Incomplete,
    /// It says that its keeper is dead, and somebody lives in the box.
    Wrong,
}

impl Flaw {
    pub fn unreadable(error: &io::Error) -> Self {
        match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::InvalidInput, None) => Self::Odd,
            (_, _) => Self::Unreadable(error.to_string()),
        }
    }

    /// What the user can do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Foreign { .. } => "tare does not touch it: move it elsewhere",
            Self::NoDirectory
            | Self::Closed
            | Self::NotOurs { .. }
            | Self::Odd
            | Self::Unreadable(_)
            | Self::Newer { .. }
            | Self::Incomplete
            | Self::Wrong => "'tare rm -f' ends it",
        }
    }

    /// Whether there is no directory that could be locked and read.
    pub fn is_of_directory(&self) -> bool {
        match self {
            Self::NoDirectory | Self::Closed => true,
            Self::NotOurs { .. }
            | Self::Foreign { .. }
            | Self::Odd
            | Self::Unreadable(_)
            | Self::Newer { .. }
            | Self::Incomplete
            | Self::Wrong => false,
        }
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDirectory => f.write_str("its record is no directory"),
            Self::Closed => f.write_str("its record cannot be opened"),
            Self::NotOurs { uid } => write!(f, "its record belongs to user {uid}"),
            Self::Foreign { entry } => {
                write!(f, "it is not a record of tare: it holds {}", quoted(entry))
            }
            Self::Odd => f.write_str("a file of its record is none"),
            Self::Unreadable(why) => write!(f, "its record cannot be read ({why})"),
            Self::Newer { version } => {
                write!(f, "its record was written by a newer tare (version {version})")
            }
            Self::Incomplete => f.write_str("its record is damaged"),
            Self::Wrong => f.write_str("its record says that it is over, and it lives"),
        }
    }
}

/// An entry that tare did not put there, of a directory whose account does not say that it
/// is a record. A record that was just made, is half removed or has lost its account holds
/// only what tare names.
pub fn foreign_entry(directory: BorrowedFd<'_>, files: &[&str]) -> Option<String> {
    let is_foreign = |name: &CString| match name.to_str() {
        // Its removal loses nothing.
        _ if is_symlink(directory, name) => false,
        Ok(SCRATCH) => false,
        Ok(name) => !files.contains(&name),
        Err(_) => true,
    };
    let foreign = tree::names(directory).ok()?.into_iter().find(is_foreign)?;
    Some(foreign.to_string_lossy().into_owned())
}

fn is_symlink(directory: BorrowedFd<'_>, name: &CStr) -> bool {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}
