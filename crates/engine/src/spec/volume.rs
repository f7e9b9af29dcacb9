//! `-v HOST:BOX[:ro]`.
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Absolute; resolved without following symlinks by `create`.
    pub host: PathBuf,
    /// Absolute; resolved beneath the box's root.
    pub target: PathBuf,
    pub access: Access,
}
