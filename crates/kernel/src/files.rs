//! The kinds of files, as tare tells them apart.

use rustix::fs::{FileType, Stat};

/// The kind of file that a path or a descriptor leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    /// A socket, a fifo or a device, with its name for messages.
    Special(&'static str),
}

impl Kind {
    pub fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Special("fifo"),
            FileType::Socket => Self::Special("socket"),
            FileType::CharacterDevice => Self::Special("character device"),
            FileType::BlockDevice => Self::Special("block device"),
            FileType::Unknown => Self::Special("special file"),
        }
    }

    pub fn is_file(stat: &Stat) -> bool {
        Self::of(stat) == Self::File
    }

    pub fn is_directory(stat: &Stat) -> bool {
        Self::of(stat) == Self::Directory
    }

    pub fn is_symlink(stat: &Stat) -> bool {
        Self::of(stat) == Self::Symlink
    }
}
