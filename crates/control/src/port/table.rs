//! The streams of a port: checks every frame that arrives, and collects those to be sent.

use std::collections::BTreeMap;

use crate::plan::TerminalPlan;
use crate::port::backlog::Backlog;
use crate::port::frame::{PORT_VERSION, Passed, PortFrame, StreamId};
use crate::port::stream::{Answer, Arrived, Incoming, Outgoing, WINDOW_FIRST};
use crate::port::{HEAD_BYTES, PortError};

/// The most streams: enough for as many execs as a keeper runs, and a few more.
pub const STREAMS_MAX: usize = 1100;
/// The memory that the windows of all streams together may take beyond the first ones. With the
/// first windows, everything that the other side may send ahead takes at most 21 MiB.
const SPARE_BYTES: u32 = 12 << 20;
const _: () =
    assert!(STREAMS_MAX * WINDOW_FIRST as usize + SPARE_BYTES as usize <= 21 << 20, "the promise");
/// While this much waits to be sent, no stream may send more data.
const OUTPUT_BYTES: usize = 64 << 10;
/// While this much waits to be sent, no more frames are received. An honest peer reads before the
/// answers to it take this much, so two honest peers never stop reading at the same time.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// A client passes the standard streams of a command.
const PASSED_IN_MAX: u8 = 3;
/// A keeper passes a terminal.
const PASSED_OUT_MAX: u8 = 1;

/// The side of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The host's. It opens connections, passes pipes, and gets terminals.
    Outer,
    /// The machine's.
    Inner,
}

/// The effect of a frame on the streams of this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortEvent<'a> {
    Opened(StreamId),
    Passed {
        connection: StreamId,
        stream: StreamId,
        what: Passed,
    },
    Data {
        stream: StreamId,
        bytes: &'a [u8],
    },
    /// No more data comes. After the rest is delivered, this side calls [`Port::stop`].
    Ended(StreamId),
    /// No more data is taken.
    Stopped(StreamId),
    Resized {
        stream: StreamId,
        window: TerminalPlan,
    },
    /// Nothing to do: a hello, credit, or data that came too late.
    Nothing,
}

/// One side of a port.
#[derive(Debug)]
pub struct Port {
    side: Side,
    is_greeted: bool,
    streams: BTreeMap<StreamId, PortStream>,
    next_ours: StreamId,
    next_theirs: StreamId,
    spare: u32,
    output: Backlog,
}

#[derive(Debug)]
struct PortStream {
    outgoing: Outgoing,
    incoming: Incoming,
    /// How many descriptors the other side has passed over this connection. `None` if the stream is
    /// not a connection.
    passed: Option<u8>,
    is_terminal: bool,
}

impl Port {
    /// Makes one side of a port. Its first frame is a hello.
    pub fn new(side: Side) -> Self {
        let (next_ours, next_theirs) = match side {
            Side::Outer => (0, 1),
            Side::Inner => (1, 0),
        };
        let mut port = Self {
            side,
            is_greeted: false,
            streams: BTreeMap::new(),
            next_ours,
            next_theirs,
            spare: SPARE_BYTES,
            output: Backlog::default(),
        };
        port.send(PortFrame::Hello { version: PORT_VERSION });
        port
    }

    /// Returns whether the other side has sent its hello.
    pub fn is_greeted(&self) -> bool {
        self.is_greeted
    }

    /// Returns the number of streams that are not over.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns the bytes to be written.
    pub fn output(&self) -> &[u8] {
        self.output.rest()
    }

    pub fn wrote(&mut self, length: usize) {
        self.output.wrote(length);
    }

    /// Returns whether frames may be received. A peer that does not read is not read either.
    pub fn may_receive(&self) -> bool {
        self.output.len() < OUTPUT_BYTES_MAX
    }

