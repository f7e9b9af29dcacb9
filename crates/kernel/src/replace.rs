//! Replaces the file or symlink of a name by a new entry.
//!
//! The old entry stays until the new one is complete: a reader sees one or the other, and a
//! process that fails or is killed changes nothing. New content has no name while it is
//! written (`O_TMPFILE`), so a kill leaves nothing behind. Linux can rename over an entry but
//! not link over one, so between two calls the new entry has a second, hidden name. That name
//! is derived from the final one: if a kill between the calls leaves it, the next replacement
//! removes it.
//!
//! A directory is never replaced (`EISDIR`).

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::fs::{fstat, linkat, openat, renameat, renameat_with, statat, unlinkat};
use rustix::io::{Errno, Result};

use crate::step::{once, step};

/// How often to try again if another process takes the hidden name. More often would be an
/// attack.
const ATTEMPTS_MAX: usize = 16;

/// A file that gets its name when its content is complete. Dropping it before
/// [`Draft::publish`] leaves nothing.
#[derive(Debug)]
pub struct Draft<'a> {
    directory: BorrowedFd<'a>,
    name: &'a CStr,
    file: File,
    /// The name of a draft where the file system has no unnamed files (NFS, 9p).
    hidden: Option<CString>,
}

impl<'a> Draft<'a> {
    /// Creates an empty file for `name`, one component, in `directory`.
    pub fn create(directory: BorrowedFd<'a>, name: &'a CStr, mode: Mode) -> Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let unnamed = step("make draft", || openat(directory, c".", flags, mode));
        match unnamed {
            // The errors of file systems and kernels without O_TMPFILE, see open(2).
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                Self::named(directory, name, mode)
            }
            unnamed => Ok(Self { directory, name, file: unnamed?.into(), hidden: None }),
        }
    }

    fn named(directory: BorrowedFd<'a>, name: &'a CStr, mode: Mode) -> Result<Self> {
        let hidden = hidden_name(name);
        let file = create_named(directory, &hidden, mode)?;
        Ok(Self { directory, name, file: file.into(), hidden: Some(hidden) })
    }

    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file its name, and replaces what has that name.
    pub fn publish(mut self) -> Result<()> {
        let Some(hidden) = &self.hidden else {
            // By `/proc`, which needs no capability, see open(2).
            let source = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            return replace(self.directory, self.name, |name| {
                linkat(CWD, &*source, self.directory, name, AtFlags::SYMLINK_FOLLOW)
            });
        };
        // Another replacement of the same file may have taken the hidden name.
        let named = statat(self.directory, hidden, AtFlags::SYMLINK_NOFOLLOW)?;
        if named.st_ino != fstat(&self.file)?.st_ino {
            return Err(Errno::BUSY);
        }
        once("replace file", || renameat(self.directory, hidden, self.directory, self.name))?;
        self.hidden = None;
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            // The caller already has the error that matters.
            remove(self.directory, hidden).ok();
        }
    }
}

/// Makes a new entry of `directory`. Calls `make` with the name to use: `name`, or a hidden one
/// that is then renamed to `name`. `make` must fail with `EEXIST` if that name is taken.
pub fn replace(
    directory: BorrowedFd<'_>,
    name: &CStr,
    make: impl Fn(&CStr) -> Result<()>,
) -> Result<()> {
    match step("make entry", || make(name)) {
        Err(Errno::EXIST) => {}
        made => return made,
    }
    let hidden = hidden_name(name);
    for _ in 0..ATTEMPTS_MAX {
        match step("make hidden entry", || make(&hidden)) {
            Err(Errno::EXIST) => {
                remove(directory, &hidden)?;
                continue;
            }
            made => made?,
        }
        let replaced = step("replace entry", || rename(directory, &hidden, name));
        // The hidden name is left after an error, after an exchange, and if both names are the
        // same file, for which rename(2) does nothing.
        let removed = remove(directory, &hidden);
        match replaced {
            // Another process removed the hidden name.
            Err(Errno::NOENT) => {}
            replaced => return replaced.and(removed),
        }
    }
    Err(Errno::EXIST)
}

/// Renames an entry. A directory cannot be renamed over a file, so the two are exchanged.
fn rename(directory: BorrowedFd<'_>, hidden: &CStr, name: &CStr) -> Result<()> {
    match renameat(directory, hidden, directory, name) {
        Err(Errno::NOTDIR) => {
            renameat_with(directory, hidden, directory, name, RenameFlags::EXCHANGE)
        }
        renamed => renamed,
    }
}

