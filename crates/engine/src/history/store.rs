//! The stored histories: the sources of removed boxes, as lines of JSON.
//!
//! ```text
//! STATE/histories/
//!   settings    how large all segments together may become, and whether stderr is kept
//!   7, 8.ci, 9  segments; the one with the largest number is the newest, `ci` is a key
//!   ids.8       the ids of the detached boxes in the segments with this number
//! ```
//!
//! Many processes append at the same time, and none holds a lock. A line is one write at the end of
//! the newest segment of its key, which the kernel orders (O_APPEND, write(2)). A full segment is
//! followed by a new one: one process makes it, the others use it. Then old segments go, until the
//! rest and a full new one fit the size. So adding a line costs the same however much is kept.
//! A process keeps the segment of its last line open: a server adds a line with each run, and finding
//! the segment again would take longer than the line.
//!
//! A line begins with a newline. If a process is killed while it writes, or the disk is full, the
//! half line that it leaves hides no other. Readers trust nothing here. They search the bytes of a
//! segment for the box, and parse only lines that name it. A box with a receipt has a second, short
//! line: what tare saw gone after the first.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use memchr::{memchr, memmem, memrchr};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, mkdirat, renameat, statat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tare_kernel::clock::boot_ns;
use tare_kernel::fds::{open_directory, open_regular};
use tare_kernel::replace::Draft;
use tare_kernel::step::step;

use crate::error::Error;
use crate::history::segments::{
    self, FIRST, NewLine, PRIVATE, SEGMENT_BYTES_READ, SEGMENTS, Segment,
};
use crate::history::steps::Sources;
use crate::host::layout::{HistorySegment, OpenSegment};
use crate::spec::quantity::{self, show_bytes};
use crate::spec::{BoxId, Tenant};
use crate::time::{Timestamp, from_now};

/// The size of all segments together, if no other was set.
const BYTES_DEFAULT: u64 = 64 << 20;
/// A smaller size would not hold the histories of a busy minute.
const BYTES_MIN: u64 = 1 << 20;
const BYTES_MAX: u64 = SEGMENT_BYTES_READ * SEGMENTS;
/// The size of one line. Longer sources are shortened, and readers skip longer lines.
const LINE_BYTES_MAX: usize = 16 << 10;
/// The size of a line on a full disk, and of the space that is reserved for each box.
const RESERVED_BYTES: usize = 4 << 10;
/// The most space that is reserved.
const RESERVED_BYTES_MAX: u64 = 1 << 20;

/// Parses a size for all histories together.
pub fn parse_history_bytes(text: &str) -> Result<u64, Error> {
    history_bytes(quantity::bytes(text)?)
}

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
    pub open: &'a OpenSegment,
}

