//! The command's environment: `-e KEY=VALUE` and the lines of `--env-file`.
//!
//! Nothing comes from the host's environment by itself: a key without a value
//! is an error, not a wish to pass the host's value in.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::error::Error;
use crate::spec::received::{bad, quoted};

pub type Pair = (OsString, OsString);

const FORM: &str = "write KEY=VALUE; the host's environment is not passed in";

/// No key twice: of two values the later wins, in the place of the earlier.
pub fn later_wins(pairs: impl IntoIterator<Item = Pair>) -> Vec<Pair> {
    let mut places = HashMap::new();
    let mut kept: Vec<Pair> = Vec::new();
    for (key, value) in pairs {
        let place = *places.entry(key.clone()).or_insert(kept.len());
        match kept.get_mut(place) {
            Some((_, earlier)) => *earlier = value,
            None => kept.push((key, value)),
        }
    }
    kept
}

/// `KEY=VALUE`, any bytes but NUL.
pub fn parse(text: &OsStr) -> Result<Pair, Error> {
    let bytes = text.as_bytes();
    let Some(end) = bytes.iter().position(|byte| *byte == b'=') else {
        let message = format!("{} is an environment variable without '='", quoted(text));
        return Err(bad(message, FORM));
    };
    let (key, value) = (&bytes[..end], &bytes[end + 1..]);
    if let Some(why) = wrong_key(key).or_else(|| wrong_value(key, value)) {
        let message = format!("{} is an environment variable {why}", quoted(text));
        return Err(bad(message, FORM));
    }
    Ok((to_os(key), to_os(value)))
}

/// Docker's format: a `KEY=VALUE` on each line, `#` for comments, blank lines;
/// no quotes, no expansion. `path` is only for the message.
pub fn parse_file(path: &Path, content: &[u8]) -> Result<Vec<Pair>, Error> {
    let content = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(content);
    let mut pairs = Vec::new();
    for (index, line) in content.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line).trim_ascii_start();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let pair = parse_line(line).map_err(|error| at_line(path, index + 1, error))?;
        pairs.push(pair);
    }
    Ok(pairs)
}

/// Docker, too, refuses a key with a space: `export A=1` is not meant as one.
fn parse_line(line: &[u8]) -> Result<Pair, Error> {
    let text = OsStr::from_bytes(line);
    let (key, value) = parse(text)?;
    if key.as_bytes().iter().any(u8::is_ascii_whitespace) {
        let message =
            format!("{} is an environment variable with a space in its key", quoted(text));
        let form = "write KEY=VALUE, without 'export' and without spaces around '='";
        return Err(bad(message, form));
    }
    Ok((key, value))
}

fn at_line(path: &Path, line: usize, error: Error) -> Error {
    let hint = error.hint().unwrap_or(FORM).to_owned();
    Error::bad_request(format!("line {line} of {} is wrong", quoted(path)))
        .caused_by(error)
        .with_hint(hint)
}

fn wrong_key(key: &[u8]) -> Option<&'static str> {
    match key {
        [] => Some("without a key"),
        key if key.contains(&0) => Some("with a NUL in its key"),
        key if key.iter().any(u8::is_ascii_control) => Some("with a control character in its key"),
        _ => None,
    }
}

/// `HOME` goes into the box's generated `/etc/passwd` (E022).
fn wrong_value(key: &[u8], value: &[u8]) -> Option<&'static str> {
    if value.contains(&0) {
        return Some("with a NUL in its value");
    }
    let breaks_a_line = |byte: &u8| byte.is_ascii_control() || *byte == b':';
    (key == b"HOME" && value.iter().any(breaks_a_line))
        .then_some("whose value has a control character or ':', which no home directory may have")
}

fn to_os(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(key: &str, value: &str) -> Pair {
        (key.into(), value.into())
    }

    #[test]
    fn pairs_are_taken_byte_for_byte() {
        for (text, key, value) in [
            ("A=1", "A", "1"),
            ("A=", "A", ""),
            ("A==b=c", "A", "=b=c"),
            ("LD_PRELOAD=/x.so", "LD_PRELOAD", "/x.so"),
            ("A=two\nlines", "A", "two\nlines"),
            ("é=ü", "é", "ü"),
        ] {
            assert_eq!(parse(OsStr::new(text)).unwrap(), pair(key, value));
        }
        let raw = OsStr::from_bytes(b"A=\xff\xfe");
        assert_eq!(parse(raw).unwrap().1.as_bytes(), b"\xff\xfe");
    }

    /// B033
    #[test]
    fn wrong_pairs_are_refused() {
        for (text, why) in [
            ("NOEQUALS", "without '='"),
            ("", "without '='"),
            ("=v", "without a key"),
            ("A\0=v", "NUL in its key"),
            ("A\n=v", "control character in its key"),
            ("A=\0", "NUL in its value"),
        ] {
            let error = parse(OsStr::new(text)).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert!(!error.to_string().contains(['\n', '\0']));
        }
    }

    /// E022
    #[test]
    fn a_home_that_would_add_a_line_to_passwd_is_refused() {
        for text in ["HOME=/\nroot2::0:0::/:", "HOME=/\r", "HOME=/:x"] {
            let error = parse(OsStr::new(text)).unwrap_err().to_string();
            assert!(error.contains("home directory"), "{error}");
        }
        assert!(parse(OsStr::new("HOME=/home/a b")).is_ok());
    }

    #[test]
    fn a_file_has_comments_blank_lines_and_windows_ends() {
        let content = b"\xef\xbb\xbf# c\nA=1\r\n\n  B=2 # kept\n\t#x\nC='q'";
        let pairs = parse_file(Path::new("f"), content).unwrap();
        assert_eq!(pairs, [pair("A", "1"), pair("B", "2 # kept"), pair("C", "'q'")]);
    }

    #[test]
    fn a_line_for_a_shell_is_refused() {
        for line in ["export A=1", "A =1"] {
            let error = parse_file(Path::new("f"), line.as_bytes()).unwrap_err();
            assert!(error.hint().unwrap().contains("'export'"), "{error}");
        }
        assert!(parse_file(Path::new("f"), b"A= 1 2").is_ok());
    }

    #[test]
    fn an_error_in_a_file_names_the_file_and_the_line() {
        let error = parse_file(Path::new("vars.env"), b"A=1\n\nBAD\n").unwrap_err();
        assert_eq!(error.to_string(), "line 3 of 'vars.env' is wrong");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("'BAD'"), "{source}");
    }

    #[test]
    fn the_later_of_two_values_wins() {
        let pairs = [pair("A", "1"), pair("B", "2"), pair("A", "3")];
        assert_eq!(later_wins(pairs), [pair("A", "3"), pair("B", "2")]);
    }
}
