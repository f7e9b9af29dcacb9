//! Shows control characters as text, so that the output of a box cannot move the cursor, set the
//! title or type for the user.
//!
//! Line breaks and tabs stay. Other control characters look as `cat -v` shows them: `^[` for escape,
//! `^?` for delete. Those from U+0080 to U+009F look like `\x9b`.

/// Escapes one stream, which may come in pieces of any size.
#[derive(Debug, Default)]
pub struct ControlEscaper {
    /// A carriage return, or the first byte of a character from U+0080 on: the next byte decides how
    /// it looks. At the end of a log, such a byte shows nothing.
    held: Option<u8>,
}

/// The first byte of U+0080 to U+00BF in UTF-8. Bytes from 0x80 to 0x9f after another first byte are
/// parts of other characters.
const SECOND_ROW: u8 = 0xc2;

impl ControlEscaper {
    /// Appends `bytes` to `shown`, escaped.
    pub fn show(&mut self, bytes: &[u8], shown: &mut Vec<u8>) {
        for byte in bytes {
            match (self.held.take(), *byte) {
                // The end of a line from a terminal.
                (Some(b'\r'), b'\n') => shown.extend_from_slice(b"\r\n"),
                (Some(SECOND_ROW), control @ 0x80..=0x9f) => {
                    shown.extend_from_slice(format!("\\x{control:02x}").as_bytes());
                }
                (held, byte) => {
                    match held {
                        Some(b'\r') => shown.extend_from_slice(b"^M"),
                        Some(other) => shown.push(other),
                        None => {}
                    }
                    self.show_byte(byte, shown);
                }
            }
        }
    }

    fn show_byte(&mut self, byte: u8, shown: &mut Vec<u8>) {
        match byte {
            b'\r' | SECOND_ROW => self.held = Some(byte),
            b'\n' | b'\t' => shown.push(byte),
            0..0x20 | 0x7f => shown.extend_from_slice(&[b'^', byte ^ 0x40]),
            _ => shown.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let mut whole = Vec::new();
        ControlEscaper::default().show(text.as_bytes(), &mut whole);
        let (mut visible, mut pieces) = (ControlEscaper::default(), Vec::new());
        for byte in text.bytes() {
            visible.show(&[byte], &mut pieces);
        }
        assert_eq!(whole, pieces, "the pieces make no difference");
        String::from_utf8(whole).unwrap()
    }

    #[test]
    fn nothing_that_moves_a_cursor_gets_through() {
        assert_eq!(shown("\x1b]0;title\x07"), "^[]0;title^G");
        assert_eq!(shown("a\x08b\x7f\0\x1f"), "a^Hb^?^@^_");
        assert_eq!(shown("paid 1\rpaid 9\n"), "paid 1^Mpaid 9\n");
        assert_eq!(shown("\u{9b}31m\u{80}\u{9f}."), "\\x9b31m\\x80\\x9f.");
        assert_eq!(shown("\r\u{9b}\n"), "^M\\x9b\n");
        assert_eq!(shown("\r\r\n"), "^M\r\n");
    }

    #[test]
    fn printable_text_is_unchanged() {
        for text in ["a\tb\nc\r\n", "é ß £ ¿\n", "日本語 🦀\n", ""] {
            assert_eq!(shown(text), text);
        }
    }
}