impl HistoryStore<'_> {
    /// Adds the sources of a removed box, to be kept for this long. `tenant` owned the box.
    pub fn add(&self, tenant: &Tenant, sources: Sources, retention: Duration) -> io::Result<()> {
        if retention.is_zero() {
            return Ok(());
        }
        let mut line = StoredHistory {
            boot_id: self.boot_id.to_owned(),
            until_ns: from_now(retention),
            until: Some(Timestamp::now().after(retention)),
            sources,
        };
        // The only line of its box. Of two lines, the second must be in the same segment or a later one.
        let is_only = line.sources.run.is_some() && line.sources.receipt.is_none();
        if is_only && self.append_to_open(tenant, &line.bytes(LINE_BYTES_MAX)?) {
            return Ok(());
        }
        let directory = self.make_directory()?;
        // Before they are read: settings that change meanwhile are read again with the next line.
        let inode = self.settings_inode();
        let settings = read_settings(&directory);
        let mut append = |segment_bytes: u64, most: usize| {
            let bytes = &*line.bytes(most)?;
            let detached = line.sources.detached.then_some(&line.sources.id);
            let line = NewLine { tenant, detached, bytes };
            segments::append(&directory, segment_bytes, line)
        };
        let file = match append(settings.segment_bytes(), LINE_BYTES_MAX) {
            Err(error) if is_full(&error) => return append(u64::MAX, RESERVED_BYTES).map(drop),
            appended => appended?,
        };
        let (tenant, bytes_max) = (tenant.clone(), settings.segment_bytes());
        let opened = HistorySegment { file, tenant, bytes_max, settings: inode };
        *self.opened() = Some(opened);
        Ok(())
    }

    /// Appends a line to the segment that this process used last. Returns false if that is the segment
    /// of another key, has no room, was dropped, or if the settings have changed since.
    fn append_to_open(&self, tenant: &Tenant, bytes: &[u8]) -> bool {
        let mut open = self.opened();
        let Some(segment) = open.as_ref().filter(|it| it.tenant == *tenant) else { return false };
        let append = || -> io::Result<bool> {
            let length = segment.file.metadata()?.len();
            let has_room = length.saturating_add(bytes.len() as u64) <= segment.bytes_max;
            if !has_room || segment.settings != self.settings_inode() {
                return Ok(false);
            }
            let written = step("append history", || rustix::io::write(&segment.file, bytes))?;
            Ok(written == bytes.len() && segment.file.metadata()?.nlink() > 0)
        };
        let is_appended = append().unwrap_or(false);
        if !is_appended {
            *open = None;
        }
        is_appended
    }

    fn opened(&self) -> MutexGuard<'_, Option<HistorySegment>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Identifies the settings: new ones are a new file.
    fn settings_inode(&self) -> Option<u64> {
        let path = self.path.join(OsStr::from_bytes(SETTINGS.to_bytes()));
        statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok().map(|stat| stat.st_ino)
    }

    /// Reserves the space for the lines of this many boxes of a key, so that no history is lost if the
    /// disk is full when the boxes are removed. On a file system that cannot reserve, nothing is reserved.
    pub fn reserve(&self, tenant: &Tenant, boxes: usize) -> io::Result<()> {
        let directory = self.make_directory();
        let file = match directory.and_then(|it| segments::open_newest(&it, tenant)) {
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
        self.find_in(wanted, |_, _| true)
    }

    /// Returns the history of a detached box. Reads only segments whose index names the box.
    pub fn find_detached(&self, id: &BoxId) -> io::Result<Option<Lookup>> {
        let wanted = [Wanted::Id(id.as_str())];
        let found = self.find_in(&wanted, |directory, it| segments::may_have(directory, it, id))?;
        Ok(found.into_iter().find(|it| it.sources().detached))
    }

    fn find_in(
        &self,
        wanted: &[Wanted<'_>],
        is_read: impl Fn(&OwnedFd, &Segment) -> bool,
    ) -> io::Result<Vec<Lookup>> {
        let patterns: Vec<Vec<u8>> = wanted.iter().map(Wanted::pattern).collect();
        let mut found: Vec<Lookup> = Vec::new();
        let mut places: HashMap<BoxId, usize> = HashMap::new();
        self.each_segment(is_read, |segment| {
            let lines = lines_with(segment, &patterns);
            for line in lines.into_iter().rev().filter_map(parse) {
                let is_kept = self.is_kept(&line);
                let sources = line.sources;
                match places.get(&sources.id) {
                    Some(place) => found[*place].add_earlier(sources),
                    None => {
                        places.insert(sources.id.clone(), found.len());
                        let of = if is_kept { Lookup::Kept } else { Lookup::Expired };
                        found.push(of(Box::new(sources)));
                    }
                }
            }
        })?;
        // The first line of such a box was dropped.
        found.retain(|it| it.sources().seen_removal.is_none());
        Ok(found)
    }

    /// Returns since when all histories are kept of the keys that the user sees, if some were dropped.
    pub fn dropped_before(&self, sees: &dyn Fn(Option<&Tenant>) -> bool) -> Option<Timestamp> {
        let directory = open_directory(CWD, self.path).ok()?;
        let all = segments::list(&directory).ok()?;
        let mut oldest: Vec<&Segment> = Vec::new();
        for segment in all.iter().filter(|it| sees(Some(&it.tenant))) {
            if !oldest.iter().any(|it| it.tenant == segment.tenant) {
                oldest.push(segment);
            }
        }
        let is_complete = all.last()?.number < FIRST + all.len() as u64;
        let removed_at = |segment: &&Segment| {
            let bytes = segments::read(&directory, segment).ok()?;
            let lines = bytes.split(|byte| *byte == b'\n');
            lines.filter_map(parse).find_map(|line| line.sources.removed_at())
        };
        oldest.iter().filter(|_| !is_complete).filter_map(removed_at).max()
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
        segments::make_room(&directory, new.bytes, new.segment_bytes())
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

    /// Reads all segments that `is_read` accepts, the newest first.
    fn each_segment(
        &self,
        is_read: impl Fn(&OwnedFd, &Segment) -> bool,
        mut read: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let directory = match step("open histories", || open_directory(CWD, self.path)) {
            Err(Errno::NOENT) => return Ok(()),
            opened => opened?,
        };
        for segment in segments::list(&directory)?.into_iter().rev() {
            if !is_read(&directory, &segment) {
                continue;
            }
            match segments::read(&directory, &segment) {
                Ok(bytes) => read(&bytes),
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

    /// Adds what an earlier line of the same box says. The last line of a box with a receipt has only
    /// what was seen after the first. The creator of a run may have written how it ended, and been
    /// killed before it removed the record.
    fn add_earlier(&mut self, mut earlier: Sources) {
        let (Self::Kept(later) | Self::Expired(later)) = self;
        match (later.seen_removal.take(), &mut earlier.receipt) {
            (None, _) => later.run = later.run.take().or(earlier.run),
            (Some(seen), receipt) => {
                if let Some(receipt) = receipt {
                    receipt.add(seen);
                }
                **later = earlier;
            }
        }
    }
}

const SETTINGS: &std::ffi::CStr = c"settings";

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
