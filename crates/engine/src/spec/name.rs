//! Box names and labels: what people call a box, never what finds its files.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::spec::received::{bad, quoted};

/// One letter or digit and 62 more characters.
const NAME_BYTES_MAX: usize = 63;
const LABEL_VALUE_BYTES_MAX: usize = 256;
/// Labels are read back with every listing.
const LABELS_MAX: usize = 64;

/// `[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}`; only made by [`parse`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Name(String);

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        parse(&text)
    }
}

pub fn parse(text: &str) -> Result<Name, Error> {
    if is_token(text, b"_.-") {
        return Ok(Name(text.to_owned()));
    }
    Err(bad(
        format!("{} is not a name", quoted(text)),
        "a name has 1 to 63 letters, digits, '_', '.' or '-', and begins with a letter or digit",
    ))
}

/// All labels of a box; of two with one key the later wins.
pub fn labels<'a>(
    texts: impl IntoIterator<Item = &'a str>,
) -> Result<BTreeMap<String, String>, Error> {
    let mut labels = BTreeMap::new();
    for text in texts {
        let (key, value) = label(text)?;
        labels.insert(key, value);
        if labels.len() > LABELS_MAX {
            return Err(bad(
                format!("there are more than {LABELS_MAX} labels"),
                "give fewer labels",
            ));
        }
    }
    Ok(labels)
}

/// `KEY=VALUE`; the key is as a name and may hold `/` too, the value is any
/// text of one line.
pub fn label(text: &str) -> Result<(String, String), Error> {
    let refused =
        |why: &str| bad(format!("{} {why}", quoted(text)), "write KEY=VALUE, such as team=blue");
    let (key, value) = text.split_once('=').ok_or_else(|| refused("is a label without '='"))?;
    if !is_token(key, b"_.-/") {
        return Err(refused("is a label whose key is not a name"));
    }
    if value.len() > LABEL_VALUE_BYTES_MAX || value.chars().any(char::is_control) {
        return Err(refused(
            "is a label whose value has control characters or more than 256 bytes",
        ));
    }
    Ok((key.to_owned(), value.to_owned()))
}

fn is_token(text: &str, also: &[u8]) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= NAME_BYTES_MAX
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || also.contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_documented_form_are_taken() {
        for text in ["a", "7", "CON", "web-1", "a.b_c", &"x".repeat(63)] {
            assert_eq!(parse(text).unwrap().as_str(), text);
        }
    }

    /// B001
    #[test]
    fn other_names_are_refused() {
        for text in [
            "",
            ".",
            "..",
            "../x",
            "-rf",
            "_a",
            "a/b",
            "a\0b",
            "a b",
            "a\n",
            "é",
            "%2e%2e",
            &"x".repeat(64),
            &"x".repeat(5000),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.ends_with("is not a name"), "{error}");
            assert!(!error.contains(['\n', '\0']) && error.len() < 120, "{error}");
        }
    }

    /// B001
    #[test]
    fn a_record_cannot_bring_in_a_name_that_was_not_parsed() {
        let name: Name = serde_json::from_str("\"web\"").unwrap();
        assert_eq!(serde_json::to_string(&name).unwrap(), "\"web\"");
        assert!(serde_json::from_str::<Name>("\"../x\"").is_err());
    }

    #[test]
    fn labels_are_pairs_and_the_later_wins() {
        let pairs = labels(["a=1", "org.x/y=", "a=2=3"]).unwrap();
        let pairs: Vec<_> = pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(pairs, [("a", "2=3"), ("org.x/y", "")]);
        for text in ["", "a", "=1", "a b=1", "a=\n", "a=\u{1b}[0m"] {
            assert!(labels([text]).is_err(), "{text:?}");
        }
        let many: Vec<_> = (0..65).map(|n| format!("k{n}=v")).collect();
        assert!(labels(many.iter().map(String::as_str)).is_err());
    }
}
