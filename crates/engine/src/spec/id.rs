//! Box ids: the one thing every name of a box derives from.

use std::fmt;

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

/// Twelve characters of `[a-z2-7]`: 60 random bits, never used twice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct BoxId(String);

const LENGTH: usize = 12;
pub(crate) const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

impl BoxId {
    pub fn random() -> Self {
        let mut bytes = [0u8; LENGTH];
        getrandom(&mut bytes, GetRandomFlags::empty()).expect("the kernel has random bytes");
        Self::from_bytes(bytes)
    }

    /// The same bytes are the same id: for somebody who has to know it before the box
    /// is there. They have to be as good as random.
    pub fn from_bytes(bytes: [u8; LENGTH]) -> Self {
        let character = |byte: &u8| char::from(ALPHABET[usize::from(byte % 32)]);
        Self(bytes.iter().map(character).collect())
    }

    /// `None` for anything that is not the name of a box.
    pub fn parse(text: &str) -> Option<Self> {
        let is_known = |byte: u8| matches!(byte, b'a'..=b'z' | b'2'..=b'7');
        let valid = text.len() == LENGTH && text.bytes().all(is_known);
        valid.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for BoxId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("this is not the id of a box")
    }
}

impl fmt::Display for BoxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_id_is_an_id_and_no_other_text_is() {
        let id = BoxId::random();
        assert_eq!(BoxId::parse(id.as_str()), Some(id.clone()));
        assert_ne!(BoxId::random(), id);
        for text in ["", "..", "abcdefghijk/", "ABCDEFGHIJKL", "abcdefghijklm"] {
            assert_eq!(BoxId::parse(text), None, "{text}");
        }
    }
}
