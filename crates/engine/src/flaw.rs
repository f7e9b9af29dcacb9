//! What is wrong with a record, so that what it says, or does not say, is nothing to
//! go by: its box is left alone until somebody asks for its end.

use std::fmt;
use std::io;

use rustix::io::Errno;

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
    /// It lacks what it must have said.
    Incomplete,
    /// It says that its keeper is dead, and somebody lives in the box.
    Wrong,
}

impl Flaw {
    pub fn unreadable(error: &io::Error) -> Self {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => Self::Odd,
            Some(_) | None => Self::Unreadable(error.to_string()),
        }
    }

    /// Whether there is no directory that could be locked and read.
    pub fn is_of_directory(&self) -> bool {
        match self {
            Self::NoDirectory | Self::Closed => true,
            Self::NotOurs { .. }
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
            Self::Odd => f.write_str("a file of its record is none"),
            Self::Unreadable(why) => write!(f, "its record cannot be read ({why})"),
            Self::Newer { version } => {
                write!(
                    f,
                    "its record was written by a newer tare (version {version})"
                )
            }
            Self::Incomplete => f.write_str("its record is damaged"),
            Self::Wrong => f.write_str("its record says that it is over, and it lives"),
        }
    }
}
