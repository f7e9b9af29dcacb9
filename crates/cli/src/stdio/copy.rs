//! Copies in one direction, driven by `poll`. It never waits, keeps at most one buffer of bytes, and
//! neither loses nor reorders bytes.
//!
//! ```text
//!            readable            moved, or source empty
//! Source ----------------> copy -----------------------> Source
//!    ^                       |
//!    |        writable       | sink full
//!    '------- copy <------- Sink
//! ```
//!
//! `splice` moves pages between pipes and files without copying them. If it cannot, the bytes go
//! through `pending`. When a stream ends, tare closes its own ends: the command sees end of file on
//! its stdin, or SIGPIPE on its stdout, as if it were connected directly.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;

use crate::stdio::endpoint::{Endpoint, is_closed};

/// The usual capacity of a pipe. No more moves at once until the pipe is widened.
const CHUNK_BYTES: usize = 64 << 10;
/// How much the first read takes, before there is a buffer.
const FIRST_BYTES: usize = 4 << 10;
/// A stream that has moved this much gets a wider pipe. Fewer and longer turns of the command, tare
/// and the reader then cost a quarter less. A wide pipe from the start would slow down boxes with
/// little output.
const WIDEN_AFTER_BYTES: usize = 1 << 20;
const WIDE_BYTES: usize = 1 << 20;
/// After this many chunks, other streams, events and signals get their turn.
const ROUNDS_MAX: usize = 16;

/// Where bytes go.
#[derive(Debug)]
pub enum Sink<'fd> {
    End(Endpoint<'fd>),
    /// Bytes are kept for `--json`.
    Memory,
}

/// The event that a stream waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    Source,
    Sink,
}

/// Why a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyEnd {
    /// The source has no more.
    EndOfFile,
    /// The reader of the sink is gone.
    SinkClosed,
    /// The sink cannot be written.
    SinkFailed(Errno),
    /// The caller stopped it.
    Stopped,
}

#[derive(Debug)]
struct Ends<'fd> {
    source: Endpoint<'fd>,
    sink: Sink<'fd>,
}

#[derive(Debug)]
pub struct CopyStream<'fd> {
    ends: Result<Ends<'fd>, CopyEnd>,
    splices: bool,
    /// How many bytes may still move before the pipe is widened.
    narrow_bytes: usize,
    waiting: Waiting,
    /// Bytes that were read and not yet written. For a sink in memory, all bytes.
    pending: Vec<u8>,
    written: usize,
}

enum CopyStep {
    /// This many bytes were moved.
    Moved(usize),
    /// One of the two ends was not ready. `splice` does not say which.
    Blocked,
    Wait(Waiting),
    End(CopyEnd),
}

impl<'fd> CopyStream<'fd> {
    pub fn new(source: Endpoint<'fd>, sink: Sink<'fd>) -> Self {
        let splices = match &sink {
            Sink::End(end) => source.can_splice_to(end),
            Sink::Memory => false,
        };
        Self {
            ends: Ok(Ends { source, sink }),
            splices,
            narrow_bytes: WIDEN_AFTER_BYTES,
            waiting: Waiting::Source,
            pending: Vec::new(),
            written: 0,
        }
    }

