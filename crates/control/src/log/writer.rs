//! Writes the log. Writing never fails, never waits, and never grows the log past its limit.
//!
//! A full disk costs only the output that it cannot take. The counters say how much that was, the
//! newest header says where it ended, and the next record is tried again.

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
    /// The segment that is being written.
    sequence: u64,
    /// The end of its last whole record, or of its header; 0 before the header is written.
    offset: u64,
    behind: Behind,
    received_bytes: u64,
    dropped_bytes: u64,
}

/// Contents of the file behind the last whole record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    Nothing,
    /// An earlier segment, or part of a record that the disk could not take.
    Remains,
}

impl Writer {
    /// Begins a log in two files, which together hold at most `bytes_max`.
    ///
    /// If [`first_header`] is in the first file already, readers learn of every dropped byte, even
    /// if the disk is full from now on.
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

    /// Appends what the workload has just written.
    pub fn append(&mut self, stream: Stream, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.append_at(wall_clock_ms(), stream, bytes);
        }
    }

    /// Appends what the workload wrote at this time, in milliseconds since 1970.
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

    /// Returns how much the workload has written, kept or not.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Returns how much of it was not kept.
    pub fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }

    /// Returns how many bytes the next record may have in this segment.
    fn room(&self) -> usize {
        let begun = self.offset.max(SEGMENT_HEADER_BYTES as u64);
        let left = self.segment_bytes_max.saturating_sub(begun + RECORD_OVERHEAD as u64);
        usize::try_from(left).map_or(RECORD_BYTES_MAX, |left| left.min(RECORD_BYTES_MAX))
    }

    /// Replaces the oldest segment.
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

    /// Writes `dropped_to` into the newest segment, which readers read last.
    fn tell_dropped(&self) {
        let newest = match self.offset {
            0 => self.sequence.checked_sub(1),
            _ => Some(self.sequence),
        };
        let Some(newest) = newest else {
            return;
        };
        let told = encode_dropped_to(self.received_bytes);
        // This overwrites existing bytes. If it fails all the same, the next record shows the gap.
        let file = &self.files[file_of(newest)];
        let _ = retry_on_intr(|| pwrite(file, &told, DROPPED_TO_OFFSET));
    }

    /// Cuts off everything behind the last record: behind a shorter new record, readers would take
    /// the rest for records.
    fn cut_off_remains(&mut self) -> Result<(), Errno> {
        if self.behind == Behind::Remains {
            ftruncate(&self.files[file_of(self.sequence)], self.offset)?;
            self.behind = Behind::Nothing;
        }
        Ok(())
    }

    /// Writes a whole record and returns its size, or fails.
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
        // If the disk fills up on the way, the kernel returns a short count (write(2)).
        match retry_on_intr(|| pwritev(file, parts, self.offset)) {
            Ok(written) if written == size => Ok(size as u64),
            Ok(written) => {
                self.behind = Behind::Remains;
                // A header that was written stays: readers may already use it.
                if self.offset == 0 && written >= segment.len() {
                    self.offset = segment.len() as u64;
                }
                Err(Errno::NOSPC)
            }
            Err(errno) => Err(errno),
        }
    }
}

/// Returns 0 for a clock before 1970.
fn wall_clock_ms() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let in_second_ms = u64::try_from(now.tv_nsec / 1_000_000).unwrap_or(0);
    seconds.saturating_mul(1000).saturating_add(in_second_ms)
}
