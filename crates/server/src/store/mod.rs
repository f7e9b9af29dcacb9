//! Files that clients have sent and that programs have made, in a directory, for a day.
//!
//! ```text
//! DIRECTORY/lock                       held by the one server that works here
//! DIRECTORY/incoming/N                 what is being written
//! DIRECTORY/blobs/SHA256               each content once
//! DIRECTORY/sessions/SESSION/FILE.data   a hard link to its content
//! DIRECTORY/sessions/SESSION/FILE.json   its record: with it the file is there
//! DIRECTORY/known/HINT                 which files the client of a runtime session knows
//! ```
//!
//! The record comes last and goes first, so that at every moment a file is there whole
//! or not at all. The kernel counts the links to a content: one that has none but its
//! own is nobody's. What a killed server leaves is therefore known by looking, and
//! opening the store removes it ([`walk`]). Nothing is synced to the disk: after a loss
//! of power a content that did not get there is shorter than its record says, and both
//! go.
//!
//! Only ids and hashes are paths here, never a name that somebody chose. Everything
//! waits for the disk: call it from a thread that may wait.

mod directory;
mod expiry;
mod failure;
pub mod id;
mod media_type;
mod new_file;
mod object;
pub mod open;
pub mod owner;
mod quota;

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tare_engine::Timestamp;

use crate::librechat::{Id, Owner};
use crate::store::directory::{Erased, Places};
pub use crate::store::failure::StoreError;
pub use crate::store::new_file::Incoming;
pub use crate::store::object::{Meta, Object, Origin};
use crate::store::quota::Account;
#[cfg(test)]
pub use crate::store::quota::Used;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// Of one file.
    pub file_bytes: u64,
    /// Of all files of one owner, each counted whole.
    pub owner_bytes: u64,
    /// Of all contents, each counted once.
    pub total_bytes: u64,
    /// Older ones are removed.
    pub ttl: Duration,
}

#[derive(Debug)]
pub struct Store {
    places: Places,
    limits: Mutex<StoreLimits>,
    account: Mutex<Account>,
    /// Whoever makes or removes links has this: a content between two links looks like
    /// one that is nobody's.
    turn: Mutex<()>,
    next_incoming: AtomicU64,
    care: Mutex<Care>,
}

/// Decides when the next walk through all files is due.
#[derive(Debug, Clone, Copy, Default)]
struct Care {
    walked_at: Option<Timestamp>,
    /// No file is older. After a failed walk the oldest file may be younger than this.
    oldest: Option<Timestamp>,
    /// Walks that failed since the last one that succeeded.
    failures: u32,
}

/// A walk looks at every file, so a file sees few walks in its life.
const WALKS_PER_TTL: u32 = 48;
/// The first walk after a failed one. Each further failure doubles this time.
const RETRY_AFTER: Duration = Duration::from_secs(15);

impl Care {
    fn is_due(self, now: Timestamp, ttl: Duration) -> bool {
        let rest = self.rest(ttl);
        let rested = self.walked_at.is_none_or(|at| at > now || now.since(at) >= rest);
        rested && self.oldest.is_some_and(|oldest| is_over(oldest, now, ttl))
    }

    fn rest(self, ttl: Duration) -> Duration {
        let usual = ttl / WALKS_PER_TTL;
        match self.failures.checked_sub(1) {
            None => usual,
            Some(doublings) => usual.min(RETRY_AFTER.saturating_mul(1 << doublings.min(16))),
        }
    }
}

/// One from the far future is of a clock that was wrong, and would stay for ever.
fn is_over(created_at: Timestamp, now: Timestamp, ttl: Duration) -> bool {
    now.since(created_at) >= ttl || created_at > now.after(ttl)
}

impl Store {
    /// Makes the directory if it is not there, and looks through all that is in it.
    pub fn open(directory: &Path, limits: StoreLimits) -> Result<Arc<Self>, StoreError> {
        let store = Self {
            places: Places::open(directory)?,
            limits: Mutex::new(limits),
            account: Mutex::default(),
            turn: Mutex::default(),
            next_incoming: AtomicU64::new(0),
            care: Mutex::default(),
        };
        store.places.clear_incoming()?;
        store.take_stock(Timestamp::now())?;
        Ok(Arc::new(store))
    }

    /// They hold for what comes from now on.
    pub fn configure(&self, limits: StoreLimits) {
        *locked(&self.limits) = limits;
    }

    /// A file that begins to come. Dropped before it is kept, nothing of it is left.
    pub fn receive(self: &Arc<Self>, owner: &Owner) -> Result<Incoming, StoreError> {
        let number = self.next_incoming.fetch_add(1, Ordering::Relaxed);
        Incoming::begin(self, number, owner.clone())
    }

