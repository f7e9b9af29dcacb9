//! Bytes and files per owner, and in total. Files that are being written count too, so that two
//! uploads at once cannot both use the same remaining space.

use std::collections::HashMap;

use tare_engine::spec::quantity;

use crate::config::files::FilesConfig;
use crate::error::ServiceError;
use crate::store::owner::Owner;

/// Even an empty file takes a block of the disk and a name.
const OWNER_FILES_MAX: u64 = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    pub bytes: u64,
    pub files: u64,
}

#[derive(Debug, Default)]
pub struct Usage {
    owners: HashMap<Owner, Used>,
    total_bytes: u64,
}

impl Usage {
    pub fn of(&self, owner: &Owner) -> Used {
        self.owners.get(owner).copied().unwrap_or_default()
    }

    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Counts a new file, which is still empty.
    pub fn admit(&mut self, owner: &Owner) -> Result<(), ServiceError> {
        if self.of(owner).files >= OWNER_FILES_MAX {
            return Err(owner_full(format!("one owner has at most {OWNER_FILES_MAX} files")));
        }
        self.add(owner, 0);
        Ok(())
    }

    /// Counts more bytes of a file that is being written and has `size` bytes so far.
    pub fn grow(
        &mut self,
        owner: &Owner,
        size: u64,
        bytes: u64,
        limits: &FilesConfig,
    ) -> Result<(), ServiceError> {
        if size.saturating_add(bytes) > limits.file_bytes.0 {
            return Err(file_too_large(limits.file_bytes.0));
        }
        if self.of(owner).bytes.saturating_add(bytes) > limits.owner_bytes.0 {
            let most = quantity::show_bytes(limits.owner_bytes.0);
            return Err(owner_full(format!("the files of one owner have at most {most}")));
        }
        if self.total_bytes.saturating_add(bytes) > limits.total_bytes.0 {
            return Err(ServiceError::unavailable(
                "store_full",
                "there is no room for more files now",
            ));
        }
        self.owners.entry(owner.clone()).or_default().bytes += bytes;
        self.total_bytes += bytes;
        Ok(())
    }

    /// Counts a file that exists, whatever the limits are.
    pub fn add(&mut self, owner: &Owner, bytes: u64) {
        let used = self.owners.entry(owner.clone()).or_default();
        used.files += 1;
        used.bytes += bytes;
        self.total_bytes += bytes;
    }

    /// Stops counting a file that was removed, or not kept.
    pub fn release(&mut self, owner: &Owner, bytes: u64) {
        self.total_bytes = self.total_bytes.saturating_sub(bytes);
        let Some(used) = self.owners.get_mut(owner) else {
            return;
        };
        used.files = used.files.saturating_sub(1);
        used.bytes = used.bytes.saturating_sub(bytes);
        if used.files == 0 {
            self.owners.remove(owner);
        }
    }
}

fn file_too_large(most: u64) -> ServiceError {
    ServiceError::too_large("file_too_large", "File size limit exceeded")
        .with_hint(format!("a file has at most {}", quantity::show_bytes(most)))
}

/// Not "too large": the client can send the file again after others are removed.
fn owner_full(message: String) -> ServiceError {
    ServiceError::no_space("owner_full", message)
        .with_hint("remove some, or wait until they expire")
}

/// The error for a session that has as many files as it may.
pub fn session_full(most: usize) -> ServiceError {
    let message = format!("a session has at most {most} files");
    ServiceError::no_space("session_full", message)
}
