//! Output as JSON has it: text, or base64 where every byte counts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use utoipa::ToSchema;

/// How bytes are written in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// As text; what is not UTF-8 is U+FFFD.
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

pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// One stream in pieces: a character that is cut in two waits for its other half.
#[derive(Debug, Default)]
pub struct Pieces {
    encoding: Encoding,
    /// The beginning of a character, at most three bytes.
    cut: Vec<u8>,
}

impl Pieces {
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

    /// What never got its other half.
    pub fn last(&mut self) -> String {
        Encoding::Utf8.whole(std::mem::take(&mut self.cut))
    }
}

/// How many bytes there are before a character that more bytes may complete.
fn complete(bytes: &[u8]) -> usize {
    let mut start = 0;
    loop {
        match std::str::from_utf8(&bytes[start..]) {
            Ok(_) => return bytes.len(),
            Err(error) => match error.error_len() {
                // The end came too early.
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
            let mut pieces = Pieces::new(Encoding::Utf8);
            let (first, second) = text.as_bytes().split_at(at);
            let joined = [pieces.next(first.to_vec()), pieces.next(second.to_vec()), pieces.last()];
            assert_eq!(joined.concat(), text, "cut at {at}");
        }
    }

    #[test]
    fn invalid_utf_8_is_replaced_and_the_rest_stays() {
        let mut pieces = Pieces::new(Encoding::Utf8);
        assert_eq!(pieces.next(b"a\xffb\xe2\x82".to_vec()), "a\u{fffd}b");
        assert_eq!(pieces.last(), "\u{fffd}");
        let mut pieces = Pieces::new(Encoding::Base64);
        assert_eq!(pieces.next(vec![0, 255]), "AP8=");
    }
}
