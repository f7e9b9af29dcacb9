//! The parts of `tare cp` that run in the box: as the box's user, with its seccomp filter and its
//! root directory. So a symlink leads only where the box itself could go, and no process outside
//! touches a file of the box.
//!
//! A status line goes to standard error first, then the archive is written to standard
//! output or read from standard input. If that fails, one more line says why.

use std::error::Error;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use tare_archive::{Options, Top};
use tare_control::file_programs::{LEFT_OUT, PathKind, ProgramStatus};
use tare_kernel::signals;

use crate::programs::{DONE, FAILED, open_directory, say};

/// Why nothing, or not all, was copied, with the exit code.
type CopyFailure = (u8, ProgramStatus);

/// Writes an archive of the file or directory at `path`.
pub fn pack(path: &[u8]) -> u8 {
    conclude(try_pack(path, tare_archive::pack))
}

/// Packs the regular files below this path.
pub fn pack_files(path: &[u8]) -> u8 {
    conclude(try_pack(path, tare_archive::pack_files))
}

/// Unpacks into the directory at `path`, or into the one that it is in.
pub fn unpack(path: &[u8]) -> u8 {
    // A file larger than the box may write is an error. It must not kill this process.
    signals::fail_past_file_limit();
    conclude(try_unpack(Path::new(OsStr::from_bytes(path))))
}

fn conclude(result: Result<(), CopyFailure>) -> u8 {
    match result {
        Ok(()) => DONE,
        Err((code, why)) => {
            say(&why);
            code
        }
    }
}

/// Writes to a stream, from a directory, the entry of this name, under another name.
type Pack = fn(&mut dyn Write, BorrowedFd<'_>, &[u8], &[u8]) -> Result<(), tare_archive::Error>;

fn try_pack(path: &[u8], pack: Pack) -> Result<(), CopyFailure> {
    let path = Path::new(OsStr::from_bytes(path));
    let failing = |error: io::Error| {
        (FAILED, failed(format!("cannot read {}", path.display()), Some(&error)))
    };
    let (directory, entry) = place(path);
    let found = fs::symlink_metadata(path).map_err(failing)?;
    let kind = found.file_type();
    if !(kind.is_dir() || kind.is_file() || kind.is_symlink()) {
        return Err(failing(io::Error::other("it is a socket, a fifo or a device")));
    }
    let directory = open_directory(directory).map_err(failing)?;
    let kind = if found.is_dir() { PathKind::Directory } else { PathKind::File };
    say(&ProgramStatus::Ready { kind: Some(kind), size: None });
    // With a buffer for whole blocks: std's own standard output writes line by line.
    let output = io::stdout().as_fd().try_clone_to_owned().map_err(failing)?;
    let mut output = io::BufWriter::new(File::from(output));
    let packed = pack(&mut output, directory.as_fd(), entry, entry);
    output.flush().map_err(failing)?;
    packed.map_err(|error| {
        let is_whole = error.kind() == tare_archive::ErrorKind::LeftOut;
        (if is_whole { LEFT_OUT } else { FAILED }, failed(error.to_string(), error.source()))
    })
}

fn try_unpack(path: &Path) -> Result<(), CopyFailure> {
    let doing = || format!("cannot write to {}", path.display());
    let failing = |error: io::Error| (FAILED, failed(doing(), Some(&error)));
    let (into, found) = match fs::metadata(path) {
        Ok(found) if found.is_dir() => (path, PathKind::Directory),
        Ok(_) => (place(path).0, PathKind::File),
        Err(error) if error.kind() == io::ErrorKind::NotFound => (place(path).0, PathKind::Missing),
        Err(error) => return Err(failing(error)),
    };
    let directory = open_directory(into).map_err(failing)?;
    say(&ProgramStatus::Ready { kind: Some(found), size: None });
    let everything = Options {
        top: Top::Any,
        // The box's own limits hold for this process.
        entries_max: u64::MAX,
        bytes_max: u64::MAX,
    };
    tare_archive::unpack(&mut io::stdin().lock(), directory.as_fd(), everything).map(drop).map_err(
        |error| {
            // The path of a single file names it already.
            let single = format!("cannot unpack {:?}", OsStr::from_bytes(place(path).1));
            let is_named = found != PathKind::Directory && error.to_string() == single;
            let what = if is_named { doing() } else { format!("{}: {error}", doing()) };
            (FAILED, failed(what, error.source()))
        },
    )
}

/// Splits a path into a directory and a name in it. A path that ends without a name (`/`, `.`,
/// `..`) is the directory itself.
fn place(path: &Path) -> (&Path, &[u8]) {
    // `Path` hides a dot at the end, which says that the directory is meant.
    if path.as_os_str().as_bytes().ends_with(b"/.") {
        return (path, b".");
    }
    match path.components().next_back() {
        Some(Component::Normal(name)) => {
            let parent = path.parent().filter(|parent| *parent != Path::new(""));
            (parent.unwrap_or(Path::new(".")), name.as_bytes())
        }
        Some(Component::RootDir | Component::CurDir | Component::ParentDir) => (path, b"."),
        Some(Component::Prefix(_)) | None => (Path::new("."), b"."),
    }
}

/// The status of a program that failed. A reason that is not an errno is part of what failed.
fn failed(what: String, why: Option<&(dyn Error + 'static)>) -> ProgramStatus {
    let errno = why.and_then(|why| why.downcast_ref::<io::Error>()?.raw_os_error());
    let what = match why {
        Some(why) if errno.is_none() => format!("{what}: {why}"),
        Some(_) | None => what,
    };
    ProgramStatus::Failed { errno, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_directory_and_a_name_in_it() {
        for (path, directory, name) in [
            ("/work/a", "/work", &b"a"[..]),
            ("/work/a/", "/work", b"a"),
            ("/work/a/.", "/work/a/.", b"."),
            ("a", ".", b"a"),
            ("/", "/", b"."),
            ("/work/..", "/work/..", b"."),
            (".", ".", b"."),
        ] {
            assert_eq!(place(Path::new(path)), (Path::new(directory), name), "{path}");
        }
    }
}
