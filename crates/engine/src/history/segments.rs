//! The files of the stored histories: segments of one key each, with an index of the detached boxes in
//! them. `store` has the layout.
//!
//! Keys share the size. If it is used up, the key that has the most loses its oldest segment, so no
//! key can push out the histories of another one that has less.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use memchr::memmem;
use rustix::fs::{AtFlags, Mode, OFlags, statat, unlinkat};
use rustix::io::Errno;
use tare_kernel::fds::open_regular;
use tare_kernel::step::step;
use tare_kernel::tree;

use crate::spec::{BoxId, Tenant};

/// The number of segments that the size is divided into. tare drops whole segments.
pub const SEGMENTS: u64 = 32;
/// How much of a segment is read. A segment is larger only if tare did not write it.
pub const SEGMENT_BYTES_READ: u64 = 32 << 20;
/// The number of the first segment.
pub const FIRST: u64 = 1;
/// How often to look for the newest segment, if other processes remove it meanwhile.
const ATTEMPTS_MAX: usize = 4;
pub const PRIVATE: Mode = Mode::from_raw_mode(0o600);

/// A file with histories of one key. The later of two segments has the larger number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    pub number: u64,
    pub tenant: Tenant,
}

impl Segment {
    /// Reads a file name; `None` for other files.
    fn parse(name: &str) -> Option<Self> {
        let (number, tenant) = match name.split_once('.') {
            Some((number, key)) => (number, Tenant::parse(key)?),
            None => (name, Tenant::default()),
        };
        let segment = Self { number: number.parse().ok()?, tenant };
        (segment.file() == name).then_some(segment)
    }

    pub fn file(&self) -> String {
        match self.tenant.key() {
            Some(key) => format!("{}.{key}", self.number),
            None => self.number.to_string(),
        }
    }

    /// The file with the ids of the detached boxes in all segments of this number. Without it, they may
    /// have any.
    fn index(&self) -> String {
        format!("ids.{}", self.number)
    }
}

/// Returns all segments, the oldest first.
pub fn list(directory: &OwnedFd) -> io::Result<Vec<Segment>> {
    let names = step("list histories", || tree::names(directory.as_fd()))?;
    let parse = |name: &std::ffi::CString| Segment::parse(name.to_str().ok()?);
    let mut segments: Vec<Segment> = names.iter().filter_map(parse).collect();
    segments.sort_by_key(|segment| segment.number);
    Ok(segments)
}

/// A line for the newest segment of its key.
#[derive(Debug, Clone, Copy)]
pub struct NewLine<'a> {
    pub tenant: &'a Tenant,
    /// For the index, if the box was detached.
    pub detached: Option<&'a BoxId>,
    pub bytes: &'a [u8],
}

