//! Whether tare made the directory that is in the place of a record.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, statat};
use tare_kernel::fds::open_directory;
use tare_kernel::tree;

use crate::host::layout::SCRATCH;
use crate::record::FILES;
use crate::record::files::CONTROL;
use crate::record::json;

/// For a record directory without a readable line: returns an entry that tare did not make.
///
/// A record that was just made, is half removed or has lost its lines contains only names that tare
/// uses, and has a mark of tare. A directory without a mark counts as a record only if nothing in
/// it can be lost.
pub fn foreign_entry(directory: BorrowedFd<'_>) -> Option<String> {
    let names = tree::names(directory).ok()?;
    let is_of_tare = |name: &CString| {
        let name = name.to_str().ok();
        name.is_some_and(|name| name == SCRATCH || FILES.contains(&name))
    };
    let is_marked = has_mark(directory);
    let is_foreign = |name: &&CString| !is_marked || !is_of_tare(name);
    let mut foreign = names.iter().filter(is_foreign);
    let entry = foreign.find(|name| can_be_lost(directory, name))?;
    Some(entry.to_string_lossy().into_owned())
}

/// Returns whether removing the entry would lose something: it is a file or directory that is not
/// empty, or cannot be read.
fn can_be_lost(directory: BorrowedFd<'_>, name: &CStr) -> bool {
    let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return true;
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => stat.st_size > 0,
        FileType::Directory => {
            let inside = open_directory(directory, name).map(|it| tree::names(it.as_fd()));
            !matches!(inside, Ok(Ok(names)) if names.is_empty())
        }
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => false,
    }
}

/// How the first line of every record begins.
const FIRST_LINE: &[u8] = b"{\"intent\":{\"version\":";

/// Returns whether the directory has a mark of tare: a control socket, or the beginning of a first
/// line, which may be cut off or partly zeros.
fn has_mark(directory: BorrowedFd<'_>) -> bool {
    let control = statat(directory, CONTROL, AtFlags::SYMLINK_NOFOLLOW);
    if control.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket) {
        return true;
    }
    let bytes = json::read_bytes(directory);
    let mut start = bytes.iter().zip(FIRST_LINE);
    !bytes.is_empty() && start.all(|(byte, expected)| byte == expected || *byte == 0)
}
