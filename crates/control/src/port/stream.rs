//! The state of one stream: which frames it allows, and how much data. The diagram is in `mod.rs`.

use crate::port::frame::StreamId;
use crate::port::{DATA_BYTES_MAX, PortError};

/// How much a new stream may send before it gets credit. Every stream may have this much at the
/// same time, whatever the others have.
pub const WINDOW_FIRST: u32 = 8 << 10;
/// How much a busy stream may send ahead of its reader: 500 MB/s over a port with a round trip of a
/// millisecond.
pub const WINDOW_MAX: u32 = 512 << 10;

/// The direction in which this side sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outgoing {
    Open {
        credit: u32,
    },
    /// This side has sent its end.
    Ended,
    Over,
}

/// The direction in which this side receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incoming {
    Open(Allowance),
    /// The other side has sent its end. This side delivers the rest.
    Ended {
        window: u32,
    },
    /// This side takes no more. What is on the way is dropped, within the old allowance.
    Stopped {
        left: u32,
    },
    Over,
}

/// The bytes that the other side of a stream may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// How much it may send now.
    pub left: u32,
    /// How much was delivered since the last credit.
    pub owed: u32,
    /// How much it may send ahead of the reader.
    pub window: u32,
}

/// Decision about data that has arrived on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrived {
    Deliver,
    Drop,
}

/// The answer to a stop of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The sender had not ended the stream, and does so now.
    End,
    Nothing,
}

impl Outgoing {
    pub const NEW: Self = Self::Open { credit: WINDOW_FIRST };

    /// How much may be sent in the next frame.
    pub fn sendable(self) -> usize {
        match self {
            Self::Open { credit } => DATA_BYTES_MAX.min(credit as usize),
            Self::Ended | Self::Over => 0,
        }
    }

    /// Takes note of data that is sent. It is at most [`Self::sendable`].
    pub fn send(&mut self, length: usize) {
        if let Self::Open { credit } = self {
            *credit = credit.saturating_sub(u32::try_from(length).unwrap_or(u32::MAX));
        }
    }

    /// Returns whether an end has to be sent.
    pub fn end(&mut self) -> bool {
        let is_open = matches!(self, Self::Open { .. });
        if is_open {
            *self = Self::Ended;
        }
        is_open
    }

    pub fn receive_credit(&mut self, bytes: u32, id: StreamId) -> Result<(), PortError> {
        match self {
            Self::Open { credit } => {
                let more = credit.checked_add(bytes).filter(|sum| *sum <= WINDOW_MAX);
                *credit = more.filter(|_| bytes > 0).ok_or(PortError::Credit(id))?;
                Ok(())
            }
            // It was on the way when this side ended the stream.
            Self::Ended => Ok(()),
            Self::Over => Err(PortError::OutOfTurn(id)),
        }
    }

    pub fn receive_stop(&mut self, id: StreamId) -> Result<Answer, PortError> {
        let answer = match self {
            Self::Open { .. } => Answer::End,
            Self::Ended => Answer::Nothing,
            Self::Over => return Err(PortError::OutOfTurn(id)),
        };
        *self = Self::Over;
        Ok(answer)
    }
}

impl Incoming {
    pub const NEW: Self =
        Self::Open(Allowance { left: WINDOW_FIRST, owed: 0, window: WINDOW_FIRST });

    pub fn receive_data(&mut self, length: usize, id: StreamId) -> Result<Arrived, PortError> {
        let (left, arrived) = match self {
            Self::Open(allowance) => (&mut allowance.left, Arrived::Deliver),
            Self::Stopped { left } => (left, Arrived::Drop),
            Self::Ended { .. } | Self::Over => return Err(PortError::OutOfTurn(id)),
        };
        let rest = u32::try_from(length).ok().and_then(|length| left.checked_sub(length));
        *left = rest.ok_or(PortError::Credit(id))?;
        Ok(arrived)
    }

    pub fn receive_end(&mut self, id: StreamId) -> Result<(), PortError> {
        *self = match self {
            Self::Open(Allowance { window, .. }) => Self::Ended { window: *window },
            Self::Stopped { .. } => Self::Over,
            Self::Ended { .. } | Self::Over => return Err(PortError::OutOfTurn(id)),
        };
        Ok(())
    }

    /// Returns how much of this side's memory the stream may take beyond the first window.
    pub fn extra(self) -> u32 {
        match self {
            Self::Open(Allowance { window, .. }) | Self::Ended { window } => window - WINDOW_FIRST,
            Self::Stopped { .. } | Self::Over => 0,
        }
    }

    /// Returns whether a stop has to be sent.
    pub fn stop(&mut self) -> bool {
        let (next, sends) = match self {
            Self::Open(allowance) => (Self::Stopped { left: allowance.left }, true),
            Self::Ended { .. } => (Self::Over, true),
            Self::Stopped { .. } | Self::Over => (*self, false),
        };
        *self = next;
        sends
    }
}

impl Allowance {
    /// Takes note of data that was delivered. Returns the credit to send. A stream whose reader
    /// keeps up gets a larger window, out of what is `spare` for all streams.
    pub fn deliver(&mut self, length: usize, spare: &mut u32) -> Option<u32> {
        self.owed = self.owed.saturating_add(u32::try_from(length).unwrap_or(u32::MAX));
        if self.owed < self.window / 2 {
            return None;
        }
        let more = self.window.min(WINDOW_MAX - self.window);
        let more = if more <= *spare { more } else { 0 };
        *spare -= more;
        self.window += more;
        let credit = std::mem::take(&mut self.owed) + more;
        self.left += credit;
        Some(credit)
    }
}
