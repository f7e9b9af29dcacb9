//! Puts a new entry under a name, in place of the file or symlink that has the name.
//!
//! The old entry stays until the new one is complete: a reader sees one or the
//! other, and a process that fails or is killed changes nothing. New content has no
//! name while it is written (`O_TMPFILE`), so a kill leaves nothing behind. Linux
//! can rename over an entry but not link over one, so the new entry has a second,
//! hidden name between two calls. That name is derived from the final one: the next
//! replacement removes what a kill between those calls left.
//!
//! A directory is never replaced (`EISDIR`).

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::fs::{fstat, linkat, openat, renameat, renameat_with, statat, unlinkat};
use rustix::io::{Errno, Result};

use crate::step::{once, step};

/// How often another process may take the hidden name: more often is a race that it
/// means to win.
const ATTEMPTS_MAX: usize = 16;

/// A file that gets its name when its content is complete. Dropped before
/// [`Draft::publish`], it leaves nothing.
#[derive(Debug)]
pub struct Draft<'a> {
    directory: BorrowedFd<'a>,
    name: &'a CStr,
    file: File,
    /// Where the file system has no unnamed files (NFS, 9p).
    hidden: Option<CString>,
}

impl<'a> Draft<'a> {
    /// An empty file for `name`, which is one component, in `directory`.
    pub fn create(directory: BorrowedFd<'a>, name: &'a CStr, mode: Mode) -> Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let unnamed = step("draft made", || openat(directory, c".", flags, mode));
        match unnamed {
            // What file systems and kernels without O_TMPFILE answer, open(2).
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

    /// Gives the file its name, which replaces what has the name.
    pub fn publish(mut self) -> Result<()> {
        let Some(hidden) = &self.hidden else {
            // The way of open(2) that needs no capability.
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
        once("file replaced", || renameat(self.directory, hidden, self.directory, self.name))?;
        self.hidden = None;
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            // The caller has the error that matters.
            remove(self.directory, hidden).ok();
        }
    }
}

/// Calls `make` with the name that it is to give to a new entry of `directory`:
/// `name`, or a hidden one that then replaces it. `make` fails with `EEXIST` where
/// its name is taken.
pub fn replace(
    directory: BorrowedFd<'_>,
    name: &CStr,
    make: impl Fn(&CStr) -> Result<()>,
) -> Result<()> {
    match step("entry made", || make(name)) {
        Err(Errno::EXIST) => {}
        made => return made,
    }
    let hidden = hidden_name(name);
    for _ in 0..ATTEMPTS_MAX {
        match step("hidden entry made", || make(&hidden)) {
            Err(Errno::EXIST) => {
                remove(directory, &hidden)?;
                continue;
            }
            made => made?,
        }
        let replaced = step("entry replaced", || rename(directory, &hidden, name));
        // After an error, after an exchange, and where both names are the same file,
        // for which rename(2) does nothing.
        let removed = remove(directory, &hidden);
        match replaced {
            // Another process has removed the hidden name.
            Err(Errno::NOENT) => {}
            replaced => return replaced.and(removed),
        }
    }
    Err(Errno::EXIST)
}

/// A directory cannot be renamed over a file: the two change places.
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
        match step("named draft made", || openat(directory, name, flags, mode)) {
            Err(Errno::EXIST) => remove(directory, name)?,
            made => return made,
        }
    }
    Err(Errno::EXIST)
}

/// Removes a hidden entry: a file, a symlink or an empty directory. Absent is as wanted.
fn remove(directory: BorrowedFd<'_>, hidden: &CStr) -> Result<()> {
    let unlink = |flags| step("hidden entry removed", || unlinkat(directory, hidden, flags));
    let removed = match unlink(AtFlags::empty()) {
        Err(Errno::ISDIR) => unlink(AtFlags::REMOVEDIR),
        removed => removed,
    };
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// The same for the same name, and never too long.
fn hidden_name(name: &CStr) -> CString {
    // FNV-1a: the same in every version of tare, which std's hashers are not.
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

    /// As `Draft::create` does where the file system has unnamed files, and where not.
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
    fn what_a_killed_replacement_left_is_removed_by_the_next_one() {
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