fn create_named(directory: BorrowedFd<'_>, name: &CStr, mode: Mode) -> Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..ATTEMPTS_MAX {
        match step("make named draft", || openat(directory, name, flags, mode)) {
            Err(Errno::EXIST) => remove(directory, name)?,
            made => return made,
        }
    }
    Err(Errno::EXIST)
}

/// Removes a hidden entry: a file, a symlink or an empty directory. Succeeds if it is absent.
fn remove(directory: BorrowedFd<'_>, hidden: &CStr) -> Result<()> {
    let unlink = |flags| step("remove hidden entry", || unlinkat(directory, hidden, flags));
    let removed = match unlink(AtFlags::empty()) {
        Err(Errno::ISDIR) => unlink(AtFlags::REMOVEDIR),
        removed => removed,
    };
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// Derives the hidden name of a name. It is short enough for every file system.
fn hidden_name(name: &CStr) -> CString {
    // FNV-1a is the same in every version of tare; the hashers of std may change.
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.to_bytes().iter().fold(0xcbf2_9ce4_8422_2325, add);
    CString::new(format!(".tare-{hash:016x}")).expect("hex digits have no NUL")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::os::fd::AsFd;

    use rustix::fs::symlinkat;
    use tare_harness::TemporaryDirectory;

    fn open(directory: &TemporaryDirectory) -> OwnedFd {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, directory.path(), flags, Mode::empty()).unwrap()
    }

    fn names(directory: &TemporaryDirectory) -> Vec<String> {
        let entries = fs::read_dir(directory.path()).unwrap();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        entries.map(|entry| name(entry.unwrap())).collect()
    }

    /// A draft as on a file system without unnamed files, and one as with them.
    fn drafts<'a>(directory: BorrowedFd<'a>, name: &'a CStr) -> [Draft<'a>; 2] {
        let mode = Mode::RUSR | Mode::WUSR;
        let named = Draft::named(directory, name, mode).unwrap();
        [named, Draft::create(directory, name, mode).unwrap()]
    }

    #[test]
    fn a_draft_replaces_a_file_when_it_is_published_and_not_before() {
        for index in 0..2 {
            let directory = TemporaryDirectory::new();
            let path = directory.write("file", "old");
            let fd = open(&directory);
            let mut drafts: Vec<_> = drafts(fd.as_fd(), c"file").into();
            let mut draft = drafts.swap_remove(index);
            drop(drafts);
            draft.file().write_all(b"new").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"old");
            draft.publish().unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
            assert_eq!(names(&directory), ["file"]);
        }
    }

    #[test]
    fn a_draft_that_is_dropped_leaves_nothing() {
        let directory = TemporaryDirectory::new();
        let fd = open(&directory);
        drop(drafts(fd.as_fd(), c"file"));
        assert!(names(&directory).is_empty());
    }

    #[test]
    fn the_next_replacement_removes_leftovers_of_a_killed_one() {
        let directory = TemporaryDirectory::new();
        directory.write("file", "old");
        directory.write(hidden_name(c"file").to_str().unwrap(), "left");
        let fd = open(&directory);
        for draft in drafts(fd.as_fd(), c"file") {
            draft.publish().unwrap();
            assert_eq!(names(&directory), ["file"]);
            directory.write(hidden_name(c"file").to_str().unwrap(), "left");
        }
    }

    #[test]
    fn a_directory_is_replaced_by_nothing_and_replaces_a_file() {
        let directory = TemporaryDirectory::new();
        fs::create_dir(directory.join("directory")).unwrap();
        directory.write("file", "old");
        let fd = open(&directory);
        for draft in drafts(fd.as_fd(), c"directory") {
            assert_eq!(draft.publish(), Err(Errno::ISDIR));
        }
        let make = |name: &CStr| rustix::fs::mkdirat(&fd, name, Mode::RWXU);
        replace(fd.as_fd(), c"file", make).unwrap();
        assert!(directory.join("file").is_dir());
        assert_eq!(names(&directory).len(), 2);
    }

    #[test]
    fn a_link_to_the_same_file_leaves_one_name() {
        let directory = TemporaryDirectory::new();
        directory.write("file", "content");
        fs::hard_link(directory.join("file"), directory.join("other")).unwrap();
        let fd = open(&directory);
        let link = |name: &CStr| linkat(&fd, c"file", &fd, name, AtFlags::empty());
        replace(fd.as_fd(), c"other", link).unwrap();
        let symlink = |name: &CStr| symlinkat(c"file", &fd, name);
        replace(fd.as_fd(), c"other", symlink).unwrap();
        assert!(directory.join("other").is_symlink());
        assert_eq!(names(&directory).len(), 2);
    }
}
