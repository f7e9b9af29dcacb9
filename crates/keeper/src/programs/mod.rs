//! tare's own programs that run in a box: tar and single files.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use tare_control::file_programs::ProgramStatus;

pub mod file;
pub mod tar;

/// The exit codes of these programs, beside `file_programs::LEFT_OUT`.
const DONE: u8 = 0;
const FAILED: u8 = 1;

/// Opens a directory to list it. Follows a symlink, like the box itself.
fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// Writes a status line. If the client is gone, the keeper ends this program.
fn say(status: &ProgramStatus) {
    writeln!(io::stderr(), "{status}").ok();
}
