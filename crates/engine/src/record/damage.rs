//! Why a record cannot be trusted. tare leaves its box alone until a user asks for its end.

use std::fmt;
use std::io;

use crate::error::Hint;
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

    /// What the user can do about it.
    pub fn hint(&self) -> Hint {
        match self {
            Self::NotOurs { .. } => "tare does not touch it: move it elsewhere".into(),
            Self::NotADirectory | Self::Unreadable(_) | Self::Broken(_) => Hint::Force,
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
