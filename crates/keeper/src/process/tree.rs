//! Whom a process of the box has started: its whole tree, however often it has
//! forked, and whoever has adopted its orphans.
//!
//! Every process that is started over the box's socket is born in a copy of the
//! namespace of the host's name. The kernel hands that on to every descendant,
//! and nobody in a box can leave it: entering or making namespaces takes a
//! capability that the workload does not have. (Where it may make some, with
//! `--contain` or `--seccomp unconfined`, it can hide from this; never from the
//! end of its box.)

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use tare_kernel::launch;
use tare_kernel::process::Process;

/// A mark that a process and all its descendants bear.
#[derive(Debug)]
pub struct Mark {
    inode: u64,
    /// Processes that the last round of killing found and that are not reaped yet.
    dying: BTreeSet<i32>,
    /// As long as it is open the number is nobody else's.
    _pin: OwnedFd,
}

impl Mark {
    /// Whoever is started meanwhile is born with a new mark. It is on us before
    /// there is anybody else, and not read from who bears it: that one may have
    /// nothing left to read it from (its first thread has exited), and yet live.
    pub fn during<T>(start: impl FnOnce() -> T) -> io::Result<(T, Self)> {
        let (home, _) = own_namespace()?;
        launch::own_hostname_namespace()?;
        let started = own_namespace().map(|(pin, inode)| {
            let mark = Self { inode, dying: BTreeSet::new(), _pin: pin };
            (start(), mark)
        });
        // Our own mark would be everyone's: a keeper that cannot leave it ends, and its
        // box with it.
        if launch::enter_hostname_namespace(home.as_fd()).is_err() {
            std::process::exit(1);
        }
        started
    }

    /// SIGKILL to every process that bears it; `true` when none is left. A process
    /// that exits gives up its namespaces before it can be reaped: one that bore the
    /// mark counts until its directory is gone.
    pub fn kill_all(&mut self) -> io::Result<bool> {
        let mut left = BTreeSet::new();
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            match self.is_on(&entry.path()) {
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

    /// The pidfd pins the number: who bears the mark afterwards is who is meant.
    /// Who is gone meanwhile needs no killing.
    fn kill(&self, pid: i32, directory: &Path) {
        if let Ok(process) = Process::open(pid)
            && self.is_on(directory) == Some(true)
        {
            process.kill().ok();
        }
    }

    /// A process whose first thread has exited shows its namespaces in the
    /// others only. `None` for one that has exited.
    fn is_on(&self, directory: &Path) -> Option<bool> {
        if let Some(inode) = inode(directory) {
            return Some(inode == self.inode);
        }
        let threads = fs::read_dir(directory.join("task")).into_iter().flatten();
        let threads = threads.filter_map(Result::ok);
        let inodes: Vec<u64> = threads.filter_map(|one| inode(&one.path())).collect();
        (!inodes.is_empty()).then(|| inodes.contains(&self.inode))
    }
}

/// That of the keeper itself, and its number.
fn own_namespace() -> io::Result<(OwnedFd, u64)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = openat(CWD, c"/proc/self/ns/uts", flags, Mode::empty())?;
    let inode = fstat(&fd)?.st_ino;
    Ok((fd, inode))
}

fn namespace(directory: &Path) -> PathBuf {
    directory.join("ns/uts")
}

/// `None` for a thread that has exited.
fn inode(directory: &Path) -> Option<u64> {
    Some(fs::metadata(namespace(directory)).ok()?.ino())
}
