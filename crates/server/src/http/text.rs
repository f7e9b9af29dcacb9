//! Bytes as text: UTF-8 or base64 in JSON, percent-encoding in paths and headers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use serde::Deserialize;
use utoipa::ToSchema;

/// The encoding of bytes in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// Text. Bytes that are not UTF-8 become U+FFFD.
    #[default]
    Utf8,
    /// Every byte.
    Base64,
}

impl Encoding {
    pub fn whole(self, bytes: Vec<u8>) -> String {
        match self {
            Self::Utf8 => match String::from_utf8(bytes) {
                Ok(text) => text,
                Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
            },
            Self::Base64 => base64(&bytes),
        }
    }
}

pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Encodes everything but letters, digits and `-._~`, which are safe everywhere.
pub fn percent_encoded(bytes: &[u8]) -> String {
    percent_encode(bytes, UNSAFE).to_string()
}

const UNSAFE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns `None` for a percent sign that is not followed by two hexadecimal digits.
pub fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let is_encoded = |rest: &str| {
        let digits = rest.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let is_valid = text.split('%').skip(1).all(is_encoded);
    is_valid.then(|| percent_decode_str(text).collect())
}

pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Decodes a stream in pieces. The first bytes of a character wait for the others.
#[derive(Debug, Default)]
pub struct Utf8Pieces {
    encoding: Encoding,
    /// The beginning of a character, at most three bytes.
    cut: Vec<u8>,
}

impl Utf8Pieces {
    pub fn new(encoding: Encoding) -> Self {
        Self { encoding, cut: Vec::new() }
    }

    pub fn next(&mut self, bytes: Vec<u8>) -> String {
        if self.encoding == Encoding::Base64 {
            return base64(&bytes);
        }
        let mut bytes = [std::mem::take(&mut self.cut), bytes].concat();
        self.cut = bytes.split_off(complete(&bytes));
        Encoding::Utf8.whole(bytes)
    }

    /// Returns the bytes of an incomplete character at the end.
    pub fn flush(&mut self) -> String {
        Encoding::Utf8.whole(std::mem::take(&mut self.cut))
    }
}

/// Returns how many bytes come before an incomplete character at the end.
fn complete(bytes: &[u8]) -> usize {
    let mut start = 0;
    loop {
        match std::str::from_utf8(&bytes[start..]) {
            Ok(_) => return bytes.len(),
            Err(error) => match error.error_len() {
                // The bytes end within a character.
                None => return start + error.valid_up_to(),
                Some(wrong) => start += error.valid_up_to() + wrong,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_character_is_joined() {
        let text = "añ€😀\u{fffd}z";
        for at in 0..=text.len() {
            let mut pieces = Utf8Pieces::new(Encoding::Utf8);
            let (first, second) = text.as_bytes().split_at(at);
            let joined =
                [pieces.next(first.to_vec()), pieces.next(second.to_vec()), pieces.flush()];
            assert_eq!(joined.concat(), text, "cut at {at}");
        }
    }

    #[test]
    fn invalid_utf8_is_replaced_and_the_rest_is_unchanged() {
        let mut pieces = Utf8Pieces::new(Encoding::Utf8);
        assert_eq!(pieces.next(b"a\xffb\xe2\x82".to_vec()), "a\u{fffd}b");
        assert_eq!(pieces.flush(), "\u{fffd}");
        let mut pieces = Utf8Pieces::new(Encoding::Base64);
        assert_eq!(pieces.next(vec![0, 255]), "AP8=");
    }
}
