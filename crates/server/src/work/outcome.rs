//! How a command ended, and what it wrote.

use std::time::Duration;

use tare_engine::{BoxId, End, Receipt, Sentence};

use crate::admission::bodies::Charge;
use crate::error::ServiceError;
use crate::work::run_request::Warm;

/// One output stream, up to its limit.
#[derive(Debug, Default)]
pub struct Captured {
    pub bytes: Vec<u8>,
    pub truncated: bool,
    /// The memory of the bytes.
    charge: Charge,
    /// Why the server had no memory for more.
    pub refused: Option<ServiceError>,
}

impl Captured {
    pub fn new(charge: Charge) -> Self {
        Self { charge, ..Self::default() }
    }

    pub fn add(&mut self, bytes: &[u8]) {
        match self.charge.hold_response(self.bytes.len() + bytes.len()) {
            Ok(()) => self.bytes.extend_from_slice(bytes),
            Err(error) => self.refused = Some(error),
        }
    }
}

/// The result of a run, or of a process in a box.
#[derive(Debug)]
pub struct RunOutput<T = ()> {
    pub id: BoxId,
    pub end: End,
    pub stdout: Captured,
    pub stderr: Captured,
    /// `None` if nothing was to be collected, or the box was gone.
    pub collected: Option<T>,
    pub duration: Duration,
    pub warm: Warm,
    /// What the box had held, if the request asks for that.
    pub receipt: Option<Receipt>,
    /// Why it ended.
    pub sentence: Sentence,
}

impl<T> RunOutput<T> {
    pub fn duration_ms(&self) -> u64 {
        u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX)
    }
}
