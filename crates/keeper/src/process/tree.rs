//! The process tree of an exec: all its descendants, also after they were reparented.
//!
//! The keeper starts every exec in a private UTS namespace. Every descendant inherits it, and no
//! process of a box can leave it: entering or making namespaces needs a capability that the workload
//! does not have. With `--contain` or `--seccomp unconfined` a process may make namespaces and so
//! leave the tree. It still ends with its box.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, fstat};
use tare_kernel::fds::open_file;
use tare_kernel::launch;
use tare_kernel::process::Process;

/// A mark that a process and all its descendants carry.
#[derive(Debug)]
pub struct TreeMark {
    inode: u64,
    /// Processes that the last round of killing found and that are not reaped yet.
    dying: BTreeSet<i32>,
    /// While this is open, no other namespace gets the inode.
    _pin: OwnedFd,
}

impl TreeMark {
    /// Runs `start` while the keeper itself carries a new mark, which the process that it
    /// starts inherits. The mark is not read from that process: if its first thread has
    /// exited, it lives and shows no namespaces.
    pub fn during<T>(start: impl FnOnce() -> T) -> io::Result<(T, Self)> {
        let (home, _) = own_namespace()?;
        launch::own_hostname_namespace()?;
        let started = own_namespace().map(|(pin, inode)| {
            let mark = Self { inode, dying: BTreeSet::new(), _pin: pin };
            (start(), mark)
        });
        // Every later process would carry the mark: a keeper that cannot leave the
        // namespace ends, and its box with it.
        if launch::enter_hostname_namespace(home.as_fd()).is_err() {
            std::process::exit(1);
        }
        started
    }

    /// Kills every process that carries the mark. Returns whether none is left. A process that exits
    /// leaves its namespaces before it can be reaped, so a process that carried the mark counts until
    /// its directory is gone.
    pub fn kill_all(&mut self) -> io::Result<bool> {
        let mut left = BTreeSet::new();
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            match self.carries_mark(&entry.path()) {
                Some(true) => {
                    left.insert(pid);
                    self.kill(pid, &entry.path());
                }
                None if self.dying.contains(&pid) => drop(left.insert(pid)),
                Some(false) | None => {}
            }
        }
        self.dying = left;
        Ok(self.dying.is_empty())
    }

    /// Kills one process. The pidfd pins the pid: if the process carries the mark after the pidfd was
    /// opened, it is the right one. A process that has exited meanwhile needs no kill.
    fn kill(&self, pid: i32, directory: &Path) {
        if let Ok(process) = Process::open(pid)
            && self.carries_mark(directory) == Some(true)
        {
            process.kill().ok();
        }
    }

    /// Returns `None` for a process that has exited. A process whose first thread has exited shows its
    /// namespaces only in its other threads.
    fn carries_mark(&self, directory: &Path) -> Option<bool> {
        if let Some(inode) = inode(directory) {
            return Some(inode == self.inode);
        }
        let threads = fs::read_dir(directory.join("task")).into_iter().flatten();
        let threads = threads.filter_map(Result::ok);
        let inodes: Vec<u64> = threads.filter_map(|one| inode(&one.path())).collect();
        (!inodes.is_empty()).then(|| inodes.contains(&self.inode))
    }
}

/// Returns the keeper's own UTS namespace and its inode.
fn own_namespace() -> io::Result<(OwnedFd, u64)> {
    let fd = open_file(CWD, c"/proc/self/ns/uts")?;
    let inode = fstat(&fd)?.st_ino;
    Ok((fd, inode))
}

fn namespace(directory: &Path) -> PathBuf {
    directory.join("ns/uts")
}

/// Returns `None` for a thread that has exited.
fn inode(directory: &Path) -> Option<u64> {
    Some(fs::metadata(namespace(directory)).ok()?.ino())
}
