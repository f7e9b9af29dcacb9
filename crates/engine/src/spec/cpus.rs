//! `--cpus N`.
use serde::{Deserialize, Serialize};

/// Processor share in thousandths, at least 10.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpus {
    pub milli: u32,
}
