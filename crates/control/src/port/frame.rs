//! The frames of a port: a head of 16 bytes (kind, length, stream), then the bytes of the frame.
//! All numbers are little-endian. Decoding checks everything that one frame alone can show.
//! `table.rs` checks the rest.

use crate::plan::{Identity, TerminalPlan};
use crate::port::PortError;

/// The version of the frames and of their meaning. Both sides are the same binary: every machine
/// gets that of its keeper. So another version shows that the other side is not tare.
pub const PORT_VERSION: u32 = 1;
/// How much data one frame carries.
pub const DATA_BYTES_MAX: usize = 32 << 10;
/// The length of a frame's head.
pub const HEAD_BYTES: usize = 16;
/// The stream of a hello. A console or a stray program does not send this number by accident.
const HELLO: u64 = u64::from_le_bytes(*b"tareport");

/// The number of a stream: even if the outer side opened it, odd if the inner side did.
pub type StreamId = u64;

/// A frame from one side of a port to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortFrame<'a> {
    /// The first frame in each direction.
    Hello {
        version: u32,
    },
    /// A new connection. Only the outer side connects.
    Open {
        stream: StreamId,
    },
    /// A descriptor, which belongs to the next bytes of a connection.
    Pass {
        connection: StreamId,
        stream: StreamId,
        what: Passed,
    },
    Data {
        stream: StreamId,
        bytes: &'a [u8],
    },
    /// The sender sends no more data. The last frame that it sends as the sender of the stream.
    End {
        stream: StreamId,
    },
    /// The sender takes no more data, because it has delivered everything up to the end, or because
    /// its reader is gone. The last frame that it sends as the receiver of the stream.
    Stop {
        stream: StreamId,
    },
    /// The receiver of the frame may send this much more.
    Credit {
        stream: StreamId,
        bytes: u32,
    },
    /// The size of the window of a terminal.
    Resize {
        stream: StreamId,
        window: TerminalPlan,
    },
}

/// The kind of descriptor that the receiver of a passed one gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passed {
    /// The read end of a pipe of this owner. The stream's data flows to the receiver.
    ReadEnd(Identity),
    /// The write end of a pipe of this owner. The stream's data flows to the passer.
    WriteEnd(Identity),
    /// `/dev/null`: a stream that never carries data.
    Null,
    /// The master side of a terminal of this size. Data flows both ways.
    Terminal(TerminalPlan),
}