    /// Returns what to poll for; `None` when the stream has ended.
    pub fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let ends = self.ends.as_ref().ok()?;
        match (self.waiting, &ends.sink) {
            (Waiting::Sink, Sink::End(sink)) => Some((sink.as_fd(), PollFlags::OUT)),
            (Waiting::Source, _) | (_, Sink::Memory) => Some((ends.source.as_fd(), PollFlags::IN)),
        }
    }

    pub fn waiting(&self) -> Waiting {
        self.waiting
    }

    pub fn ended(&self) -> Option<CopyEnd> {
        self.ends.as_ref().err().copied()
    }

    /// Ends the stream and closes tare's own ends.
    pub fn stop(&mut self) {
        if self.ends.is_ok() {
            self.ends = Err(CopyEnd::Stopped);
        }
    }

    /// Returns the bytes of a sink in memory.
    pub fn into_kept(self) -> Vec<u8> {
        self.pending
    }

    /// Copies what can be copied. Call it after `poll` found what [`Self::interest`] asked for.
    pub fn advance(&mut self, budget: &mut OutputBudget) {
        let mut moved = false;
        for _ in 0..ROUNDS_MAX {
            match self.step(budget) {
                CopyStep::Moved(bytes) => {
                    moved = true;
                    self.widen_after(bytes);
                }
                CopyStep::Blocked => {
                    self.waiting = match (moved, self.waiting) {
                        (true, _) | (false, Waiting::Sink) => Waiting::Source,
                        (false, Waiting::Source) => Waiting::Sink,
                    };
                    // splice(2) reports a full sink before it reports the end of the source.
                    if self.waiting == Waiting::Sink && self.is_source_at_end() {
                        self.ends = Err(CopyEnd::EndOfFile);
                    }
                    return;
                }
                CopyStep::Wait(side) => {
                    self.waiting = side;
                    return;
                }
                CopyStep::End(ended) => {
                    self.ends = Err(ended);
                    return;
                }
            }
        }
        self.waiting = if self.owes() { Waiting::Sink } else { Waiting::Source };
    }

    fn widen_after(&mut self, bytes: usize) {
        let was_narrow = self.narrow_bytes > 0;
        self.narrow_bytes = self.narrow_bytes.saturating_sub(bytes);
        if let (true, 0, Ok(ends)) = (was_narrow, self.narrow_bytes, &self.ends) {
            ends.source.widen(WIDE_BYTES);
            if let Sink::End(sink) = &ends.sink {
                sink.widen(WIDE_BYTES);
            }
        }
    }

    fn is_source_at_end(&self) -> bool {
        self.ends.as_ref().is_ok_and(|ends| ends.source.is_at_end())
    }

    fn owes(&self) -> bool {
        match &self.ends {
            Ok(Ends { sink: Sink::End(_), .. }) => self.written < self.pending.len(),
            Ok(Ends { sink: Sink::Memory, .. }) | Err(_) => false,
        }
    }

    fn step(&mut self, budget: &mut OutputBudget) -> CopyStep {
        let owes = self.owes();
        let ends = match &self.ends {
            Ok(ends) => ends,
            Err(ended) => return CopyStep::End(*ended),
        };
        match &ends.sink {
            Sink::End(sink) if owes => {
                write_pending(&ends.source, sink, &self.pending, &mut self.written)
            }
            Sink::End(_) | Sink::Memory if budget.allow(CHUNK_BYTES) == 0 => {
                drop_chunk(&ends.source, budget)
            }
            Sink::End(sink) if self.splices => match splice_chunk(&ends.source, sink, budget) {
                Ok(step) => step,
                Err(_cannot_splice) => {
                    self.splices = false;
                    CopyStep::Moved(0)
                }
            },
            Sink::End(sink) => {
                self.pending.clear();
                self.written = 0;
                read_chunk(&ends.source, Some(sink), &mut self.pending, budget)
            }
            Sink::Memory => read_chunk(&ends.source, None, &mut self.pending, budget),
        }
    }
}

/// How much output of a box is passed on, stdout and stderr together. tare drops and counts the
/// bytes beyond the limit.
#[derive(Debug)]
pub struct OutputBudget {
    room_bytes: u64,
    dropped_bytes: u64,
}

impl OutputBudget {
    pub fn new(limit_bytes: u64) -> Self {
        Self { room_bytes: limit_bytes, dropped_bytes: 0 }
    }

    /// No limit, for input.
    pub fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// Returns how many of `wanted` bytes may still pass.
    pub fn allow(&self, wanted: usize) -> usize {
        usize::try_from(self.room_bytes).map_or(wanted, |room| room.min(wanted))
    }

    pub fn spend(&mut self, bytes: usize) {
        self.room_bytes = self.room_bytes.saturating_sub(bytes as u64);
    }

