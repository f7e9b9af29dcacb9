//! Writes portions of bytes without waiting, and keeps the rest of a portion.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use crate::stdio::endpoint::Endpoint;

/// Writes portions of bytes to a descriptor without waiting for its reader.
#[derive(Debug)]
pub struct PendingWriter<'fd> {
    end: Endpoint<'fd>,
    pending: Vec<u8>,
    written: usize,
}

impl<'fd> PendingWriter<'fd> {
    pub fn new(end: Endpoint<'fd>) -> Self {
        Self { end, pending: Vec::new(), written: 0 }
    }

    /// The descriptor to poll until it is writable; `None` if nothing is pending.
    pub fn waits_for(&self) -> Option<BorrowedFd<'_>> {
        (self.written < self.pending.len()).then(|| self.end.as_fd())
    }

    /// Takes the next portion; the one before must be written. A reader that is gone is the error
    /// `EPIPE` or `ECONNRESET`.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        debug_assert!(self.waits_for().is_none(), "one portion at a time");
        self.pending.clear();
        self.pending.extend_from_slice(bytes);
        self.written = 0;
        if self.end.never_waits() { self.advance() } else { Ok(()) }
    }

    /// Writes what can be written, after `poll` found what [`Self::waits_for`] asked for.
    pub fn advance(&mut self) -> Result<(), Errno> {
        while self.written < self.pending.len() {
            match self.end.write(&self.pending[self.written..]) {
                Ok(bytes) => self.written += bytes,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => return Err(errno),
            }
            if !self.end.never_waits() {
                break;
            }
        }
        Ok(())
    }
}

impl AsFd for PendingWriter<'_> {
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
    fn bytes_that_do_not_fit_stay_until_there_is_room() {
        let (reader, sink) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut writer = PendingWriter::new(Endpoint::ours(sink).unwrap());
        let portion = [7; 100_000];
        writer.put(&portion).unwrap();
        let mut reader = File::from(reader);
        let mut got = vec![0; 65_536];
        reader.read_exact(&mut got).unwrap();
        assert!(writer.waits_for().is_some());
        writer.advance().unwrap();
        assert!(writer.waits_for().is_none());
        drop(writer);
        reader.read_to_end(&mut got).unwrap();
        assert_eq!(got, portion);
    }

    #[test]
    fn a_descriptor_that_may_block_is_written_only_when_it_was_polled() {
        let (_reader, sink) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut writer = PendingWriter::new(Endpoint::callers(sink.as_fd()).unwrap());
        writer.put(&[7; 5000]).unwrap();
        for is_left in [true, true, false] {
            assert_eq!(writer.waits_for().is_some(), is_left || writer.written == 0);
            writer.advance().unwrap();
        }
        assert!(writer.waits_for().is_none());
    }

    #[test]
    fn a_reader_that_is_gone_is_a_broken_pipe() {
        let (reader, sink) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        drop(reader);
        let mut writer = PendingWriter::new(Endpoint::ours(sink).unwrap());
        assert_eq!(writer.put(b"x"), Err(Errno::PIPE));
    }
}
