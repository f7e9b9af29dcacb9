//! Relays connections over the port of a machine: moves bytes between the descriptors of this side
//! and the streams of the port.
//!
//! The outer keeper and the first process of a machine each have one relay. A connection is an
//! ordinary socket on both sides, so callers and keepers do not know that a port is between them.
//! The relay never blocks, has no threads (its owner polls for it), and decodes no messages.
//!
//! Invariant: a message from the machine reaches its client after the output that was written
//! before it (`RelayedConnection::marks`).

pub mod end;
pub mod inner;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tare_control::port::{Passed, Port, PortError, PortEvent, PortFrame, Side, StreamId};
use tare_kernel::clock::timespec;
use tare_kernel::fds;
use tare_kernel::step::step;

use crate::relay::end::{EndKind, LocalEnd, RelayedConnection};

/// The most rounds of one turn, so that the owner's other work is not late.
const ROUNDS_MAX: usize = 16;
/// How much of the port is read before its frames are decoded.
const PORT_READ_BYTES: usize = 128 << 10;
/// The most reads of the port in a round: several, because one read returns a page at most.
const PORT_READS_MAX: usize = 32;
/// The most bytes of one read of a connection.
const SOCKET_READ_BYTES: usize = 4 << 10;
/// The most memory for the first bytes of all connections together. One call has 4 MiB at most.
const FIRST_BYTES_MAX: usize = 8 << 20;
/// How often the outer side looks at the windows of its terminals. The kernel reports a new size
/// only to processes that the terminal controls.
const LOOK_AT_WINDOWS: Duration = Duration::from_millis(250);

/// Why a relay is over.
#[derive(Debug)]
pub enum RelayError {
    /// The port is closed, or cannot be used.
    Gone(Option<Errno>),
    /// The other side broke the protocol.
    Broken(PortError),
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(None) => f.write_str("the port is closed"),
            Self::Gone(Some(errno)) => write!(f, "the port failed: {errno}"),
            Self::Broken(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RelayError {}

/// Returns the socket for a connection that the outer side has opened.
pub type Accept<'a> = dyn FnMut() -> io::Result<OwnedFd> + 'a;

/// One side of a relay. Dropping it closes every descriptor that it has.
#[derive(Debug)]
pub struct Relay {
    side: Side,
    fd: OwnedFd,
    port: Port,
    /// The beginning of a frame that is not complete yet.
    input: Vec<u8>,
    ends: BTreeMap<StreamId, LocalEnd>,
    /// The stream that is served first in the next round, so that all get their turn.
    next: StreamId,
}

/// A descriptor that the relay polls.
#[derive(Debug, Clone, Copy)]
enum Place {
    Port,
    Stream(StreamId),
}

impl Relay {
    pub fn new(port: OwnedFd, side: Side) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&port)?;
        rustix::fs::fcntl_setfl(&port, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self {
            side,
            fd: port,
            port: Port::new(side),
            input: Vec::new(),
            ends: BTreeMap::new(),
            next: 0,
        })
    }

    /// Returns whether the other side has sent its hello.
    pub fn is_greeted(&self) -> bool {
        self.port.is_greeted()
    }

