//! The keeper's side of the log: appends, and never fails, waits or grows.
//!
//! A disk that is full costs the output that it cannot take and nothing else.
//! The counters say how much that was, the newest header says where it ended, and
//! the next record is tried again.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::fs::ftruncate;
use rustix::io::{Errno, pwrite, pwritev, retry_on_intr};
use rustix::time::{ClockId, clock_gettime};

use super::{
    DROPPED_TO_OFFSET, Frame, LOG_BYTES_MIN, RECORD_BYTES_MAX, RECORD_OVERHEAD,
    SEGMENT_HEADER_BYTES, Stream, encode_dropped_to, encode_segment, file_of, first_header,
};

#[derive(Debug)]
pub struct Writer {
    files: [OwnedFd; 2],
    segment_bytes_max: u64,
    /// Of the segment that is being written.
    sequence: u64,
    /// The end of its last whole record, or of its header; 0 before that is written.
    offset: u64,
    behind: Behind,
    received_bytes: u64,
    dropped_bytes: u64,
}

/// What lies in the file behind the last whole record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    Nothing,
    /// An earlier segment, or a part of a record that the disk could not take.
    Remains,
}

impl Writer {
    /// Begins a log in two files, which hold `bytes_max` together at most.
    ///
    /// Where [`first_header`] is in the first file already, nothing that is dropped
    /// later goes untold, whatever room the disk has from now on.
    pub fn new(files: [OwnedFd; 2], bytes_max: u64) -> Self {
        let header = first_header();
        let begun = retry_on_intr(|| pwrite(&files[0], &header, 0));
        let offset = match begun {
            Ok(SEGMENT_HEADER_BYTES) => SEGMENT_HEADER_BYTES as u64,
            Ok(_) | Err(_) => 0,
        };
        Self {
            files,
            segment_bytes_max: bytes_max.max(LOG_BYTES_MIN) / 2,
            sequence: 0,
            offset,
            behind: Behind::Remains,
            received_bytes: 0,
            dropped_bytes: 0,
        }
    }

    /// Keeps what the workload has written just now.
    pub fn append(&mut self, stream: Stream, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.append_at(wall_clock_ms(), stream, bytes);
        }
    }

    /// Keeps what the workload wrote at this time, in milliseconds since 1970.
    pub fn append_at(&mut self, time_ms: u64, stream: Stream, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let length = rest.len().min(self.room());
            if length == 0 {
                self.begin_next_segment();
                continue;
            }
            let (piece, after) = rest.split_at(length);
            self.keep(time_ms, stream, piece);
            rest = after;
        }
    }

    /// All that the workload has written, kept or not.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// How much of it never came into the log.
    pub fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }

    /// How many bytes a record may have here and now.
    fn room(&self) -> usize {
        let begun = self.offset.max(SEGMENT_HEADER_BYTES as u64);
        let left = self.segment_bytes_max.saturating_sub(begun + RECORD_OVERHEAD as u64);
        usize::try_from(left).map_or(RECORD_BYTES_MAX, |left| left.min(RECORD_BYTES_MAX))
    }

    /// The oldest segment makes place for the newest.
    fn begin_next_segment(&mut self) {
        self.sequence += 1;
        self.offset = 0;
        self.behind = Behind::Remains;
    }

    fn keep(&mut self, time_ms: u64, stream: Stream, piece: &[u8]) {
        let frame = Frame { time_ms, position: self.received_bytes, length: piece.len(), stream };
        self.received_bytes += piece.len() as u64;
        match self.cut_off_remains().and_then(|()| self.write(&frame, piece)) {
            Ok(written) => self.offset += written,
            Err(_) => {
                self.dropped_bytes += piece.len() as u64;
                self.tell_dropped();
            }
        }
    }

    /// In the newest segment that is there: readers come to it last.
    fn tell_dropped(&self) {
        let newest = match self.offset {
            0 => self.sequence.checked_sub(1),
            _ => Some(self.sequence),
        };
        let Some(newest) = newest else {
            return;
        };
        let told = encode_dropped_to(self.received_bytes);
        // Over bytes that are there. Where even that fails, the next record tells.
        let file = &self.files[file_of(newest)];
        let _ = retry_on_intr(|| pwrite(file, &told, DROPPED_TO_OFFSET));
    }

    /// Nothing may follow the last record when the next is written: a shorter
    /// one would leave the rest to be read as records.
    fn cut_off_remains(&mut self) -> Result<(), Errno> {
        if self.behind == Behind::Remains {
            ftruncate(&self.files[file_of(self.sequence)], self.offset)?;
            self.behind = Behind::Nothing;
        }
        Ok(())
    }

    /// The size of what was written, which is all or nothing of a record.
    fn write(&mut self, frame: &Frame, piece: &[u8]) -> Result<u64, Errno> {
        let segment = encode_segment(self.sequence);
        let (header, trailer) = (frame.header(), frame.trailer());
        let mut parts = [&segment[..], &header, piece, &trailer].map(IoSlice::new);
        let parts = match self.offset {
            0 => &mut parts[..],
            _ => &mut parts[1..],
        };
        let size: usize = parts.iter().map(|part| part.len()).sum();
        let file = &self.files[file_of(self.sequence)];
        // A disk that fills up on the way is told by a short count (write(2)).
        match retry_on_intr(|| pwritev(file, parts, self.offset)) {
            Ok(written) if written == size => Ok(size as u64),
            Ok(written) => {
                self.behind = Behind::Remains;
                // A header that is there stays: readers may have gone to it.
                if self.offset == 0 && written >= segment.len() {
                    self.offset = segment.len() as u64;
                }
                Err(Errno::NOSPC)
            }
            Err(errno) => Err(errno),
        }
    }
}

/// A clock before 1970 says 1970.
fn wall_clock_ms() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let in_second_ms = u64::try_from(now.tv_nsec / 1_000_000).unwrap_or(0);
    seconds.saturating_mul(1000).saturating_add(in_second_ms)
}
