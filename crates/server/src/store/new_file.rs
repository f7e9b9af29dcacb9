//! A file that is being written. Every byte is on its owner's account before it is on
//! the disk.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sha2::{Digest, Sha256};
use tare_engine::Timestamp;

use crate::librechat::{Id, Owner};
use crate::store::Store;
use crate::store::directory::Settled;
use crate::store::failure::{Doing, StoreError};
use crate::store::object::{ContentHash, Meta, Object};

/// A listing of a session names them all.
pub const SESSION_FILES_MAX: usize = 2000;

#[derive(Debug)]
pub struct Incoming {
    store: Arc<Store>,
    number: u64,
    file: File,
    hasher: Sha256,
    owner: Owner,
    size: u64,
    is_kept: bool,
}

impl Incoming {
    pub(super) fn begin(store: &Arc<Store>, number: u64, owner: Owner) -> Result<Self, StoreError> {
        store.account().admit(&owner)?;
        let file = store.places.begin(number);
        let file = file.inspect_err(|_| store.account().release(&owner, 0))?;
        Ok(Self {
            store: Arc::clone(store),
            number,
            file,
            hasher: Sha256::new(),
            owner,
            size: 0,
            is_kept: false,
        })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let limits = self.store.limits();
        let count = bytes.len() as u64;
        if self.size.saturating_add(count) > limits.file_bytes {
            let most_bytes = limits.file_bytes;
            return Err(StoreError::FileTooLarge { most_bytes });
        }
        self.store.account().grow(&self.owner, count, &limits)?;
        self.size += count;
        self.hasher.update(bytes);
        let written = self.file.write_all(bytes);
        written.doing(|| format!("cannot write incoming/{}", self.number))
    }

    /// It is there when this returns, and before that it is not.
    pub fn keep(mut self, session: &Id, meta: Meta) -> Result<Object, StoreError> {
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
        let record = store.next_incoming.fetch_add(1, Ordering::Relaxed);
        let _turn = store.turn();
        check_room(&store, session)?;
        let settled = store.places.settle(self.number, record, &object)?;
        self.is_kept = true;
        if settled == Settled::Known {
            store.account().shrink(self.size);
        }
        store.noticed(object.created_at);
        Ok(object)
    }
}

fn check_room(store: &Store, session: &Id) -> Result<(), StoreError> {
    let files = match store.places.session(session)? {
        Some(place) => place.files()?.len(),
        None => 0,
    };
    let most = SESSION_FILES_MAX;
    if files < most { Ok(()) } else { Err(StoreError::SessionHasTooMany { most }) }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        // What cannot be removed now is when the store is opened next.
        self.store.places.abandon(self.number).ok();
        let mut account = self.store.account();
        account.release(&self.owner, self.size);
        account.shrink(self.size);
    }
}
