//! The directories from a base down to the current one, the innermost of them open.
//!
//! A path may have more levels than a process has descriptors, and be longer than `PATH_MAX`. So
//! it is opened one name at a time, and only its last levels stay open. A closed level is opened
//! again, from the base down, when it becomes the innermost one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Result;

/// How many levels stay open: far below any limit of descriptors, and enough that a tree of
/// thousands of levels is rarely opened again from its base.
const OPEN_MAX: usize = 64;

/// A stack of directories. `T` is a note of the owner about each of them.
#[derive(Debug)]
pub struct DirectoryStack<'a, T> {
    base: BorrowedFd<'a>,
    /// The names of all levels, joined by slashes.
    path: Vec<u8>,
    levels: Vec<Level<T>>,
}

#[derive(Debug)]
struct Level<T> {
    /// Where its name ends in the path.
    end: usize,
    open: Option<OwnedFd>,
    note: T,
}

impl<'a, T> DirectoryStack<'a, T> {
    pub fn new(base: BorrowedFd<'a>) -> Self {
        Self { base, path: Vec::new(), levels: Vec::new() }
    }

    /// The path relative to the base, without a slash at either end.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The note about the innermost directory; `None` at the base.
    pub fn note(&self) -> Option<&T> {
        self.levels.last().map(|level| &level.note)
    }

    /// Returns the innermost directory, and opens it again if it was closed.
    pub fn here(&mut self) -> Result<BorrowedFd<'_>> {
        if self.levels.last().is_some_and(|it| it.open.is_none()) {
            self.reopen()?;
        }
        let innermost = self.levels.last().and_then(|it| it.open.as_ref());
        Ok(innermost.map_or(self.base, AsFd::as_fd))
    }

    /// Enters a directory. A symlink is an error.
    pub fn enter(&mut self, name: &[u8], note: T) -> Result<()> {
        let opened = open_directory(self.here()?, name)?;
        if !self.levels.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        self.levels.push(Level { end: self.path.len(), open: Some(opened), note });
        if let Some(distant) = self.levels.len().checked_sub(OPEN_MAX + 1) {
            self.levels[distant].open = None;
        }
        Ok(())
    }

    /// Leaves the innermost directory, and returns its note.
    pub fn leave(&mut self) -> Option<T> {
        let left = self.levels.pop()?;
        self.path.truncate(self.levels.last().map_or(0, |it| it.end));
        Some(left.note)
    }

    /// Opens the whole path again and keeps the last levels open, so that leaving them one by one
    /// needs no further opening.
    fn reopen(&mut self) -> Result<()> {
        let first_kept = self.levels.len().saturating_sub(OPEN_MAX);
        let mut innermost: Option<OwnedFd> = None;
        let mut start = 0;
        for index in 0..self.levels.len() {
            let end = self.levels[index].end;
            let parent = innermost.as_ref().map_or(self.base, AsFd::as_fd);
            let opened = open_directory(parent, &self.path[start..end])?;
            let parent = innermost.replace(opened);
            if index > first_kept {
                self.levels[index - 1].open = parent;
            }
            start = end + 1;
        }
        if let Some(last) = self.levels.last_mut() {
            last.open = innermost;
        }
        Ok(())
    }
}

/// Opens the directory `path` beneath `base`, of any length and depth.
pub fn open_beneath(base: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    let mut opened = open_directory(base, b".")?;
    for name in path.split(|byte| *byte == b'/').filter(|it| !it.is_empty()) {
        opened = open_directory(opened.as_fd(), name)?;
    }
    Ok(opened)
}

/// Opens a directory to go through it, which needs no right to read it. A symlink is ENOTDIR.
pub fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// Opens a directory again, to list or change it. The descriptors of [`open_directory`] allow
/// neither.
pub fn open_content(directory: BorrowedFd<'_>) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(directory, c".", flags, Mode::empty())
}
