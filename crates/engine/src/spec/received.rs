//! How a value that was received is shown in an error: on one line, without
//! control characters, and short, however long and hostile it was.

use std::ffi::OsStr;
use std::fmt::Write;

use crate::error::Error;

/// Longer values are cut here; enough to recognise what was typed.
const SHOWN_CHARS_MAX: usize = 64;

/// `'value'`, or `'the beginning...' (5000 bytes)`.
pub fn quoted(value: impl AsRef<OsStr>) -> String {
    let value = value.as_ref();
    let text = value.to_string_lossy();
    let shown = escaped(&text.chars().take(SHOWN_CHARS_MAX).collect::<String>());
    if text.chars().nth(SHOWN_CHARS_MAX).is_none() {
        format!("'{shown}'")
    } else {
        format!("'{shown}...' ({} bytes)", value.len())
    }
}

/// The text with everything that could move a cursor, end a line or reorder
/// what is read written as an escape (B011).
pub fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() || reorders(character) {
            let _ = write!(shown, "{}", character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// A refusal of a value, with what would be accepted as its hint.
pub(super) fn bad(message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::bad_request(message).with_hint(hint)
}

/// Line and paragraph separators, bidirectional controls.
fn reorders(character: char) -> bool {
    matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B011
    #[test]
    fn what_could_disturb_a_terminal_is_escaped() {
        assert_eq!(quoted("a\n\u{1b}[2J\u{202e}b"), "'a\\n\\u{1b}[2J\\u{202e}b'");
        assert_eq!(quoted("é ok"), "'é ok'");
    }

    #[test]
    fn a_long_value_is_cut_and_its_length_named() {
        let shown = quoted("x".repeat(5000));
        assert!(shown.ends_with("...' (5000 bytes)"), "{shown}");
        assert!(shown.len() < 100);
    }
}
