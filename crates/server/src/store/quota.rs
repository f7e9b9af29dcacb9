//! Who has how much, with what is still coming: two who come at once are not both let
//! in where there is room for one.

use std::collections::HashMap;

use crate::librechat::Owner;
use crate::store::StoreLimits;
use crate::store::failure::StoreError;

/// A record takes a block of the disk and a name, however small the file is.
const OWNER_FILES_MAX: u64 = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// Each file counted whole.
    pub bytes: u64,
    pub files: u64,
}

#[derive(Debug, Default)]
pub struct Account {
    owners: HashMap<Owner, Used>,
    total_bytes: u64,
}

impl Account {
    pub fn of(&self, owner: &Owner) -> Used {
        self.owners.get(owner).copied().unwrap_or_default()
    }

    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// A file, of which nothing has come yet.
    pub fn admit(&mut self, owner: &Owner) -> Result<(), StoreError> {
        if self.of(owner).files >= OWNER_FILES_MAX {
            return Err(StoreError::OwnerHasTooMany { most: OWNER_FILES_MAX });
        }
        self.add(owner, 0);
        Ok(())
    }

    /// More of a file that is coming.
    pub fn grow(
        &mut self,
        owner: &Owner,
        bytes: u64,
        limits: &StoreLimits,
    ) -> Result<(), StoreError> {
        let most_bytes = limits.owner_bytes;
        if self.of(owner).bytes.saturating_add(bytes) > most_bytes {
            return Err(StoreError::OwnerFull { most_bytes });
        }
        if self.total_bytes.saturating_add(bytes) > limits.total_bytes {
            return Err(StoreError::Full);
        }
        self.owners.entry(owner.clone()).or_default().bytes += bytes;
        self.total_bytes += bytes;
        Ok(())
    }

    /// A file that is there already, whoever allowed it.
    pub fn add(&mut self, owner: &Owner, bytes: u64) {
        let used = self.owners.entry(owner.clone()).or_default();
        used.files += 1;
        used.bytes += bytes;
    }

    /// A file that is gone, or did not come whole.
    pub fn release(&mut self, owner: &Owner, bytes: u64) {
        let Some(used) = self.owners.get_mut(owner) else {
            return;
        };
        used.files = used.files.saturating_sub(1);
        used.bytes = used.bytes.saturating_sub(bytes);
        if used.files == 0 {
            self.owners.remove(owner);
        }
    }

    /// A content more on the disk.
    pub fn extend(&mut self, bytes: u64) {
        self.total_bytes += bytes;
    }

    /// A content less, or one that was there already.
    pub fn shrink(&mut self, bytes: u64) {
        self.total_bytes = self.total_bytes.saturating_sub(bytes);
    }
}
