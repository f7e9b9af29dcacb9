//! Tool calls that code in a box makes. The code is not trusted.

use std::path::Path;

use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use tare_archive::{Kind, Reader};
use tare_engine::{BoxId, Context as _, Engine, Error};

use crate::librechat::run::box_spec::CODE;
use crate::librechat::tools::request::ToolLanguage;
use crate::work::pipe::Pipe;

/// The maximum number of calls in one step.
pub const CALLS_MAX: usize = 100;
/// The size limit of one call.
const CALL_BYTES_MAX: u64 = 1 << 20;
/// The size limit of all calls of a step.
const ROUND_BYTES_MAX: u64 = 8 << 20;

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

pub fn collect(engine: &Engine, id: &BoxId, language: ToolLanguage) -> Result<Vec<Call>, Error> {
    // If the code removed the directory, there are no calls.
    let Ok(copying) = engine.copy_files_out(id, &Path::new(CODE).join("calls")) else {
        return Ok(Vec::new());
    };
    let doing = || "cannot read the calls of the code".to_owned();
    let mut stream = Pipe::of(&copying.stream).context(doing)?;
    let mut archive = Reader::new(&mut stream);
    let mut calls = Vec::new();
    let mut left_bytes = ROUND_BYTES_MAX;
    while let Some(entry) = archive.next_entry().context(doing)? {
        let Kind::File { size } = entry.kind else {
            continue;
        };
        if entry.name.ends_with(b"/.keep") {
            continue;
        }
        if size > CALL_BYTES_MAX || calls.len() >= CALLS_MAX {
            return Err(too_much());
        }
        left_bytes = left_bytes.checked_sub(size).ok_or_else(too_much)?;
        calls.push((entry.name, archive.content().context(doing)?));
    }
    drop(stream);
    copying.finish()?;
    // Their names give the order of the calls.
    calls.sort_by_key(|(name, _)| (name.len(), name.clone()));
    let parse = |(_, content): &(Vec<u8>, Vec<u8>)| language.parse(content).ok_or_else(not_a_call);
    calls.iter().map(parse).collect()
}

fn too_much() -> Error {
    let message =
        format!("the code asks for more than {CALLS_MAX} calls at once, or too large ones");
    Error::bad_request(message)
}

fn not_a_call() -> Error {
    Error::bad_request("the code wrote a file that is not a call")
}

impl ToolLanguage {
    fn parse(self, content: &[u8]) -> Option<Call> {
        match self {
            Self::Python => serde_json::from_slice(content).ok(),
            Self::Bash => {
                let text = std::str::from_utf8(content).ok()?;
                let (key, rest) = text.split_once('\n')?;
                let (name, input) = rest.split_once('\n')?;
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
        assert_eq!(parsed(ToolLanguage::Python, python), call);
        assert_eq!(parsed(ToolLanguage::Bash, b"k\nf\n{\"a\":\n1}"), call);
        let (_, _, bare) = parsed(ToolLanguage::Bash, b"k\nf\nplain text");
        assert_eq!(bare, json!("plain text"));
        assert!(ToolLanguage::Bash.parse(b"k").is_none());
        assert!(ToolLanguage::Python.parse(b"[]").is_none());
    }
}
