//! Reads the log from the oldest record on, in one buffer, while the keeper may be writing.
//!
//! ```text
//!          ┌────────────── overtaken: the segment is another one now ──────────┐
//!          ▼                                                                   │
//!   no place yet ── the oldest segment ──▶ at a record ── whole ──▶ it is next │
//!          │                                │      ▲                           │
//!          none                   not whole │      └─ garbage: look again ─────┤
//!          ▼                                ▼                                  │
//!   nothing (yet) ◀── no next ── next segment? ── yes, and this has no more ───┘
//! ```
//!
//! The files are hostile input. A length is accepted up to the size of the buffer, sequences only
//! grow, and the attempts to find one record are counted. So nothing in the files can make the
//! reader panic, grow or run without end.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::fs::fstat;
use rustix::io::{pread, retry_on_intr};

use super::{
    Decoded, FILE_NAMES, Frame, RECORD_BYTES_MAX, RECORD_HEADER_BYTES, RECORD_OVERHEAD,
    SEGMENT_HEADER_BYTES, SegmentHeader, Stream, decode_segment, file_of,
};

/// How many attempts before garbage is reported as damage. An intact log needs four attempts for a
/// record, and more only if the keeper writes the record at that moment.
const LOOKS_MAX: usize = 16;

/// A record. [`Reader::bytes`] returns its bytes until the next record is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The wall clock, in milliseconds since 1970.
    pub time_ms: u64,
    pub stream: Stream,
    /// How many bytes the workload had written before this record.
    pub position: u64,
    /// How many bytes between the previous record and this one are lost: a full disk dropped them,
    /// or the writer overwrote them before they were read.
    pub missed_bytes: u64,
    pub place: Place,
}

/// Where a record begins. Places are ordered like the records of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    sequence: u64,
    offset: u64,
}

/// The end of a log at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEnd {
    /// The place behind the last record.
    pub place: Place,
    /// Bytes that the workload wrote before this position are in a record, or were dropped.
    dropped_to: u64,
}

/// Where a log is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    pub file: &'static str,
    pub offset: u64,
}

#[derive(Debug)]
pub enum ReadError {
    Read(io::Error),
    Damaged(Damage),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(_) => f.write_str("it cannot be read"),
            Self::Damaged(Damage { file, offset }) => {
                write!(f, "{file} is damaged at byte {offset}")
            }
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read(error) => Some(error),
            Self::Damaged(_) => None,
        }
    }
}

#[derive(Debug)]
pub struct Reader {
    files: [OwnedFd; 2],
    /// The place of the next record.
    place: Option<Place>,
    /// Segments before this one were read, or are lost.
    sequence_min: u64,
    /// Room for one record of the largest size.
    buffer: Box<[u8]>,
    /// The part of the buffer that holds the content of the file at `place`.
    filled: Range<usize>,
    /// The part of the buffer that holds the bytes of the current record.
    current: Range<usize>,
    /// The position of the next record if nothing is missing.
    position: Option<u64>,
}

/// The result of one attempt to find the next record.
enum Look {
    Record(Place, Frame),
    /// There is no record, or not yet.
    End,
    Again,
}

/// The beginning of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Segment {
    Absent,
    Begun(SegmentHeader),
    Garbage,
}

impl Segment {
    fn header(&self) -> Option<&SegmentHeader> {
        match self {
            Self::Begun(header) => Some(header),
            Self::Absent | Self::Garbage => None,
        }
    }

    fn number(&self) -> Option<u64> {
        self.header().map(|header| header.sequence)
    }
}

impl Reader {
    pub fn new(files: [OwnedFd; 2]) -> Self {
        Self {
            files,
            place: None,
            sequence_min: 0,
            buffer: vec![0; RECORD_BYTES_MAX + RECORD_OVERHEAD].into(),
            filled: 0..0,
            current: 0..0,
            position: None,
        }
    }

    pub fn files(&self) -> &[OwnedFd; 2] {
        &self.files
    }

    /// Returns the current end. A reader that stops here finishes, however fast the log grows.
    pub fn end(&self) -> Result<LogEnd, ReadError> {
        // Read this first: records that were kept before it was written are before the end.
        let dropped_to = self.dropped_to()?;
        let segments = [self.segment(0)?, self.segment(1)?];
        let Some(sequence) = segments.iter().filter_map(Segment::number).max() else {
            let (sequence, offset) = (0, 0);
            return Ok(LogEnd { place: Place { sequence, offset }, dropped_to });
        };
        let found = fstat(&self.files[file_of(sequence)]);
        let size = found.map_err(|errno| ReadError::Read(errno.into()))?.st_size;
        Ok(LogEnd { place: Place { sequence, offset: size.unsigned_abs() }, dropped_to })
    }

    /// Makes the oldest record the next one.
    pub fn rewind(&mut self) {
        self.place = None;
        self.sequence_min = 0;
        self.filled = 0..0;
        self.position = None;
    }

