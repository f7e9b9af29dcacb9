//! The error of this crate: what failed, on which entry, and why.

use std::error::Error as StdError;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// How much of a name is shown. A box chooses its names.
const SHOWN_BYTES_MAX: usize = 240;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The stream is not a whole tar archive.
    Malformed,
    /// An entry that tare never packs or unpacks.
    Refused,
    /// The archive is whole, but lacks entries that could not be packed. The error names the first.
    LeftOut,
    /// A system call failed, or the stream could not be read or written.
    Failed,
}

#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn ends_too_early() -> Self {
        Self::new(ErrorKind::Malformed, "the archive ends too early".into())
    }

    pub(crate) fn not_an_archive(why: Option<&'static str>) -> Self {
        Self {
            source: why.map(Into::into),
            ..Self::new(ErrorKind::Malformed, "not a tar archive".into())
        }
    }

    pub(crate) fn damaged(why: &'static str) -> Self {
        Self::new(ErrorKind::Malformed, "the archive is damaged".into()).caused_by(why)
    }

    pub(crate) fn refused(message: String, why: impl Into<String>) -> Self {
        Self::new(ErrorKind::Refused, message).caused_by(why.into())
    }

    pub(crate) fn failed(
        message: String,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self::new(ErrorKind::Failed, message).caused_by(source)
    }

    fn new(kind: ErrorKind, message: String) -> Self {
        Self { kind, message, source: None }
    }

    pub(crate) fn with_kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }

    fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

/// Shows the message without its sources.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Formats a name for messages: quoted, escaped, and cut in its middle if it is long.
pub(crate) fn shown(name: &[u8]) -> String {
    let quoted = |part: &[u8]| format!("{:?}", OsStr::from_bytes(part));
    if name.len() <= SHOWN_BYTES_MAX {
        return quoted(name);
    }
    let (head, _) = name.split_at(SHOWN_BYTES_MAX / 2);
    let (_, tail) = name.split_at(name.len() - SHOWN_BYTES_MAX / 2);
    format!("{}...{}", quoted(head), quoted(tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_names_are_escaped() {
        assert_eq!(shown(b"a\x1b[2J\n\xff"), r#""a\u{1b}[2J\n\xFF""#);
    }

    #[test]
    fn a_long_name_is_cut_in_its_middle() {
        let text = shown(&[b'x'; 1 << 20]);
        assert!(text.len() < 260 && text.contains("\"...\""), "{text}");
    }
}
