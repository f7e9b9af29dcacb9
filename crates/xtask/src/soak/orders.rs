//! What the driver of a soak is to do.

use super::subject::Kind;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    pub subject: Kind,
    pub boxes: u64,
    pub seconds_max: u64,
    pub workers: u64,
    pub seed: u64,
    pub tare: PathBuf,
    /// The packages that boxes of LibreChat see.
    pub packages: PathBuf,
}
