//! The stored histories: the sources of removed boxes, as lines of JSON. A box with a receipt has two; the last one counts.
//!
//! ```text
//! STATE/histories/
//!   settings    how large all segments together may become, and whether stderr is kept
//!   7, 8, 9     segments; the one with the largest number is the newest
//! ```
//!
//! Many processes append at the same time, and none holds a lock. A line is one write at the end of
//! the newest segment, which the kernel orders (O_APPEND, write(2)). A full segment is followed by a
//! new one: one process makes it, the others use it. Then the oldest segments go, until the rest and
//! a full new one fit the size. So adding a line costs the same however much is kept.
//!
//! A line begins with a newline. If a process is killed while it writes, or the disk is full, the
//! half line that it leaves hides no other. Readers trust nothing here. They search the bytes of a
//! segment for the box, and parse only lines that name it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use memchr::{memchr, memmem, memrchr};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, mkdirat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tare_kernel::clock::boot_ns;
use tare_kernel::fds::{open_directory, open_regular};
use tare_kernel::replace::Draft;
use tare_kernel::step::step;
use tare_kernel::tree;

use crate::error::Error;
use crate::history::steps::Sources;
use crate::spec::quantity::show_bytes;
use crate::time::{Timestamp, from_now};

/// The size of all segments together, if no other was set.
const BYTES_DEFAULT: u64 = 64 << 20;
/// A smaller size would not hold the histories of a busy minute.
const BYTES_MIN: u64 = 1 << 20;
/// The number of segments that the size is divided into. tare drops whole segments.
const SEGMENTS: u64 = 16;
/// The size of one line. Longer sources are shortened, and readers skip longer lines.
const LINE_BYTES_MAX: usize = 16 << 10;
/// The size of a line on a full disk, and of the space that is reserved for each box.
const RESERVED_BYTES: usize = 4 << 10;
/// The most space that is reserved.
const RESERVED_BYTES_MAX: u64 = 1 << 20;
/// How often to look for the newest segment, if other processes remove it meanwhile.
const ATTEMPTS_MAX: usize = 4;
const PRIVATE: Mode = Mode::from_raw_mode(0o600);

/// Checks a size for all histories together.
pub fn history_bytes(bytes: u64) -> Result<u64, Error> {
    if (BYTES_MIN..=BYTES_MAX).contains(&bytes) {
        return Ok(bytes);
    }
    let [least, most] = [BYTES_MIN, BYTES_MAX].map(show_bytes);
    let message = format!("{} is not a size for histories", show_bytes(bytes));
    Err(Error::bad_request(message).with_hint(format!("choose from {least} to {most}")))
}

/// What a user can set about the stored histories. It belongs to the state root, because every tare
/// process adds histories there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistorySettings {
    /// The size of all stored histories together.
    pub bytes: u64,
    /// Whether a history contains the last part of stderr.
    pub stderr: bool,
}

impl Default for HistorySettings {
    fn default() -> Self {
        Self { bytes: BYTES_DEFAULT, stderr: true }
    }
}

impl HistorySettings {
    fn segment_bytes(self) -> u64 {
        self.bytes / SEGMENTS
    }
}

/// One line.
#[derive(Debug, Serialize, Deserialize)]
struct StoredHistory {
    boot_id: String,
    /// Until when it is kept, on the boot clock of this boot.
    until_ns: u64,
    /// The same time on the wall clock, for later boots.
    #[serde(default)]
    until: Option<Timestamp>,
    sources: Sources,
}

/// Which histories to look for. Each is a text that occurs in their lines.
#[derive(Debug, Clone, Copy)]
pub enum Wanted<'a> {
    /// Boxes whose id is this, or begins like this.
    Id(&'a str),
    Name(&'a str),
}

/// What was found about a box.
#[derive(Debug)]
pub enum Lookup {
    Kept(Box<Sources>),
    /// The time for which its history was kept has passed.
    Expired(Box<Sources>),
}

/// The stored histories of one state root.
#[derive(Debug, Clone, Copy)]
pub struct HistoryStore<'a> {
    pub path: &'a Path,
    pub boot_id: &'a str,
}

