//! The output of a detached box, kept in a bounded ring of two files.
//!
//! ```text
//! log.0, log.1:  segments, numbered by the order in which they were begun;
//!                an even number lies in log.0, an odd one in log.1
//!
//! segment = "tarelog" version    sequence u64    dropped_to u64    dropped_to u64
//!           record*
//! record  = time_ms u64    position u64    length u32    stream u8    0 0 0
//!           the bytes
//!           position u64
//! ```
//!
//! All numbers are little-endian. When a segment is full, the other file is emptied and begins the
//! next segment, so at least the last half of the limit is always there. The *position* of a record
//! is the number of bytes that the workload had written before it, including bytes that were not
//! kept. So a reader knows how much is missing between two records. *dropped_to* says what is missing
//! behind the last record: it is the position behind the last bytes that were not kept. The newest
//! segment has room for it from the beginning, so it needs no space on a full disk. The creator of a
//! box writes the header of the first segment.
//!
//! Only the keeper has a [`Writer`]. A [`Reader`] holds no lock, and treats what it finds as hostile
//! input. These rules let both run side by side:
//!
//! - A file shows bytes only after they were written, so a record is read whole or is not there yet.
//! - The bytes of a segment never change, they are only cut off. If a segment has the same sequence
//!   *after* a reader read from it, the reader has read that segment.
//! - One exception: if a full disk cuts a record short, the next record takes its place. A reader
//!   that reads meanwhile finds two different positions.
//! - The other exception: *dropped_to* grows. A reader that reads it while it is written finds two
//!   different numbers. Records before it are written before it, so a reader that reads it first and
//!   then finds no record knows that none follows.

mod reader;
mod writer;

pub use reader::{Damage, Entry, LogEnd, Place, ReadError, Reader};
pub use writer::Writer;

/// The names of the two files in the record of a box.
pub const FILE_NAMES: [&str; 2] = ["log.0", "log.1"];
/// The largest record: what a pipe returns at once.
pub const RECORD_BYTES_MAX: usize = 64 << 10;
/// The smallest limit: a smaller log holds no useful record.
pub const LOG_BYTES_MIN: u64 = 4096;

const MAGIC: [u8; 8] = *b"tarelog\x02";
const SEGMENT_HEADER_BYTES: usize = 32;
/// The place of the two copies of `dropped_to` in the header.
const DROPPED_TO_OFFSET: u64 = 16;
const RECORD_HEADER_BYTES: usize = 24;
const RECORD_TRAILER_BYTES: usize = 8;
/// The size of a record without its bytes.
const RECORD_OVERHEAD: usize = RECORD_HEADER_BYTES + RECORD_TRAILER_BYTES;

/// The descriptor that the workload wrote to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout = 1,
    Stderr = 2,
}

/// Returns the file of a segment.
fn file_of(sequence: u64) -> usize {
    usize::from(sequence % 2 == 1)
}

/// Returns the content of the first file before anything is written to it.
pub fn first_header() -> [u8; SEGMENT_HEADER_BYTES] {
    encode_segment(0)
}

/// Returns the header of a segment that has dropped nothing.
fn encode_segment(sequence: u64) -> [u8; SEGMENT_HEADER_BYTES] {
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
    bytes
}

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SegmentHeader {
    sequence: u64,
    /// `None` while the writer changes it.
    dropped_to: Option<u64>,
}

/// Returns `None` for bytes that are not the header of a segment.
fn decode_segment(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> Option<SegmentHeader> {
    let (sequence, rest) = bytes.strip_prefix(&MAGIC)?.split_first_chunk()?;
    let (dropped_to, again) = rest.split_first_chunk()?;
    Some(SegmentHeader {
        sequence: u64::from_le_bytes(*sequence),
        dropped_to: (again == dropped_to).then_some(u64::from_le_bytes(*dropped_to)),
    })
}

/// Returns the new value of `dropped_to`, twice.
fn encode_dropped_to(position: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&position.to_le_bytes());
    bytes[8..].copy_from_slice(&position.to_le_bytes());
    bytes
}

/// The numbers before and after the bytes of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frame {
    time_ms: u64,
    position: u64,
    /// From 1 to [`RECORD_BYTES_MAX`].
    length: usize,
    stream: Stream,
}

/// The beginning of some bytes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decoded {
    Record(Frame),
    /// The first part of a record, or nothing.
    Part,
    Garbage,
}

impl Frame {
    fn header(&self) -> [u8; RECORD_HEADER_BYTES] {
        let length = u32::try_from(self.length).expect("a record is at most 64 KiB");
        let mut bytes = [0; RECORD_HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.time_ms.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.position.to_le_bytes());
        bytes[16..20].copy_from_slice(&length.to_le_bytes());
        bytes[20] = self.stream as u8;
        bytes
    }

    fn trailer(&self) -> [u8; RECORD_TRAILER_BYTES] {
        self.position.to_le_bytes()
    }

    /// Returns the size of the whole record in the file.
    fn size(&self) -> usize {
        RECORD_OVERHEAD + self.length
    }

    fn decode(bytes: &[u8]) -> Decoded {
        let Some((header, rest)) = bytes.split_first_chunk() else {
            return Decoded::Part;
        };
        let Some(frame) = Self::decode_header(header) else {
            return Decoded::Garbage;
        };
        match rest.get(frame.length..frame.length + RECORD_TRAILER_BYTES) {
            Some(trailer) if trailer == frame.trailer() => Decoded::Record(frame),
            Some(_) => Decoded::Garbage,
            None => Decoded::Part,
        }
    }

    fn decode_header(header: &[u8; RECORD_HEADER_BYTES]) -> Option<Self> {
        let (time_ms, rest) = header.split_first_chunk()?;
        let (position, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let stream = match rest {
            [1, 0, 0, 0] => Stream::Stdout,
            [2, 0, 0, 0] => Stream::Stderr,
            _ => return None,
        };
        (1..=RECORD_BYTES_MAX).contains(&length).then_some(Self {
            time_ms: u64::from_le_bytes(*time_ms),
            position: u64::from_le_bytes(*position),
            length,
            stream,
        })
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
