//! A port: connections and the descriptors that they pass, over one stream of bytes.
//!
//! A virtual machine has no sockets to its host, only a port. The same protocol that passes between
//! a client and a keeper over sockets crosses a port in frames ([`PortFrame`]). Every connection
//! and every passed descriptor is a numbered stream with data, end and *credit*: a side sends only
//! what the other side has promised to keep. So a reader that does not read stops no other stream,
//! and each side needs a bounded amount of memory.
//!
//! This folder does no input or output: [`Port`] says which frames are allowed, and collects those
//! to be sent. Neither side trusts the other. The first invalid frame ends the port with a
//! [`PortError`].
//!
//! ```text
//! one direction of a stream
//!   sender    Open ──end──▶ Ended ──Stop──▶ Over      Open ──Stop, answered by End──▶ Over
//!   receiver  Open ──End──▶ Ended ──stop──▶ Over      Open ──stop──▶ Stopped ──End──▶ Over
//! ```
//!
//! A side forgets a stream when all its directions are over. The last frames of a direction are an
//! `End` of its sender and a `Stop` of its receiver, so no frame about it is on the way any more.

mod backlog;
mod frame;
mod stream;
mod table;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::GuestPlan;

pub use backlog::Backlog;
pub use frame::{DATA_BYTES_MAX, HEAD_BYTES, PORT_VERSION, Passed, PortFrame, StreamId};
pub use table::{Port, PortEvent, STREAMS_MAX, Side};

/// A request of the outer keeper to the first process of a machine, over the first connection. Each is
/// answered by [`Report::Done`](crate::Report::Done).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToMachine {
    /// Start the keeper of the box in the machine. Sent once, before any other connection.
    Start(Box<GuestPlan>),
    /// Write everything to the shares: the machine is about to end.
    Sync,
    /// Set the clock: the machine was paused. The time is that of the host, in nanoseconds since 1970.
    SetClock { now_ns: u64 },
    /// Set how many processes the box may have.
    SetPids(u32),
}

/// A violation of the protocol by the other side of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortError {
    /// The first frame is not a hello.
    NoHello,
    /// The other side speaks this other version.
    Version(u32),
    /// The frame is one that only this side sends, or a second hello.
    NotAllowed,
    /// The kind of frame does not exist, or the frame has a wrong length or an invalid number.
    Malformed { kind: u32 },
    /// The number of a new stream is not the next one.
    Number(StreamId),
    /// No stream has this number now.
    NoStream(StreamId),
    /// The state of the stream does not allow the frame.
    OutOfTurn(StreamId),
    /// The stream carries more than its credit allows, or got more credit than a stream can have.
    Credit(StreamId),
    /// There are more streams than are allowed, or more passed descriptors than a connection may have.
    TooMany,
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHello => f.write_str("its first bytes are not those of a keeper"),
            Self::Version(version) => {
                write!(f, "it speaks version {version} of the protocol, not {PORT_VERSION}")
            }
            Self::NotAllowed => f.write_str("it sent a frame that it must not send"),
            Self::Malformed { kind } => write!(f, "it sent an invalid frame of kind {kind}"),
            Self::Number(stream) => write!(f, "it opened stream {stream} out of order"),
            Self::NoStream(stream) => {
                write!(f, "it sent a frame for stream {stream}, which is not open")
            }
            Self::OutOfTurn(stream) => write!(f, "it sent a frame for stream {stream} out of turn"),
            Self::Credit(stream) => write!(f, "it broke the credit of stream {stream}"),
            Self::TooMany => f.write_str("it opened too many streams"),
        }
    }
}

impl std::error::Error for PortError {}

#[cfg(test)]
#[path = "port_tests.rs"]
mod tests;
