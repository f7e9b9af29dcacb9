//! `record.json`: one line of JSON for each fact about a box, in the order in which they were
//! written.
//!
//! A line is written as a whole or not at all. A process that is killed can still leave a part of
//! a line, which readers skip: it hides no other line.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{Mode, OFlags, fstat};
use rustix::io::Errno;
use tare_kernel::fds::open_regular;
use tare_kernel::replace::Draft;
use tare_kernel::step::step;
use tare_kernel::tree;

use crate::record::PRIVATE;
use crate::record::damage::Damage;
use crate::record::lines::{self, Line, RecordLines};

pub const RECORD_FILE: &str = "record.json";
const RECORD_FILE_C: &CStr = c"record.json";

/// No file of a record is longer. A command has at most 2 MiB of arguments, which JSON writes with
/// at most six characters for each byte.
const BYTES_MAX: u64 = 16 << 20;
/// Most files are shorter, so one read is enough.
const USUAL_BYTES: usize = 4096;

/// Reads all lines. Directory and file must belong to this user: another user could have written
/// anything.
pub fn read(directory: BorrowedFd<'_>) -> Result<RecordLines, Damage> {
    let unreadable = |error: io::Error| Damage::unreadable(&error);
    check_owner(directory)?;
    let Some(file) = open_file(directory, RECORD_FILE).map_err(unreadable)? else {
        return Ok(RecordLines::default());
    };
    check_owner(file.as_fd())?;
    Ok(RecordLines::read(&read_text(file).map_err(unreadable)?))
}

/// Reads the lines one by one. A file that cannot be read has none.
pub fn read_each_line(directory: BorrowedFd<'_>) -> Vec<Line> {
    let file = open_file(directory, RECORD_FILE).ok().flatten();
    let text = file.and_then(|file| read_text(file).ok()).unwrap_or_default();
    lines::parse(&text).collect()
}

/// Reads the file as it is. A file that cannot be read is empty.
pub fn read_bytes(directory: BorrowedFd<'_>) -> Vec<u8> {
    let file = open_file(directory, RECORD_FILE).ok().flatten();
    file.and_then(|file| read_all(file).ok()).unwrap_or_default()
}

/// Adds a line.
pub fn append(directory: BorrowedFd<'_>, line: &Line) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::APPEND | OFlags::RDWR;
    let open = || open_regular(directory, RECORD_FILE, flags, PRIVATE);
    let file = File::from(step("open record.json", open)?);
    let line = with_end(line)?;
    if file.metadata()?.len() + line.len() as u64 > BYTES_MAX {
        return Err(Errno::FBIG.into());
    }
    append_whole_line(&file, &line)
}

/// Appends a line to a file: all of it, or nothing. Ends a line that a killed process left
/// unfinished first.
fn append_whole_line(file: &File, line: &[u8]) -> io::Result<()> {
    let end = file.metadata()?.len();
    let mut last = *b"\n";
    if let Some(at) = end.checked_sub(1) {
        file.read_at(&mut last, at)?;
    }
    let unfinished: &[u8] = if last == *b"\n" { b"" } else { b"\n" };
    let bytes = [unfinished, line].concat();
    let written = step("write line", || file.write_all_at(&bytes, end));
    if written.is_err() {
        // A full disk takes a part of the line. If this fails too, the next line ends that part.
        step("take back half a line", || file.set_len(end)).ok();
    }
    written
}

/// Replaces all lines by this one. That needs no space, so it works on a full disk too.
pub fn overwrite(directory: BorrowedFd<'_>, line: &Line) -> io::Result<()> {
    let line = with_end(line)?;
    let open = |flags| open_regular(directory, RECORD_FILE, flags, PRIVATE);
    let file = match step("open record.json to overwrite it", || open(OFlags::RDWR)) {
        Ok(file) => file,
        Err(_) => {
            // The file is missing, or is not one that tare can write.
            tree::remove(directory, RECORD_FILE_C)?;
            let create = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
            step("create record.json again", || open(create))?
        }
    };
    let file = File::from(file);
    step("overwrite record.json", || {
        file.write_all_at(&line, 0)?;
        file.set_len(line.len() as u64)
    })
}

/// Creates the file again with these bytes, unless there is one already. It is the last attempt to
/// keep them, so it reports no error.
pub fn restore(directory: BorrowedFd<'_>, bytes: &[u8]) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    if let Ok(file) = open_regular(directory, RECORD_FILE, flags, PRIVATE) {
        File::from(file).write_all(bytes).ok();
    }
}

/// Replaces all changes of limits and lease by one line with the same effect.
pub fn merge_updates(directory: BorrowedFd<'_>) -> io::Result<()> {
    shorten(directory, lines::merge_updates)
}

/// Drops all but the last names that the box got.
pub fn drop_names(directory: BorrowedFd<'_>) -> io::Result<()> {
    shorten(directory, |text| Ok(lines::drop_names(text)))
}

fn shorten(
    directory: BorrowedFd<'_>,
    shorter: impl FnOnce(&str) -> serde_json::Result<String>,
) -> io::Result<()> {
    let Some(file) = open_file(directory, RECORD_FILE)? else {
        return Ok(());
    };
    let shorter = shorter(&read_text(file)?)?;
    let mut draft = Draft::create(directory, RECORD_FILE_C, PRIVATE)?;
    step("write shorter record.json", || draft.file().write_all(shorter.as_bytes()))?;
    Ok(draft.publish()?)
}

/// Opens a small file of a record.
pub fn open_file(directory: BorrowedFd<'_>, name: &str) -> io::Result<Option<OwnedFd>> {
    let open = || open_regular(directory, name, OFlags::RDONLY, Mode::empty());
    match step("open file of record", open) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn with_end(line: &Line) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn check_owner(of: BorrowedFd<'_>) -> Result<(), Damage> {
    let stat = fstat(of).map_err(|errno| Damage::unreadable(&errno.into()))?;
    if stat.st_uid == rustix::process::geteuid().as_raw() {
        Ok(())
    } else {
        Err(Damage::Broken(format!("its record belongs to user {}", stat.st_uid)))
    }
}

/// A byte that is not text damages only its own line.
fn read_text(file: OwnedFd) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&read_all(file)?).into_owned())
}

fn read_all(file: OwnedFd) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    File::from(file).take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX { Err(Errno::FBIG.into()) } else { Ok(bytes) }
}
