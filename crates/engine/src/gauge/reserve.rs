//! Descriptors that are opened ahead of time, so that gauges work when no descriptor is left.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, RawDir, SeekFrom, seek};
use tare_kernel::fds::{open_file, open_path};

/// The longest text that is read is `memory.stat`, which needs less than half of it.
const TEXT_BYTES_MAX: usize = 8192;
const ENTRIES_BYTES: usize = 8192;
/// Reading a directory and a file in it takes two descriptors.
const RESERVED: usize = 2;

/// A file of the kernel that is opened once and read again and again.
///
/// The kernel makes the text anew for each read from the beginning (proc(5), `fs/seq_file.c`,
/// `fs/kernfs/file.c`).
#[derive(Debug)]
pub struct OpenFile(OwnedFd);

impl OpenFile {
    /// Returns `None` if the file does not exist or is not readable.
    pub fn open(path: impl AsRef<Path>) -> Option<Self> {
        open_file(CWD, path.as_ref()).ok().map(Self)
    }

    pub fn text(&self) -> Option<String> {
        let mut buffer = [0; TEXT_BYTES_MAX];
        let read = || rustix::io::pread(&self.0, &mut buffer, 0);
        let length = rustix::io::retry_on_intr(read).ok()?;
        String::from_utf8(buffer[..length].to_vec()).ok()
    }

    /// Returns the number that is the whole text; `max` is not a number.
    pub fn number(&self) -> Option<u64> {
        self.text()?.trim().parse().ok()
    }
}

/// Descriptors that are released for work that must open files.
#[derive(Debug)]
pub struct GaugeFds(Vec<OwnedFd>);

impl GaugeFds {
    /// Reserves what is free now, and the rest as soon as there is more.
    pub fn reserve() -> Self {
        let mut reserved = Self(Vec::new());
        reserved.fill();
        reserved
    }

    /// Releases the descriptors while `work` runs. Another thread may take them first, so `work`
    /// must be able to fail.
    pub fn lend<T>(&mut self, work: impl FnOnce() -> T) -> T {
        self.0.clear();
        let done = work();
        self.fill();
        done
    }

    fn fill(&mut self) {
        while self.0.len() < RESERVED
            && let Ok(one) = open_path(CWD, c"/")
        {
            self.0.push(one);
        }
    }
}

/// Counts the entries of a directory without `.` and `..`, and opens nothing. No other thread may
/// read the directory through the same descriptor, because the two would share its position.
pub fn count_entries(directory: &OwnedFd) -> io::Result<u64> {
    seek(directory, SeekFrom::Start(0))?;
    let mut buffer = [MaybeUninit::uninit(); ENTRIES_BYTES];
    let mut entries = RawDir::new(directory, &mut buffer);
    let mut count = 0;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        count += u64::from(name != b"." && name != b"..");
    }
    Ok(count)
}
