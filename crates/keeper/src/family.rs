//! Whom a process of the box has started: its whole tree, however often it has
//! forked, and whoever has adopted its orphans.
//!
//! Every process that is started over the box's socket is born in a copy of the
//! namespace of the host's name. The kernel hands that on to every descendant,
//! and nobody in a box can leave it: entering or making namespaces takes a
//! capability that the workload does not have. (Where it may make some, with
//! `--contain` or `--seccomp unconfined`, it can hide from this; never from the
//! end of its box.)

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
        let started = own_namespace().map(|(pin, inode)| (start(), Self { inode, _pin: pin }));
        // Our own mark would be everyone's.
        launch::enter_hostname_namespace(home.as_fd())?;
        started
    }

    /// SIGKILL to everyone who bears it; `true` when nobody did.
    pub fn kill_all(&self) -> io::Result<bool> {
        let mut nobody = true;
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if self.is_on(&entry.path()) {
                nobody = false;
                self.kill(pid, &entry.path());
            }
        }
        Ok(nobody)
    }

    /// The pidfd pins the number: who bears the mark afterwards is who is meant.
    /// Who is gone meanwhile needs no killing.
    fn kill(&self, pid: i32, directory: &Path) {
        if let Ok(process) = Process::open(pid)
            && self.is_on(directory)
        {
            process.kill().ok();
        }
    }

    /// A process whose first thread has exited shows its namespaces in the
    /// others only.
    fn is_on(&self, directory: &Path) -> bool {
        if let Some(inode) = inode(directory) {
            return inode == self.inode;
        }
        let threads = fs::read_dir(directory.join("task")).into_iter().flatten();
        threads
            .filter_map(Result::ok)
            .any(|thread| inode(&thread.path()) == Some(self.inode))
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
