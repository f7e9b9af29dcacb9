//! A command and its environment: `-e KEY=VALUE`, the lines of `--env-file`, and the size of it all.
//!
//! Nothing comes from the host's environment by itself: a key without a value is an error, and
//! does not pass in the host's value. This file judges text only and reads no file.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::error::{Error, Hint};
use crate::spec::shown::{bad, quoted};

/// The key and the value of an environment variable.
pub type Variable = (OsString, OsString);

/// The kernel gives arguments and environment a quarter of the stack's limit (execve(2)): 2 MiB of
/// the 8 MiB that a box has.
pub const ARGUMENTS_BYTES_MAX: usize = 2 << 20;
/// The kernel's `MAX_ARG_STRLEN`, with the terminating NUL.
pub const ARGUMENT_BYTES_MAX: usize = 128 << 10;
/// How much of each command a list shows.
const LISTED_BYTES_MAX: usize = 4 << 10;
/// Each string also costs its NUL and a pointer.
const OVERHEAD_BYTES: usize = 1 + size_of::<usize>();

/// Checks that execve(2) can accept the command and its environment.
pub fn check(command: &[OsString], env: &[Variable]) -> Result<(), Error> {
    if command.first().is_some_and(|program| program.is_empty()) {
        return Err(bad("the command is an empty word", "name a program to run"));
    }
    if command.iter().any(|word| word.as_bytes().contains(&0)) {
        return Err(bad(
            "the command has a NUL byte in it",
            "no program can be given one as an argument; pass it on standard input",
        ));
    }
    check_size(command, env)
}

fn check_size(command: &[OsString], env: &[Variable]) -> Result<(), Error> {
    let words = command.iter().map(|word| length(word));
    let pairs = env.iter().map(|(key, value)| length(key) + 1 + length(value));
    let mut total = 0_usize;
    for bytes in words.chain(pairs) {
        if bytes >= ARGUMENT_BYTES_MAX {
            return Err(too_large(format!(
                "an argument or variable of {bytes} bytes is too large, the kernel takes less than 128 KiB"
            )));
        }
        total = total.saturating_add(bytes + OVERHEAD_BYTES);
    }
    if total > ARGUMENTS_BYTES_MAX {
        return Err(too_large(format!(
            "the arguments and environment are too large: {total} bytes, the kernel takes 2 MiB"
        )));
    }
    Ok(())
}

/// Cuts a command to 4 KiB, so that a list of many boxes stays small. A cut command ends with `…`.
pub fn shorten(command: &mut Vec<String>) {
    let mut left = LISTED_BYTES_MAX;
    let is_too_long = |word: &String| match left.checked_sub(word.len() + 1) {
        Some(rest) => {
            left = rest;
            false
        }
        None => true,
    };
    if let Some(place) = command.iter().position(is_too_long) {
        let cut = &command[place];
        let cut = format!("{}…", &cut[..cut.floor_char_boundary(left)]);
        command.truncate(place);
        command.push(cut);
        command.shrink_to_fit();
    }
}

fn too_large(message: String) -> Error {
    bad(message, "pass large values in a file or on standard input")
}

fn length(text: &OsStr) -> usize {
    text.as_bytes().len()
}

/// Removes duplicate keys. The later value replaces the earlier one, in its place.
pub fn later_wins(pairs: impl IntoIterator<Item = Variable>) -> Vec<Variable> {
    let mut places = HashMap::new();
    let mut kept: Vec<Variable> = Vec::new();
    for (key, value) in pairs {
        let place = *places.entry(key.clone()).or_insert(kept.len());
        match kept.get_mut(place) {
            Some((_, earlier)) => *earlier = value,
            None => kept.push((key, value)),
        }
    }
    kept
}

/// Reads one `KEY=VALUE`. All bytes but NUL are allowed in the value.
pub fn variable(text: &OsStr) -> Result<Variable, Error> {
    let bytes = text.as_bytes();
    let Some(end) = bytes.iter().position(|byte| *byte == b'=') else {
        let message = format!("{} is an environment variable without '='", quoted(text));
        return Err(bad(message, Hint::VariableForm));
    };
    let (key, value) = (&bytes[..end], &bytes[end + 1..]);
    if let Some(why) = wrong_key(key).or_else(|| wrong_value(key, value)) {
        let message = format!("{} is an environment variable {why}", quoted(text));
        return Err(bad(message, Hint::VariableForm));
    }
    Ok((to_os(key), to_os(value)))
}

