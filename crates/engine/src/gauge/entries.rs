//! How many names there are in an open directory, by that descriptor alone.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{RawDir, SeekFrom, seek};

const BUFFER_BYTES: usize = 8192;

/// The names but `.` and `..`. Nobody else may be reading the directory through the
/// same descriptor: its position is one.
pub fn count(directory: &OwnedFd) -> io::Result<u64> {
    seek(directory, SeekFrom::Start(0))?;
    let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
    let mut entries = RawDir::new(directory, &mut buffer);
    let mut count = 0;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        count += u64::from(name != b"." && name != b"..");
    }
    Ok(count)
}