    pub fn drop_bytes(&mut self, bytes: usize) {
        self.dropped_bytes = self.dropped_bytes.saturating_add(bytes as u64);
    }

    /// Whether the output exceeded the limit.
    pub fn is_passed(&self) -> bool {
        self.dropped_bytes > 0
    }

    pub fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }
}

/// `splice` does not work for this pair of descriptors: the bytes go through a buffer.
struct CannotSplice;

fn splice_chunk(
    source: &Endpoint<'_>,
    sink: &Endpoint<'_>,
    budget: &mut OutputBudget,
) -> Result<CopyStep, CannotSplice> {
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    let most = budget.allow(WIDE_BYTES);
    match rustix::pipe::splice(source, None, sink, None, most, flags) {
        Ok(0) => Ok(CopyStep::End(CopyEnd::EndOfFile)),
        Ok(bytes) => {
            budget.spend(bytes);
            Ok(CopyStep::Moved(bytes))
        }
        Err(Errno::AGAIN) => Ok(CopyStep::Blocked),
        Err(Errno::INTR) => Ok(CopyStep::Moved(0)),
        // A file opened with O_APPEND, or a file system without it.
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Err(CannotSplice),
        Err(errno) => Ok(CopyStep::End(sink_error(errno))),
    }
}

/// Appends bytes of the source to `kept`, as many as the budget allows.
fn read_chunk(
    source: &Endpoint<'_>,
    sink: Option<&Endpoint<'_>>,
    kept: &mut Vec<u8>,
    budget: &mut OutputBudget,
) -> CopyStep {
    let before = kept.len();
    // Most commands write little, and every page of a buffer costs time.
    let most = if kept.capacity() == 0 { FIRST_BYTES } else { CHUNK_BYTES };
    kept.resize(before + budget.allow(most), 0);
    let result = source.read(&mut kept[before..]);
    kept.truncate(before + result.unwrap_or(0));
    match result {
        Ok(0) => CopyStep::End(CopyEnd::EndOfFile),
        Ok(bytes) => {
            budget.spend(bytes);
            if sink.is_none_or(Endpoint::never_waits) {
                CopyStep::Moved(bytes)
            } else {
                CopyStep::Wait(Waiting::Sink)
            }
        }
        Err(errno) => source_error(errno),
    }
}

/// Drops bytes beyond the limit. They are read, so that the command does not block.
fn drop_chunk(source: &Endpoint<'_>, budget: &mut OutputBudget) -> CopyStep {
    let mut buffer = vec![0; CHUNK_BYTES];
    match source.read(&mut buffer) {
        Ok(0) => CopyStep::End(CopyEnd::EndOfFile),
        Ok(bytes) => {
            budget.drop_bytes(bytes);
            CopyStep::Moved(bytes)
        }
        Err(errno) => source_error(errno),
    }
}

fn write_pending(
    source: &Endpoint<'_>,
    sink: &Endpoint<'_>,
    pending: &[u8],
    written: &mut usize,
) -> CopyStep {
    match sink.write(&pending[*written..]) {
        Ok(bytes) => {
            *written += bytes;
            match (*written < pending.len(), source.never_waits()) {
                (true, _) => CopyStep::Wait(Waiting::Sink),
                (false, true) => CopyStep::Moved(bytes),
                (false, false) => CopyStep::Wait(Waiting::Source),
            }
        }
        Err(Errno::AGAIN | Errno::INTR) => CopyStep::Wait(Waiting::Sink),
        Err(errno) => CopyStep::End(sink_error(errno)),
    }
}

/// A source that cannot be read is at its end. The master of a terminal reports with EIO that the
/// other side is gone (pty(7)).
fn source_error(errno: Errno) -> CopyStep {
    match errno {
        Errno::AGAIN | Errno::INTR => CopyStep::Wait(Waiting::Source),
        _ => CopyStep::End(CopyEnd::EndOfFile),
    }
}

fn sink_error(errno: Errno) -> CopyEnd {
    if is_closed(errno) { CopyEnd::SinkClosed } else { CopyEnd::SinkFailed(errno) }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
