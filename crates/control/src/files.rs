//! What the programs that read, list, write and remove files in a box say of it, and how
//! a file comes to the one that writes it.
//!
//! Each says one word on its standard error before it begins, and another if it fails
//! after that. Those are numbers: what a box says in words is nobody's to repeat.

use std::fmt;
use std::str::FromStr;

/// One line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileWord {
    /// Of a file that is read: its size, if it is known.
    Ready {
        size: Option<u64>,
    },
    Failed {
        errno: i32,
    },
}

/// The largest piece of a file that is written.
pub const PIECE_BYTES_MAX: usize = 64 << 10;

/// A piece of a file that is written begins with its length. One of no length says that
/// the file is whole; without it nothing of it is kept.
pub fn piece_head(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

pub fn piece_length(head: [u8; 4]) -> Option<usize> {
    let length = usize::try_from(u32::from_be_bytes(head)).ok()?;
    (length <= PIECE_BYTES_MAX).then_some(length)
}

impl fmt::Display for FileWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready { size: None } => write!(f, "ready"),
            Self::Ready { size: Some(size) } => write!(f, "ready {size}"),
            Self::Failed { errno } => write!(f, "failed {errno}"),
        }
    }
}

impl FromStr for FileWord {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.split_once(' ') {
            None if text == "ready" => Ok(Self::Ready { size: None }),
            Some(("ready", size)) => Ok(Self::Ready { size: Some(size.parse().map_err(drop)?) }),
            Some(("failed", errno)) => Ok(Self::Failed { errno: errno.parse().map_err(drop)? }),
            Some(_) | None => Err(()),
        }
    }
}

/// What is in a directory: each entry ends with a zero byte.
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

/// More than any name and its numbers have.
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

    /// Without the zero byte; `None` for what no entry looks like.
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
    fn only_valid_status_words_are_read() {
        for word in [
            FileWord::Ready { size: None },
            FileWord::Ready { size: Some(u64::MAX) },
            FileWord::Failed { errno: 2 },
        ] {
            assert_eq!(word.to_string().parse(), Ok(word));
        }
        for text in ["", "ready ", "ready -1", "failed", "failed x", "READY"] {
            assert_eq!(text.parse::<FileWord>(), Err(()), "{text:?}");
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