/// Reads the content of an environment file in Docker's format: one `KEY=VALUE` per line, `#` for
/// comments, blank lines, no quotes and no expansion. `path` is only for the error message.
pub fn variables_in_file(path: &Path, content: &[u8]) -> Result<Vec<Variable>, Error> {
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

/// Refuses a key with a space, as Docker does: `export A=1` is a line for a shell.
fn parse_line(line: &[u8]) -> Result<Variable, Error> {
    let text = OsStr::from_bytes(line);
    let (key, value) = variable(text)?;
    if key.as_bytes().iter().any(u8::is_ascii_whitespace) {
        let message =
            format!("{} is an environment variable with a space in its key", quoted(text));
        let form = "write KEY=VALUE, without 'export' and without spaces around '='";
        return Err(bad(message, form));
    }
    Ok((key, value))
}

fn at_line(path: &Path, line: usize, error: Error) -> Error {
    let hint = error.hint().cloned().unwrap_or(Hint::VariableForm);
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

/// Refuses a `HOME` that would add a field or line to the box's generated `/etc/passwd`.
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

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    fn refusal(command: &[OsString], env: &[Variable]) -> String {
        check(command, env).unwrap_err().to_string()
    }

    #[test]
    fn a_list_shows_the_first_4_kib_of_a_command() {
        let shortened = |words: &[&str]| {
            let mut command: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            shorten(&mut command);
            command
        };
        let fits = "x".repeat(4096 - 1 - 3);
        assert_eq!(shortened(&["ls", &fits]), ["ls", &fits]);
        assert_eq!(shortened(&["ls", &fits, "more"]), ["ls", &fits, "…"]);
        let long = "é".repeat(3000);
        let half = format!("{}…", "é".repeat(2046));
        assert_eq!(shortened(&["ls", &long, "more"]), ["ls", &half]);
        assert_eq!(shortened(&[""; 100_000]).len(), 4097);
    }

    #[test]
    fn a_command_needs_a_program_and_no_nul() {
        assert!(refusal(&words(&["", "x"]), &[]).contains("empty word"));
        assert!(refusal(&words(&["sh", "a\0b"]), &[]).contains("NUL"));
        assert!(check(&words(&["sh", "", "$(x) 'y'"]), &[]).is_ok());
    }

    #[test]
    fn a_hundred_thousand_arguments_fit_or_are_refused_by_their_size() {
        let mut many = vec![OsString::from("x"); 100_000];
        assert!(check(&many, &[]).is_ok());
        many.resize(300_000, "x".into());
        assert!(refusal(&many, &[]).contains("too large"));
    }

    #[test]
    fn an_environment_of_three_megabytes_is_refused() {
        let value: OsString = "v".repeat(100_000).into();
        let env: Vec<Variable> = (0..30).map(|n| (format!("K{n}").into(), value.clone())).collect();
        assert!(refusal(&words(&["true"]), &env).contains("2 MiB"));
        let one = [("K".into(), "v".repeat(ARGUMENT_BYTES_MAX).into())];
        assert!(refusal(&words(&["true"]), &one).contains("128 KiB"));
    }

    fn pair(key: &str, value: &str) -> Variable {
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
            assert_eq!(variable(OsStr::new(text)).unwrap(), pair(key, value));
        }
        let raw = OsStr::from_bytes(b"A=\xff\xfe");
        assert_eq!(variable(raw).unwrap().1.as_bytes(), b"\xff\xfe");
    }

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
            let error = variable(OsStr::new(text)).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert!(!error.to_string().contains(['\n', '\0']));
        }
    }

    #[test]
    fn a_home_that_would_add_a_line_to_passwd_is_refused() {
        for text in ["HOME=/\nroot2::0:0::/:", "HOME=/\r", "HOME=/:x"] {
            let error = variable(OsStr::new(text)).unwrap_err().to_string();
            assert!(error.contains("home directory"), "{error}");
        }
        assert!(variable(OsStr::new("HOME=/home/a b")).is_ok());
    }

    #[test]
    fn a_file_has_comments_blank_lines_and_windows_ends() {
        let content = b"\xef\xbb\xbf# c\nA=1\r\n\n  B=2 # kept\n\t#x\nC='q'";
        let pairs = variables_in_file(Path::new("f"), content).unwrap();
        assert_eq!(pairs, [pair("A", "1"), pair("B", "2 # kept"), pair("C", "'q'")]);
    }

    #[test]
    fn a_line_for_a_shell_is_refused() {
        for line in ["export A=1", "A =1"] {
            let error = variables_in_file(Path::new("f"), line.as_bytes()).unwrap_err();
            assert!(format!("{:?}", error.hint()).contains("'export'"), "{error}");
        }
        assert!(variables_in_file(Path::new("f"), b"A= 1 2").is_ok());
    }

    #[test]
    fn an_error_in_a_file_names_the_file_and_the_line() {
        let error = variables_in_file(Path::new("vars.env"), b"A=1\n\nBAD\n").unwrap_err();
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
