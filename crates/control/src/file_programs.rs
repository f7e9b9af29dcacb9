//! The status lines of tare's own programs in a box, the entries of a listing, and the pieces of a
//! file that is written.
//!
//! A program writes one status line to its standard error before it begins, and another one if it
//! fails later. A status has only numbers and known words, except for what failed.

use std::fmt;
use std::str::FromStr;

/// The exit code of a program that packed everything but entries that cannot be packed. Its last
/// line names the first of them.
pub const LEFT_OUT: u8 = 2;

/// One status line: `ready [KIND] [SIZE]` or `failed ERRNO [WHAT]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramStatus {
    Ready {
        /// The kind of object at the path of an archive.
        kind: Option<PathKind>,
        /// The size of a file that is read, if it is known.
        size: Option<u64>,
    },
    Failed {
        /// `None` (0 in the line) if no system call failed.
        errno: Option<i32>,
        /// The operation that failed. Empty for a program that does one thing to one file.
        what: String,
    },
}

/// The kind of object at a path in a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    Missing,
    /// Anything but a directory.
    File,
    Directory,
}

impl PathKind {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Missing, "missing"), (Self::File, "file"), (Self::Directory, "directory")];

    fn read(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == word).map(|(kind, _)| *kind)
    }
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::ALL.iter().find(|(kind, _)| kind == self);
        f.write_str(word.map_or("", |(_, word)| word))
    }
}

impl fmt::Display for ProgramStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready { kind, size } => {
                f.write_str("ready")?;
                kind.iter().try_for_each(|kind| write!(f, " {kind}"))?;
                size.iter().try_for_each(|size| write!(f, " {size}"))
            }
            Self::Failed { errno, what } => {
                write!(f, "failed {}", errno.unwrap_or(0))?;
                // A status is one line, even if a name in it has several.
                if what.is_empty() { Ok(()) } else { write!(f, " {}", what.replace('\n', "\\n")) }
            }
        }
    }
}

impl FromStr for ProgramStatus {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if let Some(failed) = text.strip_prefix("failed ") {
            let (errno, what) = failed.split_once(' ').unwrap_or((failed, ""));
            let errno: i32 = errno.parse().map_err(drop)?;
            return Ok(Self::Failed {
                errno: (errno != 0).then_some(errno),
                what: what.to_owned(),
            });
        }
        let words: Vec<&str> = text.split(' ').collect();
        let size = |word: &str| word.parse().map_err(drop);
        match words.as_slice() {
            ["ready"] => Ok(Self::Ready { kind: None, size: None }),
            ["ready", word] => match PathKind::read(word) {
                kind @ Some(_) => Ok(Self::Ready { kind, size: None }),
                None => Ok(Self::Ready { kind: None, size: Some(size(word)?) }),
            },
            ["ready", word, bytes] => {
                let kind = PathKind::read(word).ok_or(())?;
                Ok(Self::Ready { kind: Some(kind), size: Some(size(bytes)?) })
            }
            // Keepers of older boxes do not write the first word.
            [word] => Ok(Self::Ready { kind: Some(PathKind::read(word).ok_or(())?), size: None }),
            _ => Err(()),
        }
    }
}

/// The largest piece of a file that is written.
pub const PIECE_BYTES_MAX: usize = 64 << 10;

/// Returns the beginning of a piece of a file that is written: its length. A piece of length 0 says
/// that the file is complete. Without it, the file is discarded.
pub fn piece_head(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

pub fn piece_length(head: [u8; 4]) -> Option<usize> {
    let length = usize::try_from(u32::from_be_bytes(head)).ok()?;
    (length <= PIECE_BYTES_MAX).then_some(length)
}

/// An entry of a directory. In a listing, each entry ends with a zero byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub kind: ListedKind,
    /// Permission bits.
    pub mode: u32,
    pub size: u64,
    /// In seconds.
    pub mtime: i64,
    /// Anything but a zero byte and a slash.
    pub name: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedKind {
    File,
    Directory,
    Symlink,
    Other,
}

/// The size of the longest entry. A name has at most 255 bytes.
pub const LISTED_BYTES_MAX: usize = 512;

impl ListedKind {
    const ALL: [(Self, &'static str); 4] = [
        (Self::File, "file"),
        (Self::Directory, "directory"),
        (Self::Symlink, "symlink"),
        (Self::Other, "other"),
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Other => "other",
        }
    }
}

impl Listed {
    pub fn encode(&self) -> Vec<u8> {
        let Self { mode, size, mtime, .. } = self;
        let head = format!("{} {mode} {size} {mtime} ", self.kind.as_str());
        [head.as_bytes(), &self.name, b"\0"].concat()
    }

    /// Reads an entry without its zero byte. Returns `None` for other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = bytes.splitn(5, |byte| *byte == b' ');
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let kind = text()?;
        let kind = ListedKind::ALL.iter().find(|(_, name)| *name == kind)?.0;
        let mode = text()?.parse().ok()?;
        let size = text()?.parse().ok()?;
        let mtime = text()?.parse().ok()?;
        let name = fields.next()?.to_vec();
        let is_name = !name.is_empty() && !name.contains(&0) && !name.contains(&b'/');
        is_name.then_some(Self { kind, mode, size, mtime, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_as_it_was_written_and_nothing_else_is_one() {
        let ready = |kind, size| ProgramStatus::Ready { kind, size };
        for status in [
            ready(None, None),
            ready(None, Some(u64::MAX)),
            ready(Some(PathKind::Missing), None),
            ready(Some(PathKind::Directory), Some(7)),
            ProgramStatus::Failed { errno: Some(2), what: String::new() },
            ProgramStatus::Failed { errno: None, what: "cannot read  a".to_owned() },
        ] {
            assert_eq!(status.to_string().parse(), Ok(status));
        }
        assert_eq!("file".parse(), Ok(ready(Some(PathKind::File), None)));
        for text in ["", "ready ", "ready -1", "failed", "failed x", "READY", "ready 1 file"] {
            assert_eq!(text.parse::<ProgramStatus>(), Err(()), "{text:?}");
        }
    }

    #[test]
    fn an_entry_with_any_name_is_read_back_unchanged() {
        let listed = Listed {
            kind: ListedKind::Symlink,
            mode: 0o777,
            size: 3,
            mtime: -1,
            name: b" a \xff\n".to_vec(),
        };
        let bytes = listed.encode();
        let (last, rest) = bytes.split_last().expect("it is not empty");
        assert_eq!((*last, Listed::decode(rest)), (0, Some(listed)));
        for wrong in [&b""[..], b"file 1 2 3", b"file 1 2 3 a/b", b"dir 1 2 3 a", b"file x 2 3 a"] {
            assert_eq!(Listed::decode(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_piece_has_a_limit() {
        assert_eq!(piece_length(piece_head(7)), Some(7));
        assert_eq!(piece_length(piece_head(PIECE_BYTES_MAX + 1)), None);
    }
}
