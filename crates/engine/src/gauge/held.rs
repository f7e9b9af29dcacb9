//! A file of the kernel's that is read again and again: opened once, ahead of time, so
//! that it can be read when no descriptor is left.
//!
//! What such a file says is made anew for each read from its beginning (proc(5),
//! `fs/seq_file.c`, `fs/kernfs/file.c`).

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

/// The longest that is read here is `memory.stat`, of less than half of it.
const TEXT_BYTES_MAX: usize = 8192;

#[derive(Debug)]
pub struct HeldFile {
    file: OwnedFd,
}

impl HeldFile {
    /// `None` where there is none, or none for us.
    pub fn open(path: impl AsRef<Path>) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(CWD, path.as_ref(), flags, Mode::empty()).ok()?;
        Some(Self { file })
    }

    /// What it says now; `None` if that is nothing.
    pub fn text(&self) -> Option<String> {
        let mut buffer = [0; TEXT_BYTES_MAX];
        let read = || rustix::io::pread(&self.file, &mut buffer, 0);
        let length = rustix::io::retry_on_intr(read).ok()?;
        String::from_utf8(buffer[..length].to_vec()).ok()
    }

    /// The number that is all of it; `max` is none.
    pub fn number(&self) -> Option<u64> {
        self.text()?.trim().parse().ok()
    }
}
