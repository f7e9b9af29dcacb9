//! A file while it is written. Every byte counts against its owner's quota before it is on disk.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tare_engine::Timestamp;

use crate::error::ServiceError;
use crate::store::entries::IoContext;
use crate::store::id::Id;
use crate::store::object::{ContentHash, Meta, Object};
use crate::store::owner::Owner;
use crate::store::{Store, quota};

/// A listing of a session contains all of its files.
pub const SESSION_FILES_MAX: usize = 2000;

#[derive(Debug)]
pub struct NewFile {
    store: Arc<Store>,
    number: u64,
    file: File,
    hasher: Sha256,
    owner: Owner,
    size: u64,
    is_kept: bool,
}

impl NewFile {
    pub(super) fn begin(
        store: &Arc<Store>,
        number: u64,
        owner: Owner,
    ) -> Result<Self, ServiceError> {
        store.usage().admit(&owner)?;
        let file = store.directory.begin(number);
        let file = file.inspect_err(|_| store.usage().release(&owner, 0))?;
        let (store, hasher) = (Arc::clone(store), Sha256::new());
        Ok(Self { store, number, file, hasher, owner, size: 0, is_kept: false })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ServiceError> {
        let count = bytes.len() as u64;
        self.store.usage().grow(&self.owner, self.size, count, &self.store.config.get().files)?;
        self.size += count;
        self.hasher.update(bytes);
        let written = self.file.write_all(bytes);
        written.context(|| format!("cannot write incoming/{}", self.number))
    }

    /// Makes the file part of a session. It exists from the moment that this returns.
    pub fn keep(mut self, session: &Id, meta: Meta) -> Result<Object, ServiceError> {
        let object = Object {
            session: session.clone(),
            id: Id::random(),
            name: meta.name,
            size: self.size,
            sha256: ContentHash::of(std::mem::take(&mut self.hasher)),
            owner: self.owner.clone(),
            said_by: meta.said_by,
            read_only: meta.read_only,
            modified_from: meta.modified_from,
            created_at: Timestamp::now(),
        };
        let store = Arc::clone(&self.store);
        let _changing = store.changing();
        let files = match store.directory.session(session)? {
            Some(files) => files.ids()?.len(),
            None => 0,
        };
        if files >= SESSION_FILES_MAX {
            return Err(quota::session_full(SESSION_FILES_MAX));
        }
        store.directory.keep(self.number, store.incoming_number(), &object)?;
        self.is_kept = true;
        store.saw_file_of(object.created_at);
        Ok(object)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        // If this fails, the next opening of the store removes it.
        self.store.directory.abandon(self.number).ok();
        self.store.usage().release(&self.owner, self.size);
    }
}
