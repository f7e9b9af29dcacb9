//! Prints errors, notes and results: errors and notes as one line each on stderr, results on stdout.

use std::error::Error as StdError;
use std::io::{self, Write};

use rustix::io::Errno;
use serde::Serialize;
use tare_engine::spec::shown::{escaped, escaped_json};
use tare_engine::{Error, reason};

use crate::hint::words;

/// Longer lines are cut: an error has to be read, not scrolled through.
const LINE_CHARS_MAX: usize = 1000;

/// Returns an error as one line: `what failed: why (what to do)`.
pub fn sentence(error: &Error) -> String {
    match cause_and_hint(error) {
        (text, Some(hint)) => one_line(&format!("{text} ({hint})")),
        (text, None) => one_line(&text),
    }
}

/// Returns what failed and why, and what the user can do.
pub fn cause_and_hint(error: &Error) -> (String, Option<String>) {
    let mut text = error.to_string();
    let mut hint = error.hint();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {}", reason(cause));
        let cause_hint = cause.downcast_ref::<Error>().and_then(Error::hint);
        hint = hint.or(cause_hint);
        source = cause.source();
    }
    // Any step can run out of descriptors, so the hint of the step would mislead.
    let hint = if error.errno() == Some(Errno::MFILE) {
        Some("it may open too few files: 'ulimit -n 256' is enough for one box".to_owned())
    } else {
        hint.map(words)
    };
    (text, hint)
}

/// Returns the error for a bad request; the hint says what tare accepts.
pub fn bad(message: impl Into<String>, hint: &str) -> Error {
    Error::bad_request(message).with_hint(hint)
}

/// Adds the option whose value caused `error`.
pub fn of_option(option: &str, error: Error) -> Error {
    Error::new(error.kind(), format!("bad value for {option}")).caused_by(error)
}

pub fn print_error(error: &Error) {
    print_note(&sentence(error));
}

/// Prints one line on stderr.
pub fn print_note(sentence: &str) {
    // If stderr cannot be written, there is no place left to say so.
    let _ = writeln!(io::stderr(), "tare: {}", one_line(sentence));
}

/// Prints a result on stdout. A reader that has closed the pipe is not an error. Any other failure
/// to write is one.
pub fn print_result(text: &str) -> Result<(), Error> {
    print_to_reader(text).map(|_reader| ())
}

/// Prints one line of JSON on stdout.
pub fn print_json(value: &impl Serialize) -> Result<(), Error> {
    print_result(&to_json_line(value))
}

pub fn to_json_line(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("texts, numbers and lists of them are JSON");
    escaped_json(&json) + "\n"
}

/// Whether the reader of stdout is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    There,
    Gone,
}

/// Prints like [`print_result`], for views that are printed again and again.
pub fn print_to_reader(text: &str) -> Result<Reader, Error> {
    let mut stdout = io::stdout();
    let written = stdout.write_all(text.as_bytes());
    match written.and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Error::failed("cannot write the result to stdout").caused_by(error)),
    }
}

pub fn one_line(text: &str) -> String {
    let line = escaped(text);
    match line.char_indices().nth(LINE_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emfile_always_produces_the_hint_about_ulimit() {
        for cause in [
            Box::<dyn StdError + Send + Sync>::from(Errno::MFILE),
            io::Error::from(Errno::MFILE).into(),
        ] {
            let error = Error::failed("cannot set pids.max").caused_by(cause);
            let text = sentence(&error.with_hint("is it in range?"));
            assert!(text.contains("ulimit -n 256"), "{text}");
            assert!(!text.contains("in range") && !text.contains("os error"), "{text}");
        }
    }

    #[test]
    fn an_error_is_its_message_its_causes_and_a_hint() {
        let cause = Error::bad_request("'x\ny' is bad").with_hint("try z");
        let error = of_option("--thing", cause);
        assert_eq!(sentence(&error), "bad value for --thing: 'x\\ny' is bad (try z)");
        let io_error = io::Error::from_raw_os_error(2);
        let error = Error::failed("cannot open it").caused_by(io_error);
        assert_eq!(sentence(&error), "cannot open it: No such file or directory");
    }
}