    /// Reads the next record. Returns `None` if there is none yet.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, ReadError> {
        let found = self.find_next()?;
        Ok(found.map(|(place, frame)| self.take(place, &frame)))
    }

    /// Reads the next record that is before this end.
    pub fn next_entry_before(&mut self, end: &LogEnd) -> Result<Option<Entry>, ReadError> {
        let found = self.find_next()?.filter(|(place, _)| *place < end.place);
        Ok(found.map(|(place, frame)| self.take(place, &frame)))
    }

    /// Returns how many bytes behind the last record were dropped, if there is no next record. It
    /// returns the same bytes only once.
    pub fn missed_at_end(&mut self) -> Result<u64, ReadError> {
        let end = self.end()?;
        match self.find_next()? {
            Some(_) => Ok(0),
            None => Ok(self.missed_before(&end)),
        }
    }

    /// Returns how many bytes before this end were dropped, to a caller that has read all records
    /// before it. It returns the same bytes only once.
    pub fn missed_before(&mut self, end: &LogEnd) -> u64 {
        let expected = self.position.unwrap_or(0);
        let missed_bytes = end.dropped_to.saturating_sub(expected);
        if missed_bytes > 0 {
            self.position = Some(end.dropped_to);
        }
        missed_bytes
    }

    /// Returns the bytes of the record that [`Self::next_entry`] returned.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.current.clone()]
    }

    fn find_next(&mut self) -> Result<Option<(Place, Frame)>, ReadError> {
        for _ in 0..LOOKS_MAX {
            match self.look()? {
                Look::Record(place, frame) => return Ok(Some((place, frame))),
                Look::End => return Ok(None),
                Look::Again => {}
            }
        }
        let (sequence, offset) =
            self.place.map_or((self.sequence_min, 0), |place| (place.sequence, place.offset));
        Err(damaged(file_of(sequence), offset))
    }

    /// Returns 0 if nothing was dropped, or if the header never becomes consistent.
    fn dropped_to(&self) -> Result<u64, ReadError> {
        for _ in 0..LOOKS_MAX {
            let segments = [self.segment(0)?, self.segment(1)?];
            let mut headers = segments.iter().filter_map(Segment::header);
            let most = headers.try_fold(0, |most, header| Some(header.dropped_to?.max(most)));
            if let Some(most) = most {
                return Ok(most);
            }
        }
        Ok(0)
    }

    fn take(&mut self, place: Place, frame: &Frame) -> Entry {
        let start = self.filled.start + RECORD_HEADER_BYTES;
        self.current = start..start + frame.length;
        self.filled.start += frame.size();
        self.place = Some(Place { offset: place.offset + frame.size() as u64, ..place });
        let expected = self.position.unwrap_or(0);
        self.position = Some(frame.position.saturating_add(frame.length as u64));
        Entry {
            time_ms: frame.time_ms,
            stream: frame.stream,
            position: frame.position,
            missed_bytes: frame.position.saturating_sub(expected),
            place,
        }
    }

    fn look(&mut self) -> Result<Look, ReadError> {
        let Some(place) = self.place else {
            return self.find_oldest();
        };
        if let Decoded::Record(frame) = self.decode() {
            return Ok(Look::Record(place, frame));
        }
        if !self.fill(place)? {
            return Ok(Look::Again);
        }
        match self.decode() {
            Decoded::Record(frame) => Ok(Look::Record(place, frame)),
            Decoded::Part => self.leave(place),
            Decoded::Garbage => Ok(Look::Again),
        }
    }

    fn decode(&self) -> Decoded {
        Frame::decode(&self.buffer[self.filled.clone()])
    }

    fn find_oldest(&mut self) -> Result<Look, ReadError> {
        let segments = [self.segment(0)?, self.segment(1)?];
        let numbers = segments.iter().filter_map(Segment::number);
        let oldest = numbers.filter(|it| *it >= self.sequence_min).min();
        if let Some(sequence) = oldest {
            self.go_to(sequence);
            return Ok(Look::Again);
        }
        match segments.iter().position(|it| *it == Segment::Garbage) {
            Some(file) => Err(damaged(file, 0)),
            None => Ok(Look::End),
        }
    }

    fn go_to(&mut self, sequence: u64) {
        self.place = Some(Place { sequence, offset: SEGMENT_HEADER_BYTES as u64 });
        self.sequence_min = sequence;
        self.filled = 0..0;
    }

    /// Fills the buffer from this place. Returns `false` if the segment was overwritten.
    fn fill(&mut self, place: Place) -> Result<bool, ReadError> {
        let file = &self.files[file_of(place.sequence)];
        let read = retry_on_intr(|| pread(file, &mut self.buffer[..], place.offset));
        self.filled = 0..read.map_err(|errno| ReadError::Read(errno.into()))?;
        // Check after reading: only then is it certain that all bytes are of this segment.
        if self.segment(file_of(place.sequence))?.number() == Some(place.sequence) {
            return Ok(true);
        }
        self.place = None;
        self.sequence_min = place.sequence.saturating_add(1);
        self.filled = 0..0;
        Ok(false)
    }

    /// Leaves a segment that has no whole record here, if the next segment has begun.
    fn leave(&mut self, place: Place) -> Result<Look, ReadError> {
        let other = 1 - file_of(place.sequence);
        match self.segment(other)? {
            Segment::Begun(next) if next.sequence > place.sequence => {
                // Look again: a record may have been written between the two reads.
                if self.fill(place)? && self.decode() == Decoded::Part {
                    self.go_to(next.sequence);
                }
                Ok(Look::Again)
            }
            Segment::Garbage => Err(damaged(other, 0)),
            Segment::Begun(_) | Segment::Absent => Ok(Look::End),
        }
    }

    fn segment(&self, file: usize) -> Result<Segment, ReadError> {
        let mut header = [0; SEGMENT_HEADER_BYTES];
        let read = retry_on_intr(|| pread(&self.files[file], &mut header[..], 0));
        let length = read.map_err(|errno| ReadError::Read(errno.into()))?;
        if length < header.len() {
            return Ok(Segment::Absent);
        }
        Ok(match decode_segment(&header) {
            Some(header) if file_of(header.sequence) == file => Segment::Begun(header),
            Some(_) | None => Segment::Garbage,
        })
    }
}

fn damaged(file: usize, offset: u64) -> ReadError {
    ReadError::Damaged(Damage { file: FILE_NAMES[file], offset })
}
