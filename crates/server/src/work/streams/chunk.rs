//! A piece of the output of a process.

use tare_engine::logs::Stream;

/// The most that is read at a time: as much as a pipe holds.
pub const CHUNK_BYTES: usize = 64 << 10;

/// Bytes of one stream, in the order of their writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub stream: Stream,
    pub bytes: Vec<u8>,
}
