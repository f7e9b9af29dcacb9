//! The stories of boxes that are gone: one file of the state root, a line for each.
//!
//! It is bounded, the oldest go first, and a story is there for as long as its box was
//! to be kept. Whoever removes a box adds its story before the record goes; that it
//! cannot, because the disk is full or somebody holds the file, costs the story and
//! nothing else. The file is changed in place, by whoever has its lock, so that no
//! second name is ever there. Its readers believe nothing of it: a damaged line hides
//! no other, and of a file that is too large the end is read.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, flock, fstat, openat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tare_kernel::clock::boot_ns;
use tare_kernel::step::step;

use crate::story::Story;

/// All stories together.
const HISTORY_BYTES_MAX: usize = 1 << 20;
/// What is left of them when there are more: not every story makes room for itself.
const HISTORY_BYTES_KEPT: usize = HISTORY_BYTES_MAX / 4 * 3;
/// One story; a longer one is shortened.
const STORY_BYTES_MAX: usize = 16 << 10;
/// How long whoever removes a box waits for another who does.
const LOCK_WITHIN: Duration = Duration::from_millis(100);
/// Between looks at a lock that another has.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

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
        lock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let length = length(&file)?;
        let is_full = length.saturating_add(line.len() as u64) > HISTORY_BYTES_MAX as u64;
        if is_full || self.is_first_over(&file) {
            self.trim_locked(&file)?;
        }
        append(&file, &line)
    }

    /// All that are kept, the newest last; of several of one box the last.
    pub fn stories(&self) -> io::Result<Vec<Story>> {
        let file = match self.open(OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        // Whoever holds it for longer than that is not waited for: a line that is
        // half there says nothing.
        lock(&file, FlockOperation::NonBlockingLockShared).ok();
        let bytes = read_end(&file)?;
        let lines = self.kept(&bytes).into_iter();
        Ok(lines.map(|(_, line)| line.story.made_harmless()).collect())
    }

    fn line(&self, story: &Story, until_ns: u64) -> io::Result<Vec<u8>> {
        let mut story = story.clone();
        loop {
            let line = Line {
                boot_id: self.boot_id.to_owned(),
                until_ns,
                story,
            };
            let mut bytes = serde_json::to_vec(&line)?;
            bytes.push(b'\n');
            if bytes.len() <= STORY_BYTES_MAX || line.story.steps.is_empty() {
                return Ok(bytes);
            }
            story = line.story;
            story.shorten(story.steps.len() * 3 / 4);
        }
    }

    /// Never through a link, and never of another kind than a file: those are not
    /// ours, and opening one must not wait for anybody.
    fn open(&self, how: OFlags) -> io::Result<File> {
        let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file = step("history opened", || openat(CWD, self.path, flags, mode))?;
        match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(File::from(file)),
            FileType::Directory
            | FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Err(io::Error::other("it is not a regular file")),
        }
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
        step("history trimmed", || {
            file.write_all_at(&content, 0)?;
            file.set_len(content.len() as u64)
        })
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

fn lock(file: &File, how: FlockOperation) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match step("history locked", || flock(file, how)) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if start.elapsed() < LOCK_WITHIN => {}
            Err(errno) => return Err(errno.into()),
        }
        // A bounded look-again: a lock that is waited for cannot be given up.
        std::thread::sleep(LOOK_AGAIN);
    }
}

#[cfg(test)]
#[path = "history/history_tests.rs"]
mod tests;
