//! The name of a downloaded file, encoded for a header. Boxes and clients choose names, so a name
//! must not be able to end the header or begin another one.

use axum::http::HeaderValue;

use crate::http::text::percent_encoded;

/// RFC 6266: an ASCII name for every client, and the real name in UTF-8.
pub fn attachment(name: &[u8]) -> HeaderValue {
    let plain = |byte: &u8| match byte {
        b'"' | b'\\' | b'%' => '_',
        byte if byte.is_ascii_graphic() || *byte == b' ' => char::from(*byte),
        _ => '_',
    };
    let plain: String = name.iter().map(plain).collect();
    let whole = percent_encoded(String::from_utf8_lossy(name).as_bytes());
    let text = format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{whole}");
    HeaderValue::try_from(text).expect("it is of visible ASCII characters")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_nothing_but_a_name_in_a_header() {
        let shown = |name: &[u8]| attachment(name).to_str().map(str::to_owned).expect("ASCII");
        assert_eq!(shown(b"a.txt"), "attachment; filename=\"a.txt\"; filename*=UTF-8''a.txt");
        let hostile = shown("a\"\r\nSet-Cookie: x=1; \\é".as_bytes());
        assert_eq!(
            hostile,
            "attachment; filename=\"a___Set-Cookie: x=1; ___\"; \
             filename*=UTF-8''a%22%0D%0ASet-Cookie%3A%20x%3D1%3B%20%5C%C3%A9"
        );
        shown(&[0xff; 300]);
    }
}
