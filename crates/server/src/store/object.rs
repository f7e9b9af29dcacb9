//! One file of the store, as its record says.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tare_engine::Timestamp;

use crate::librechat::{Id, Owner};
use crate::store::media_type;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    pub session: Id,
    pub id: Id,
    /// As whoever made it calls it: a relative path for a box, and none of this host.
    pub name: String,
    pub size: u64,
    pub sha256: ContentHash,
    pub owner: Owner,
    /// The user who sent it, as the client said and nobody has proven.
    #[serde(default)]
    pub said_by: Option<String>,
    #[serde(default)]
    pub read_only: bool,
    /// The file of which this is a later state.
    #[serde(default)]
    pub modified_from: Option<Origin>,
    pub created_at: Timestamp,
}

/// What a file is kept with, beside its content and its owner.
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
    /// By the end of its name.
    pub fn content_type(&self) -> &'static str {
        media_type::of(&self.name)
    }

    /// What is after the last dot of its name, with the dot; nothing if there is none.
    pub fn extension(&self) -> String {
        media_type::extension(&self.name).map_or_else(String::new, |end| format!(".{end}"))
    }
}

/// A SHA-256 as 64 small hexadecimal digits: it is a name in the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct ContentHash(String);

impl ContentHash {
    pub fn of(hasher: Sha256) -> Self {
        let digits = hasher.finalize().into_iter();
        Self(digits.map(|byte| format!("{byte:02x}")).collect())
    }

    /// `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let valid = text.len() == 64 && text.bytes().all(is_digit);
        valid.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ContentHash {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("this is no SHA-256")
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
