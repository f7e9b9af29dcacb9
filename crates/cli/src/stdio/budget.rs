//! How much of a box's output is passed on: stdout and stderr together.

/// Counts down from the limit; what comes after it is dropped, and that is
/// remembered.
#[derive(Debug)]
pub struct Budget {
    room_bytes: u64,
    dropped_bytes: u64,
}

impl Budget {
    pub fn new(limit_bytes: u64) -> Self {
        Self { room_bytes: limit_bytes, dropped_bytes: 0 }
    }

    /// What comes from the caller has no limit: nothing of it is kept.
    pub fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// How many of at most `wanted` bytes may still pass.
    pub fn allow(&self, wanted: usize) -> usize {
        usize::try_from(self.room_bytes).map_or(wanted, |room| room.min(wanted))
    }

    pub fn spend(&mut self, bytes: usize) {
        self.room_bytes = self.room_bytes.saturating_sub(bytes as u64);
    }

    pub fn drop_bytes(&mut self, bytes: usize) {
        self.dropped_bytes = self.dropped_bytes.saturating_add(bytes as u64);
    }

    /// Whether the limit was passed; exactly reached is not passed.
    pub fn is_passed(&self) -> bool {
        self.dropped_bytes > 0
    }

    pub fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }
}
