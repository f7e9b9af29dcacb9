//! Everything in a store is looked at: what is over its time, what no record leads to,
//! and what cannot be read. One that is damaged never keeps the others from being
//! cared for.

use tare_engine::Timestamp;

use crate::librechat::Id;
use crate::store::directory::Session;
use crate::store::failure::StoreError;
use crate::store::object::Object;
use crate::store::quota::Account;
use crate::store::{Store, is_over, locked};

/// What is left of a file.
enum Found {
    Whole(Object),
    /// Its content is not what its record says, and never will be.
    Torn(Object),
    /// A content without a record: of a file that was not kept, or is removed.
    Unrecorded,
    /// A record that is not understood. Another version may have written it.
    Unreadable {
        since: Timestamp,
    },
}

impl Store {
    /// Counts what is there, and removes what is not to be.
    pub(super) fn take_stock(&self, now: Timestamp) -> Result<(), StoreError> {
        let mut counted = Account::default();
        self.walk(now, |object, place| {
            counted.add(&object.owner, object.size);
            let data = place.data(&object.id).ok().flatten();
            if data.is_some_and(|data| data.st_nlink == 1) {
                counted.extend(object.size);
            }
        })?;
        for blob in self.places.blobs()? {
            counted.extend(self.places.blob_bytes(&blob)?);
        }
        *self.account() = counted;
        Ok(())
    }

    /// Calls `keeps` with every file that stays. A failed walk has not seen every file: the
    /// oldest one that was known before still counts, so that the next walk comes.
    pub(super) fn walk(
        &self,
        now: Timestamp,
        keeps: impl FnMut(&Object, &Session),
    ) -> Result<(), StoreError> {
        // Files that arrive during the walk are noticed when they are kept.
        let before = locked(&self.care).oldest.take();
        let walked = self.walk_all(now, keeps);
        if walked.is_err() {
            before.into_iter().for_each(|at| self.noticed(at));
        }
        let mut care = locked(&self.care);
        care.walked_at = Some(now);
        care.failures = match walked {
            Ok(()) => 0,
            Err(_) => care.failures.saturating_add(1),
        };
        walked
    }

    /// Returns the first error, after the walk has looked at everything that it can.
    fn walk_all(
        &self,
        now: Timestamp,
        mut keeps: impl FnMut(&Object, &Session),
    ) -> Result<(), StoreError> {
        let mut oldest = None;
        let mut failed = None;
        for session in self.places.sessions()? {
            let mut stays = |object: &Object, place: &Session| {
                let created_at = object.created_at;
                oldest = Some(oldest.map_or(created_at, |at: Timestamp| at.min(created_at)));
                keeps(object, place);
            };
            if let Err(error) = self.walk_session(&session, now, &mut stays) {
                failed.get_or_insert(error);
            }
        }
        for blob in self.places.blobs()? {
            let _turn = self.turn();
            match self.places.erase_unused(&blob) {
                Ok(erased) => self.account().shrink(erased.freed_bytes),
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        oldest.into_iter().for_each(|at| self.noticed(at));
        failed.map_or(Ok(()), Err)
    }

    fn walk_session(
        &self,
        id: &Id,
        now: Timestamp,
        stays: &mut impl FnMut(&Object, &Session),
    ) -> Result<(), StoreError> {
        let _turn = self.turn();
        let Some(place) = self.places.session(id)? else {
            return Ok(());
        };
        let mut failed = None;
        for file in place.files()? {
            if let Err(error) = self.care_for(&place, &file, now, stays) {
                failed.get_or_insert(error);
            }
        }
        drop(place);
        self.places.remove_if_empty(id)?;
        failed.map_or(Ok(()), Err)
    }

    fn care_for(
        &self,
        place: &Session,
        file: &Id,
        now: Timestamp,
        stays: &mut impl FnMut(&Object, &Session),
    ) -> Result<(), StoreError> {
        let ttl = self.limits().ttl;
        let removed = match found(place, file)? {
            Found::Whole(object) if !is_over(object.created_at, now, ttl) => {
                stays(&object, place);
                return Ok(());
            }
            Found::Whole(object) | Found::Torn(object) => Some(object),
            Found::Unreadable { since } if !is_over(since, now, ttl) => {
                self.noticed(since);
                return Ok(());
            }
            Found::Unrecorded | Found::Unreadable { .. } => None,
        };
        let sha256 = removed.as_ref().map(|object| &object.sha256);
        let erased = self.places.erase(place, file, sha256)?;
        match removed {
            Some(object) => self.forget(&object, erased),
            None => self.account().shrink(erased.freed_bytes),
        }
        Ok(())
    }
}

fn found(place: &Session, file: &Id) -> Result<Found, StoreError> {
    if let Some(object) = place.object(file)? {
        return Ok(Found::Whole(object));
    }
    if let Some(object) = place.record(file)? {
        return Ok(Found::Torn(object));
    }
    let seconds = |at: i64| u64::try_from(at).unwrap_or(0);
    Ok(match place.record_status(file)? {
        Some(status) => Found::Unreadable {
            since: Timestamp::from_ms(seconds(status.st_mtime).saturating_mul(1000)),
        },
        None => Found::Unrecorded,
    })
}
