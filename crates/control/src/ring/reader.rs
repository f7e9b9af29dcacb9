//! Everyone's side of the log: records from the oldest on, while the keeper may
//! be writing, in one buffer.
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
//! The files are hostile input. A length is believed up to the buffer's size,
//! sequences only grow, and the looks for one record are counted, so nothing in
//! the files can make this panic, grow or run for ever.

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

/// How often to look before garbage is believed. An honest log needs four looks
/// for a record, and more only when the keeper writes it at that very moment.
const LOOKS_MAX: usize = 16;

/// A record; its bytes are [`Reader::bytes`] until the next one is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Of the wall clock, since 1970.
    pub time_ms: u64,
    pub stream: Stream,
    /// How many bytes the workload had written before.
    pub position: u64,
    /// How many of those came after the record before this one and are lost:
    /// dropped by a full disk, or overwritten before they were read.
    pub missed_bytes: u64,
    pub place: Place,
}

/// Where a record begins. The places of a log have the order of its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    sequence: u64,
    offset: u64,
}

/// How far a log went at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Behind the last record.
    pub place: Place,
    /// What the workload had written before here is in a record or dropped.
    dropped_to: u64,
}

/// Where a log stops to make sense.
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
    /// Of the next record.
    place: Option<Place>,
    /// Segments before this one were read or lost.
    sequence_min: u64,
    /// Room for one record of the greatest size.
    buffer: Box<[u8]>,
    /// The part of the buffer that holds what the file has at `place`.
    filled: Range<usize>,
    /// The part of the buffer that holds the bytes of the current record.
    current: Range<usize>,
    /// What the next record's position is if nothing is missing.
    position: Option<u64>,
}

/// What one look for the next record found.
enum Look {
    Record(Place, Frame),
    /// Nothing more, or nothing more yet.
    End,
    Again,
}

/// What the beginning of a file says.
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

    /// Behind all that is there now: whoever stops here comes to an end however
    /// fast the log grows.
    pub fn end(&self) -> Result<End, ReadError> {
        // First: what was kept before it was written is before the place.
        let dropped_to = self.dropped_to()?;
        let segments = [self.segment(0)?, self.segment(1)?];
        let Some(sequence) = segments.iter().filter_map(Segment::number).max() else {
            let (sequence, offset) = (0, 0);
            return Ok(End { place: Place { sequence, offset }, dropped_to });
        };
        let found = fstat(&self.files[file_of(sequence)]);
        let size = found.map_err(|errno| ReadError::Read(errno.into()))?.st_size;
        Ok(End { place: Place { sequence, offset: size.unsigned_abs() }, dropped_to })
    }

    /// The next record is the oldest one that is there.
    pub fn rewind(&mut self) {
        self.place = None;
        self.sequence_min = 0;
        self.filled = 0..0;
        self.position = None;
    }

    /// The next record; `None` when there is none, though there may be later.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, ReadError> {
        let found = self.find_next()?;
        Ok(found.map(|(place, frame)| self.take(place, &frame)))
    }

    /// The next record that was there at that end.
    pub fn next_entry_before(&mut self, end: &End) -> Result<Option<Entry>, ReadError> {
        let found = self.find_next()?.filter(|(place, _)| *place < end.place);
        Ok(found.map(|(place, frame)| self.take(place, &frame)))
    }

    /// How many bytes came after the last record and were dropped, when there is no
    /// next record. What was told is not told again.
    pub fn missed_at_end(&mut self) -> Result<u64, ReadError> {
        let end = self.end()?;
        match self.find_next()? {
            Some(_) => Ok(0),
            None => Ok(self.missed_before(&end)),
        }
    }

    /// The same for whoever has read all that is before that end.
    pub fn missed_before(&mut self, end: &End) -> u64 {
        let expected = self.position.unwrap_or(0);
        let missed_bytes = end.dropped_to.saturating_sub(expected);
        if missed_bytes > 0 {
            self.position = Some(end.dropped_to);
        }
        missed_bytes
    }

    /// The bytes of the record that [`Self::next_entry`] gave.
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

    /// 0 when nothing was; what never makes sense says nothing.
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

    /// Fills the buffer from this place; `false` when the segment was overwritten.
    fn fill(&mut self, place: Place) -> Result<bool, ReadError> {
        let file = &self.files[file_of(place.sequence)];
        let read = retry_on_intr(|| pread(file, &mut self.buffer[..], place.offset));
        self.filled = 0..read.map_err(|errno| ReadError::Read(errno.into()))?;
        // After reading, not before: only then was all of it of this segment.
        if self.segment(file_of(place.sequence))?.number() == Some(place.sequence) {
            return Ok(true);
        }
        self.place = None;
        self.sequence_min = place.sequence.saturating_add(1);
        self.filled = 0..0;
        Ok(false)
    }

    /// Where no whole record is, the segment is at its end if a next one has begun.
    fn leave(&mut self, place: Place) -> Result<Look, ReadError> {
        let other = 1 - file_of(place.sequence);
        match self.segment(other)? {
            Segment::Begun(next) if next.sequence > place.sequence => {
                // What was written here between our look and that is there now.
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
