//! API keys by hash. Keys of `--api-key-file` get names from their hash.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};
use tare_engine::Error;
use tare_engine::spec::Name;

use crate::config::units::{ByteSize, parsed};

/// An API key. The configuration contains only its hash, so a reader of the file cannot use it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// The tenant whose boxes the key makes, sees and ends.
    #[serde(deserialize_with = "name")]
    pub name: Name,
    #[serde(deserialize_with = "hex")]
    pub sha256: [u8; 32],
    /// Whether it sees the boxes of all tenants, and may use the routes for operators.
    #[serde(default)]
    pub admin: bool,
    /// Whether it may ask for machines. With `[boxes] driver = "vm"`, every key gets machines.
    #[serde(default)]
    pub vm: bool,
    /// Boxes at once, including those of runs.
    pub boxes: Option<u64>,
    /// The average rate; as many may begin at once.
    pub runs_per_second: Option<f64>,
    /// The sum of the memory limits of these boxes.
    pub memory_bytes: Option<ByteSize>,
    /// `fresh`: its code never runs in a copy of an interpreter that others have copies of.
    pub warm: Option<KeyWarm>,
}

/// The most that a key shares with other keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyWarm {
    Fresh,
}

impl Key {
    /// A key without quotas.
    #[cfg(test)]
    pub fn named(name: &str, key: &[u8]) -> Self {
        Self { name: Name::parse(name).expect("a name"), ..Self::by_hash(key, false) }
    }

    /// Names a key by the first 8 digits of its SHA-256, so that it keeps its boxes and quotas when
    /// other keys come and go.
    fn by_hash(key: &[u8], admin: bool) -> Self {
        let sha256: [u8; 32] = Sha256::digest(key).into();
        let [a, b, c, d, ..] = sha256;
        let name = format!("key-{:08x}", u32::from_be_bytes([a, b, c, d]));
        Self {
            name: Name::parse(&name).expect("letters, digits and '-' are a name"),
            sha256,
            admin,
            vm: false,
            boxes: None,
            runs_per_second: None,
            memory_bytes: None,
            warm: None,
        }
    }

    /// Reads a file with one key on each line, without empty lines and lines that begin with #. The
    /// key of an admin has `admin:` before it.
    pub fn read_file(path: &Path) -> Result<Vec<Self>, Error> {
        let message = || format!("cannot use the keys in {}", path.display());
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::bad_request(message()).caused_by(error))?;
        let lines = text.lines().map(str::trim);
        let keys = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        // A key that is there twice is one key: its name is its hash.
        let mut found = BTreeMap::new();
        for line in keys {
            let (key, admin) = match line.strip_prefix(ADMIN) {
                Some(key) => (key.trim_start(), true),
                None => (line, false),
            };
            if key.is_empty() {
                let why = format!("there is no key after {ADMIN:?}");
                return Err(Error::bad_request(message()).caused_by(why));
            }
            *found.entry(key).or_insert(false) |= admin;
        }
        if found.is_empty() {
            return Err(Error::bad_request(message()).caused_by("there are none"));
        }
        let keys = found.into_iter().map(|(key, admin)| Self::by_hash(key.as_bytes(), admin));
        Ok(keys.collect())
    }
}

/// Begins the line of a key that is an admin.
const ADMIN: &str = "admin:";

fn name<'de, D: Deserializer<'de>>(input: D) -> Result<Name, D::Error> {
    parsed(input, "ci", Name::parse)
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
            keys.into_iter().map(|key| key.name.to_string()).collect::<Vec<_>>()
        };
        let secret = names("secret\n");
        assert_eq!(secret, ["key-2bb80d53"]);
        assert!(names("one\nsecret\n").contains(&secret[0]));
        assert!(names("# a comment\nnew\nsecret\n").contains(&secret[0]));
        assert_eq!(names("secret\nsecret\n"), secret);
        assert_eq!(names("admin:secret\n"), secret);
    }

    #[test]
    fn a_line_that_begins_with_admin_is_the_key_of_an_admin() {
        let directory = tare_harness::TemporaryDirectory::new();
        let read = |text: &str| Key::read_file(&directory.write("keys", text));
        let admins = |text: &str| {
            let keys = read(text).expect("keys").into_iter();
            keys.map(|key| (key.sha256, key.admin)).collect::<BTreeMap<_, _>>()
        };
        let secret: [u8; 32] = Sha256::digest(b"secret").into();
        assert!(!admins("secret")[&secret]);
        for text in ["admin:secret", "admin: secret", "secret\nadmin:secret", "a\nadmin:secret"] {
            assert!(admins(text)[&secret], "{text}");
        }
        assert!(read("admin:\n").is_err());
    }
}