impl<'a> PortFrame<'a> {
    /// Returns the first whole frame in `bytes` with its length, `None` while it is incomplete.
    pub fn decode(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, PortError> {
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let (kind, length) = (number(head, 0), number(head, 4));
        let stream = u64::from(number(head, 8)) | u64::from(number(head, 12)) << 32;
        let length = expect_length(kind, length)?;
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let frame = match kind {
            kind::HELLO if stream == HELLO => Self::Hello { version: number(body, 0) },
            kind::OPEN => Self::Open { stream },
            kind::PASS => Self::Pass {
                connection: stream,
                stream: u64::from(number(body, 0)) | u64::from(number(body, 4)) << 32,
                what: passed(body).ok_or(PortError::Malformed { kind })?,
            },
            kind::DATA => Self::Data { stream, bytes: body },
            kind::END => Self::End { stream },
            kind::STOP => Self::Stop { stream },
            kind::CREDIT => Self::Credit { stream, bytes: number(body, 0) },
            kind::RESIZE => Self::Resize {
                stream,
                window: window(number(body, 0), number(body, 4))
                    .ok_or(PortError::Malformed { kind })?,
            },
            _ => return Err(PortError::Malformed { kind }),
        };
        Ok(Some((frame, HEAD_BYTES + length)))
    }

    /// Appends the frame to `output`.
    pub fn encode(&self, output: &mut Vec<u8>) {
        match *self {
            Self::Hello { version } => put(output, kind::HELLO, HELLO, &[version]),
            Self::Open { stream } => put(output, kind::OPEN, stream, &[]),
            Self::Pass { connection, stream, what } => {
                let (what, a, b) = match what {
                    Passed::ReadEnd(Identity { uid, gid }) => (passed::READ_END, uid, gid),
                    Passed::WriteEnd(Identity { uid, gid }) => (passed::WRITE_END, uid, gid),
                    Passed::Null => (passed::NULL, 0, 0),
                    Passed::Terminal(TerminalPlan { rows, columns }) => {
                        (passed::TERMINAL, rows.into(), columns.into())
                    }
                };
                put(output, kind::PASS, connection, &[low(stream), high(stream), what, a, b]);
            }
            Self::Data { stream, bytes } => {
                put_head(output, kind::DATA, stream, bytes.len());
                output.extend_from_slice(bytes);
            }
            Self::End { stream } => put(output, kind::END, stream, &[]),
            Self::Stop { stream } => put(output, kind::STOP, stream, &[]),
            Self::Credit { stream, bytes } => put(output, kind::CREDIT, stream, &[bytes]),
            Self::Resize { stream, window: TerminalPlan { rows, columns } } => {
                put(output, kind::RESIZE, stream, &[rows.into(), columns.into()]);
            }
        }
    }
}

mod kind {
    pub const HELLO: u32 = 1;
    pub const OPEN: u32 = 2;
    pub const PASS: u32 = 3;
    pub const DATA: u32 = 4;
    pub const END: u32 = 5;
    pub const STOP: u32 = 6;
    pub const CREDIT: u32 = 7;
    pub const RESIZE: u32 = 8;
}

mod passed {
    pub const READ_END: u32 = 1;
    pub const WRITE_END: u32 = 2;
    pub const NULL: u32 = 3;
    pub const TERMINAL: u32 = 4;
}

/// Refuses a kind that does not exist and a length that the kind does not have, before anything
/// waits for that many bytes.
fn expect_length(kind: u32, length: u32) -> Result<usize, PortError> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let fits = match kind {
        kind::OPEN | kind::END | kind::STOP => length == 0,
        kind::HELLO | kind::CREDIT => length == 4,
        kind::RESIZE => length == 8,
        kind::PASS => length == 20,
        // An empty frame needs no credit, so a peer could send any number of them.
        kind::DATA => (1..=DATA_BYTES_MAX).contains(&length),
        _ => false,
    };
    if fits { Ok(length) } else { Err(PortError::Malformed { kind }) }
}

fn passed(body: &[u8]) -> Option<Passed> {
    let (what, a, b) = (number(body, 8), number(body, 12), number(body, 16));
    match what {
        passed::READ_END => Some(Passed::ReadEnd(Identity { uid: a, gid: b })),
        passed::WRITE_END => Some(Passed::WriteEnd(Identity { uid: a, gid: b })),
        passed::NULL => Some(Passed::Null),
        passed::TERMINAL => window(a, b).map(Passed::Terminal),
        _ => None,
    }
}

fn window(rows: u32, columns: u32) -> Option<TerminalPlan> {
    Some(TerminalPlan { rows: rows.try_into().ok()?, columns: columns.try_into().ok()? })
}

/// Returns the number at this place. The caller has checked that it is there.
fn number(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes[at..].first_chunk().expect("the length of the frame was checked");
    u32::from_le_bytes(*bytes)
}

fn low(stream: StreamId) -> u32 {
    stream as u32
}

fn high(stream: StreamId) -> u32 {
    (stream >> 32) as u32
}

fn put(output: &mut Vec<u8>, kind: u32, stream: StreamId, numbers: &[u32]) {
    put_head(output, kind, stream, 4 * numbers.len());
    numbers.iter().for_each(|one| output.extend_from_slice(&one.to_le_bytes()));
}

/// Appends the head of a frame whose `length` bytes follow.
fn put_head(output: &mut Vec<u8>, kind: u32, stream: StreamId, length: usize) {
    let length = u32::try_from(length).expect("no frame is longer than its limit");
    for one in [kind, length, low(stream), high(stream)] {
        output.extend_from_slice(&one.to_le_bytes());
    }
}
