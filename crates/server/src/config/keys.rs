//! API keys by hash. Keys of `--api-key-file` get names from their hash.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};
use tare_engine::Error;

use crate::config::units::{ByteSize, parsed};

/// An API key. The configuration contains only its hash, so a reader of the file cannot use it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// The log shows this name, and boxes have it as a label.
    pub name: String,
    #[serde(deserialize_with = "hex")]
    pub sha256: [u8; 32],
    /// Boxes at once, including those of runs.
    pub boxes: Option<u64>,
    /// The average rate; as many may begin at once.
    pub runs_per_second: Option<f64>,
    /// The sum of the memory limits of these boxes.
    pub memory_bytes: Option<ByteSize>,
}

impl Key {
    pub fn of(name: &str, key: &[u8]) -> Self {
        Self {
            name: name.to_owned(),
            sha256: Sha256::digest(key).into(),
            boxes: None,
            runs_per_second: None,
            memory_bytes: None,
        }
    }

    /// Names a key by the first 8 digits of its SHA-256, so that it keeps its boxes and quotas when
    /// other keys come and go.
    fn by_hash(key: &[u8]) -> Self {
        let unnamed = Self::of("", key);
        let [a, b, c, d, ..] = unnamed.sha256;
        let name = format!("key-{:08x}", u32::from_be_bytes([a, b, c, d]));
        Self { name, ..unnamed }
    }

    /// Reads a file with one key on each line, without empty lines and lines that begin with #.
    pub fn read_file(path: &Path) -> Result<Vec<Self>, Error> {
        let message = || format!("cannot use the keys in {}", path.display());
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::bad_request(message()).caused_by(error))?;
        let lines = text.lines().map(str::trim);
        let keys = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        // A key that is there twice is one key: its name is its hash.
        let keys: BTreeSet<&str> = keys.collect();
        let keys = keys.into_iter().map(|key| Self::by_hash(key.as_bytes()));
        let keys: Vec<Self> = keys.collect();
        if keys.is_empty() {
            Err(Error::bad_request(message()).caused_by("there are none"))
        } else {
            Ok(keys)
        }
    }
}

fn hex<'de, D: Deserializer<'de>>(input: D) -> Result<[u8; 32], D::Error> {
    let wrong = || {
        let message = "a sha256 has 64 hexadecimal digits";
        Error::bad_request(message).with_hint("printf %s KEY | sha256sum")
    };
    parsed(input, &"0a".repeat(32), |text| {
        let digits = text.as_bytes().as_chunks::<2>();
        let mut bytes = [0; 32];
        if !text.is_ascii() || !digits.1.is_empty() || digits.0.len() != bytes.len() {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.0) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_a_file_keeps_its_name_when_other_lines_come_and_go() {
        let directory = tare_harness::TemporaryDirectory::new();
        let names = |text: &str| {
            let keys = Key::read_file(&directory.write("keys", text)).expect("keys");
            keys.into_iter().map(|key| key.name).collect::<Vec<_>>()
        };
        let secret = names("secret\n");
        assert_eq!(secret, ["key-2bb80d53"]);
        assert!(names("one\nsecret\n").contains(&secret[0]));
        assert!(names("# a comment\nnew\nsecret\n").contains(&secret[0]));
        assert_eq!(names("secret\nsecret\n"), secret);
    }
}
