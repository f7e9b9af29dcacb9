//! A stored file's record.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tare_engine::Timestamp;

use crate::store::id::Id;
use crate::store::media_type;
use crate::store::owner::Owner;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    pub session: Id,
    pub id: Id,
    /// A relative path in a box. It is never used as a path on this host.
    pub name: String,
    pub size: u64,
    pub sha256: ContentHash,
    pub owner: Owner,
    /// The user that the client named. tare has no proof of it.
    #[serde(default)]
    pub said_by: Option<String>,
    #[serde(default)]
    pub read_only: bool,
    /// The file of which this is a changed version.
    #[serde(default)]
    pub modified_from: Option<Origin>,
    pub created_at: Timestamp,
}

/// What a record says beside content and owner.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Meta {
    pub name: String,
    pub said_by: Option<String>,
    pub read_only: bool,
    pub modified_from: Option<Origin>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub session: Id,
    pub id: Id,
}

impl Object {
    /// The media type for the extension of its name.
    pub fn content_type(&self) -> &'static str {
        media_type::of(&self.name)
    }

    /// The extension of its name with the dot, or an empty string.
    pub fn extension(&self) -> String {
        media_type::extension(&self.name).map_or_else(String::new, |end| format!(".{end}"))
    }
}

/// A SHA-256 as 64 lowercase hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct ContentHash(String);

impl ContentHash {
    pub fn of(hasher: Sha256) -> Self {
        let digits = hasher.finalize().into_iter();
        Self(digits.map(|byte| format!("{byte:02x}")).collect())
    }
}

impl TryFrom<String> for ContentHash {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_hash = text.len() == 64 && text.bytes().all(is_digit);
        is_hash.then_some(Self(text)).ok_or("this is not a SHA-256")
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