    /// Checks a frame of the other side.
    pub fn receive<'a>(&mut self, frame: PortFrame<'a>) -> Result<PortEvent<'a>, PortError> {
        if !self.is_greeted {
            return self.greet(frame).map(|()| PortEvent::Nothing);
        }
        match frame {
            PortFrame::Hello { .. } => Err(PortError::NotAllowed),
            PortFrame::Open { stream } => self.receive_open(stream),
            PortFrame::Pass { connection, stream, what } => {
                self.receive_pass(connection, stream, what)
            }
            PortFrame::Data { stream, bytes } => {
                match self.stream(stream)?.incoming.receive_data(bytes.len(), stream)? {
                    Arrived::Deliver => Ok(PortEvent::Data { stream, bytes }),
                    Arrived::Drop => Ok(PortEvent::Nothing),
                }
            }
            PortFrame::End { stream } => {
                let incoming = &mut self.stream(stream)?.incoming;
                incoming.receive_end(stream)?;
                let has_rest = matches!(incoming, Incoming::Ended { .. });
                self.forget_if_over(stream);
                Ok(if has_rest { PortEvent::Ended(stream) } else { PortEvent::Nothing })
            }
            PortFrame::Stop { stream } => {
                if self.stream(stream)?.outgoing.receive_stop(stream)? == Answer::End {
                    self.send(PortFrame::End { stream });
                }
                self.forget_if_over(stream);
                Ok(PortEvent::Stopped(stream))
            }
            PortFrame::Credit { stream, bytes } => {
                self.stream(stream)?.outgoing.receive_credit(bytes, stream)?;
                Ok(PortEvent::Nothing)
            }
            PortFrame::Resize { .. } if self.side == Side::Outer => Err(PortError::NotAllowed),
            PortFrame::Resize { stream, window } => {
                let known = self.stream(stream)?;
                match known.incoming {
                    Incoming::Open(_) if known.is_terminal => {
                        Ok(PortEvent::Resized { stream, window })
                    }
                    // It was on the way when this side stopped the stream.
                    Incoming::Stopped { .. } if known.is_terminal => Ok(PortEvent::Nothing),
                    Incoming::Open(_)
                    | Incoming::Stopped { .. }
                    | Incoming::Ended { .. }
                    | Incoming::Over => Err(PortError::OutOfTurn(stream)),
                }
            }
        }
    }

    /// Opens a connection. Returns `None` if there are too many streams.
    pub fn open(&mut self) -> Option<StreamId> {
        let stream = self.add_ours(PortStream::both_ways(Some(0)))?;
        self.send(PortFrame::Open { stream });
        Some(stream)
    }

    /// Passes a descriptor with the next bytes of a connection. Returns `None` if there are too
    /// many streams, or if the connection takes no more bytes.
    pub fn pass(&mut self, connection: StreamId, what: Passed) -> Option<StreamId> {
        self.streams.get(&connection).filter(|one| one.sends())?;
        let stream = match what {
            Passed::ReadEnd(_) => PortStream::outgoing(),
            Passed::WriteEnd(_) => PortStream::incoming(),
            Passed::Null => PortStream::OVER,
            Passed::Terminal(_) => PortStream::terminal(),
        };
        let stream = self.add_ours(stream)?;
        self.send(PortFrame::Pass { connection, stream, what });
        self.forget_if_over(stream);
        Some(stream)
    }

    /// Returns how much data may be sent now.
    pub fn sendable(&self, stream: StreamId) -> usize {
        let known = self.streams.get(&stream).filter(|_| self.output.len() < OUTPUT_BYTES);
        known.map_or(0, |one| one.outgoing.sendable())
    }

    /// Sends the data that `read` puts into its buffer, which is as long as [`Self::sendable`].
    /// `read` returns the length, and 0 at the end of its file.
    pub fn send_data<E>(
        &mut self,
        stream: StreamId,
        read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let sendable = self.sendable(stream);
        let block = self.output.block();
        let start = block.len();
        PortFrame::Data { stream, bytes: &[] }.encode(block);
        block.resize(start + HEAD_BYTES + sendable, 0);
        let result = read(&mut block[start + HEAD_BYTES..]);
        let length = result.as_ref().map_or(0, |length| (*length).min(sendable));
        match length {
            0 => block.truncate(start),
            _ => {
                block.truncate(start + HEAD_BYTES + length);
                block[start + 4..start + 8].copy_from_slice(&(length as u32).to_le_bytes());
                if let Some(known) = self.streams.get_mut(&stream) {
                    known.outgoing.send(length);
                }
            }
        }
        result
    }

    /// Sends the end of this side's data. Does nothing if it was sent before.
    pub fn end(&mut self, stream: StreamId) {
        if self.streams.get_mut(&stream).is_some_and(|one| one.outgoing.end()) {
            self.send(PortFrame::End { stream });
        }
    }

    /// Takes no more data of the other side. Does nothing if it was called before.
    pub fn stop(&mut self, stream: StreamId) {
        let Some(known) = self.streams.get_mut(&stream) else { return };
        self.spare += known.incoming.extra();
        if known.incoming.stop() {
            self.send(PortFrame::Stop { stream });
        }
        self.forget_if_over(stream);
    }

    /// Takes note of data that was delivered, and gives credit for it.
    pub fn delivered(&mut self, stream: StreamId, length: usize) {
        let known = self.streams.get_mut(&stream);
        if let Some(PortStream { incoming: Incoming::Open(allowance), .. }) = known
            && let Some(bytes) = allowance.deliver(length, &mut self.spare)
        {
            self.send(PortFrame::Credit { stream, bytes });
        }
    }

    /// Sends the new size of a terminal's window. Only the outer side has a client that changes it.
    pub fn resize(&mut self, stream: StreamId, window: TerminalPlan) {
        let known = self.streams.get(&stream).filter(|_| self.side == Side::Outer);
        if known.is_some_and(|one| one.is_terminal && one.sends()) {
            self.send(PortFrame::Resize { stream, window });
        }
    }

    #[cfg(test)]
    pub(super) fn spare_bytes(&self) -> u32 {
        self.spare
    }

    fn send(&mut self, frame: PortFrame<'_>) {
        frame.encode(self.output.block());
    }

    fn stream(&mut self, stream: StreamId) -> Result<&mut PortStream, PortError> {
        self.streams.get_mut(&stream).ok_or(PortError::NoStream(stream))
    }

    fn greet(&mut self, frame: PortFrame<'_>) -> Result<(), PortError> {
        match frame {
            PortFrame::Hello { version: PORT_VERSION } => {
                self.is_greeted = true;
                Ok(())
            }
            PortFrame::Hello { version } => Err(PortError::Version(version)),
            PortFrame::Open { .. }
            | PortFrame::Pass { .. }
            | PortFrame::Data { .. }
            | PortFrame::End { .. }
            | PortFrame::Stop { .. }
            | PortFrame::Credit { .. }
            | PortFrame::Resize { .. } => Err(PortError::NoHello),
        }
    }

    fn receive_open(&mut self, stream: StreamId) -> Result<PortEvent<'static>, PortError> {
        match self.side {
            Side::Outer => Err(PortError::NotAllowed),
            Side::Inner => {
                self.add_theirs(stream, PortStream::both_ways(Some(0)))?;
                Ok(PortEvent::Opened(stream))
            }
        }
    }

    fn receive_pass(
        &mut self,
        connection: StreamId,
        stream: StreamId,
        what: Passed,
    ) -> Result<PortEvent<'static>, PortError> {
        let (added, passed_max) = match (self.side, what) {
            (Side::Inner, Passed::ReadEnd(_)) => (PortStream::incoming(), PASSED_IN_MAX),
            (Side::Inner, Passed::WriteEnd(_)) => (PortStream::outgoing(), PASSED_IN_MAX),
            (Side::Inner, Passed::Null) => (PortStream::OVER, PASSED_IN_MAX),
            (Side::Outer, Passed::Terminal(_)) => (PortStream::terminal(), PASSED_OUT_MAX),
            (Side::Inner, Passed::Terminal(_))
            | (Side::Outer, Passed::ReadEnd(_) | Passed::WriteEnd(_) | Passed::Null) => {
                return Err(PortError::NotAllowed);
            }
        };
        let over = self.stream(connection)?;
        if matches!(over.incoming, Incoming::Ended { .. } | Incoming::Over) {
            return Err(PortError::OutOfTurn(connection));
        }
        let passed = over.passed.as_mut().ok_or(PortError::OutOfTurn(connection))?;
        if *passed >= passed_max {
            return Err(PortError::TooMany);
        }
        *passed += 1;
        self.add_theirs(stream, added)?;
        self.forget_if_over(stream);
        Ok(PortEvent::Passed { connection, stream, what })
    }

    fn add_ours(&mut self, stream: PortStream) -> Option<StreamId> {
        let id = self.next_ours;
        if self.streams.len() >= STREAMS_MAX {
            return None;
        }
        self.next_ours = id.checked_add(2)?;
        self.streams.insert(id, stream);
        Some(id)
    }

    fn add_theirs(&mut self, id: StreamId, stream: PortStream) -> Result<(), PortError> {
        if id != self.next_theirs {
            return Err(PortError::Number(id));
        }
        if self.streams.len() >= STREAMS_MAX {
            return Err(PortError::TooMany);
        }
        self.next_theirs = id.checked_add(2).ok_or(PortError::Number(id))?;
        self.streams.insert(id, stream);
        Ok(())
    }

    fn forget_if_over(&mut self, id: StreamId) {
        if self.streams.get(&id).is_some_and(PortStream::is_over) {
            self.streams.remove(&id);
        }
    }
}

impl PortStream {
    const OVER: Self = Self {
        outgoing: Outgoing::Over,
        incoming: Incoming::Over,
        passed: None,
        is_terminal: false,
    };

    fn both_ways(passed: Option<u8>) -> Self {
        Self { outgoing: Outgoing::NEW, incoming: Incoming::NEW, passed, is_terminal: false }
    }

    fn terminal() -> Self {
        Self { is_terminal: true, ..Self::both_ways(None) }
    }

    fn outgoing() -> Self {
        Self { outgoing: Outgoing::NEW, ..Self::OVER }
    }

    fn incoming() -> Self {
        Self { incoming: Incoming::NEW, ..Self::OVER }
    }

    fn sends(&self) -> bool {
        matches!(self.outgoing, Outgoing::Open { .. })
    }

    fn is_over(&self) -> bool {
        self.outgoing == Outgoing::Over && self.incoming == Incoming::Over
    }
}
