//! The stories of boxes that are gone: one file of the state root, a line for each.
//!
//! It is bounded, the oldest go first, and a story is there for as long as its box was
//! to be kept. A removal adds the story before it removes the record. If another process
//! holds the file, the story is lost and the removal goes on. tare reserves the room for a
//! story when it makes the box. The process that holds the lock changes the file in place,
//! so it never has a second name. Readers trust nothing in it: a damaged line hides no
//! other, and only the end of a file that is too large is read.

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

use crate::history::steps::Story;

/// All stories together.
const HISTORY_BYTES_MAX: usize = 1 << 20;
/// What is left of them when there are more: not every story makes room for itself.
const HISTORY_BYTES_KEPT: usize = HISTORY_BYTES_MAX / 4 * 3;
/// One story; a longer one is shortened.
const STORY_BYTES_MAX: usize = 16 << 10;
/// How long whoever removes a box waits for another who does.
const LOCK_WITHIN: Duration = Duration::from_millis(100);

/// A story, and until when it is kept, on the boot clock of this boot.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    boot_id: String,
    until_ns: u64,
    story: Story,
}

/// The stories of one state root, as of one boot.
#[derive(Debug, Clone, Copy)]
pub struct History<'a> {
    pub path: &'a Path,
    pub boot_id: &'a str,
}

impl History<'_> {
    /// Adds a story, to be kept for this long.
    pub fn add(&self, story: &Story, retention: Duration) -> io::Result<()> {
        if retention.is_zero() {
            return Ok(());
        }
        let kept_ns = u64::try_from(retention.as_nanos()).unwrap_or(u64::MAX);
        let line = self.line(story, boot_ns().saturating_add(kept_ns))?;
        let file = self.open(OFlags::RDWR | OFlags::CREATE)?;
        lock_within("history locked", &file, Lock::Exclusive, LOCK_WITHIN)?;
        let length = length(&file)?;
        let is_full = length.saturating_add(line.len() as u64) > HISTORY_BYTES_MAX as u64;
        if is_full || self.is_first_over(&file) {
            self.trim_locked(&file)?;
        }
        append(&file, &line)
    }

    /// Reserves the room for the stories of this many boxes, so that a disk that is full
    /// when they are removed costs none of them. On a file system that cannot reserve,
    /// nothing is reserved.
    pub fn reserve(&self, boxes: usize) -> io::Result<()> {
        let file = match self.open(OFlags::RDWR | OFlags::CREATE) {
            // A history that is not tare's is never written, so it needs no room.
            Err(error) if !is_full(&error) => return Ok(()),
            file => file?,
        };
        let stories = boxes.saturating_mul(STORY_BYTES_MAX) as u64;
        let wanted = length(&file)?.saturating_add(stories);
        reserve(&file, wanted.min(HISTORY_BYTES_MAX as u64))
    }

    /// All that are kept, the newest last; of several of one box the last.
    pub fn stories(&self) -> io::Result<Vec<Story>> {
        let file = match self.open(OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        // Whoever holds it for longer than that is not waited for: a line that is
        // half there says nothing.
        lock_within("history locked", &file, Lock::Shared, LOCK_WITHIN).ok();
        let bytes = read_end(&file)?;
        let lines = self.kept(&bytes).into_iter();
        Ok(lines.map(|(_, line)| line.story.made_harmless()).collect())
    }

    fn line(&self, story: &Story, until_ns: u64) -> io::Result<Vec<u8>> {
        let mut story = story.clone();
        loop {
            let line = Line { boot_id: self.boot_id.to_owned(), until_ns, story };
            let mut bytes = serde_json::to_vec(&line)?;
            bytes.push(b'\n');
            if bytes.len() <= STORY_BYTES_MAX || line.story.steps.is_empty() {
                return Ok(bytes);
            }
            story = line.story;
            story.shorten(story.steps.len() * 3 / 4);
        }
    }

    fn open(&self, how: OFlags) -> io::Result<File> {
        let mode = Mode::from_raw_mode(0o600);
        let open = || open_regular(CWD, self.path, how, mode);
        Ok(File::from(step("history opened", open)?))
    }

    /// The oldest tells whether it is worth to look at all.
    fn is_first_over(&self, file: &File) -> bool {
        let mut bytes = vec![0; STORY_BYTES_MAX];
        let length = file.read_at(&mut bytes, 0).unwrap_or(0);
        let first = bytes[..length].split(|byte| *byte == b'\n').next();
        first.is_some_and(|first| !first.is_empty() && self.read(first).is_none())
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
        step("history trimmed", || {
            file.write_all_at(&content, 0)?;
            file.set_len(content.len() as u64)
        })?;
        reserve(file, reserved)
    }

    /// The lines that are still to be kept, as they are and as what they say.
    fn kept<'b>(&self, bytes: &'b [u8]) -> Vec<(&'b [u8], Line)> {
        let mut seen = BTreeSet::new();
        let lines = bytes.split(|byte| *byte == b'\n').rev();
        let mut kept: Vec<(&[u8], Line)> = lines
            .filter_map(|bytes| Some((bytes, self.read(bytes)?)))
            .filter(|(_, line)| seen.insert(line.story.id.to_string()))
            .collect();
        kept.reverse();
        kept
    }

    /// `None` for a line that says nothing, or nothing any more.
    fn read(&self, bytes: &[u8]) -> Option<Line> {
        if bytes.is_empty() || bytes.len() > STORY_BYTES_MAX {
            return None;
        }
        let line: Line = serde_json::from_slice(bytes).ok()?;
        (line.boot_id == self.boot_id && line.until_ns > boot_ns()).then_some(line)
    }
}

/// Behind what is there; all of it or nothing.
fn append(file: &File, line: &[u8]) -> io::Result<()> {
    let end = length(file)?;
    let mut last = [b'\n'];
    if end > 0 {
        file.read_exact_at(&mut last, end - 1)?;
    }
    // Somebody was killed in the middle of a line.
    let separator: &[u8] = match last {
        [b'\n'] => b"",
        [_] => b"\n",
    };
    let bytes = [separator, line].concat();
    let written = step("story written", || file.write_all_at(&bytes, end));
    if written.is_err() {
        step("half a story taken back", || file.set_len(end))?;
    }
    written
}

/// Reserves the first so many bytes of the file, beyond its end too.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    if file.metadata()?.blocks().saturating_mul(BLOCK_BYTES) >= bytes {
        return Ok(());
    }
    let reserve = || fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes);
    match step("room for stories reserved", reserve) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// What `st_blocks` counts (stat(3type)).
const BLOCK_BYTES: u64 = 512;

fn length(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.len())
}

/// The last of it, whole lines, whatever its size is said to be.
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
