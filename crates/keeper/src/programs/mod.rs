//! tare's own programs that run in a box: tar and single files.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, fstatfs, openat, readlink};
use rustix::io::Errno;
use tare_control::file_programs::ProgramStatus;

pub mod file;
pub mod tar;

/// The exit codes of these programs, beside `file_programs::LEFT_OUT`.
const DONE: u8 = 0;
const FAILED: u8 = 1;

/// Opens a directory to list it. Follows a symlink, like the box itself.
fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    refuse_own(openat(CWD, path, flags, Mode::empty())?)
}

/// Refuses what `/proc` has about this program. It is a copy of the keeper, whose arguments and memory
/// map contain names of the host.
fn refuse_own(opened: OwnedFd) -> io::Result<OwnedFd> {
    if fstatfs(&opened)?.f_type == PROC_SUPER_MAGIC {
        let path = readlink(format!("/proc/self/fd/{}", opened.as_raw_fd()), Vec::new())?;
        let own = format!("/proc/{}", std::process::id());
        if Path::new(OsStr::from_bytes(path.as_bytes())).starts_with(own) {
            return Err(Errno::ACCESS.into());
        }
    }
    Ok(opened)
}

/// Writes a status line. If the client is gone, the keeper ends this program.
fn say(status: &ProgramStatus) {
    writeln!(io::stderr(), "{status}").ok();
}
