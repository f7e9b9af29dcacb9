//! The history file: the sources of removed boxes, one line for each box.
//!
//! The file is bounded, the oldest lines go first, and a line is kept for as long as the record of
//! its box is kept. A removal adds the line before it removes the record. If another process
//! holds the file, the history is lost and the removal goes on. tare reserves the space for a line
//! when it makes the box. The process that holds the lock changes the file in place, so the file
//! never has a second name. Readers trust nothing in it: a damaged line hides no other, and only
//! the end of a file that is too large is read.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tare_kernel::clock::boot_ns;
use tare_kernel::fds::open_regular;
use tare_kernel::locks::{Lock, lock_within};
use tare_kernel::step::step;

use crate::history::steps::Sources;
use crate::record::append_whole_line;
use crate::time::from_now;

/// The size of the whole file.
const HISTORY_BYTES_MAX: usize = 1 << 20;
/// The size after old lines were removed, so that not every new line has to remove some.
const HISTORY_BYTES_KEPT: usize = HISTORY_BYTES_MAX / 4 * 3;
/// The size of one line; longer sources are shortened.
const LINE_BYTES_MAX: usize = 16 << 10;
/// How long a removal waits for the lock of another one.
const LOCK_WITHIN: Duration = Duration::from_millis(100);

/// One line of the file.
#[derive(Debug, Serialize, Deserialize)]
struct StoredHistory {
    boot_id: String,
    /// Until when it is kept, on the boot clock.
    until_ns: u64,
    sources: Sources,
}

/// The history file of one state root, in one boot.
#[derive(Debug, Clone, Copy)]
pub struct HistoryFile<'a> {
    pub path: &'a Path,
    pub boot_id: &'a str,
}

impl HistoryFile<'_> {
    /// Adds the sources of a removed box, to be kept for this long.
    pub fn add(&self, sources: Sources, retention: Duration) -> io::Result<()> {
        if retention.is_zero() {
            return Ok(());
        }
        let line = self.line(sources, from_now(retention))?;
        let file = self.open(OFlags::RDWR | OFlags::CREATE)?;
        lock_within("lock history", &file, Lock::Exclusive, LOCK_WITHIN)?;
        let length = length(&file)?;
        let is_full = length.saturating_add(line.len() as u64) > HISTORY_BYTES_MAX as u64;
        if is_full || self.is_first_over(&file) {
            self.trim_locked(&file)?;
        }
        append_whole_line(&file, &line)
    }

    /// Reserves the space for the lines of this many boxes, so that no history is lost if the disk
    /// is full when the boxes are removed. On a file system that cannot reserve, nothing is reserved.
    pub fn reserve(&self, boxes: usize) -> io::Result<()> {
        let file = match self.open(OFlags::RDWR | OFlags::CREATE) {
            // A history that is not tare's is never written, so it needs no space.
            Err(error) if !is_full(&error) => return Ok(()),
            file => file?,
        };
        let lines = boxes.saturating_mul(LINE_BYTES_MAX) as u64;
        let wanted = length(&file)?.saturating_add(lines);
        reserve(&file, wanted.min(HISTORY_BYTES_MAX as u64))
    }

    /// Reads all lines that are still kept, the newest last. Only the last line of a box counts.
    pub fn read(&self) -> io::Result<Vec<Sources>> {
        let file = match self.open(OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        // Reading goes on without the lock: a half-written line is skipped.
        lock_within("lock history", &file, Lock::Shared, LOCK_WITHIN).ok();
        let bytes = read_end(&file)?;
        Ok(self.kept(&bytes).into_iter().map(|(_, line)| line.sources).collect())
    }

    fn line(&self, sources: Sources, until_ns: u64) -> io::Result<Vec<u8>> {
        let mut line = StoredHistory { boot_id: self.boot_id.to_owned(), until_ns, sources };
        loop {
            let mut bytes = serde_json::to_vec(&line)?;
            bytes.push(b'\n');
            if bytes.len() <= LINE_BYTES_MAX || !line.sources.shorten() {
                return Ok(bytes);
            }
        }
    }

    fn open(&self, how: OFlags) -> io::Result<File> {
        let mode = Mode::from_raw_mode(0o600);
        let open = || open_regular(CWD, self.path, how, mode);
        Ok(File::from(step("open history", open)?))
    }

    /// Returns whether the oldest line has expired, and trimming is worth the time.
    fn is_first_over(&self, file: &File) -> bool {
        let mut bytes = vec![0; LINE_BYTES_MAX];
        let length = file.read_at(&mut bytes, 0).unwrap_or(0);
        let first = bytes[..length].split(|byte| *byte == b'\n').next();
        first.is_some_and(|first| !first.is_empty() && self.parse(first).is_none())
    }

    fn trim_locked(&self, file: &File) -> io::Result<()> {
        let bytes = read_end(file)?;
        let kept = self.kept(&bytes);
        let mut room = HISTORY_BYTES_KEPT;
        let mut start = kept.len();
        while start > 0 && kept[start - 1].0.len() < room {
            start -= 1;
            room -= kept[start].0.len() + 1;
        }
        let content: Vec<u8> = kept[start..]
            .iter()
            .flat_map(|(bytes, _)| bytes.iter().copied().chain([b'\n']))
            .collect();
        let reserved = length(file)?.min(HISTORY_BYTES_MAX as u64);
        step("trim history", || {
            file.write_all_at(&content, 0)?;
            file.set_len(content.len() as u64)
        })?;
        reserve(file, reserved)
    }

    /// Returns the lines that are still to be kept, as bytes and parsed.
    fn kept<'b>(&self, bytes: &'b [u8]) -> Vec<(&'b [u8], StoredHistory)> {
        let mut seen = BTreeSet::new();
        let lines = bytes.split(|byte| *byte == b'\n').rev();
        let mut kept: Vec<(&[u8], StoredHistory)> = lines
            .filter_map(|bytes| Some((bytes, self.parse(bytes)?)))
            .filter(|(_, line)| seen.insert(line.sources.id.to_string()))
            .collect();
        kept.reverse();
        kept
    }

    /// Returns `None` for a line that is damaged or has expired.
    fn parse(&self, bytes: &[u8]) -> Option<StoredHistory> {
        if bytes.is_empty() || bytes.len() > LINE_BYTES_MAX {
            return None;
        }
        let line: StoredHistory = serde_json::from_slice(bytes).ok()?;
        (line.boot_id == self.boot_id && line.until_ns > boot_ns()).then_some(line)
    }
}

/// Reserves this many bytes from the beginning of the file, also beyond its end.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    if file.metadata()?.blocks().saturating_mul(BLOCK_BYTES) >= bytes {
        return Ok(());
    }
    let reserve = || fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes);
    match step("reserve room for the history", reserve) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The unit of `st_blocks` (stat(3type)).
const BLOCK_BYTES: u64 = 512;

fn length(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.len())
}

/// Reads whole lines at the end of the file, and never more than [`HISTORY_BYTES_MAX`].
fn read_end(file: &File) -> io::Result<Vec<u8>> {
    let start = length(file)?.saturating_sub(HISTORY_BYTES_MAX as u64);
    let mut bytes = vec![0; HISTORY_BYTES_MAX];
    let mut length = 0;
    while length < bytes.len() {
        match file.read_at(&mut bytes[length..], start + length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(length);
    if start > 0 {
        let first = bytes.iter().position(|byte| *byte == b'\n');
        bytes.drain(..first.map_or(length, |at| at + 1));
    }
    Ok(bytes)
}

fn is_full(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
    kinds.contains(&error.kind())
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
