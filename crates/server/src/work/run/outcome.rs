//! How a command ended, and what it wrote.

use std::time::Duration;

use tare_engine::{BoxId, End, Receipt, Sentence};

use crate::work::request::run::Warm;
use crate::work::streams::output::Captured;

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
