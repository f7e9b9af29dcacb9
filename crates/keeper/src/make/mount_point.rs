//! Places on which files are mounted.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, Mode, mknodat};

/// Makes a file on which another can be mounted.
pub fn make_empty_file(directory: BorrowedFd<'_>, path: &CStr) -> rustix::io::Result<()> {
    mknodat(directory, path, FileType::RegularFile, Mode::from_raw_mode(0o444), 0)
}