    /// Opens a connection, and sends these bytes and descriptors over it. Returns a socket that
    /// never blocks. Fails for descriptors that cannot cross and with too many connections.
    pub fn connect(&mut self, first: &[u8], passed: Vec<OwnedFd>) -> io::Result<OwnedFd> {
        let waiting: usize = self.connections().map(|one| one.first.len()).sum();
        if waiting + first.len() > FIRST_BYTES_MAX {
            return Err(Errno::AGAIN.into());
        }
        let (ours, theirs) = step("make socket pair", || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        })?;
        let end = LocalEnd::connection(ours)?;
        let id = self.port.open().ok_or(Errno::AGAIN)?;
        self.ends.insert(id, end);
        let sent = passed.into_iter().try_for_each(|fd| self.pass(id, fd));
        if let Err(error) = sent {
            self.close(id);
            return Err(error);
        }
        if let Some(connection) = self.connection(id) {
            connection.first.push(first);
        }
        Ok(theirs)
    }

    /// Returns what the owner has to poll for.
    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.places().map(|(_, fd, flags)| (fd, flags))
    }

    /// Returns the time until the next turn, even if nothing happens.
    pub fn next_look(&self) -> Option<Duration> {
        let is_terminal = |end: &LocalEnd| matches!(end.kind, EndKind::Terminal(_));
        let looks = self.side == Side::Outer && self.ends.values().any(is_terminal);
        looks.then_some(LOOK_AT_WINDOWS)
    }

    /// Does what can be done without waiting. An error ends the relay.
    pub fn turn(&mut self) -> Result<(), RelayError> {
        self.turn_accepting(&mut || Err(Errno::OPNOTSUPP.into()))
    }

    /// As [`Self::turn`], for the side that accepts connections.
    pub fn turn_accepting(&mut self, accept: &mut Accept<'_>) -> Result<(), RelayError> {
        if self.side == Side::Outer {
            self.look_at_windows();
        }
        for _ in 0..ROUNDS_MAX {
            self.send_first();
            let ready = self.ready();
            if ready.is_empty() {
                return Ok(());
            }
            for (place, flags) in ready {
                match place {
                    Place::Port => {
                        self.write_port();
                        if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                            self.read_port(accept)?;
                        }
                    }
                    Place::Stream(id) => self.advance(id, flags),
                }
            }
            self.write_port();
        }
        Ok(())
    }

    fn places(&self) -> impl Iterator<Item = (Place, BorrowedFd<'_>, PollFlags)> {
        let mut port = PollFlags::empty();
        port.set(PollFlags::OUT, !self.port.output().is_empty());
        port.set(PollFlags::IN, self.port.may_receive());
        let ends = self.ends.range(self.next..).chain(self.ends.range(..self.next));
        let streams = ends.filter_map(|(id, end)| {
            Some((Place::Stream(*id), end.fd.as_fd(), self.interest(*id, end)?))
        });
        [(Place::Port, self.fd.as_fd(), port)].into_iter().chain(streams)
    }

    /// Returns what to poll an end for. `None` if the relay has no use for the answer: poll(2)
    /// always reports a hang-up, so the owner would never sleep.
    fn interest(&self, id: StreamId, end: &LocalEnd) -> Option<PollFlags> {
        let mut flags = PollFlags::empty();
        let (reads, writes) = match &end.kind {
            EndKind::Connection(connection) => {
                let is_held = !self.has_passed(&connection.marks);
                (connection.first.is_empty() && !(is_held && self.side == Side::Inner), !is_held)
            }
            EndKind::Pipe | EndKind::Terminal(_) => (true, true),
        };
        flags.set(PollFlags::IN, end.reads && reads && self.port.sendable(id) > 0);
        flags.set(PollFlags::OUT, end.writes && writes && !end.backlog.is_empty());
        // The write end of a pipe reports that its reader is gone, poll(2).
        let is_sink = matches!(end.kind, EndKind::Pipe) && end.writes;
        (is_sink || !flags.is_empty()).then_some(flags)
    }

    fn ready(&mut self) -> Vec<(Place, PollFlags)> {
        let places: Vec<_> = self.places().collect();
        let mut polled: Vec<PollFd<'_>> =
            places.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        let is_polled = poll(&mut polled, Some(&timespec(Duration::ZERO))).is_ok();
        let found = places.iter().zip(&polled).map(|((place, _, wanted), polled)| {
            // If poll fails, the relay tries every descriptor: none of them blocks.
            (*place, if is_polled { polled.revents() } else { *wanted })
        });
        let ready: Vec<_> = found.filter(|(_, flags)| !flags.is_empty()).collect();
        self.next = self.next.wrapping_add(1);
        if self.ends.range(self.next..).next().is_none() {
            self.next = 0;
        }
        ready
    }

    /// Writes as much as the port takes. A write that fails does not end the relay: the port may
    /// still have the last frames of the other side. `read_port` finds its end.
    fn write_port(&mut self) {
        while !self.port.output().is_empty() {
            match rustix::io::write(&self.fd, self.port.output()) {
                Ok(length) => self.port.wrote(length),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => self.port.wrote(self.port.output().len()),
            }
        }
    }

    fn read_port(&mut self, accept: &mut Accept<'_>) -> Result<(), RelayError> {
        let before = self.input.len();
        self.input.reserve(PORT_READ_BYTES);
        // Linux returns at most one buffer of its driver for each read of a port, which is a page.
        for _ in 0..PORT_READS_MAX {
            match rustix::io::read(&self.fd, spare_capacity(&mut self.input)) {
                Ok(1..) if self.input.len() < PORT_READ_BYTES => {}
                Ok(1..) | Err(Errno::AGAIN | Errno::INTR) => break,
                // The frames before the end come first. The next read finds the end again.
                Ok(_) | Err(_) if self.input.len() > before => break,
                Ok(_) => return Err(RelayError::Gone(None)),
                Err(errno) => return Err(RelayError::Gone(Some(errno))),
            }
        }
        let input = std::mem::take(&mut self.input);
        let taken = self.take_frames(&input, accept).map_err(RelayError::Broken)?;
        self.input = input;
        self.input.drain(..taken);
        Ok(())
    }

    /// Returns how many bytes the whole frames had.
    fn take_frames(&mut self, input: &[u8], accept: &mut Accept<'_>) -> Result<usize, PortError> {
        let mut taken = 0;
        while let Some((frame, length)) = PortFrame::decode(&input[taken..])? {
            taken += length;
            match self.port.receive(frame)? {
                PortEvent::Opened(id) => match accept().and_then(LocalEnd::connection) {
                    Ok(end) => drop(self.ends.insert(id, end)),
                    Err(_) => self.close(id),
                },
                PortEvent::Passed { connection, stream, what } => {
                    self.receive_passed(connection, stream, what);
                }
                PortEvent::Data { stream, bytes } => self.receive_data(stream, bytes),
                PortEvent::Ended(id) => {
                    if let Some(end) = self.ends.get_mut(&id) {
                        end.is_last = true;
                    }
                    self.deliver(id);
                }
                PortEvent::Stopped(id) => {
                    if let Some(end) = self.ends.get_mut(&id) {
                        end.reads = false;
                        if !end.writes {
                            self.ends.remove(&id);
                        }
                    }
                }
                PortEvent::Resized { stream, window } => {
                    self.ends.get(&stream).into_iter().for_each(|end| end.set_window(window));
                }
                PortEvent::Nothing => {}
            }
        }
        Ok(taken)
    }

    fn receive_passed(&mut self, connection: StreamId, stream: StreamId, what: Passed) {
        let made = match self.connection(connection) {
            Some(_) => LocalEnd::of_received(what),
            None => Err(Errno::PIPE.into()),
        };
        match made {
            Ok((end, fd)) => {
                if let Some(connection) = self.connection(connection) {
                    connection.passed.push(fd);
                }
                if let Some(end) = end {
                    self.add(connection, stream, end);
                }
            }
            // The receiver needs the descriptor, so the whole connection ends.
            Err(_) => {
                self.close(stream);
                self.close(connection);
            }
        }
    }

    fn receive_data(&mut self, id: StreamId, bytes: &[u8]) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        end.backlog.push(bytes);
        if self.side == Side::Outer {
            let marks = self.marks(id, |end| end.backlog.len() as u64);
            if let Some(connection) = self.connection(id) {
                connection.marks = marks;
            }
        }
        self.deliver(id);
    }

    fn advance(&mut self, id: StreamId, flags: PollFlags) {
        let broken = PollFlags::ERR | PollFlags::HUP;
        let Some(end) = self.ends.get(&id) else { return };
        // The reader of a pipe is gone.
        if end.writes && matches!(end.kind, EndKind::Pipe) && flags.intersects(broken) {
            return self.close(id);
        }
        if end.writes && flags.intersects(PollFlags::OUT | broken) {
            self.deliver(id);
        }
        let reads = self.ends.get(&id).is_some_and(|end| end.reads);
        if reads && flags.intersects(PollFlags::IN | broken) && self.port.sendable(id) > 0 {
            self.fetch(id);
        }
    }

    /// Writes to a descriptor what has arrived for it, and closes it after the last byte.
    fn deliver(&mut self, id: StreamId) {
        let Some(end) = self.ends.get(&id) else { return };
        if let EndKind::Connection(connection) = &end.kind
            && !self.has_passed(&connection.marks)
        {
            return;
        }
        let Some(end) = self.ends.get_mut(&id) else { return };
        if !end.backlog.is_empty() {
            let Ok(length) = end.write() else { return self.close(id) };
            end.moved += if self.side == Side::Outer { length as u64 } else { 0 };
            self.port.delivered(id, length);
        }
        if end.is_last && end.backlog.is_empty() {
            self.close(id);
        }
    }

    /// Sends what a descriptor has.
    fn fetch(&mut self, id: StreamId) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        if let EndKind::Connection(_) = end.kind {
            return self.fetch_message(id);
        }
        match self.port.send_data(id, |buffer| rustix::io::read(&end.fd, buffer)) {
            Ok(1..) if self.side == Side::Outer => {}
            Ok(length @ 1..) => end.moved += length as u64,
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The end of a terminal is EIO.
            Ok(_) | Err(_) => self.close(id),
        }
    }

    /// Sends the next bytes of a connection with their descriptors. On the inner side, they wait
    /// until the output that was written before them is sent.
    fn fetch_message(&mut self, id: StreamId) {
        if self.side == Side::Inner {
            let known = self.connection(id).map(|one| std::mem::take(&mut one.marks));
            let mut marks = known.unwrap_or_default();
            if marks.is_empty() {
                marks = self.marks(id, LocalEnd::readable_bytes);
            }
            if !self.has_passed(&marks) {
                self.connection(id).into_iter().for_each(|one| one.marks = marks.clone());
                return;
            }
        }
        let Some(end) = self.ends.get(&id) else { return };
        let mut buffer = [0; SOCKET_READ_BYTES];
        let length = self.port.sendable(id).min(SOCKET_READ_BYTES);
        match fds::receive(end.fd.as_fd(), &mut buffer[..length]) {
            Ok(received) if received.bytes > 0 => {
                let passed = received.fds.into_iter().try_for_each(|fd| self.pass(id, fd));
                if passed.is_err() {
                    return self.close(id);
                }
                send(&mut self.port, id, &buffer[..received.bytes]);
            }
            Err(error) if is_for_later(&error) => {}
            Ok(_) | Err(_) => self.close(id),
        }
    }

    /// Sends the bytes that connections were opened with.
    fn send_first(&mut self) {
        let waits = |(id, end): (&StreamId, &LocalEnd)| match &end.kind {
            EndKind::Connection(one) if !one.first.is_empty() => Some(*id),
            EndKind::Connection(_) | EndKind::Pipe | EndKind::Terminal(_) => None,
        };
        let waiting: Vec<StreamId> = self.ends.iter().filter_map(waits).collect();
        for id in waiting {
            let Some(LocalEnd { kind: EndKind::Connection(connection), .. }) =
                self.ends.get_mut(&id)
            else {
                continue;
            };
            let length = self.port.sendable(id).min(connection.first.len());
            if length > 0 {
                let rest = &connection.first.rest()[..length];
                send(&mut self.port, id, rest);
                connection.first.wrote(length);
            }
        }
    }

    /// Passes a descriptor with the next bytes of a connection.
    fn pass(&mut self, connection: StreamId, fd: OwnedFd) -> io::Result<()> {
        let (end, what) = LocalEnd::of_passed(fd, self.side)?;
        let stream = self.port.pass(connection, what).ok_or(Errno::AGAIN)?;
        if let Some(end) = end {
            self.add(connection, stream, end);
        }
        Ok(())
    }

    /// Adds the local end of a descriptor that was passed over a connection.
    fn add(&mut self, connection: StreamId, stream: StreamId, end: LocalEnd) {
        let is_output = match self.side {
            Side::Outer => end.writes,
            Side::Inner => end.reads,
        };
        if let (true, Some(connection)) = (is_output, self.connection(connection)) {
            connection.outputs.push(stream);
        }
        self.ends.insert(stream, end);
    }

    /// Ends a stream on this side in both directions.
    fn close(&mut self, id: StreamId) {
        self.port.end(id);
        self.port.stop(id);
        self.ends.remove(&id);
    }

    fn connection(&mut self, id: StreamId) -> Option<&mut RelayedConnection> {
        match &mut self.ends.get_mut(&id)?.kind {
            EndKind::Connection(connection) => Some(connection),
            EndKind::Pipe | EndKind::Terminal(_) => None,
        }
    }

    fn connections(&self) -> impl Iterator<Item = &RelayedConnection> {
        self.ends.values().filter_map(|end| match &end.kind {
            EndKind::Connection(connection) => Some(connection),
            EndKind::Pipe | EndKind::Terminal(_) => None,
        })
    }

    /// Returns how much of each output must have passed before the next message of a connection.
    fn marks(&self, id: StreamId, waiting: fn(&LocalEnd) -> u64) -> Vec<(StreamId, u64)> {
        let Some(LocalEnd { kind: EndKind::Connection(connection), .. }) = self.ends.get(&id)
        else {
            return Vec::new();
        };
        let outputs = connection.outputs.iter();
        outputs
            .filter_map(|id| self.ends.get(id).map(|end| (*id, end.moved + waiting(end))))
            .collect()
    }

    /// Returns whether that much output has passed. A closed stream counts as passed: its rest
    /// never comes.
    fn has_passed(&self, marks: &[(StreamId, u64)]) -> bool {
        marks.iter().all(|(id, mark)| self.ends.get(id).is_none_or(|end| end.moved >= *mark))
    }

    fn look_at_windows(&mut self) {
        for (id, end) in &mut self.ends {
            if let Some(window) = end.new_window() {
                self.port.resize(*id, window);
            }
        }
    }
}

/// Sends bytes. There are at most as many as the stream may send now.
fn send(port: &mut Port, id: StreamId, bytes: &[u8]) {
    let Ok(_length) = port.send_data(id, |buffer| {
        buffer[..bytes.len()].copy_from_slice(bytes);
        Ok::<_, Infallible>(bytes.len())
    });
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
