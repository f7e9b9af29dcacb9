//! Shows text that came from outside: on one line, without control characters, and short.
//!
//! A value in an error message, and a name or command in a listing, may be long or hostile. Nothing
//! that passes through this file can move a cursor, end a line or change the reading order.

use std::ffi::OsStr;
use std::fmt::Write;

use crate::error::{Error, Hint};

/// Longer values are cut here: enough to recognise what the user typed.
const SHOWN_CHARS_MAX: usize = 64;

/// Returns `'value'`, or `'the beginning...' (5000 bytes)`.
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

/// Returns the text with escapes in place of control characters and of characters that change the
/// reading order.
pub fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_obeyed(character) {
            let _ = write!(shown, "{}", character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Returns JSON with escapes in place of the same characters. The JSON means the same: outside of
/// its strings it has none of them but line breaks.
pub fn escaped_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        if is_obeyed(character) && character != '\n' {
            let _ = write!(shown, "\\u{:04x}", u32::from(character));
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Returns the error for a bad value. The hint says what would be accepted.
pub(super) fn bad(message: impl Into<String>, hint: impl Into<Hint>) -> Error {
    Error::bad_request(message).with_hint(hint)
}

/// Whether a terminal or an editor obeys the character: controls, line and paragraph separators, and
/// bidirectional controls.
fn is_obeyed(character: char) -> bool {
    let reorders = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    character.is_control() || reorders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_a_terminal_obeys_are_escaped() {
        assert_eq!(quoted("a\n\u{1b}[2J\u{202e}b"), "'a\\n\\u{1b}[2J\\u{202e}b'");
        assert_eq!(quoted("é ok"), "'é ok'");
        assert_eq!(escaped("\u{9b}2J\u{7f}\u{61c}"), "\\u{9b}2J\\u{7f}\\u{61c}");
    }

    #[test]
    fn json_with_escapes_means_the_same() {
        let value = serde_json::json!({ "a": "x\n\u{1b}[2J\u{7f}\u{9b}2J\u{202e}é" });
        for json in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let shown = escaped_json(&json);
            assert!(!shown.chars().any(|it| is_obeyed(it) && it != '\n'), "{shown}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        }
    }

    #[test]
    fn a_long_value_is_cut_and_its_length_named() {
        let shown = quoted("x".repeat(5000));
        assert!(shown.ends_with("...' (5000 bytes)"), "{shown}");
        assert!(shown.len() < 100);
    }
}
