//! How a command ended, and what it wrote.

use std::time::Duration;

use tare_engine::{BoxId, End};

/// One output stream, up to its limit.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Captured {
    pub bytes: Vec<u8>,
    pub truncated: bool,
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
}
