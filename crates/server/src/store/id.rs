//! Ids of sessions and files, in the only form that LibreChat's own routes accept.

use std::fmt;

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

/// Twenty-one characters of `[A-Za-z0-9_-]`: 126 random bits, which cannot be guessed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Id(String);

const LENGTH: usize = 21;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";

impl Id {
    pub fn random() -> Self {
        let mut bytes = [0u8; LENGTH];
        getrandom(&mut bytes, GetRandomFlags::empty()).expect("the kernel has random bytes");
        let character = |byte: &u8| char::from(ALPHABET[usize::from(byte % 64)]);
        Self(bytes.iter().map(character).collect())
    }

    /// Returns `None` for anything else, so an id is always safe as a file name.
    pub fn parse(text: &str) -> Option<Self> {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let valid = text.len() == LENGTH && text.bytes().all(is_known);
        valid.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Id {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("this is not an id")
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_the_form_that_librechat_accepts() {
        let id = Id::random();
        assert_eq!(Id::parse(id.as_str()), Some(id.clone()));
        assert_ne!(Id::random(), id);
        for wrong in ["", "..", "a/b", "AAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAA/"] {
            assert_eq!(Id::parse(wrong), None, "{wrong:?}");
        }
        assert_eq!(Id::parse(&"a".repeat(22)), None);
    }
}