/// Appends a line to the newest segment of its key that has room for it. Returns the segment.
pub fn append(directory: &OwnedFd, segment_bytes: u64, line: NewLine<'_>) -> io::Result<File> {
    for _ in 0..ATTEMPTS_MAX {
        let segments = list(directory)?;
        let own = segments.iter().rfind(|segment| segment.tenant == *line.tenant);
        let (segment, file) = match open_with_room(directory, own, segment_bytes, line.bytes)? {
            Some(opened) => opened,
            None => {
                // Before the new segment has a line, so that no process finds more than the size.
                make_room(directory, segment_bytes.saturating_mul(SEGMENTS - 1), segment_bytes)?;
                make(directory, next(&segments, line.tenant))?
            }
        };
        if let Some(id) = line.detached {
            note_in_index(directory, &segment, id);
        }
        let written = step("append history", || rustix::io::write(&file, line.bytes))?;
        if written < line.bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // Between the two looks, other processes may have filled so many segments that this one was
        // dropped.
        if file.metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Opens a segment if it has room for the line. Another process may have dropped it.
fn open_with_room(
    directory: &OwnedFd,
    segment: Option<&Segment>,
    segment_bytes: u64,
    line: &[u8],
) -> io::Result<Option<(Segment, File)>> {
    let Some(segment) = segment else { return Ok(None) };
    let file = match open(directory, segment, OFlags::empty()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let length = file.metadata()?.len();
    let has_room = length == 0 || length.saturating_add(line.len() as u64) <= segment_bytes;
    Ok(has_room.then(|| (segment.clone(), file)))
}

/// Returns the segment of a key that follows all others.
fn next(segments: &[Segment], tenant: &Tenant) -> Segment {
    let number = segments.last().map_or(FIRST, |newest| newest.number.saturating_add(1));
    Segment { number, tenant: tenant.clone() }
}

/// Opens the newest segment of a key to reserve space in it, and makes it if the key has none.
pub fn open_newest(directory: &OwnedFd, tenant: &Tenant) -> io::Result<File> {
    let segments = list(directory)?;
    match segments.iter().rfind(|segment| segment.tenant == *tenant) {
        Some(segment) => open(directory, segment, OFlags::empty()),
        None => Ok(make(directory, next(&segments, tenant))?.1),
    }
}

fn open(directory: &OwnedFd, segment: &Segment, more: OFlags) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | more;
    let open = || open_regular(directory.as_fd(), segment.file(), flags, PRIVATE);
    Ok(File::from(step("open history segment", open)?))
}

/// Makes a segment. Its index is made first: a process that finds the segment finds the index too. If
/// this process is killed in between, the next segment with that number has the index.
fn make(directory: &OwnedFd, segment: Segment) -> io::Result<(Segment, File)> {
    let flags = OFlags::WRONLY | OFlags::CREATE;
    let open_index = || open_regular(directory.as_fd(), segment.index(), flags, PRIVATE);
    step("make history index", open_index)?;
    let file = open(directory, &segment, OFlags::CREATE)?;
    Ok((segment, file))
}

/// Adds a box to the index. An index that misses a box is removed: then the whole segment is read.
fn note_in_index(directory: &OwnedFd, segment: &Segment, id: &BoxId) {
    let id = id.as_str().as_bytes();
    let note = || -> io::Result<bool> {
        let flags = OFlags::WRONLY | OFlags::APPEND;
        let index = open_regular(directory.as_fd(), segment.index(), flags, PRIVATE)?;
        Ok(rustix::io::write(&index, id)? == id.len())
    };
    if !step("note in history index", note).unwrap_or(false) {
        let remove = || unlinkat(directory, segment.index(), AtFlags::empty());
        step("remove history index", remove).ok();
    }
}

/// Returns whether a segment may have a line of this detached box.
pub fn may_have(directory: &OwnedFd, segment: &Segment, id: &BoxId) -> bool {
    let ids = read_file(directory, &segment.index());
    ids.map_or(true, |ids| memmem::find(&ids, id.as_str().as_bytes()).is_some())
}

/// Reads a segment, at most its last part of [`SEGMENT_BYTES_READ`].
pub fn read(directory: &OwnedFd, segment: &Segment) -> io::Result<Vec<u8>> {
    read_file(directory, &segment.file())
}

fn read_file(directory: &OwnedFd, name: &str) -> io::Result<Vec<u8>> {
    let open = || open_regular(directory.as_fd(), name, OFlags::RDONLY, Mode::empty());
    let file = File::from(step("open history segment to read", open)?);
    let length = file.metadata()?.len();
    let skipped = length.saturating_sub(SEGMENT_BYTES_READ);
    (&file).seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::with_capacity((length - skipped) as usize);
    file.take(SEGMENT_BYTES_READ).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Drops segments until the rest is not larger than this: each time the oldest segment of the key
/// that has the most. The newest segment of a key counts as full, because it will be. One segment
/// always stays.
pub fn make_room(directory: &OwnedFd, most: u64, segment_bytes: u64) -> io::Result<()> {
    let segments = list(directory)?;
    let mut of_key: HashMap<Tenant, u128> = HashMap::new();
    let mut sized: Vec<(Segment, u64)> = Vec::with_capacity(segments.len());
    for segment in segments.into_iter().rev() {
        let stat = statat(directory, segment.file(), AtFlags::SYMLINK_NOFOLLOW);
        let size = stat.map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
        let is_newest = !of_key.contains_key(&segment.tenant);
        let counted = if is_newest { size.max(segment_bytes) } else { size };
        // A user may set any size, and the sum of many sizes needs more bits.
        *of_key.entry(segment.tenant.clone()).or_default() += u128::from(counted);
        sized.push((segment, counted));
    }
    while of_key.values().sum::<u128>() > u128::from(most) && sized.len() > 1 {
        // The list has the newest first, and `max_by_key` returns the last of equal ones.
        let heaviest = sized.iter().enumerate().max_by_key(|(_, (it, _))| of_key[&it.tenant]);
        let Some((at, _)) = heaviest else { break };
        let (segment, size) = sized.remove(at);
        if let Some(left) = of_key.get_mut(&segment.tenant) {
            *left -= u128::from(size);
        }
        drop_segment(directory, &segment)?;
    }
    Ok(())
}

/// Removes the index before its segment: an index without a segment would stay for good.
fn drop_segment(directory: &OwnedFd, segment: &Segment) -> io::Result<()> {
    for name in [segment.index(), segment.file()] {
        match step("drop oldest histories", || unlinkat(directory, &*name, AtFlags::empty())) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
