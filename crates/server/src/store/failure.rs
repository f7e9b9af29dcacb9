//! Why a file was not taken, or not found.

use std::io;

use rustix::io::Errno;
use tare_engine::spec::quantity;

use crate::error::ServiceError;

#[derive(Debug)]
pub enum StoreError {
    /// One file is larger than any may be.
    FileTooLarge {
        most_bytes: u64,
    },
    /// Its owner has as much as one may.
    OwnerFull {
        most_bytes: u64,
    },
    OwnerHasTooMany {
        most: u64,
    },
    SessionHasTooMany {
        most: usize,
    },
    /// All owners together have as much as there is room for.
    Full,
    /// Another server works in this directory.
    InUse {
        directory: String,
    },
    Failed {
        doing: String,
        source: io::Error,
    },
}

pub trait Doing<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, StoreError>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::Failed { doing: doing(), source: source.into() })
    }
}

/// A quota is 507 and not 413: the file may be sent again when others are gone.
impl From<StoreError> for ServiceError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::FileTooLarge { most_bytes } => {
                let most = quantity::show_bytes(most_bytes);
                Self::too_large("file_too_large", "File size limit exceeded")
                    .with_hint(format!("a file has at most {most}"))
            }
            StoreError::OwnerFull { most_bytes } => {
                let most = quantity::show_bytes(most_bytes);
                let message = format!("the files of one owner have at most {most}");
                Self::no_space("owner_full", message)
                    .with_hint("remove some, or wait until they are over their time")
            }
            StoreError::OwnerHasTooMany { most } => {
                let message = format!("one owner has at most {most} files");
                Self::no_space("owner_full", message)
                    .with_hint("remove some, or wait until they are over their time")
            }
            StoreError::SessionHasTooMany { most } => {
                let message = format!("a session has at most {most} files");
                Self::no_space("session_full", message)
            }
            StoreError::Full => {
                Self::unavailable("store_full", "there is no room for more files now")
            }
            StoreError::InUse { directory } => Self {
                detail: Some(format!("another server works in {directory}")),
                ..Self::unavailable("store_in_use", "another server has the directory of files")
                    .with_hint("give each server a directory of its own: [files] directory")
            },
            StoreError::Failed { doing, source } => failed(&doing, &source),
        }
    }
}

fn failed(doing: &str, source: &io::Error) -> ServiceError {
    let detail = format!("{doing}: {source}");
    let lacks = match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => "space for files",
        Some(Errno::MFILE | Errno::NFILE) => "descriptors",
        Some(_) | None => return ServiceError::internal(detail),
    };
    ServiceError {
        detail: Some(detail),
        ..ServiceError::unavailable("exhausted", format!("the host has no {lacks} left"))
    }
}
