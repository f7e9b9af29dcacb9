//! `-u UID[:GID]`: digits are always ids, never looked up in a file that the
//! box's image controls.
use serde::{Deserialize, Serialize};

/// The workload's ids inside the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}
