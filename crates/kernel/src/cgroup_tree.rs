//! Reads a cgroup and everything below it: the directories, and the processes in them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;

use crate::fds::{open_directory, open_file, read_list};
use crate::tree::subdirectories;

/// A cgroup and everything below it; the cgroup itself comes first.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CgroupTree {
    pub directories: Vec<CgroupDirectory>,
    /// The pids in all of them. A process can be listed more than once.
    pub members: Vec<i32>,
    /// Whether nothing was left out.
    pub complete: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct CgroupDirectory {
    /// Relative to the root of the hierarchy.
    pub path: PathBuf,
    /// The kernel's id of a v2 cgroup.
    pub inode: u64,
}

/// Whether to read the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Members {
    Read,
    Leave,
}

/// A box that may make cgroups may make many. Those beyond this number are left out.
const DIRECTORIES_MAX: usize = 10_000;

/// Reads the cgroup `name` below an open root, with everything below it. Returns an empty
/// tree if there is none. Most cgroups have one directory below them, called `usual`: it is
/// found without listing its parent.
pub fn read(
    root: BorrowedFd<'_>,
    name: &str,
    usual: &str,
    members: Members,
) -> io::Result<CgroupTree> {
    let mut tree = CgroupTree { complete: true, ..CgroupTree::default() };
    let mut pending = vec![PathBuf::from(name)];
    while let Some(path) = pending.pop() {
        if tree.directories.len() == DIRECTORIES_MAX {
            tree.complete = false;
            break;
        }
        let (inode, below) = match look(root, &path) {
            Ok(found) => found,
            // It was removed meanwhile.
            Err(Errno::NOENT | Errno::NODEV) => continue,
            Err(Errno::NAMETOOLONG) => {
                tree.complete = false;
                continue;
            }
            Err(errno) => return Err(errno.into()),
        };
        if members == Members::Read {
            tree.members.extend(processes(root, &path)?);
        }
        match below {
            0 => {}
            1 if path == Path::new(name) && is_there(root, &path.join(usual)) => {
                pending.push(path.join(usual));
            }
            _ => pending.extend(children(root, &path)),
        }
        tree.directories.push(CgroupDirectory { path, inode });
    }
    Ok(tree)
}

/// Returns the inode of a directory, and how many directories are in it: the number of its
/// links, without the two that every directory has.
fn look(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<(u64, u64)> {
    let stat = statat(root, path, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((stat.st_ino, stat.st_nlink.saturating_sub(2)))
}

fn is_there(root: BorrowedFd<'_>, path: &Path) -> bool {
    statat(root, path, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

fn children(root: BorrowedFd<'_>, path: &Path) -> Vec<PathBuf> {
    let opened = open_directory(root, path).map_err(io::Error::from);
    let names = opened.and_then(|directory| subdirectories(directory.as_fd()));
    let names = names.unwrap_or_default().into_iter();
    names.map(|name| path.join(std::ffi::OsStr::from_bytes(name.as_bytes()))).collect()
}

/// A process outside of our PID namespaces is listed as 0. A threaded cgroup lists none: its
/// processes are in the list of a cgroup above it.
fn processes(root: BorrowedFd<'_>, path: &Path) -> io::Result<Vec<i32>> {
    let file = match open_file(root, path.join("cgroup.procs")) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NODEV) => return Ok(Vec::new()),
        Err(errno) => return Err(errno.into()),
    };
    match read_list(file.as_fd()) {
        Ok(text) => Ok(text.lines().filter_map(|line| line.parse().ok()).collect()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EOPNOTSUPP)) => {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}
