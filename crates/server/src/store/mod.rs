//! Files of clients, on disk, for `[files] ttl`. The store knows nothing about HTTP and boxes.
//!
//! ```text
//! DIRECTORY/lock                         locked by the one server that uses the directory
//! DIRECTORY/incoming/N                   files that are being written
//! DIRECTORY/sessions/SESSION/FILE.data   the content of a file
//! DIRECTORY/sessions/SESSION/FILE.json   its record: the file exists while this does
//! DIRECTORY/known/HINT                   which files the client of a runtime session knows
//! ```
//!
//! The store writes the record last and removes it first, so a file is complete or absent at
//! every moment. Opening the store is its first sweep ([`expiry`]). Each sweep removes content without
//! a record, which a killed server leaves. Nothing is synced to disk: after a loss of power, content
//! can be shorter than its record says, and the store removes both.
//!
//! Paths contain only ids and hexadecimal digits, never a name that a client chose. Every
//! operation may wait for the disk: call it on a worker thread.

mod directory;
mod entries;
mod expiry;
pub mod id;
mod media_type;
mod new_file;
mod object;
pub mod open;
pub mod owner;
mod quota;
mod session_files;

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tare_engine::Timestamp;

use crate::config::current::CurrentConfig;
use crate::error::ServiceError;
use crate::store::directory::StoreDirectory;
use crate::store::expiry::SweepSchedule;
use crate::store::id::Id;
pub use crate::store::new_file::NewFile;
pub use crate::store::object::{Meta, Object, Origin};
use crate::store::owner::Owner;
use crate::store::quota::Usage;
use crate::workers::locked;

#[derive(Debug)]
pub struct Store {
    directory: StoreDirectory,
    config: CurrentConfig,
    usage: Mutex<Usage>,
    /// Held while names of a session change: a sweep would remove content whose record is not
    /// there yet, and an empty session directory that is about to get a file.
    changing: Mutex<()>,
    next_incoming: AtomicU64,
    schedule: Mutex<SweepSchedule>,
}

impl Store {
    /// Creates the directory if it is missing, and checks and counts every file in it.
    pub fn open(directory: &Path, config: CurrentConfig) -> Result<Arc<Self>, ServiceError> {
        let store = Self {
            directory: StoreDirectory::open(directory)?,
            config,
            usage: Mutex::default(),
            changing: Mutex::default(),
            next_incoming: AtomicU64::new(0),
            schedule: Mutex::default(),
        };
        store.count_all(Timestamp::now())?;
        Ok(Arc::new(store))
    }

    /// Begins a new file. Dropping it before it is kept removes it.
    pub fn receive(self: &Arc<Self>, owner: &Owner) -> Result<NewFile, ServiceError> {
        NewFile::begin(self, self.incoming_number(), owner.clone())
    }

    /// Returns `None` for a file that is missing, unreadable or expired. An expired file can
    /// still be on disk, because the sweep runs later and can fail.
    pub fn find(&self, session: &Id, file: &Id) -> Result<Option<Object>, ServiceError> {
        let Some(files) = self.directory.session(session)? else {
            return Ok(None);
        };
        let object = files.object(file)?;
        Ok(object.filter(|object| self.is_current(object)))
    }

    fn is_current(&self, object: &Object) -> bool {
        !expiry::is_expired(object.created_at, Timestamp::now(), self.ttl())
    }

    /// Returns the files of a session, oldest first, without expired ones.
    pub fn list(&self, session: &Id) -> Result<Vec<Object>, ServiceError> {
        let Some(files) = self.directory.session(session)? else {
            return Ok(Vec::new());
        };
        let mut objects = Vec::new();
        for file in files.ids()? {
            objects.extend(files.object(&file)?);
        }
        objects.retain(|object| self.is_current(object));
        objects.sort_by(|one, other| {
            (one.created_at, &one.name, &one.id).cmp(&(other.created_at, &other.name, &other.id))
        });
        Ok(objects)
    }

    /// Opens the content of a file. It stays readable if the file is removed meanwhile.
    /// Returns `None` if the file is already removed.
    pub fn read(&self, object: &Object) -> Result<Option<File>, ServiceError> {
        match self.directory.session(&object.session)? {
            Some(files) => files.content(object),
            None => Ok(None),
        }
    }

    /// Removes a file. Returns `false` if it was already removed.
    pub fn remove(&self, object: &Object) -> Result<bool, ServiceError> {
        let _changing = self.changing();
        let Some(files) = self.directory.session(&object.session)? else {
            return Ok(false);
        };
        // Another request may have removed it since `object` was read.
        let Some(object) = files.object(&object.id)? else {
            return Ok(false);
        };
        files.erase(&object.id)?;
        drop(files);
        self.directory.remove_if_empty(&object.session)?;
        self.usage().release(&object.owner, object.size);
        Ok(true)
    }

    /// Removes expired files and content without a record. Does nothing before a file can have
    /// expired.
    pub fn sweep(&self, now: Timestamp) -> Result<(), ServiceError> {
        let is_due = locked(&self.schedule).is_due(now, self.ttl());
        if is_due { self.check_all(now, |_| ()) } else { Ok(()) }
    }

    /// Saves what the client of a runtime session knows. `session` consists of hexadecimal
    /// digits.
    pub fn save_known(&self, session: &str, known: &[u8]) -> Result<(), ServiceError> {
        let _changing = self.changing();
        self.directory.write_known(self.incoming_number(), session, known)
    }

    pub fn known(&self, session: &str) -> Result<Option<Vec<u8>>, ServiceError> {
        self.directory.read_known(session)
    }

    /// Removes what was saved of runtime sessions that `is_over` says are over.
    pub fn remove_known(&self, is_over: impl Fn(&[u8]) -> bool) -> Result<(), ServiceError> {
        let mut failed = Ok(());
        for session in self.directory.known()? {
            // `is_over` calls the engine, so this does not hold the lock. An entry that cannot
            // be read does not keep the others.
            let over = match self.directory.read_known(&session) {
                Ok(Some(known)) if is_over(&known) => known,
                Ok(_) => continue,
                Err(error) => {
                    failed = Err(error);
                    continue;
                }
            };
            // A session of the same name that began meanwhile has saved something else.
            let _changing = self.changing();
            if self.directory.read_known(&session)? == Some(over) {
                self.directory.remove_known(&session)?;
            }
        }
        failed
    }

    /// The size of all files, including those that are being written.
    pub fn used_bytes(&self) -> u64 {
        self.usage().total_bytes()
    }

    fn incoming_number(&self) -> u64 {
        self.next_incoming.fetch_add(1, Ordering::Relaxed)
    }

    /// The age at which files expire.
    fn ttl(&self) -> Duration {
        self.config.get().files.ttl.0
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        locked(&self.usage)
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        locked(&self.changing)
    }
}

#[cfg(test)]
mod tests;
