//! The output of a detached box, kept in a bounded ring of two files.
//!
//! ```text
//! log.0, log.1:  segments, numbered by the order in which they were begun;
//!                an even number lies in log.0, an odd one in log.1
//!
//! segment = "tarelog" version    sequence u64
//!           record*
//! record  = time_ms u64    position u64    length u32    stream u8    0 0 0
//!           the bytes
//!           position u64
//! ```
//!
//! All numbers are little-endian. When a segment is full, the other file is
//! emptied and begins the next one, so at least the last half of the limit is
//! always there. A record's *position* is how many bytes the workload had written
//! before it, those that could not be kept included: whatever is missing between
//! two records, a reader knows how much.
//!
//! The keeper has the [`Writer`]; everyone else has a [`Reader`], holds no lock,
//! and takes whatever it finds for hostile input. What lets them run side by side:
//!
//! - a file shows bytes only after they were written to it, so a record is read
//!   whole or is not there yet;
//! - a segment's bytes are never changed, only cut off: a reader whose segment has
//!   the same sequence *after* it read has read that segment;
//! - the one exception is a record that a full disk cut short, in whose place the
//!   next one is put: whoever reads during that finds two different positions.

mod reader;
mod writer;

pub use reader::{Damage, Entry, Place, ReadError, Reader};
pub use writer::Writer;

/// The names of the two files in the record of a box.
pub const FILE_NAMES: [&str; 2] = ["log.0", "log.1"];
/// What one record holds at most: what a pipe gives at once.
pub const RECORD_BYTES_MAX: usize = 64 << 10;
/// A smaller limit becomes this one: less holds no useful record.
pub const LOG_BYTES_MIN: u64 = 4096;

const MAGIC: [u8; 8] = *b"tarelog\x01";
const SEGMENT_HEADER_BYTES: usize = 16;
const RECORD_HEADER_BYTES: usize = 24;
const RECORD_TRAILER_BYTES: usize = 8;
/// What a record takes beside its bytes.
const RECORD_OVERHEAD: usize = RECORD_HEADER_BYTES + RECORD_TRAILER_BYTES;

/// Which of the workload's descriptors it wrote to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout = 1,
    Stderr = 2,
}

/// The file that a segment lies in.
fn file_of(sequence: u64) -> usize {
    usize::from(sequence % 2 == 1)
}

fn encode_segment(sequence: u64) -> [u8; SEGMENT_HEADER_BYTES] {
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&sequence.to_le_bytes());
    bytes
}

/// The sequence; `None` for what is not the beginning of a segment.
fn decode_segment(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> Option<u64> {
    let sequence = bytes.strip_prefix(&MAGIC)?.first_chunk()?;
    Some(u64::from_le_bytes(*sequence))
}

/// What stands before and after the bytes of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frame {
    time_ms: u64,
    position: u64,
    /// From 1 to [`RECORD_BYTES_MAX`].
    length: usize,
    stream: Stream,
}

/// What some bytes of a segment begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decoded {
    Record(Frame),
    /// The beginning of a record, or nothing.
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

    /// In the file, all in all.
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
#[path = "ring/ring_tests.rs"]
mod tests;
