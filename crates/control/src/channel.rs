//! Frames and descriptors over a stream socket: the only reader and writer of frames.
//!
//! Creator, clients and keeper each have one end. Neither side trusts the other: a frame
//! over its limit, a frame that does not decode and too many descriptors all count as a
//! connection that is closed. Reading never waits, except in [`Channel::wait_until`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{Shutdown, shutdown};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tare_kernel::clock::{boot_ns, timespec};
use tare_kernel::{fds, memory};

use crate::call::Report;
use crate::frame::{REPORT_BYTES_MAX, decode, encode};

/// How much one read takes. Most frames are smaller.
const READ_BYTES: usize = 4 << 10;

/// One end of a connection.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    /// The beginning of a frame that is not complete yet.
    pending: Vec<u8>,
    /// Descriptors that came with the frames so far.
    passed: Vec<OwnedFd>,
}

/// Result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<M> {
    Message(M),
    /// No complete message yet.
    Nothing,
    /// The other side has closed the connection or sent something invalid.
    Closed,
}

impl Channel {
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, pending: Vec::new(), passed: Vec::new() }
    }

    /// Gives up the channel. Nothing was read from it before.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Returns the next message without waiting. Reads until a message is complete or the socket is
    /// empty, so a caller that waits for the next edge (epoll(7)) misses nothing.
    pub fn receive<M: DeserializeOwned>(&mut self, bytes_max: usize) -> Received<M> {
        loop {
            match self.buffered(bytes_max) {
                Received::Nothing => {}
                received @ (Received::Message(_) | Received::Closed) => return received,
            }
            match self.read() {
                Ok(true) => {}
                Err(error) if is_for_later(&error) => return Received::Nothing,
                Ok(false) | Err(_) => return Received::Closed,
            }
        }
    }

    /// Returns the next message without waiting, after at most one read. A keeper uses this, so that
    /// no sender can keep it from the others.
    pub fn receive_in_turn<M: DeserializeOwned>(&mut self, bytes_max: usize) -> Received<M> {
        match self.buffered(bytes_max) {
            Received::Nothing => {}
            received @ (Received::Message(_) | Received::Closed) => return received,
        }
        match self.read() {
            Ok(true) => self.buffered(bytes_max),
            Err(error) if is_for_later(&error) => Received::Nothing,
            Ok(false) | Err(_) => Received::Closed,
        }
    }

    /// Returns the next message of the bytes that were read before.
    pub fn buffered<M: DeserializeOwned>(&mut self, bytes_max: usize) -> Received<M> {
        match decode(&self.pending, bytes_max) {
            Ok(Some((message, length))) => {
                self.pending.drain(..length);
                // A large frame leaves no large buffer behind.
                self.pending.shrink_to(READ_BYTES);
                Received::Message(message)
            }
            Ok(None) => Received::Nothing,
            Err(_) => Received::Closed,
        }
    }

    /// Returns the memory that an incomplete message takes.
    pub fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    /// Waits for the next message until this time of the boot clock. Returns `None` if the time has
    /// passed or the other side has closed the connection.
    pub fn wait_until<M: DeserializeOwned>(
        &mut self,
        bytes_max: usize,
        until_ns: u64,
    ) -> Option<M> {
        loop {
            match self.receive(bytes_max) {
                Received::Message(message) => return Some(message),
                Received::Closed => return None,
                Received::Nothing => {}
            }
            let left = until_ns.saturating_sub(boot_ns());
            if left == 0 {
                return None;
            }
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            // After a poll that fails the loop reads again.
            poll(&mut fds, Some(&timespec(Duration::from_nanos(left)))).ok();
        }
    }

    /// Returns whether the other side has closed the connection. Messages that it sent before can
    /// still be read.
    pub fn is_hung_up(&self) -> bool {
        // HUP and ERR are reported without being asked for, poll(2).
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let polled = poll(&mut fds, Some(&timespec(Duration::ZERO)));
        polled.is_ok() && !fds[0].revents().is_empty()
    }

    /// Takes the descriptors that have come so far.
    pub fn take_passed(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.passed)
    }

    /// Sends a message and descriptors. Waits only if the socket is blocking.
    pub fn send<M: Serialize>(
        &self,
        message: &M,
        bytes_max: usize,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let frame = encode(message, bytes_max).map_err(io::Error::other)?;
        self.send_frame(&frame, fds)
    }

    /// Sends a message that was encoded before.
    pub fn send_frame(&self, frame: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut sent = fds::send_with(self.socket.as_fd(), frame, fds)?;
        while sent < frame.len() {
            sent += fds::send_with(self.socket.as_fd(), &frame[sent..], &[])?;
        }
        Ok(())
    }

    /// Sends a report without descriptors. If the client cannot take it at once, this closes the
    /// connection: a keeper waits for no client.
    pub fn report(&self, report: &Report) {
        if self.send(report, REPORT_BYTES_MAX, &[]).is_err() {
            self.hang_up();
        }
    }

    /// Ends the connection in both directions, also for other holders of the socket.
    pub fn hang_up(&self) {
        // A connection that is closed already needs nothing.
        shutdown(&self.socket, Shutdown::Both).ok();
    }

    /// `false` when the other side is gone.
    fn read(&mut self) -> io::Result<bool> {
        let mut buffer = [0; READ_BYTES];
        let received = fds::receive(self.socket.as_fd(), &mut buffer)?;
        // A frame that is not complete with this gets a large block at once. The
        // allocator would keep the pieces of a block that grows step by step.
        if received.bytes == READ_BYTES || !self.pending.is_empty() {
            self.pending.reserve(memory::LARGE_BYTES);
        }
        self.pending.extend_from_slice(&buffer[..received.bytes]);
        self.passed.extend(received.fds);
        // No message has more: the sender wants to use up our descriptors.
        Ok(received.bytes > 0 && self.passed.len() <= fds::PASSED_MAX)
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (Channel, Channel) {
        let (one, other) = UnixStream::pair().unwrap();
        (Channel::new(one.into()), Channel::new(other.into()))
    }

    #[test]
    fn messages_arrive_one_by_one_with_their_descriptors_and_then_the_end() {
        let (ours, mut theirs) = pair();
        let null = std::fs::File::open("/dev/null").unwrap();
        ours.send(&Report::Terminal, REPORT_BYTES_MAX, &[null.as_fd()]).unwrap();
        ours.send(&Report::Started, REPORT_BYTES_MAX, &[]).unwrap();
        assert_eq!(theirs.receive(REPORT_BYTES_MAX), Received::Message(Report::Terminal));
        assert_eq!(theirs.take_passed().len(), 1);
        assert_eq!(theirs.buffered(REPORT_BYTES_MAX), Received::<Report>::Nothing);
        assert_eq!(theirs.receive(REPORT_BYTES_MAX), Received::Message(Report::Started));
        assert_eq!(theirs.receive(REPORT_BYTES_MAX), Received::<Report>::Nothing);
        drop(ours);
        assert!(theirs.is_hung_up());
        assert_eq!(theirs.receive(REPORT_BYTES_MAX), Received::<Report>::Closed);
    }

    #[test]
    fn a_frame_of_many_reads_is_received_at_once_or_in_turns() {
        let report = |subject: &str| Report::SetupFailed {
            step: crate::SetupStep::Root,
            subject: subject.to_owned(),
            errno: 2,
        };
        let long = report(&"x".repeat(3 * READ_BYTES));
        let (ours, mut theirs) = pair();
        ours.send(&long, REPORT_BYTES_MAX, &[]).unwrap();
        assert_eq!(theirs.receive(REPORT_BYTES_MAX), Received::Message(long.clone()));
        ours.send(&long, REPORT_BYTES_MAX, &[]).unwrap();
        assert_eq!(theirs.receive_in_turn(REPORT_BYTES_MAX), Received::<Report>::Nothing);
        assert_eq!(theirs.pending_bytes(), READ_BYTES);
        assert_eq!(theirs.wait_until(REPORT_BYTES_MAX, u64::MAX), Some(long));
    }

    #[test]
    fn a_sender_of_too_many_descriptors_is_cut_off() {
        let (ours, mut theirs) = pair();
        let null = std::fs::File::open("/dev/null").unwrap();
        let three = [null.as_fd(); fds::PASSED_MAX];
        ours.send(&Report::Terminal, REPORT_BYTES_MAX, &three).unwrap();
        assert_eq!(theirs.receive(REPORT_BYTES_MAX), Received::Message(Report::Terminal));
        ours.send(&Report::Terminal, REPORT_BYTES_MAX, &three).unwrap();
        assert_eq!(theirs.receive(REPORT_BYTES_MAX), Received::<Report>::Closed);
    }
}
