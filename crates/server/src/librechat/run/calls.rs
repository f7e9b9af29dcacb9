//! Tool calls that code in a box makes. The code is not trusted.

use std::path::Path;

use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use tare_archive::{Kind, Reader};

use crate::librechat::run::box_spec::CODE;
use crate::work::files::BoxFiles;

/// The maximum number of calls in one step.
pub const CALLS_MAX: usize = 200;
/// The size limit of one call.
const CALL_BYTES_MAX: u64 = 1 << 20;
/// The size limit of all calls of a step.
const ROUND_BYTES_MAX: u64 = 8 << 20;

/// The language of code that calls tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolLanguage {
    Python,
    Bash,
}

/// A call without a reply.
#[derive(Debug, Clone, Deserialize)]
pub struct Call {
    /// Equal calls have equal keys.
    pub key: String,
    /// The name of the tool.
    pub name: String,
    /// The input as text: parsed, a list of digits would take sixteen times its bytes.
    pub input: Box<RawValue>,
}

/// Why the calls of a program are not taken.
pub type Forged = &'static str;

/// `main.sh` makes the key of a call with sha256sum.
const KEY_CHARACTERS: usize = 64;

const TOO_MUCH: Forged = "the code asks for too many calls at once, or for too large ones";
const NOT_A_CALL: Forged = "the code wrote a file that is not a call";

/// Reads the calls of a program, in the order in which it made them.
pub fn collect(files: BoxFiles<'_>, language: ToolLanguage) -> Result<Vec<Call>, Forged> {
    let mut fits = true;
    let read = files.read(&Path::new(CODE).join("calls"), |archive| {
        let texts = texts(archive)?;
        fits = texts.is_some();
        Ok(texts.unwrap_or_default())
    });
    if !fits {
        return Err(TOO_MUCH);
    }
    // If the code removed the directory, there are no calls.
    let mut texts = read.map(|(texts, _)| texts).unwrap_or_default();
    // The names of the files give the order of the calls.
    texts.sort_by_key(|(name, _)| (name.len(), name.clone()));
    let parse = |(_, text): &NamedText| language.parse(text).ok_or(NOT_A_CALL);
    texts.iter().map(parse).collect()
}

/// The name and content of a file.
type NamedText = (Vec<u8>, Vec<u8>);

/// Reads each file. Returns `None` if there is more than the limits allow.
fn texts(archive: &mut Reader<'_>) -> Result<Option<Vec<NamedText>>, tare_archive::Error> {
    let mut texts = Vec::new();
    let mut left_bytes = ROUND_BYTES_MAX;
    while let Some(entry) = archive.next_entry()? {
        let Kind::File { size } = entry.kind else {
            continue;
        };
        if entry.name.ends_with(b"/.keep") {
            continue;
        }
        let after = left_bytes.checked_sub(size);
        let Some(after) = after.filter(|_| size <= CALL_BYTES_MAX && texts.len() < CALLS_MAX)
        else {
            return Ok(None);
        };
        left_bytes = after;
        texts.push((entry.name, archive.content()?));
    }
    Ok(Some(texts))
}

impl ToolLanguage {
    fn parse(self, content: &[u8]) -> Option<Call> {
        match self {
            Self::Python => serde_json::from_slice(content).ok(),
            Self::Bash => {
                let text = std::str::from_utf8(content).ok()?;
                let (key, rest) = text.split_once('\n')?;
                let (name, input) = rest.split_once('\n')?;
                // The key becomes a file name.
                if key.len() != KEY_CHARACTERS || !key.bytes().all(|it| it.is_ascii_hexdigit()) {
                    return None;
                }
                // Input that is not JSON is passed on as text.
                let input = serde_json::from_str(input).or_else(|_| to_raw_value(input));
                let input = input.ok()?;
                Some(Call { key: key.to_owned(), name: name.to_owned(), input })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(language: ToolLanguage, text: &[u8]) -> (String, String, Value) {
        let Call { key, name, input } = language.parse(text).expect("a call");
        let input = serde_json::from_str(input.get()).expect("JSON");
        (key, name, input)
    }

    #[test]
    fn a_call_is_read_as_its_language_writes_it() {
        let python = br#"{"key":"k","name":"f","input":{"a":1}}"#;
        let call = ("k".to_owned(), "f".to_owned(), json!({ "a": 1 }));
        assert_eq!(parsed(ToolLanguage::Python, python), call.clone());
        let key = "0f".repeat(32);
        let bash = |rest: &str| format!("{key}\n{rest}").into_bytes();
        let (read, name, input) = parsed(ToolLanguage::Bash, &bash("f\n{\"a\":\n1}"));
        assert_eq!((read, name, input), (key.clone(), call.1, call.2));
        let (_, _, bare) = parsed(ToolLanguage::Bash, &bash("f\nplain text"));
        assert_eq!(bare, json!("plain text"));
        assert!(ToolLanguage::Bash.parse(b"k").is_none());
        let elsewhere = "../".repeat(21) + "x\nf\n{}";
        assert!(ToolLanguage::Bash.parse(elsewhere.as_bytes()).is_none());
        assert!(ToolLanguage::Python.parse(b"[]").is_none());
    }
}
