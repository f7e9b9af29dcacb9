//! The files of one session: for each file a record and its content.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Stat};
use tare_engine::Timestamp;

use crate::error::ServiceError;
use crate::store::entries::{self, IoContext, names, remove, status};
use crate::store::id::Id;
use crate::store::object::Object;

/// The ends of the names of a file's content and record.
pub const DATA: &str = ".data";
pub const RECORD: &str = ".json";
/// Names have up to 256 characters, so no record is larger than this.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// The files of one session.
#[derive(Debug)]
pub struct SessionFiles {
    pub session: Id,
    pub directory: OwnedFd,
}

impl SessionFiles {
    /// Every file of which there is a record or content.
    pub fn ids(&self) -> Result<BTreeSet<Id>, ServiceError> {
        let names =
            names(&self.directory).context(|| format!("cannot list sessions/{}", self.session))?;
        let id = |name: &String| {
            let id = name.strip_suffix(DATA).or(name.strip_suffix(RECORD))?;
            Id::parse(id)
        };
        Ok(names.iter().filter_map(id).collect())
    }

    /// Returns a file whose record can be read and whose content is complete.
    pub fn object(&self, file: &Id) -> Result<Option<Object>, ServiceError> {
        let Some(object) = self.record(file)? else {
            return Ok(None);
        };
        let content = status(&self.directory, &format!("{file}{DATA}"));
        let content = content.context(|| format!("cannot look at {}/{file}", self.session))?;
        let size = |status: &Stat| u64::try_from(status.st_size).unwrap_or(0);
        let is_file = |status: &Stat| FileType::from_raw_mode(status.st_mode).is_file();
        let is_whole =
            content.is_some_and(|status| is_file(&status) && size(&status) == object.size);
        Ok(is_whole.then_some(object))
    }

    /// Returns the record of a file if it can be read, even if the content is not complete.
    pub fn record(&self, file: &Id) -> Result<Option<Object>, ServiceError> {
        let Some(record) = self.open_file(&format!("{file}{RECORD}"))? else {
            return Ok(None);
        };
        let mut text = Vec::new();
        let read = record.take(RECORD_BYTES_MAX).read_to_end(&mut text);
        read.context(|| format!("cannot read the record of {file}"))?;
        let object = serde_json::from_slice::<Object>(&text).ok();
        Ok(object.filter(|object| object.session == self.session && object.id == *file))
    }

    /// Returns when the record was last written, whether or not it can be read.
    pub fn record_changed_at(&self, file: &Id) -> Result<Option<Timestamp>, ServiceError> {
        let status = status(&self.directory, &format!("{file}{RECORD}"));
        let status = status.context(|| format!("cannot look at {}/{file}", self.session))?;
        let seconds = |status: Stat| u64::try_from(status.st_mtime).unwrap_or(0);
        Ok(status.map(|status| Timestamp::from_ms(seconds(status).saturating_mul(1000))))
    }

    /// Removes a file, its record first. Succeeds if nothing is there.
    pub fn erase(&self, file: &Id) -> Result<(), ServiceError> {
        for suffix in [RECORD, DATA] {
            let removed = remove(&self.directory, &format!("{file}{suffix}"));
            removed.context(|| format!("cannot remove {}/{file}", self.session))?;
        }
        Ok(())
    }

    pub fn content(&self, object: &Object) -> Result<Option<File>, ServiceError> {
        self.open_file(&format!("{}{DATA}", object.id))
    }

    fn open_file(&self, name: &str) -> Result<Option<File>, ServiceError> {
        let opened = entries::open_file(&self.directory, name);
        opened.context(|| format!("cannot open {}/{name}", self.session))
    }
}
