//! Where in a tree the work is: a path of directories, the innermost of them
//! open.
//!
//! A path may be deeper than descriptors last and longer than `PATH_MAX`, so it
//! is opened one name at a time, and only its last levels stay open. Closed ones
//! are opened again, from the base down, when the work comes back to them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Result;

/// Levels that stay open: far from any limit of descriptors, and enough that a
/// tree of thousands of levels is seldom walked again from its base.
const OPEN_MAX: usize = 64;

/// `T` is what the owner has to remember about each directory.
#[derive(Debug)]
pub struct Descent<'a, T> {
    base: BorrowedFd<'a>,
    /// The names of all levels, joined by slashes.
    path: Vec<u8>,
    levels: Vec<Level<T>>,
}

#[derive(Debug)]
struct Level<T> {
    /// Where its own name ends in the path.
    end: usize,
    open: Option<OwnedFd>,
    note: T,
}

impl<'a, T> Descent<'a, T> {
    pub fn new(base: BorrowedFd<'a>) -> Self {
        Self { base, path: Vec::new(), levels: Vec::new() }
    }

    /// Relative to the base, without a slash at either end.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// About the innermost directory; `None` at the base.
    pub fn note(&self) -> Option<&T> {
        self.levels.last().map(|level| &level.note)
    }

    /// The innermost directory, opened again if need be.
    pub fn here(&mut self) -> Result<BorrowedFd<'_>> {
        if self.levels.last().is_some_and(|it| it.open.is_none()) {
            self.reopen()?;
        }
        let innermost = self.levels.last().and_then(|it| it.open.as_ref());
        Ok(innermost.map_or(self.base, AsFd::as_fd))
    }

    /// Goes into a directory, which must not be a symlink to one.
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

    /// Goes out of the innermost directory.
    pub fn leave(&mut self) -> Option<T> {
        let left = self.levels.pop()?;
        self.path.truncate(self.levels.last().map_or(0, |it| it.end));
        Some(left.note)
    }

    /// Opens the whole path again and keeps the last levels, so that leaving
    /// them one by one costs nothing for a while.
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

/// The directory `path` beneath `base`, of any length and depth.
pub fn open_beneath(base: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    let mut opened = open_directory(base, b".")?;
    for name in path.split(|byte| *byte == b'/').filter(|it| !it.is_empty()) {
        opened = open_directory(opened.as_fd(), name)?;
    }
    Ok(opened)
}

/// To go through it, which needs no right to read it. A symlink is ENOTDIR.
pub fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// A descriptor of the same directory that can be listed and changed: one that
/// is only gone through cannot.
pub fn open_content(directory: BorrowedFd<'_>) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(directory, c".", flags, Mode::empty())
}
