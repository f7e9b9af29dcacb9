//! Removes expired and torn files. A damaged file never keeps the others from being checked.

use std::time::Duration;

use tare_engine::Timestamp;

use crate::error::ServiceError;
use crate::store::Store;
use crate::store::id::Id;
use crate::store::object::Object;
use crate::store::quota::Usage;
use crate::store::session_files::SessionFiles;
use crate::workers::locked;

/// A sweep reads every record, so there are few sweeps in the life of a file.
const SWEEPS_PER_TTL: u32 = 48;
/// The first sweep after a failed one. Each further failure doubles this time.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(15);

/// Decides when the next sweep is due.
#[derive(Debug, Clone, Copy, Default)]
pub struct SweepSchedule {
    pub(super) swept_at: Option<Timestamp>,
    /// No file is older than this. After a failed sweep, the oldest file can be younger.
    pub(super) oldest: Option<Timestamp>,
    /// Sweeps that failed since the last one that succeeded.
    pub(super) failures: u32,
}

impl SweepSchedule {
    pub fn is_due(self, now: Timestamp, ttl: Duration) -> bool {
        let interval = self.interval(ttl);
        let waited = self.swept_at.is_none_or(|at| at > now || now.since(at) >= interval);
        waited && self.oldest.is_some_and(|oldest| is_expired(oldest, now, ttl))
    }

    pub(super) fn interval(self, ttl: Duration) -> Duration {
        let usual = ttl / SWEEPS_PER_TTL;
        match self.failures.checked_sub(1) {
            None => usual,
            Some(doublings) => usual.min(RETRY_AFTER.saturating_mul(1 << doublings.min(16))),
        }
    }
}

/// A time far in the future was written under a wrong clock. Such a file would stay forever, so
/// it counts as expired too.
pub fn is_expired(created_at: Timestamp, now: Timestamp, ttl: Duration) -> bool {
    now.since(created_at) >= ttl || created_at > now.after(ttl)
}

/// What the store has of one file.
enum FoundFile {
    Whole(Object),
    /// The content is shorter or longer than the record says.
    Torn(Object),
    /// Content of a file that was not kept, or that is being removed.
    WithoutRecord,
    /// Another version may have written this record, so the file stays until it expires.
    UnreadableRecord {
        since: Timestamp,
    },
}

impl Store {
    /// The first sweep of a server: counts every file, and removes expired and torn ones. No file is
    /// being written yet.
    pub(super) fn count_all(&self, now: Timestamp) -> Result<(), ServiceError> {
        self.directory.clear_incoming()?;
        let mut counted = Usage::default();
        self.check_all(now, |object| counted.add(&object.owner, object.size))?;
        *self.usage() = counted;
        Ok(())
    }

    /// Calls `keep` for every file that stays. If this fails it has not seen every file: the
    /// oldest file of before still counts, so that the next sweep becomes due.
    pub(super) fn check_all(
        &self,
        now: Timestamp,
        keep: impl FnMut(&Object),
    ) -> Result<(), ServiceError> {
        // Files that arrive during the sweep report their own time.
        let before = locked(&self.schedule).oldest.take();
        let checked = self.check_sessions(now, keep);
        if checked.is_err() {
            before.into_iter().for_each(|at| self.saw_file_of(at));
        }
        let mut schedule = locked(&self.schedule);
        schedule.swept_at = Some(now);
        schedule.failures = if checked.is_ok() { 0 } else { schedule.failures.saturating_add(1) };
        checked
    }

    /// Returns the first error, after it has checked everything that it can.
    fn check_sessions(
        &self,
        now: Timestamp,
        mut keep: impl FnMut(&Object),
    ) -> Result<(), ServiceError> {
        let mut failed = None;
        for session in self.directory.sessions()? {
            if let Err(error) = self.check_session(&session, now, &mut keep) {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn check_session(
        &self,
        id: &Id,
        now: Timestamp,
        keep: &mut impl FnMut(&Object),
    ) -> Result<(), ServiceError> {
        let _changing = self.changing();
        let Some(files) = self.directory.session(id)? else {
            return Ok(());
        };
        let mut failed = None;
        for file in files.ids()? {
            if let Err(error) = self.check_file(&files, &file, now, keep) {
                failed.get_or_insert(error);
            }
        }
        drop(files);
        self.directory.remove_if_empty(id)?;
        failed.map_or(Ok(()), Err)
    }

    fn check_file(
        &self,
        files: &SessionFiles,
        file: &Id,
        now: Timestamp,
        keep: &mut impl FnMut(&Object),
    ) -> Result<(), ServiceError> {
        let ttl = self.ttl();
        let removed = match found(files, file)? {
            FoundFile::Whole(object) if !is_expired(object.created_at, now, ttl) => {
                self.saw_file_of(object.created_at);
                keep(&object);
                return Ok(());
            }
            FoundFile::Whole(object) | FoundFile::Torn(object) => Some(object),
            FoundFile::UnreadableRecord { since } if !is_expired(since, now, ttl) => {
                self.saw_file_of(since);
                return Ok(());
            }
            FoundFile::WithoutRecord | FoundFile::UnreadableRecord { .. } => None,
        };
        files.erase(file)?;
        if let Some(object) = removed {
            self.usage().release(&object.owner, object.size);
        }
        Ok(())
    }

    /// Makes the next sweep due when a file of this time expires.
    pub(super) fn saw_file_of(&self, created_at: Timestamp) {
        let mut schedule = locked(&self.schedule);
        schedule.oldest = Some(schedule.oldest.map_or(created_at, |at| at.min(created_at)));
    }
}

fn found(files: &SessionFiles, file: &Id) -> Result<FoundFile, ServiceError> {
    if let Some(object) = files.object(file)? {
        return Ok(FoundFile::Whole(object));
    }
    if let Some(object) = files.record(file)? {
        return Ok(FoundFile::Torn(object));
    }
    Ok(match files.record_changed_at(file)? {
        Some(since) => FoundFile::UnreadableRecord { since },
        None => FoundFile::WithoutRecord,
    })
}
