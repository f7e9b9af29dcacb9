//! Bytes on their way out: at most one portion of them, written as far as that
//! goes without waiting.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use crate::stdio::{End, is_closed};

#[derive(Debug)]
pub struct Outlet<'fd> {
    end: End<'fd>,
    pending: Vec<u8>,
    written: usize,
}

/// Whether anybody is there to take it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taker {
    There,
    Gone,
}

impl<'fd> Outlet<'fd> {
    pub fn new(end: End<'fd>) -> Self {
        Self { end, pending: Vec::new(), written: 0 }
    }

    /// What to poll until it can be written; `None` when nothing is pending.
    pub fn waits_for(&self) -> Option<BorrowedFd<'_>> {
        (self.written < self.pending.len()).then(|| self.end.as_fd())
    }

    /// The next portion; the one before must be gone.
    pub fn put(&mut self, bytes: &[u8]) -> Result<Taker, Errno> {
        debug_assert!(self.waits_for().is_none(), "one portion at a time");
        self.pending.clear();
        self.pending.extend_from_slice(bytes);
        self.written = 0;
        if self.end.never_waits() { self.advance() } else { Ok(Taker::There) }
    }

    /// To be called after `poll` found what [`Self::waits_for`] asked for.
    pub fn advance(&mut self) -> Result<Taker, Errno> {
        while self.written < self.pending.len() {
            match self.end.write(&self.pending[self.written..]) {
                Ok(bytes) => self.written += bytes,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) if is_closed(errno) => return Ok(Taker::Gone),
                Err(errno) => return Err(errno),
            }
            if !self.end.never_waits() {
                break;
            }
        }
        Ok(Taker::There)
    }
}

impl AsFd for Outlet<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn what_does_not_fit_stays_until_there_is_room() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut outlet = Outlet::new(End::ours(writer).unwrap());
        let portion = [7; 100_000];
        assert_eq!(outlet.put(&portion).unwrap(), Taker::There);
        let mut reader = File::from(reader);
        let mut got = vec![0; 65_536];
        reader.read_exact(&mut got).unwrap();
        assert!(outlet.waits_for().is_some());
        outlet.advance().unwrap();
        assert!(outlet.waits_for().is_none());
        drop(outlet);
        reader.read_to_end(&mut got).unwrap();
        assert_eq!(got, portion);
    }

    #[test]
    fn a_descriptor_that_may_block_is_written_only_when_it_was_polled() {
        let (_reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut outlet = Outlet::new(End::callers(writer.as_fd()).unwrap());
        outlet.put(&[7; 5000]).unwrap();
        for is_left in [true, true, false] {
            assert_eq!(outlet.waits_for().is_some(), is_left || outlet.written == 0);
            outlet.advance().unwrap();
        }
        assert!(outlet.waits_for().is_none());
    }

    #[test]
    fn a_reader_that_has_gone_is_no_failure() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        drop(reader);
        let mut outlet = Outlet::new(End::ours(writer).unwrap());
        assert_eq!(outlet.put(b"x").unwrap(), Taker::Gone);
    }
}