impl HistoryStore<'_> {
    /// Adds the sources of a removed box, to be kept for this long.
    pub fn add(&self, sources: Sources, retention: Duration) -> io::Result<()> {
        if retention.is_zero() {
            return Ok(());
        }
        let mut line = StoredHistory {
            boot_id: self.boot_id.to_owned(),
            until_ns: from_now(retention),
            until: Some(Timestamp::now().after(retention)),
            sources,
        };
        let directory = self.make_directory()?;
        let settings = read_settings(&directory);
        let bytes = line.bytes(LINE_BYTES_MAX)?;
        match append(&directory, settings.segment_bytes(), &bytes) {
            Err(error) if is_full(&error) => {
                append(&directory, u64::MAX, &line.bytes(RESERVED_BYTES)?)
            }
            appended => appended,
        }
    }

    /// Reserves the space for the lines of this many boxes, so that no history is lost if the disk
    /// is full when the boxes are removed. On a file system that cannot reserve, nothing is reserved.
    pub fn reserve(&self, boxes: usize) -> io::Result<()> {
        let segment = self.make_directory().and_then(|directory| {
            let number = numbers(&directory)?.last().copied().unwrap_or(FIRST);
            open_segment(&directory, number)
        });
        let file = match segment {
            // A directory that is not tare's is never written, so it needs no space.
            Err(error) if !is_full(&error) => return Ok(()),
            file => file?,
        };
        let lines = (boxes.saturating_mul(RESERVED_BYTES) as u64).min(RESERVED_BYTES_MAX);
        reserve(&file, file.metadata()?.len().saturating_add(lines))
    }

    /// Returns the histories of boxes, the newest first. Of a box with several lines, the last one
    /// counts.
    pub fn find(&self, wanted: &[Wanted<'_>]) -> io::Result<Vec<Lookup>> {
        let patterns: Vec<Vec<u8>> = wanted.iter().map(Wanted::pattern).collect();
        let mut found: Vec<Lookup> = Vec::new();
        self.each_segment(|segment| {
            let lines = lines_with(segment, &patterns);
            for line in lines.into_iter().rev().filter_map(parse) {
                let is_kept = self.is_kept(&line);
                let sources = line.sources;
                match found.iter_mut().find(|it| it.sources().id == sources.id) {
                    Some(later) => later.add_end_of(sources),
                    None if is_kept => found.push(Lookup::Kept(Box::new(sources))),
                    None => found.push(Lookup::Expired(Box::new(sources))),
                }
            }
        })?;
        Ok(found)
    }

    /// Returns when the oldest box that is still kept was removed, if older ones were dropped.
    pub fn dropped_before(&self) -> Option<Timestamp> {
        let directory = open_directory(CWD, self.path).ok()?;
        let oldest = *numbers(&directory).ok()?.first()?;
        let segment = (oldest > FIRST).then(|| read_segment(&directory, oldest).ok())??;
        let lines = segment.split(|byte| *byte == b'\n');
        lines.filter_map(parse).find_map(|line| line.sources.removed_at())
    }

    /// Changes settings. The next process that adds a history uses them.
    pub fn set(&self, bytes: Option<u64>, stderr: Option<bool>) -> io::Result<()> {
        let directory = self.make_directory()?;
        let old = read_settings(&directory);
        let new = HistorySettings {
            bytes: bytes.unwrap_or(old.bytes),
            stderr: stderr.unwrap_or(old.stderr),
        };
        if new != old {
            let mut draft = Draft::create(directory.as_fd(), SETTINGS, PRIVATE)?;
            let bytes = serde_json::to_vec(&new)?;
            step("write history settings", || draft.file().write_all(&bytes))?;
            draft.publish()?;
        }
        drop_oldest(&directory, new.bytes)
    }

    pub fn settings(&self) -> HistorySettings {
        open_directory(CWD, self.path)
            .map_or_else(|_| HistorySettings::default(), |directory| read_settings(&directory))
    }

    fn is_kept(&self, line: &StoredHistory) -> bool {
        if line.boot_id == self.boot_id {
            line.until_ns > boot_ns()
        } else {
            line.until.is_some_and(|until| until > Timestamp::now())
        }
    }

    /// Opens the directory, and makes it if it is missing. An earlier version of tare kept histories
    /// in one file beside it, which becomes the first segment.
    fn make_directory(&self) -> io::Result<OwnedFd> {
        match step("open histories", || open_directory(CWD, self.path)) {
            Err(Errno::NOENT) => {}
            opened => return Ok(opened?),
        }
        match step("make histories", || mkdirat(CWD, self.path, Mode::RWXU)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let directory = step("open new histories", || open_directory(CWD, self.path))?;
        let earlier = self.path.with_file_name("history");
        renameat(CWD, &earlier, &directory, FIRST.to_string()).ok();
        Ok(directory)
    }

    /// Reads all segments, the newest first.
    fn each_segment(&self, mut read: impl FnMut(&[u8])) -> io::Result<()> {
        let directory = match step("open histories", || open_directory(CWD, self.path)) {
            Err(Errno::NOENT) => return Ok(()),
            opened => opened?,
        };
        for number in numbers(&directory)?.into_iter().rev() {
            match read_segment(&directory, number) {
                Ok(segment) => read(&segment),
                // Another process has dropped it since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl StoredHistory {
    /// Returns the line, shortened to this size if that is possible.
    fn bytes(&mut self, most: usize) -> io::Result<Vec<u8>> {
        loop {
            let mut bytes = vec![b'\n'];
            serde_json::to_writer(&mut bytes, self)?;
            if bytes.len() <= most || !self.sources.shorten() {
                return Ok(bytes);
            }
        }
    }
}

impl Wanted<'_> {
    fn pattern(&self) -> Vec<u8> {
        match self {
            Self::Id(beginning) => format!("\"id\":\"{beginning}").into_bytes(),
            Self::Name(name) => format!("\"name\":\"{name}\"").into_bytes(),
        }
    }
}

impl Lookup {
    pub fn sources(&self) -> &Sources {
        match self {
            Self::Kept(sources) | Self::Expired(sources) => sources,
        }
    }

    pub fn kept(self) -> Option<Sources> {
        match self {
            Self::Kept(sources) => Some(*sources),
            Self::Expired(_) => None,
        }
    }

    /// Adds what an earlier line of the same box says about its end. Its creator may have written
    /// that line and been killed before it removed the record.
    fn add_end_of(&mut self, earlier: Sources) {
        let (Self::Kept(later) | Self::Expired(later)) = self;
        later.run = later.run.take().or(earlier.run);
    }
}

/// The number of the first segment.
const FIRST: u64 = 1;
const SETTINGS: &std::ffi::CStr = c"settings";
/// The largest size, and how much of a segment is read. A segment is larger only if tare did not write
/// it.
const BYTES_MAX: u64 = SEGMENT_BYTES_READ * SEGMENTS;
const SEGMENT_BYTES_READ: u64 = 64 << 20;

/// Returns the numbers of the segments, the oldest first.
fn numbers(directory: &OwnedFd) -> io::Result<Vec<u64>> {
    let names = step("list histories", || tree::names(directory.as_fd()))?;
    let mut numbers: Vec<u64> =
        names.iter().filter_map(|name| name.to_str().ok()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Appends a line to the newest segment that has room for it.
fn append(directory: &OwnedFd, segment_bytes: u64, line: &[u8]) -> io::Result<()> {
    let mut number = numbers(directory)?.last().copied().unwrap_or(FIRST);
    for _ in 0..ATTEMPTS_MAX {
        let file = open_segment(directory, number)?;
        let length = file.metadata()?.len();
        if length > 0 && length.saturating_add(line.len() as u64) > segment_bytes {
            number += 1;
            // Before the new segment has a line, so that no process finds more than the size.
            drop_oldest(directory, segment_bytes.saturating_mul(SEGMENTS - 1))?;
            continue;
        }
        let written = step("append history", || rustix::io::write(&file, line))?;
        if written < line.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // Between the two looks, other processes may have filled so many segments that this one was
        // the oldest and is gone.
        if file.metadata()?.nlink() > 0 {
            return Ok(());
        }
        number = numbers(directory)?.last().copied().unwrap_or(FIRST);
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Opens a segment, and makes it if it is missing.
fn open_segment(directory: &OwnedFd, number: u64) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    let open = || open_regular(directory.as_fd(), number.to_string(), flags, PRIVATE);
    Ok(File::from(step("open history segment", open)?))
}

fn read_segment(directory: &OwnedFd, number: u64) -> io::Result<Vec<u8>> {
    let open =
        || open_regular(directory.as_fd(), number.to_string(), OFlags::RDONLY, Mode::empty());
    let file = File::from(step("open history segment to read", open)?);
    let length = file.metadata()?.len();
    let skipped = length.saturating_sub(SEGMENT_BYTES_READ);
    (&file).seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::with_capacity((length - skipped) as usize);
    file.take(SEGMENT_BYTES_READ).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Removes the oldest segments until the rest is not larger than this. The newest one stays.
fn drop_oldest(directory: &OwnedFd, most: u64) -> io::Result<()> {
    let mut numbers = numbers(directory)?;
    let newest = numbers.pop();
    let size = |number: u64| {
        let stat = statat(directory, number.to_string(), AtFlags::SYMLINK_NOFOLLOW);
        stat.map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0))
    };
    let mut left = newest.map_or(0, size);
    // From the newest on: as many as fit.
    let kept = numbers.iter().rev().take_while(|number| {
        left = left.saturating_add(size(**number));
        left <= most
    });
    let dropped = numbers.len() - kept.count();
    for number in &numbers[..dropped] {
        let remove = || unlinkat(directory, number.to_string(), AtFlags::empty());
        match step("drop oldest histories", remove) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn read_settings(directory: &OwnedFd) -> HistorySettings {
    let open = || open_regular(directory.as_fd(), SETTINGS, OFlags::RDONLY, Mode::empty());
    let Ok(file) = step("open history settings", open) else {
        return HistorySettings::default();
    };
    let mut text = Vec::new();
    let read = File::from(file).take(LINE_BYTES_MAX as u64).read_to_end(&mut text);
    let settings: HistorySettings =
        read.ok().and_then(|_| serde_json::from_slice(&text).ok()).unwrap_or_default();
    HistorySettings { bytes: settings.bytes.clamp(BYTES_MIN, BYTES_MAX), ..settings }
}

/// Returns the lines of a segment that contain one of these texts, in their order.
fn lines_with<'a>(segment: &'a [u8], patterns: &[Vec<u8>]) -> Vec<&'a [u8]> {
    let mut starts: Vec<usize> = Vec::new();
    for pattern in patterns {
        let mut from = 0;
        while let Some(at) = memmem::find(&segment[from..], pattern) {
            let start = memrchr(b'\n', &segment[..from + at]).map_or(0, |newline| newline + 1);
            starts.push(start);
            from = line_end(segment, from + at);
        }
    }
    starts.sort_unstable();
    starts.dedup();
    starts.into_iter().map(|start| &segment[start..line_end(segment, start)]).collect()
}

fn line_end(segment: &[u8], from: usize) -> usize {
    memchr(b'\n', &segment[from..]).map_or(segment.len(), |length| from + length)
}

/// Returns `None` for a line that is damaged.
fn parse(bytes: &[u8]) -> Option<StoredHistory> {
    if bytes.is_empty() || bytes.len() > LINE_BYTES_MAX {
        return None;
    }
    serde_json::from_slice(bytes).ok()
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

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
