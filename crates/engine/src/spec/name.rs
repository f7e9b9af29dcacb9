//! Box names.
use serde::{Deserialize, Serialize};

/// `[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name(String);

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
