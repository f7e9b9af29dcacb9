//! One end of a stream of frames: to the creator, or to a client.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{Shutdown, shutdown};
use tare_control::{REPORT_BYTES_MAX, Report, decode, encode};
use tare_kernel::clock::{boot_ns, timespec};
use tare_kernel::{fds, memory};

/// What one read takes: most frames whole.
const READ_BYTES: usize = 4 << 10;

#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    /// Bytes of frames that are not complete yet.
    pending: Vec<u8>,
    /// Descriptors that came with them.
    passed: Vec<OwnedFd>,
}

/// What came from the other side.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard<M> {
    Message(M),
    /// Nothing complete yet.
    Nothing,
    /// The other side is gone, or talks nonsense.
    Closed,
}

impl Channel {
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, pending: Vec::new(), passed: Vec::new() }
    }

    /// The next message, without waiting, and with one read at most: whoever
    /// sends without end is heard in turn with the others.
    pub fn hear<M: serde::de::DeserializeOwned>(&mut self, bytes_max: usize) -> Heard<M> {
        match self.rest(bytes_max) {
            Heard::Nothing => {}
            heard @ (Heard::Message(_) | Heard::Closed) => return heard,
        }
        match self.read() {
            Ok(true) => self.rest(bytes_max),
            Err(error) if is_for_later(&error) => Heard::Nothing,
            Ok(false) | Err(_) => Heard::Closed,
        }
    }

    /// The next message of what has been read.
    pub fn rest<M: serde::de::DeserializeOwned>(&mut self, bytes_max: usize) -> Heard<M> {
        match decode(&self.pending, bytes_max) {
            Ok(Some((message, length))) => {
                self.forget(length);
                Heard::Message(message)
            }
            Ok(None) => Heard::Nothing,
            Err(_) => Heard::Closed,
        }
    }

    /// What an unfinished message takes of memory.
    pub fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    /// The next message, waited for; `None` when the other side is gone.
    pub fn wait<M: serde::de::DeserializeOwned>(&mut self, bytes_max: usize) -> Option<M> {
        self.wait_until(bytes_max, u64::MAX)
    }

    /// The next message, waited for until this time of the boot clock; `None` when it
    /// has passed or the other side is gone.
    pub fn wait_until<M: serde::de::DeserializeOwned>(
        &mut self,
        bytes_max: usize,
        until_ns: u64,
    ) -> Option<M> {
        loop {
            match self.hear(bytes_max) {
                Heard::Message(message) => return Some(message),
                Heard::Closed => return None,
                Heard::Nothing => {}
            }
            let left = until_ns.saturating_sub(boot_ns());
            if left == 0 {
                return None;
            }
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            // A poll that fails is one more look.
            poll(&mut fds, Some(&timespec(Duration::from_nanos(left)))).ok();
        }
    }

    /// Whether the other side has closed the connection. Messages that it sent before
    /// can still be read.
    pub fn is_hung_up(&self) -> bool {
        // HUP and ERR are reported without being asked for, poll(2).
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let polled = poll(&mut fds, Some(&timespec(Duration::ZERO)));
        polled.is_ok() && !fds[0].revents().is_empty()
    }

    /// A large frame leaves no large buffer behind.
    fn forget(&mut self, length: usize) {
        self.pending.drain(..length);
        self.pending.shrink_to(READ_BYTES);
    }

    /// `false` when the other side is gone.
    fn read(&mut self) -> io::Result<bool> {
        let mut buffer = [0; READ_BYTES];
        let received = fds::receive(self.socket.as_fd(), &mut buffer)?;
        // A frame that is not whole with this is in a large block from the start: of
        // many small ones that grow in turn the allocator would keep the pieces.
        if received.bytes == READ_BYTES || !self.pending.is_empty() {
            self.pending.reserve(memory::LARGE_BYTES);
        }
        self.pending.extend_from_slice(&buffer[..received.bytes]);
        self.passed.extend(received.fds);
        // More than any call has: whoever sends them wants to use us up.
        Ok(received.bytes > 0 && self.passed.len() <= fds::PASSED_MAX)
    }

    /// The descriptors that have come so far.
    pub fn take_passed(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.passed)
    }

    /// Tells the other side; if it is gone there is nobody to tell. Whoever cannot be
    /// told does not wait for it: the connection ends.
    pub fn report(&self, report: &Report) {
        if self.report_with(report, None).is_err() {
            shutdown(&self.socket, Shutdown::Both).ok();
        }
    }

    /// The same with a descriptor. Never waits: a client that does not read its
    /// few reports does not get them.
    pub fn report_with(&self, report: &Report, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let frame = encode(report, REPORT_BYTES_MAX).map_err(io::Error::other)?;
        fds::send_with(self.socket.as_fd(), &frame, fd.as_slice())?;
        Ok(())
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