    /// Returns `None` for a file that is missing, unreadable or older than its time. An
    /// expired file may still be on the disk: the sweep comes later, and it can fail.
    pub fn find(&self, session: &Id, file: &Id) -> Result<Option<Object>, StoreError> {
        let Some(place) = self.places.session(session)? else {
            return Ok(None);
        };
        let object = place.object(file)?;
        Ok(object.filter(|object| self.serves(object)))
    }

    fn serves(&self, object: &Object) -> bool {
        !is_over(object.created_at, Timestamp::now(), self.limits().ttl)
    }

    /// The files of a session in the order in which they came, without expired ones.
    pub fn list(&self, session: &Id) -> Result<Vec<Object>, StoreError> {
        let Some(place) = self.places.session(session)? else {
            return Ok(Vec::new());
        };
        let mut objects = Vec::new();
        for file in place.files()? {
            objects.extend(place.object(&file)?);
        }
        objects.retain(|object| self.serves(object));
        objects.sort_by(|one, other| {
            (one.created_at, &one.name, &one.id).cmp(&(other.created_at, &other.name, &other.id))
        });
        Ok(objects)
    }

    /// Its content, which stays readable also when the file is removed meanwhile.
    /// `None`: it was removed before.
    pub fn read(&self, object: &Object) -> Result<Option<File>, StoreError> {
        match self.places.session(&object.session)? {
            Some(place) => place.content(object),
            None => Ok(None),
        }
    }

    /// Whether it was there.
    pub fn remove(&self, object: &Object) -> Result<bool, StoreError> {
        let _turn = self.turn();
        let Some(place) = self.places.session(&object.session)? else {
            return Ok(false);
        };
        // As it is now: somebody else may have removed it.
        let Some(object) = place.object(&object.id)? else {
            return Ok(false);
        };
        let erased = self.places.erase(&place, &object.id, Some(&object.sha256))?;
        drop(place);
        self.places.remove_if_empty(&object.session)?;
        self.forget(&object, erased);
        Ok(true)
    }

    /// Removes what is over its time, and what is nobody's. Does nothing when nothing
    /// can be.
    pub fn sweep(&self, now: Timestamp) -> Result<(), StoreError> {
        let ttl = self.limits().ttl;
        let is_due = locked(&self.care).is_due(now, ttl);
        if is_due { self.walk(now, |_, _| ()) } else { Ok(()) }
    }

    /// Replaces what is known of a runtime session; `None` forgets it. Its name has only
    /// hexadecimal digits.
    pub fn remember(&self, session: &str, known: Option<&[u8]>) -> Result<(), StoreError> {
        let _turn = self.turn();
        let number = self.next_incoming.fetch_add(1, Ordering::Relaxed);
        match known {
            Some(text) => self.places.write_known(number, session, text),
            None => self.places.remove_known(session),
        }
    }

    pub fn recall(&self, session: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.places.read_known(session)
    }

    /// Forgets the runtime sessions that are over, judged by what is known of them.
    pub fn forget_sessions(&self, is_over: impl Fn(&[u8]) -> bool) -> Result<(), StoreError> {
        let mut failed = Ok(());
        for session in self.places.known()? {
            // Without the lock, because the engine is asked. One that cannot be read keeps
            // no other.
            let over = match self.places.read_known(&session) {
                Ok(Some(known)) if is_over(&known) => known,
                Ok(_) => continue,
                Err(error) => {
                    failed = Err(error);
                    continue;
                }
            };
            // A session that began meanwhile has written something else.
            let _turn = self.turn();
            if self.places.read_known(&session)? == Some(over) {
                self.places.remove_known(&session)?;
            }
        }
        failed
    }

    #[cfg(test)]
    /// What this owner has, with what is still coming.
    pub fn used_by(&self, owner: &Owner) -> Used {
        self.account().of(owner)
    }

    /// Of all contents, with those that are still coming.
    pub fn used_bytes(&self) -> u64 {
        self.account().total_bytes()
    }

    fn limits(&self) -> StoreLimits {
        *locked(&self.limits)
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        locked(&self.account)
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        locked(&self.turn)
    }

    fn forget(&self, object: &Object, erased: Erased) {
        let mut account = self.account();
        account.release(&object.owner, object.size);
        account.shrink(erased.freed_bytes);
    }

    fn noticed(&self, created_at: Timestamp) {
        let mut care = locked(&self.care);
        care.oldest = Some(care.oldest.map_or(created_at, |at| at.min(created_at)));
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
