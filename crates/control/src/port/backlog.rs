//! Bytes that wait to be written, in one block.

/// An empty block of at most this size is kept for the next bytes. A larger one is freed.
const KEPT_BYTES: usize = 64 << 10;

/// Bytes that wait to be written, the oldest first.
#[derive(Debug, Default)]
pub struct Backlog {
    bytes: Vec<u8>,
    /// How many of them are written already.
    written: usize,
}

impl Backlog {
    pub fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that are not written yet.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// Appends bytes. The block grows to what it needs and no further, because its owner promised a
    /// limit on its memory.
    pub fn push(&mut self, bytes: &[u8]) {
        self.compact();
        self.bytes.reserve_exact(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the block for a caller that appends to it.
    pub(super) fn block(&mut self) -> &mut Vec<u8> {
        self.compact();
        &mut self.bytes
    }

    /// Removes bytes that were written.
    pub fn wrote(&mut self, length: usize) {
        self.written = (self.written + length).min(self.bytes.len());
        if self.is_empty() {
            self.bytes.clear();
            self.written = 0;
            if self.bytes.capacity() > KEPT_BYTES {
                self.bytes = Vec::new();
            }
        }
    }

    /// Moves the rest to the front, if the rest is smaller than what was written.
    fn compact(&mut self) {
        if self.written > self.len() {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }
}
