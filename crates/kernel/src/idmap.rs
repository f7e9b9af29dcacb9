//! The id maps of user namespaces, and namespaces that exist only for their map.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::event::pause;
use rustix::fs::{Mode, OFlags, openat};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::child::{Namespaces, SharedChild, keep_only};
use crate::fds::open_file;
use crate::process::Process;
use crate::step::{once, step};

/// Maps `count` ids from `inside` on to the ids from `outside` on of the parent namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

impl Extent {
    fn line(self) -> String {
        format!("{} {} {}\n", self.inside, self.outside, self.count)
    }
}

/// Whether processes in the namespace may use `setgroups`. An unprivileged writer of a map
/// has to deny it first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetGroups {
    Allowed,
    Denied,
}

/// Writes the maps of an unreaped child's new user namespace. `proc_directory` proves that
/// the directory is the child's: a map that another process got would change its ids.
pub fn write_maps(
    child: &Process,
    uids: Extent,
    gids: Extent,
    groups: SetGroups,
) -> io::Result<()> {
    let directory = child.proc_directory()?;
    let write = |name: &str, text: &str| -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        step("write id map", || {
            let file = openat(&directory, name, flags, Mode::empty())?;
            File::from(file).write_all(text.as_bytes())
        })
    };
    if groups == SetGroups::Denied {
        write("setgroups", "deny")?;
    }
    write("uid_map", &uids.line())?;
    write("gid_map", &gids.line())
}

/// Returns whether this process is in the first user namespace of the host, which has an
/// inode of its own (`PROC_USER_INIT_INO`). The id map is no proof: another namespace can map
/// every id to itself, as systemd's `PrivateUsers=full` does.
pub fn is_in_first_user_namespace() -> bool {
    const PROC_USER_INIT_INO: u64 = 0xEFFF_FFFD;
    rustix::fs::stat(c"/proc/self/ns/user").is_ok_and(|it| it.st_ino == PROC_USER_INIT_INO)
}

/// Makes a user namespace without processes, for an id-mapped mount. The namespace lives
/// as long as the descriptor or the mount.
pub fn id_map_namespace(uids: Extent, gids: Extent) -> io::Result<OwnedFd> {
    let parent = rustix::process::getpid();
    // SAFETY: `start` needs a main function that only makes system calls: `sleep` makes them
    // by rustix. The order is a number that nothing changes.
    let start = || unsafe { SharedChild::start(Namespaces::USER, None, parent, sleep) };
    let child = once("make sleeping child", start)?;
    let made = write_maps(&child.process, uids, gids, SetGroups::Allowed).and_then(|()| {
        let directory = child.process.proc_directory()?;
        Ok(open_file(directory, c"ns/user")?)
    });
    child.process.kill()?;
    child.wait()?;
    made
}

/// The child, which does nothing until it is killed. It dies with its parent: by the
/// signal, or, if its parent died before that was set, because its parent is another one.
fn sleep(parent: &Pid) {
    // SAFETY: keep_only needs a process in which nothing owns a descriptor: the owners are in
    // the parent, whose table is another one.
    unsafe { keep_only(std::iter::empty(), 0) }.ok();
    set_parent_process_death_signal(Some(Signal::KILL)).ok();
    while getppid() == Some(*parent) {
        pause();
    }
}
